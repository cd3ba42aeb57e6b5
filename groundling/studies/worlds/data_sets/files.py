"""What the world's data sets share: scenes for their texts, images, boxes, counts."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Generic, TypeVar

from numpy.random import Generator
from PIL import Image

from groundling.core.keyed import generator
from groundling.runs.folder import write_whole
from groundling.studies.worlds.data_sets.claims import Claim
from groundling.studies.worlds.language import ATTRIBUTES, draw_looks
from groundling.studies.worlds.scenes import Scene
from groundling.studies.worlds.world import DEV_IMAGES, World, write_lines

POOLS = {"train": 0, "val": 1, "dev": 1, "test": 2, "test1": 2, "testA": 2, "testB": 3}
"""Splits by where they take their scenes from: pool n has ids from n * DEV_IMAGES + 1."""
SHAPES = ATTRIBUTES["shape"]
"""The categories of the boxes."""
TAGS_AS_WORDS = str.maketrans({"0": "thing", "1": "thing"})
"""VCR's tags as a model's vocabulary has to have them."""

Record = dict[str, Any]
"""An object of a JSON file."""
AnyClaim = TypeVar("AnyClaim", bound=Claim[Any])
"""A claim, or a data set's own kind of it."""


@dataclass(frozen=True)
class Round(Generic[AnyClaim]):
    """A claim, with a scene for each of its answers."""

    number: int
    """Its number in the split, from 0."""
    rng: Generator
    """For what else the data set has to draw."""
    claim: AnyClaim
    """The text and its answers."""
    scenes: list[Scene]
    """One a answer, in the order of the claim's answers."""


