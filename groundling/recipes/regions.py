"""One's own images, or others' region files, as a region store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from groundling.config import RegionsConfig
from groundling.data.region_imports import import_regions
from groundling.data.regions import RegionWriter
from groundling.errors import InputError
from groundling.jobs import Job, run_jobs
from groundling.runs import finished, open_run, write_json
from groundling.vision.extract import extract


def regions(
    config: RegionsConfig, out: str | Path, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Write a region store to `out`, going on where a killed run stopped; returns its counts.

    `groundling.data.regions.RegionStore(out)` reads it.
    """
    if bool(config.images) == bool(config.imports):
        raise InputError("regions needs --images FOLDER or --imports FILE, one of them")
    if min(config.shard, config.batch, config.processes) < 1 or config.grid < 0:
        raise InputError(
            "regions: --shard, --batch and --processes are at least 1, --grid is not below 0"
        )
    if bool(config.boxes) and config.grid:
        raise InputError("regions: --boxes and --grid both say where the boxes are; give one")
    settings = {
        k: v for k, v in asdict(config).items() if k not in ("processes", "cpu")
    }  # results do not depend on them
    inputs: dict[str, str | Path] = {
        "images": config.images,
        "boxes": config.boxes,
        "ids": config.ids,
    }
    if not config.imports:
        inputs |= {"detector": config.detector, "backbone": config.backbone}
    elif Path(config.imports).is_file():  # tens of gigabytes are not worth hashing
        settings["bytes"] = Path(config.imports).stat().st_size
    else:
        inputs["imports"] = config.imports
    folder = open_run(
        out, "regions", settings, {name: path for name, path in inputs.items() if path}
    )
    if (done := finished(folder)) is not None:
        return done
    writer, gaps = RegionWriter(folder, config.shard), list[str]()
    if config.imports:
        facts, items = import_regions(config.imports, config.ids)
        writer.fill(items)
    elif config.processes == 1:
        facts, gaps = extract(config, str(folder), 0)
    else:
        jobs = [
            Job(f"part {r + 1}", extract, (config, str(folder), r)) for r in range(config.processes)
        ]
        facts, gaps = run_jobs(jobs, config.processes, say)["part 1"]
    manifest = writer.close(facts, gaps)
    result = {"store": str(folder), **manifest["counts"], "skipped_first": manifest["skipped"][:5]}
    write_json(folder / "result.json", result)
    return result
