"""`groundling evaluate`: score a fine-tuned model on labelled data, without any training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from groundling.command import Command
from groundling.runs.leaves import Nothing
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


COMMAND = Command(
    "evaluate",
    "score a fine-tuned model on labelled data, without any training",
    "groundling.commands.evaluate.run:evaluate",
    {"_own": EvaluateConfig()},
    title="Judge",
    example="groundling evaluate --model runs/rte --data glue_data",
    common="model data split images regions seeds cpu",
    out=False,
    leaves=Nothing(),
)
