"""A region store of a rendered world whose features are the objects' attributes."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.errors import InputError
from groundling.data.images import image_id
from groundling.data.regions.annotations import read_instances
from groundling.data.regions.store import ImageRegions, Item, RegionWriter
from groundling.runs.folder import json_text, read_json
from groundling.runs.run import Run
from groundling.studies.worlds.commands import TrueRegionsConfig
from groundling.studies.worlds.oracle_facts import SCENE_ID, WorldFacts, read_world
from groundling.studies.worlds.world import world_settings

INSTANCES = "instances.json"
SHARD = 256
"""Images per shard."""


class TrueRegions:
    """The annotated objects of a world's images, with a one-hot vector of each attribute, perhaps redrawn."""

    def __init__(self, folder: Path, noise: float, seed: int) -> None:
        """Raises InputError for a folder that `data make-tasks` did not write."""
        self.facts = WorldFacts(read_world(folder), noise, seed, None)
        self.path = folder / INSTANCES
        self.instances = read_instances(self.path, read_json(self.path))
        names = {number: image_id(file) for number, file in self.instances.files.items()}
        scenes = {number: SCENE_ID.search(name) for number, name in names.items()}
        # NLVR2's images are named by example, not by scene.
        self.images = [
            (number, names[number], int(found[1])) for number, found in scenes.items() if found
        ]
        self.skipped = len(names) - len(self.images)
        family = self.facts.world.family
        self.columns = [value for values in family.attributes.values() for value in values]

    def items(self) -> Iterator[Item]:
        """All images."""
        for image, name, scene in self.images:
            yield name, partial(self._regions, image, name, scene)

    def _regions(self, image: Hashable, name: str, scene: int) -> ImageRegions:
        things = self.facts.redrawn_scene(scene).things
        boxes = np.array([one.corners for one in self.instances.annotations[image]], np.float32)
        if len(boxes) != len(things):
            raise InputError(
                f"{self.path}: {name} has {len(boxes)} boxes, expected {len(things)}; write the folder again"
            )
        size = self.instances.sizes[image]
        rows = [[value in thing.attributes for value in self.columns] for thing in things]
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

    def manifest(self) -> dict[str, Any]:
        """What the features are, and a hash of everything that they depend on."""
        about = {
            "world": world_settings(self.facts.world.config),
            "noise": self.facts.noise,
            "seed": self.facts.seed,
            "features": self.columns,
        }
        identity = hashlib.sha256(json_text(about, sort_keys=True).encode()).hexdigest()
        return {**about, "identity": identity, "made_by": "the attributes of a rendered world"}


def make_store(config: TrueRegionsConfig, run: Run) -> dict[str, Any]:
    """Write the store to the run folder; returns its counts.

    The whole image is the first region; its features are the mean of the objects'.
    """
    regions = TrueRegions(Path(config.data), config.noise, config.seed)
    writer = RegionWriter(run.folder, SHARD)
    writer.fill(regions.items())
    manifest = writer.close(regions.manifest())
    if regions.skipped:
        run.note(
            f"{regions.skipped:,} images without regions: they are named by example, as NLVR2's, not by scene"
        )
    return {"store": str(run.folder), **manifest["counts"], "features": regions.columns}
