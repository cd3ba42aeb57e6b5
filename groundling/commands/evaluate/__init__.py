"""`groundling evaluate`: score a fine-tuned model on labelled data, without any training."""

from __future__ import annotations

from dataclasses import dataclass, field

from groundling.command import Command
from groundling.core.documented import documented
from groundling.runs.leaves import Nothing
from groundling.settings.inputs import Asking, Saved


@documented
@dataclass(frozen=True)
class EvaluateConfig:
    """What a fine-tuned model is scored on."""

    saved: Saved = field(default_factory=Saved)
    data: str = ""
    """A folder with the task's official files, or your own file with labels."""
    split: str = ""
    """Which split; empty: all that have labels, or all rows of your own file (`dev`: those that training held out)."""
    asking: Asking = field(default_factory=Asking)
    label: str = ""
    """A file of your own: column of the label; empty: as in the file that the model learned from."""


COMMAND = Command(
    "evaluate",
    "score a fine-tuned model on labelled data, without any training",
    "groundling.commands.evaluate.run:evaluate",
    {"_own": EvaluateConfig()},
    out=False,
    needs=("model", "data"),
    leaves=Nothing(),
)
