"""`groundling data partition`: a few training examples of every stratum, as a hashed list that others reproduce."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from groundling.command import Command
from groundling.core.errors import InputError
from groundling.core.find import named
from groundling.runs.leaves import Written
from groundling.runs.work import Work
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


def partition(config: PartitionConfig, work: Work) -> str:
    """Write the partition's manifest to the file `work.out`; returns a line for every stratum.

    Raises:
        InputError: Settings are missing, a stratum is too small, or a file cannot be read or written.
    """
    from groundling.tasks import Task
    from groundling.tasks.partitions import NEVER, manifest, write_manifest

    folder = Path(config.data)
    task = named("tasks", Task, config.task).at(folder)
    content = manifest(task, folder, config.per, config.seed, config.by, config.allow_fewer)
    write_manifest(work.out, content)
    total = content["examples"]
    lines = [f"{work.out}: {len(content['ids']):,} of {total:,} examples by {content['by']}"]
    for name, sizes in sorted(content["strata"].items()):
        share = sizes["examples"] / total
        drawn = "never drawn" if name in NEVER else f"{sizes['drawn']:,} drawn"
        lines.append(f"  {name}: {sizes['examples']:,} ({share:.1%}), {drawn}")
    return "\n".join(lines)


COMMAND = Command(
    "data partition",
    "a few training examples of every stratum, as a hashed list that others reproduce",
    "groundling.commands.data_partition:partition",
    {"_own": PartitionConfig()},
    title="Data",
    example="groundling data partition --task vcr/answer --data vcr_data --per 100 --out few.json",
    common="task data per by seed",
    rules=check,
    leaves=Written(),
)
