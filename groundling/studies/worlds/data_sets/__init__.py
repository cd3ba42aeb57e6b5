"""A rendered world as six vision-and-language data sets in official formats, balanced against text-only shortcuts.

A text is drawn first, then an image for each of its answers. So in every split each question, hypothesis, sentence,
expression or list of choices has all its answers equally often, like VQA v2's complementary pairs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Container, Hashable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from groundling.data.images import image_id
from groundling.runs.folder import begin_file, disk_errors, json_text, read_json
from groundling.runs.progress import CommandContext, end_dry_run
from groundling.studies.worlds.commands import TasksConfig, TrueRegionsConfig, WorldConfig
from groundling.studies.worlds.data_sets.balanced import (
    write_nlvr2,
    write_refcoco,
    write_snli_ve,
    write_vcr,
    write_vqa,
)
from groundling.studies.worlds.data_sets.writer import (
    DataSetWriter,
    write_captions,
    write_flickr30k,
)
from groundling.studies.worlds.world import World, world_settings

if TYPE_CHECKING:
    from groundling.runs.run import Run  # which loads torch

WRITERS = {
    "captions": write_captions,
    "vqa": write_vqa,
    "vcr": write_vcr,
    "nlvr2": write_nlvr2,
    "refcoco+": write_refcoco,
    "flickr30k": write_flickr30k,
    "snli-ve": write_snli_ve,
}
"""The function that writes each data set."""


def write_tasks(
    world: World,
    folder: str | os.PathLike,
    limit_train: int = 4000,
    limit_dev: int = 1000,
    names: Container[str] = WRITERS,
    shortcut: float = 0.0,
) -> dict[str, int]:
    """Write all six data sets below `folder`; returns the number of examples by data set and split.

    `limit_train` and `limit_dev` are the maximum numbers of examples per training and held-out split. `names` selects
    some of `WRITERS`. `shortcut` is the share of VCR's questions whose wrong answers have another attribute than asked
    for (a shape instead of a colour), which the text alone reveals.

    All data sets share `images/` and `instances.json`, for one region store; `captions_*2014.json`, for pre-training,
    have the same numbers of training and held-out images; `tasks.json` is written last. The world's family is
    "objects".
    """
    files = DataSetWriter(world, Path(folder), limit_train, limit_dev, shortcut)
    for name, write in WRITERS.items():
        if name in names:
            write(files)
    files.close()
    return files.counts


def render_world(config: WorldConfig, work: CommandContext) -> dict[str, Any]:
    """Write a world's images, captions, boxes, text and probes to the folder `work.out`; returns its settings.

    Raises InputError if the folder cannot be written.
    """
    world = World(config)
    end_dry_run("rendering")
    with disk_errors(work.out):
        begin_file(work.out / "world.json")
        world.write(work.out)
    return world_settings(config)


def render_tasks(tasks: TasksConfig, world: WorldConfig, work: CommandContext) -> dict[str, int]:
    """Write a world as six data sets, and a small untrained BERT with their vocabulary, to the folder `work.out`.

    Returns the number of examples by data set and split. Raises InputError if the folder cannot be written.
    """
    # This imports torch, which `render_world` does not need.
    from groundling.models.text_encoder import new_encoder

    folder, drawn = work.out, World(world)
    end_dry_run("rendering")
    with disk_errors(folder):
        begin_file(folder / "tasks.json")
        counts = write_tasks(
            drawn, folder, tasks.limit_train, tasks.limit_dev, shortcut=tasks.shortcut
        )
        new_encoder(folder / "texts.txt", folder / "bert", world.seed, layers=3, positions=64)
    empty = [name for name, number in counts.items() if not number]
    if empty:
        work.note(f"no examples of {', '.join(empty)}: raise limit_train or limit_dev")
    return counts


def make_store(config: TrueRegionsConfig, run: Run) -> dict[str, Any]:
    """Write the store to the run folder, from annotated objects with a one-hot vector of each attribute; its counts.

    The whole image is the first region; its features are the mean of the objects'. Raises InputError for a folder that
    `data make-tasks` did not write.
    """
    from groundling.data.regions import ImageRegions, RegionWriter
    from groundling.data.regions.annotations import read_instances
    from groundling.studies.worlds.oracle import SCENE_ID, OracleOptions, WorldFacts

    facts = WorldFacts(OracleOptions(world=config.data, noise=config.noise, seed=config.seed), None)
    path = Path(config.data) / "instances.json"
    instances = read_instances(path, read_json(path))
    columns = list(facts.kind_of)

    def regions_of(image: Hashable, name: str, scene: int) -> ImageRegions:
        things = facts.redrawn_scene(scene).things
        size = instances.sizes[image]
        corners = np.array([one.corners for one in instances.annotations[image]], np.float32)
        rows = [[value in thing.attributes for value in columns] for thing in things]
        features = np.array(rows, np.float32)
        regions = ImageRegions(
            id=name,
            size=size,
            boxes=corners / np.array([*size, *size], np.float32),
            confidence=np.ones(len(corners), np.float32),
            features=features,
            annotated_order=True,
        )
        return regions.with_whole(features.mean(0, keepdims=True))

    names = {number: image_id(file) for number, file in instances.files.items()}
    found = {number: SCENE_ID.search(name) for number, name in names.items()}
    scenes = {number: int(one[1]) for number, one in found.items() if one}
    if len(scenes) < len(names):
        run.note(
            f"{len(names) - len(scenes):,} images without regions: they are named by example, as NLVR2's, not by scene"
        )
    writer = RegionWriter(run.folder)
    writer.fill(
        (names[number], partial(regions_of, number, names[number], scene))
        for number, scene in scenes.items()
    )
    about = {
        "world": world_settings(facts.world.config),
        "noise": config.noise,
        "seed": config.seed,
        "features": columns,
    }
    about["identity"] = hashlib.sha256(json_text(about, sort_keys=True).encode()).hexdigest()
    about["made_by"] = "the attributes of a rendered world"
    manifest = writer.close(about)
    return {"store": str(run.folder), **manifest["counts"], "features": columns}
