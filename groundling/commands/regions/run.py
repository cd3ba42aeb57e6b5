"""One's own images, or others' region files, as a region store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from groundling.commands.regions import RegionsConfig
from groundling.core.errors import InputError
from groundling.data.images import unread_images
from groundling.data.regions.imports import import_several
from groundling.data.regions.store import RegionWriter
from groundling.data.shards import Part
from groundling.runs.jobs import Job, run_jobs
from groundling.runs.report import counted
from groundling.runs.run import Run
from groundling.settings.inputs import Extraction
from groundling.vision.extract import extract

FIRST = 5
"""So many of the images that were skipped are named."""


def regions(config: RegionsConfig, run: Run) -> dict[str, Any]:
    """Write a region store to the run's folder, resuming where a killed run stopped; returns its counts.

    `RegionStore` reads it. Under torchrun every process writes its share of the shards.
    """
    part = Part(run.state.process_index, run.state.num_processes)
    _refuse_processes(config, part)
    folder = run.folder
    if config.imports:
        manifest = _imported(config, folder)
    else:
        manifest = _extracted(
            config.extraction, config.processes, folder, part, run.state.wait_for_everyone
        )
    first = manifest["skipped"][:FIRST]
    if config.extraction.images:
        run.note(*unread_images(config.extraction.images))
    skipped = manifest["counts"]["skipped"]
    if skipped:
        named = "; ".join(first)
        more = (
            f"; ... ({skipped:,} in all, in the store's manifest.json)"
            if skipped > len(first)
            else ""
        )
        run.note(
            f"{counted(skipped, 'image')} skipped, of which the store has no regions: {named}{more}"
        )
    return {"store": str(folder), **manifest["counts"], "skipped_first": first}


def _refuse_processes(config: RegionsConfig, part: Part) -> None:
    if part.world > 1 and config.processes > 1:
        raise InputError(
            "regions: torchrun and --processes both start processes; leave one of them out"
        )
    if part.world > 1 and config.imports:
        raise InputError("regions: --imports reads in one process; start it without torchrun")


def _imported(config: RegionsConfig, folder: Path) -> dict[str, Any]:
    """The manifest of a store made of others' region files."""
    writer = RegionWriter(folder, config.extraction.shard)
    facts, items = import_several(config.imports, config.ids, config.ids_as)
    writer.fill(items)
    return writer.close(facts)


def _extracted(
    extraction: Extraction,
    processes: int,
    folder: Path,
    part: Part,
    barrier: Callable[[], None],
) -> dict[str, Any]:
    """The manifest of a store made of images, by this process, by others under torchrun, or by processes it starts."""
    if processes == 1:
        extracted = extract(extraction, folder, part)
    else:
        parts = [Part(rank, processes) for rank in range(processes)]
        jobs = [
            Job(f"part {one.rank + 1}", extract, (extraction, str(folder), one)) for one in parts
        ]
        extracted = run_jobs(jobs, processes, print)["part 1"]
    writer = RegionWriter(folder, extraction.shard, extracted.key, part)
    return writer.close(extracted.facts, extracted.gaps, barrier)
