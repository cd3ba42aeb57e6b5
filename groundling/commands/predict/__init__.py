"""`groundling predict`: what a fine-tuned model answers to new data: your own file with its answers, best first."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from groundling.command import Command
from groundling.core.errors import InputError
from groundling.data.tables import ROWS
from groundling.runs.leaves import Written
from groundling.settings.fields import Input, Settings, at_least, needed
from groundling.settings.inputs import Asking, Saved


@dataclass(frozen=True)
class PredictConfig(Settings):
    """What a fine-tuned model is asked, and how much of its answers is written."""

    saved: Saved = field(default_factory=Saved)
    data: Annotated[str, Input.PATH, needed] = ""
    """Your own csv, tsv, json or jsonl file, or a folder with the task's official files."""
    split: str = ""
    """A folder of official files: which split; empty: the one without labels if the task has one, or the first with."""
    asking: Asking = field(default_factory=Asking)
    best: Annotated[int, at_least(1)] = 1
    """Write so many of the most likely answers, best first."""
    skip_bad: bool = False
    """Leave the answer empty where a row cannot be asked (a photo that is missing or broken, an empty text), and \
count such rows; without it, the first one is an error."""


def check(config: PredictConfig, out: str | Path) -> None:
    """Raises InputError without a model or data, and for an `out` that is no table, or there already."""
    out = Path(out)
    if out.suffix not in ROWS:
        raise InputError(f"--out {out}: expected a file that ends in {', '.join(ROWS)}")
    if out.exists():
        raise InputError(f"{out}: exists already; choose another --out, or remove it")
    if not out.parent.is_dir():
        raise InputError(f"{out}: no folder {out.parent}; make it, or choose another --out")


COMMAND = Command(
    "predict",
    "what a fine-tuned model answers to new data: your own file with its answers, best first",
    "groundling.commands.predict.run:predict",
    {"_own": PredictConfig()},
    title="Use",
    example="groundling predict --model runs/mine --data my.csv --out answers.csv",
    common="model data images regions best seeds cpu",
    file="answers.csv",
    rules=check,
    leaves=Written(),
)
