"""`groundling regions`: make a region store of your own images, or of existing region files."""

from __future__ import annotations

from dataclasses import field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from groundling.command_line import Command, ResumableRun
from groundling.command_line.names import input_paths
from groundling.core.errors import InputError
from groundling.settings.fields import InputKind, Settings, may_repeat, settings
from groundling.settings.input_settings import ExtractionSettings

if TYPE_CHECKING:
    from groundling.data.shards import ProcessRank
    from groundling.runs.run import Run

FIRST = 5
"""Number of skipped images named in the result."""
SHARD_TIMEOUT = timedelta(days=7)
"""How long a process under torchrun waits for the shards of the others."""


@settings
class RegionsConfig(Settings):
    """Images, boxes and features of a region store, or existing region files."""

    extraction: ExtractionSettings = field(default_factory=ExtractionSettings)
    imports: Annotated[tuple[str, ...], InputKind.PATH] = ()
    """Instead of --images: region files of one layout: TSVs of bottom-up-attention or LXMERT, \
UNITER's LMDB, or folders of UNITER's npz or VL-BERT's json; or region stores to merge."""
    ids_as: Annotated[tuple[str, ...], may_repeat] = ()
    """--imports: rename the images, by a pattern of the {number} at the end of an id and the \
{subset} in it, such as `COCO_{subset}_{number:012d}`; by COCO's json files, which list names by \
number; or by VCR's jsonl files, from UNITER's image names."""
    filter_imports: bool = False
    """--imports of files: of each image keep only the boxes above --score-threshold, best first, at \
least --min-boxes and at most --max-boxes (UNITER and VILLA; VL-BERT with --score-threshold 0.5)."""
    processes: Annotated[int, Ge(1)] = 1
    """Parallel processes, spread over the available GPUs."""


def check(config: RegionsConfig, out: str | Path) -> None:
    """Raises InputError unless images or imports are given, and boxes or a grid."""
    reads = config.extraction
    if bool(reads.images) == bool(config.imports):
        raise InputError("regions needs either images=FOLDER or imports=FILE")
    if reads.boxes and reads.detection.grid:
        raise InputError("regions: boxes and grid both give the boxes; pass only one")


def regions(config: RegionsConfig, run: Run) -> dict[str, Any]:
    """Write a region store to the run folder, resuming a killed run; returns its counts."""
    from groundling.data.shards import ProcessRank
    from groundling.runs.jobs import check_starts
    from groundling.runs.report import format_count

    part = ProcessRank(run.state.process_index, run.state.num_processes)
    check_starts(config.processes, part.world)
    if not config.imports:
        manifest = _extract_store(config, run, part)
    elif part.world == 1:
        from groundling.data.regions import RegionWriter
        from groundling.data.regions.imports import import_regions

        box_filter = config.extraction.detection if config.filter_imports else None
        facts, items = import_regions(config.imports, config.ids_as, box_filter)
        writer = RegionWriter(run.folder, config.extraction.shard_size)
        writer.fill(items)
        manifest = writer.close(facts)
    else:
        raise InputError("regions: imports reads in one process; start it without torchrun")
    if manifest.get("in_several_stores"):
        shared = format_count(manifest["in_several_stores"], "image")
        run.note(f"{shared} in several stores: the regions of all of them, store after store")
    first = manifest["skipped"][:FIRST]
    return {"store": str(run.folder), **manifest["counts"], "skipped_first": first}


def _extract_store(config: RegionsConfig, run: Run, part: ProcessRank) -> dict[str, Any]:
    from groundling.data.regions import RegionWriter
    from groundling.data.shards import ProcessRank
    from groundling.runs.jobs import Job, run_jobs
    from groundling.vision import extract

    extraction, processes, folder = config.extraction, config.processes, run.folder
    if processes == 1:
        extracted = extract(extraction, folder, part)
    else:
        parts = [ProcessRank(rank, processes) for rank in range(processes)]
        jobs = [
            Job(f"part {one.rank + 1}", extract, (extraction, str(folder), one)) for one in parts
        ]
        extracted = run_jobs(jobs, processes, print)["part 1"]
    writer = RegionWriter(folder, extraction.shard_size, extracted["key"], part)
    return writer.close(extracted["facts"], extracted["gaps"], run.state.wait_for_everyone)


COMMAND = Command(
    "regions",
    "make a region store of your own images, or of existing region files",
    "groundling.commands.regions:regions",
    {"_own": RegionsConfig()},
    title="Use",
    example="groundling regions my_photos --out runs/store",
    common_flags="images grid boxes imports detector backbone batch processes cpu",
    positional=("--images",),
    validate=check,
    output=ResumableRun(input_paths, ("processes", "cpu"), timeout=SHARD_TIMEOUT),
)