class TaskFiles:
    """A folder of data sets while it is written; it knows which images and texts they have asked for."""

    def __init__(
        self, world: World, folder: Path, train: int, held: int, shortcut: float = 0.0
    ) -> None:
        """`train`, `held`: most examples of a training split, and of any other."""
        self.world = world
        self.shortcut = shortcut
        """Share of the questions of VCR whose text tells the answer."""
        self.folder = folder
        self.train = train
        self.held = held
        self.images: dict[str, Scene] = {}
        """What the images show, by file name below `images/`."""
        self.captioned: set[str] = set()
        """Those of them that captions tell of, which are also written as a blind teacher's control."""
        self.texts: set[str] = set()
        """Every text that a model may meet, and VQA's answers."""
        self.counts: dict[str, int] = {}
        """Examples by data set and split."""
        self.shape = {"width": world.config.size, "height": world.config.size}
        self._pools: dict[int, list[Scene]] = {}

    def most(self, split: str) -> int:
        """Most examples of a split."""
        return self.train if split == "train" else self.held

    def scenes(self, split: str) -> list[Scene]:
        """As many scenes as the split has examples, all of two things that do not look the same."""
        pool = POOLS[split]
        if pool not in self._pools:
            self._pools[pool] = self._two_things(pool)
        return self._pools[pool]

    def _two_things(self, pool: int) -> list[Scene]:
        most = self.train if pool == POOLS["train"] else self.held
        scenes: list[Scene] = []
        for image_id in count(pool * DEV_IMAGES + 1):
            if len(scenes) >= most:
                break
            scene = self.world.scene(image_id)
            if len({thing.looks for thing in scene.things}) == 2:
                scenes.append(scene)
        return scenes

    def rounds(
        self,
        name: str,
        split: str,
        draw: Callable[[Generator], AnyClaim],
        scenes_each: int = 1,
    ) -> Iterator[Round[AnyClaim]]:
        """Claims with a scene for each answer, `scenes_each` an example; no text is used twice for one scene."""
        used: set[tuple[str, int]] = set()
        room = scenes_each * self.most(split)
        number = 0
        for key in range(self.most(split)):  # tries: where scenes are few, some claims find none
            rng = generator(self.world.config.seed, name, split, key)
            claim = draw(rng)
            start = int(rng.integers(len(self.scenes(split))))
            if len(claim.answers) > room:
                continue
            scenes = self._scenes_for(claim, split, start, used)
            if scenes is None:
                continue
            used.update((claim.text, scene.image_id) for scene in scenes)
            yield Round(number, rng, claim, scenes)
            self.texts.add(claim.text.translate(TAGS_AS_WORDS))
            room -= len(scenes)
            number += 1
        made = scenes_each * self.most(split) - room
        self.counts[f"{name} {split}"] = made // scenes_each

    def _scenes_for(
        self, claim: Claim[Any], split: str, start: int, used: set[tuple[str, int]]
    ) -> list[Scene] | None:
        """A scene for each answer, the first ones from number `start` on; None if there are not enough."""
        scenes = self.scenes(split)
        chosen: dict[int, Scene] = {}
        for scene in scenes[start:] + scenes[:start]:
            if (claim.text, scene.image_id) in used:
                continue
            answer = claim.answer_of(scene)
            if answer is None:
                continue
            for place, wanted in enumerate(claim.answers):
                if wanted == answer and place not in chosen:
                    chosen[place] = scene
                    break
            if len(chosen) == len(claim.answers):
                return [chosen[place] for place in range(len(chosen))]
        return None

    def box(self, scene: Scene, thing: int) -> list[int]:
        """x, y, width, height of a thing's cell: a box that fits would tell size and shape to who sees no pixel."""
        corner = scene.things[thing]
        return [corner.x, corner.y, self.world.cell, self.world.cell]

    def coco(self, images: Sequence[tuple[int, str]]) -> Record:
        """COCO's instances of images by number and file; annotations are numbered 2 n and 2 n + 1 of image n."""
        listed = []
        notes = []
        for number, file in images:
            listed.append({"id": number, "file_name": file, **self.shape})
            scene = self.images[file]
            for i in range(len(scene.things)):
                note = {
                    "id": 2 * number + i,
                    "image_id": number,
                    "category_id": category_of(scene, i),
                    "iscrowd": 0,
                    "bbox": [float(side) for side in self.box(scene, i)],
                    "area": self.world.cell**2,
                }
                notes.append(note)
        categories = []
        for number, shape in enumerate(SHAPES, 1):
            categories.append({"id": number, "name": shape, "supercategory": "thing"})
        return {
            "info": {},
            "licenses": [],
            "images": listed,
            "annotations": notes,
            "categories": categories,
        }

    def put(self, path: str, *rows: object) -> None:
        """Write a file below the folder, a row a line: strings as they are, anything else as JSON."""
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        write_lines(self.folder / path, lines)

    def close(self) -> None:
        """Write the images, their boxes, all texts, and last `tasks.json`, which marks a complete folder."""
        pictures: dict[int, bytes] = {}
        for file, scene in self.images.items():
            if scene.image_id not in pictures:
                pictures[scene.image_id] = self._png(scene)
            path = self.folder / "images" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, pictures[scene.image_id])
        if self.world.config.blind:
            self._write_blind()
        numbered = list(enumerate(sorted(self.images), 1))
        self.put("instances.json", self.coco(numbered))
        self.put("texts.txt", *sorted(self.texts))
        settings = asdict(self.world.config)
        self.put("tasks.json", {"world": settings, "examples": self.counts})

    def _write_blind(self) -> None:
        """The captioned images once more, below `blind/images/`: things in the same places, every look redrawn.

        Captions tell looks of all things here, not only of unnamed ones, so all are redrawn, unlike `World.scene`'s.
        """
        for file in sorted(self.captioned):
            scene = self.images[file]
            rng = generator(self.world.config.seed, "blind tasks", scene.image_id)
            things = tuple(replace(thing, looks=draw_looks(rng)) for thing in scene.things)
            path = self.folder / "blind" / "images" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, self._png(replace(scene, things=things)))

    def _png(self, scene: Scene) -> bytes:
        """A picture as PNG whatever its file is called: readers look inside, and JPEG blurs textures this fine."""
        stream = io.BytesIO()
        picture = Image.fromarray(self.world.picture(scene))
        picture.save(stream, "PNG", compress_level=1)
        return stream.getvalue()


def category_of(scene: Scene, thing: int) -> int:
    """The number of a thing's category in COCO's instances: its shape, from 1."""
    return SHAPES.index(scene.things[thing].looks[1]) + 1
