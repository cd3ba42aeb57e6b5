"""`groundling evaluate`: score a fine-tuned model on labelled data, without any training."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from groundling.command_line import Command
from groundling.runs.outputs import NoOutput
from groundling.runs.progress import Work
from groundling.settings.fields import Input, Settings, needed
from groundling.settings.inputs import Asking, Saved


@dataclass(frozen=True)
class EvaluateConfig(Settings):
    """What a fine-tuned model is scored on."""

    saved: Saved = field(default_factory=Saved)
    data: Annotated[str, Input.PATH, needed] = ""
    """A folder with the task's official files, or your own file with labels."""
    split: str = ""
    """Which split; empty: all that have labels, or all rows of your own file (`dev`: those that training held out)."""
    asking: Asking = field(default_factory=Asking)
    label: Annotated[str, Input.COLUMN] = ""
    """A file of your own: column of the label; empty: as in the file that the model learned from."""


def evaluate(config: EvaluateConfig, work: Work) -> dict[str, Any]:
    """What `scores_on` says of the model that the settings name; nothing is written.

    Raises InputError as it does.
    """
    from groundling.prediction.fitted import opened, scores_on, sight_of

    model = opened(config.saved)
    sight = sight_of(model, config.saved, decode=False)
    data = Path(config.data)
    result = scores_on(model, data, config.split, config.asking, config.label, sight)
    work.note(*model.notes)
    return result


COMMAND = Command(
    "evaluate",
    "score a fine-tuned model on labelled data, without any training",
    "groundling.commands.evaluate:evaluate",
    {"_own": EvaluateConfig()},
    title="Judge",
    example="groundling evaluate --model runs/rte --data glue_data",
    common="model data split images regions all-seeds cpu",
    leaves=NoOutput(),
)
