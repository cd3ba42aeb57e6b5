"""Write the rendered world: as images, text and probes, or as six vision-and-language data sets."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from groundling.runs.folder import disk_errors, json_text
from groundling.runs.work import Work
from groundling.studies.worlds.commands import TasksConfig, WorldConfig
from groundling.studies.worlds.data_sets import write_tasks
from groundling.studies.worlds.world import World

ENCODER_LAYERS = 3
ENCODER_POSITIONS = 64


def render_world(config: WorldConfig, work: Work) -> dict[str, Any]:
    """Write a world's images, captions, boxes, text and probes to the folder `work.out`; returns its settings.

    Raises InputError if the folder cannot be written.
    """
    with disk_errors(work.out):
        World(config).write(work.out)
    print(f"{work.out}: a world is written; `groundling data check {work.out}` describes it")
    return asdict(config)


def render_tasks(tasks: TasksConfig, world: WorldConfig, work: Work) -> dict[str, int]:
    """Write a world as six data sets, and a small untrained BERT with their vocabulary, to the folder `work.out`.

    Returns the number of examples by data set and split. Raises InputError if the folder cannot be written.
    """
    from groundling.studies.worlds.encoder import (
        new_encoder,  # torch, which `render_world` does without
    )

    folder = work.out
    with disk_errors(folder):
        counts = write_tasks(World(world), folder, tasks.train, tasks.held, shortcut=tasks.shortcut)
        print(json_text(counts, indent=2))
        new_encoder(
            folder / "texts.txt", folder / "bert", world.seed, ENCODER_LAYERS, ENCODER_POSITIONS
        )
    return counts
