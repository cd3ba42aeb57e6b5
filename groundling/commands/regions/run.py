"""One's own images, or others' region files, as a region store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from accelerate import PartialState

from groundling.commands.regions import RegionsConfig, check
from groundling.core.errors import InputError
from groundling.data.images import unread_images
from groundling.data.regions.imports import import_several
from groundling.data.regions.store import RegionWriter
from groundling.data.shards import Part
from groundling.runs.jobs import Job, on_processor, run_jobs
from groundling.runs.report import counted
from groundling.runs.run import Run, say_notes
from groundling.settings.fields import flat
from groundling.vision.extract import extract
from groundling.vision.settings import Extraction

FIRST = 5
"""So many of the images that were skipped are named."""
PATIENCE = timedelta(days=7)
"""How long one process under torchrun waits for the shards of the others."""


def regions(
    config: RegionsConfig, out: str | Path, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Write a region store to `out`, resuming where a killed run stopped; returns its counts.

    `RegionStore(out)` reads it. Under torchrun every process writes its share of the shards. Raises InputError if
    settings do not go together, or `out` holds something else.
    """
    state = PartialState(cpu=on_processor(config.extraction.cpu), timeout=PATIENCE)
    part = Part(state.process_index, state.num_processes)
    check(config, out)
    _refuse_processes(config, part)
    run = _open(config, out)
    if run.result is not None:
        return run.result
    folder = run.folder
    if config.imports:
        manifest = _imported(config, folder)
    else:
        manifest = _extracted(
            config.extraction, config.processes, folder, part, state.wait_for_everyone, say
        )
    first = manifest["skipped"][:FIRST]
    result = {"store": str(folder), **manifest["counts"], "skipped_first": first}
    notes = unread_images(images) if (images := config.extraction.images) else []
    skipped = manifest["counts"]["skipped"]
    if skipped:
        named = "; ".join(first)
        more = (
            f"; ... ({skipped:,} in all, in the store's manifest.json)"
            if skipped > len(first)
            else ""
        )
        notes.append(
            f"{counted(skipped, 'image')} skipped, of which the store has no regions: {named}{more}"
        )
    say_notes(notes)
    return run.finish(result | ({"notes": notes} if notes else {}))


def _refuse_processes(config: RegionsConfig, part: Part) -> None:
    if part.world > 1 and config.processes > 1:
        raise InputError(
            "regions: torchrun and --processes both start processes; leave one of them out"
        )
    if part.world > 1 and config.imports:
        raise InputError("regions: --imports reads in one process; start it without torchrun")


def _open(config: RegionsConfig, out: str | Path) -> Run:
    """The run's folder; raises InputError if it holds another run."""
    settings = {one.name: vars(group)[one.name] for group, one in flat(config)}
    for name in ("processes", "cpu"):  # results do not depend on them
        del settings[name]
    extraction = config.extraction
    inputs: dict[str, str | Path] = {"images": extraction.images}
    inputs |= _numbered("boxes", extraction.boxes)
    inputs |= _numbered("ids", config.ids)
    inputs |= _numbered("ids_as", [told for told in config.ids_as if told.endswith(".json")])
    if not config.imports:
        inputs["detector"] = extraction.finding.detector
        inputs["backbone"] = extraction.finding.backbone
    # Tens of gigabytes are not worth hashing.
    inputs |= _numbered("imports", [path for path in config.imports if not Path(path).is_file()])
    sizes = [Path(path).stat().st_size for path in config.imports if Path(path).is_file()]
    if sizes:
        settings["bytes"] = sizes
    return Run(out, "regions", settings, inputs, extraction.cpu)


def _numbered(name: str, paths: Sequence[str]) -> dict[str, str]:
    """A run's inputs of one kind: the first by the kind's name, others with their number."""
    return {f"{name}:{number}" if number else name: path for number, path in enumerate(paths)}


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
    say: Callable[[str], None],
) -> dict[str, Any]:
    """The manifest of a store made of images, by this process, by others under torchrun, or by processes it starts."""
    if processes == 1:
        extracted = extract(extraction, folder, part)
    else:
        parts = [Part(rank, processes) for rank in range(processes)]
        jobs = [
            Job(f"part {one.rank + 1}", extract, (extraction, str(folder), one)) for one in parts
        ]
        extracted = run_jobs(jobs, processes, say)["part 1"]
    writer = RegionWriter(folder, extraction.shard, extracted.key, part)
    return writer.close(extracted.facts, extracted.gaps, barrier)
