"""`groundling evaluate`: score a fine-tuned model on labelled data, without any training."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from groundling.command_line import Command
from groundling.runs.outputs import NoOutput
from groundling.runs.progress import CommandContext
from groundling.settings.fields import InputKind, Settings, required
from groundling.settings.input_settings import PredictionColumns, SavedModelSettings


@dataclass(frozen=True)
class EvaluateConfig(Settings):
    """What a fine-tuned model is scored on."""

    saved_model: SavedModelSettings = field(default_factory=SavedModelSettings)
    data: Annotated[str, InputKind.PATH, required] = ""
    """A folder with the task's official files, or your own file with labels."""
    split: str = ""
    """Which split; empty: all that have labels, or all rows of your own file (`dev`: those that training held out)."""
    columns: PredictionColumns = field(default_factory=PredictionColumns)
    label: Annotated[str, InputKind.COLUMN] = ""
    """A file of your own: column of the label; empty: as in the file that the model learned from."""


def evaluate(config: EvaluateConfig, work: CommandContext) -> dict[str, Any]:
    """What `evaluate_on` says of the model that the settings name; nothing is written.

    Raises InputError as it does.
    """
    from groundling.prediction.fine_tuned import evaluate_on, image_lookup, load_saved

    model = load_saved(config.saved_model)
    sight = image_lookup(model, config.saved_model, decode=False)
    data = Path(config.data)
    result = evaluate_on(model, data, config.split, config.columns, config.label, sight)
    work.note(*model.notes)
    return result


COMMAND = Command(
    "evaluate",
    "score a fine-tuned model on labelled data, without any training",
    "groundling.commands.evaluate:evaluate",
    {"_own": EvaluateConfig()},
    title="Judge",
    example="groundling evaluate --model runs/rte --data glue_data",
    common_flags="model data split images regions all-seeds cpu",
    output=NoOutput(),
)
