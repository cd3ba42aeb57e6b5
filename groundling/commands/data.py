"""`data partition`: a few training examples of every stratum, as a reproducible list with a hash."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from groundling.command_line import Command, OutputFile
from groundling.core.registry import resolve
from groundling.runs.progress import CommandContext
from groundling.settings.fields import InputKind, Settings, required, settings


@settings
class FewShotPartitionConfig(Settings):
    """Training examples of a few-shot partition."""

    task: Annotated[str, InputKind.OBJECT, required] = ""
    """Task name, e.g. vcr/answer, or MODULE:NAME of your own task."""
    data: Annotated[str, InputKind.PATH, required] = ""
    """Folder with the task's official files."""
    per_stratum: Annotated[int, Ge(0), required] = 0
    """Number of examples to draw per stratum."""
    stratify_by: Literal["auto", "total", "label", "category", "question-type", "answer"] = "auto"
    """What the strata are. auto: VCR's question category, a classification's label, otherwise the \
whole split (total). question-type and answer are for VQA."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the draw; with the same seed, a larger partition includes a smaller one."""
    allow_fewer: bool = False
    """Take all examples of a stratum that has fewer; otherwise it is an error."""


def partition(config: FewShotPartitionConfig, work: CommandContext) -> str:
    """Write the partition's manifest to the file `work.out`; returns a line per stratum."""
    from groundling.tasks import Task
    from groundling.tasks.splits import NEVER, partition_manifest, write_manifest

    folder = Path(config.data)
    task = resolve("tasks", Task, config.task).with_answers_of(folder)
    content = partition_manifest(
        task, folder, config.per_stratum, config.seed, config.stratify_by, config.allow_fewer
    )
    write_manifest(work.out, content)
    total = content["examples"]
    lines = [
        f"{work.out}: {len(content['ids']):,} of {total:,} examples by {content['stratify_by']}"
    ]
    for name, sizes in sorted(content["strata"].items()):
        share = sizes["examples"] / total
        drawn = "never drawn" if name in NEVER else f"{sizes['drawn']:,} drawn"
        lines.append(f"  {name}: {sizes['examples']:,} ({share:.1%}), {drawn}")
    return "\n".join(lines)


PARTITION = Command(
    "data partition",
    "draw a few training examples per stratum, as a reproducible list with a hash",
    "groundling.commands.data:partition",
    {"_own": FewShotPartitionConfig()},
    title="Data",
    example="groundling data partition --task vcr/answer --data vcr_data --per-stratum 100 --out few.json",
    common_flags="task data per-stratum stratify-by seed",
    out_help="Output file, in json; an existing file is replaced.",
    output=OutputFile(),
)
