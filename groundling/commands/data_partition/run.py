"""Draw a few-shot partition and say how the training split falls into strata."""

from __future__ import annotations

from pathlib import Path

from groundling.commands.data_partition import PartitionConfig
from groundling.core.find import named
from groundling.runs.work import Work
from groundling.tasks import Task
from groundling.tasks.partitions import NEVER, manifest, write_manifest


def partition(config: PartitionConfig, work: Work) -> str:
    """Write the partition's manifest to the file `work.out`; returns a line for every stratum.

    Raises:
        InputError: Settings are missing, a stratum is too small, or a file cannot be read or written.
    """
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
