"""A region store of a rendered world whose features are the objects' attributes."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.errors import InputError
from groundling.data.images import image_id
from groundling.data.regions import ImageRegions, Item, RegionWriter
from groundling.data.regions.annotations import read_instances
from groundling.runs.folder import json_text, read_json
from groundling.runs.run import Run
from groundling.studies.worlds.commands import TrueRegionsConfig
from groundling.studies.worlds.oracle_facts import SCENE_ID, WorldFacts, read_world
from groundling.studies.worlds.world import world_settings

INSTANCES = "instances.json"
SHARD = 256
"""Images per shard."""


def make_store(config: TrueRegionsConfig, run: Run) -> dict[str, Any]:
    """Write the store to the run folder, from annotated objects with a one-hot vector of each attribute; its counts.

    The whole image is the first region; its features are the mean of the objects'. Raises InputError for a folder that
    `data make-tasks` did not write.
    """
    folder = Path(config.data)
    facts = WorldFacts(read_world(folder), config.noise, config.seed, None)
    path = folder / INSTANCES
    instances = read_instances(path, read_json(path))
    columns = [value for values in facts.world.family.attributes.values() for value in values]

    def regions_of(image: Hashable, name: str, scene: int) -> ImageRegions:
        things = facts.redrawn_scene(scene).things
        boxes = np.array([one.corners for one in instances.annotations[image]], np.float32)
        if len(boxes) != len(things):
            raise InputError(
                f"{path}: {name} has {len(boxes)} boxes, expected {len(things)}; write the folder again"
            )
        size = instances.sizes[image]
        rows = [[value in thing.attributes for value in columns] for thing in things]
        features = np.array(rows, np.float32)
        regions = ImageRegions(
            name,
            size,
            boxes / np.array([*size, *size], np.float32),
            np.ones(len(boxes), np.float32),
            features,
            annotated_order=True,
        )
        return regions.with_whole(features.mean(0, keepdims=True))

    names = {number: image_id(file) for number, file in instances.files.items()}
    scenes = {number: SCENE_ID.search(name) for number, name in names.items()}
    items: list[Item] = [
        (names[number], partial(regions_of, number, names[number], int(found[1])))
        for number, found in scenes.items()
        if found
    ]
    if len(items) < len(names):
        run.note(
            f"{len(names) - len(items):,} images without regions: they are named by example, as NLVR2's, not by scene"
        )
    about = {
        "world": world_settings(facts.world.config),
        "noise": config.noise,
        "seed": config.seed,
        "features": columns,
    }
    identity = hashlib.sha256(json_text(about, sort_keys=True).encode()).hexdigest()
    made_by = {"identity": identity, "made_by": "the attributes of a rendered world"}
    writer = RegionWriter(run.folder, SHARD)
    writer.fill(iter(items))
    manifest = writer.close({**about, **made_by})
    return {"store": str(run.folder), **manifest["counts"], "features": columns}
