"""`groundling evaluate`: score a fine-tuned model on labelled data, without training."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any

from groundling.command_line import Command, CommandOutput
from groundling.runs.folder import check_file
from groundling.runs.progress import CommandContext
from groundling.settings.fields import InputKind, Settings, required, settings
from groundling.settings.input_settings import PredictionColumns, SavedModelSettings


@settings
class EvaluateConfig(Settings):
    """Labelled data on which a fine-tuned model is scored."""

    saved_model: SavedModelSettings = field(default_factory=SavedModelSettings)
    data: Annotated[str, InputKind.PATH, required] = ""
    """Folder with the task's official files, or your own csv, tsv, json or jsonl file with labels."""
    split: str = ""
    """Split to score; empty: all labelled splits, or all rows of your own file (`dev`: the rows \
that training held out)."""
    columns: PredictionColumns = field(default_factory=PredictionColumns)
    label: Annotated[str, InputKind.COLUMN] = ""
    """Your own file: label column; empty: the column of the training file."""
    skip_bad: bool = False
    """Leave out the examples of photos that are missing or do not decode, and count these photos; \
otherwise the first is an error."""
    answers: str = ""
    """New file with photo, question, gold and answer in words, worst first: a .csv, or a .html \
page with thumbnails, confusion matrix and F1 per class."""


def check(config: EvaluateConfig) -> None:
    """Raises InputError for `answers` that are no csv or page, or exist already."""
    if config.answers:
        check_file(config.answers, (".csv", ".html"), is_new=True)


def evaluate(config: EvaluateConfig, work: CommandContext) -> dict[str, Any]:
    """Scores of the model that the settings name (`FineTunedModel.evaluate`)."""
    from groundling.prediction.fine_tuned import load_saved

    saved = config.saved_model
    model = load_saved(saved)
    result = model.evaluate(
        config.data,
        config.split,
        **vars(config.columns),
        label=config.label,
        images=saved.images,
        regions=saved.regions,
        allow_region_mismatch=saved.allow_region_mismatch,
        skip_bad=config.skip_bad,
        answers=config.answers,
    )
    work.note(*model.notes)
    return result


COMMAND = Command(
    "evaluate",
    "score a fine-tuned model on labelled data, without training",
    "groundling.commands.evaluate:evaluate",
    {"_own": EvaluateConfig()},
    title="Judge",
    example="groundling evaluate --model runs/rte --data glue_data",
    common_flags="model data split images regions model-seed cpu",
    validate=check,
    output=CommandOutput(),
)
