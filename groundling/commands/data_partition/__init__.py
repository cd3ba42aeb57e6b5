"""`groundling data partition`: a few training examples of every stratum, as a hashed list that others reproduce."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from groundling.command import Command
from groundling.core.errors import InputError
from groundling.runs.leaves import Written
from groundling.settings.fields import Input, Settings, at_least, needed


@dataclass(frozen=True)
class PartitionConfig(Settings):
    """Which training examples a few-shot partition takes."""

    task: Annotated[str, Input.TASK, needed] = ""
    """Task by name, e.g. vcr/answer, or MODULE:NAME of your own."""
    data: Annotated[str, Input.PATH, needed] = ""
    """Folder with the task's official files."""
    per: Annotated[int, at_least(0), needed] = 0
    """Examples of each stratum."""
    by: Literal["auto", "total", "label", "category", "question-type", "answer"] = "auto"
    """Strata. auto: VCR's question category, a classification's label, otherwise the whole split as one (total); \
question-type and answer are VQA's."""
    seed: Annotated[int, at_least(0)] = 0
    """Draws another partition; more examples of the same seed include the fewer."""
    allow_fewer: bool = False
    """Take all of a stratum that has fewer."""


def check(config: PartitionConfig, out: str | Path) -> None:
    """Raises InputError without a task, data or a number, for a task that there is not, and a folder in the way."""
    if Path(out).is_dir():
        raise InputError(f"{out}: is a folder; --out names the file of the partition")


COMMAND = Command(
    "data partition",
    "a few training examples of every stratum, as a hashed list that others reproduce",
    "groundling.commands.data_partition.run:partition",
    {"_own": PartitionConfig()},
    title="Data",
    example="groundling data partition --task vcr/answer --data vcr_data --per 100 --out few.json",
    common="task data per by seed",
    rules=check,
    leaves=Written(),
)
