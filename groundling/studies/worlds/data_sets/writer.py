"""Common parts of the world's data sets: balanced texts with scenes, images, boxes, counts."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, Generic, TypeVar

from numpy.random import Generator
from PIL import Image

from groundling.core.rng import generator
from groundling.runs.folder import write_whole
from groundling.studies.worlds.families import draw_attributes
from groundling.studies.worlds.families.objects import ATTRIBUTES, OBJECTS, RELATIONS, SPOKEN
from groundling.studies.worlds.world import (
    DEV_IMAGES,
    Scene,
    World,
    world_settings,
    write_lines,
)

# Texts that only an image answers, and functions from a scene to the answer.

KINDS = tuple(ATTRIBUTES)
"""The names of the visual attributes, in order."""
SPOKEN_ORDER = tuple(chain(*(ATTRIBUTES[KINDS[i]] for i in SPOKEN)))
"""All attribute values in the order of English adjectives."""

Answer = TypeVar("Answer")
"""Type of a claim's answers: a string, a number, a tuple."""


@dataclass(frozen=True)
class BalancedText(Generic[Answer]):
    """A text with all of its answers, each of which gets its own image (a balanced text)."""

    text: str
    """The statement or question."""
    answers: tuple[Answer, ...]
    """Every answer, repeated as often as needed."""
    answer_of: Callable[[Scene], Answer | None]
    """The answer for a scene; None where the text does not apply."""


@dataclass(frozen=True)
class SceneStatement:
    """A statement about an object, and its truth in a scene."""

    subject: str
    """The object, described by attribute values and perhaps its place."""
    predicate: str
    """An attribute value, or a place."""
    holds: Callable[[Scene], bool | None]
    """Whether the statement is true in a scene; None unless exactly one object matches the subject."""
    mentioned: tuple[str, ...]
    """Attribute values that must occur in the scene for the statement to apply."""


def relation_of(scene: Scene, thing: int) -> str:
    """Relation of object 0 or 1 of a scene to the other object."""
    if thing == 0:
        return scene.relation
    return OBJECTS.opposite(scene.relation)


def matching_objects(scene: Scene, *values: str) -> list[int]:
    """Numbers of the objects with all of these attribute `values`."""
    return [i for i, thing in enumerate(scene.things) if set(values) <= set(thing.attributes)]


def unique_object(scene: Scene, *values: str, relation: str = "") -> int | None:
    """Number of the only object with these `values`; with `relation`, of the object in that relation to it; or None."""
    matching = matching_objects(scene, *values)
    if len(matching) != 1:
        return None  # no match, or both objects: the description is ambiguous
    number = matching[0]
    if not relation:
        return number
    other = 1 - number
    return other if relation_of(scene, other) == relation else None


def describe_object(*values: str) -> str:
    """Description of an object by attribute values, in English order."""
    return " ".join((*sorted(values, key=SPOKEN_ORDER.index), "thing"))


@dataclass(frozen=True)
class StatementTopic:
    """Attribute values and relation for a text."""

    value: str
    """An attribute value."""
    other_value: str
    """A value of another attribute."""
    attribute: int
    """Number of the other attribute."""
    relation: str
    """A relation; empty with probability 0.5."""


def draw_topic(rng: Generator) -> StatementTopic:
    """Draw two values of different attributes, and perhaps a relation."""
    attributes = rng.permutation(4)
    first = int(attributes[0])
    second = int(attributes[1])
    value = _value(rng, first)
    other_value = _value(rng, second)
    relation = RELATIONS[rng.integers(4)]
    relation_or_none = relation if rng.integers(2) else ""
    return StatementTopic(value, other_value, second, relation_or_none)


def _value(rng: Generator, attribute: int) -> str:
    values = ATTRIBUTES[KINDS[attribute]]
    return values[rng.integers(len(values))]


def draw_object_attributes(rng: Generator) -> tuple[str, ...]:
    """Draw one or two attribute values that describe an object."""
    topic = draw_topic(rng)
    values = (topic.value, topic.other_value)
    return values[: rng.integers(1, 3)]


def draw_statement(rng: Generator) -> SceneStatement:
    """Draw a statement about an object's attribute, or its relation to the other object."""
    topic = draw_topic(rng)
    if topic.relation and rng.random() < 0.5:
        return _place_statement(topic)
    return _attribute_statement(topic)


def _attribute_statement(topic: StatementTopic) -> SceneStatement:
    """The statement that the object with one value, or the object in a relation to it, has the other value."""

    def holds(scene: Scene) -> bool | None:
        number = unique_object(scene, topic.value, relation=topic.relation)
        if number is None:
            return None
        return topic.other_value in scene.things[number].attributes

    subject = f"the {topic.value} thing"
    if topic.relation:
        subject = f"the thing {topic.relation} {subject}"
    return SceneStatement(subject, topic.other_value, holds, (topic.value,))


def _place_statement(topic: StatementTopic) -> SceneStatement:
    """The statement of a relation between the objects with one and with the other value."""

    def holds(scene: Scene) -> bool | None:
        thing = unique_object(scene, topic.value)
        other = unique_object(scene, topic.other_value)
        if thing is None or other is None or other == thing:
            return None
        return relation_of(scene, thing) == topic.relation

    subject = f"the {topic.value} thing"
    predicate = f"{topic.relation} the {topic.other_value} thing"
    return SceneStatement(subject, predicate, holds, (topic.value, topic.other_value))


POOLS = {"train": 0, "val": 1, "dev": 1, "test": 2, "test1": 2, "testA": 2, "testB": 3}
"""Scene pool of each split: pool n has image ids from n * DEV_IMAGES + 1."""
SHAPES = ATTRIBUTES["shape"]
"""The categories of the boxes."""
TAGS_AS_WORDS = str.maketrans({"0": "thing", "1": "thing"})
"""Replaces VCR's tags with words for the vocabulary."""

JsonObject = dict[str, Any]
"""An object of a JSON file."""
AnyBalancedText = TypeVar("AnyBalancedText", bound=BalancedText[Any])
"""`BalancedText` or a subclass."""


@dataclass(frozen=True)
class ComplementaryScenes(Generic[AnyBalancedText]):
    """A claim with a scene for each of its answers."""

    number: int
    """Its number in the split, from 0."""
    rng: Generator
    """Random generator for further draws of the data set."""
    claim: AnyBalancedText
    """The text and its answers."""
    scenes: list[Scene]
    """One scene per answer, in the answers' order."""


class DataSetWriter:
    """Writes a folder of data sets and collects their images and texts."""

    def __init__(
        self, world: World, folder: Path, limit_train: int, limit_dev: int, shortcut: float = 0.0
    ) -> None:
        """`limit_train`, `limit_dev`: maximum number of examples of a training split and of any other split."""
        self.world = world
        self.shortcut = shortcut
        """Share of VCR's questions whose text reveals the answer."""
        self.folder = folder
        self.limit_train = limit_train
        self.limit_dev = limit_dev
        self.images: dict[str, Scene] = {}
        """Scenes by image file name below `images/`."""
        self.captioned: set[str] = set()
        """Image files with captions, which are also written with redrawn attributes for the control teacher."""
        self.texts: set[str] = set()
        """All texts of the data sets, and VQA's answers."""
        self.counts: dict[str, int] = {}
        """Number of examples by data set and split."""
        self.shape = {"width": world.config.size, "height": world.config.size}
        self._pools: dict[int, list[Scene]] = {}

    def max_examples(self, split: str) -> int:
        """Maximum number of examples of a split."""
        return self.limit_train if split == "train" else self.limit_dev

    def scenes(self, split: str) -> list[Scene]:
        """Scenes of a split, as many as its maximum number of examples, each with two objects that differ."""
        pool = POOLS[split]
        if pool not in self._pools:
            self._pools[pool] = self._two_things(pool)
        return self._pools[pool]

    def _two_things(self, pool: int) -> list[Scene]:
        limit = self.limit_train if pool == POOLS["train"] else self.limit_dev
        scenes: list[Scene] = []
        for image_id in count(pool * DEV_IMAGES + 1):
            if len(scenes) >= limit:
                break
            scene = self.world.scene(image_id)
            if len({thing.attributes for thing in scene.things}) == 2:
                scenes.append(scene)
        return scenes

    def balanced_texts(
        self,
        name: str,
        split: str,
        draw: Callable[[Generator], AnyBalancedText],
        scenes_each: int = 1,
    ) -> Iterator[ComplementaryScenes[AnyBalancedText]]:
        """Claims with a scene for each answer, `scenes_each` per example; no text is used twice for a scene."""
        used: set[tuple[str, int]] = set()
        remaining = scenes_each * self.max_examples(split)
        number = 0
        for key in range(
            self.max_examples(split)
        ):  # attempts: with few scenes, some claims find none
            rng = generator(self.world.config.seed, name, split, key)
            claim = draw(rng)
            start = int(rng.integers(len(self.scenes(split))))
            if len(claim.answers) > remaining:
                continue
            scenes = self._scenes_for(claim, split, start, used)
            if scenes is None:
                continue
            used.update((claim.text, scene.image_id) for scene in scenes)
            yield ComplementaryScenes(number, rng, claim, scenes)
            self.texts.add(claim.text.translate(TAGS_AS_WORDS))
            remaining -= len(scenes)
            number += 1
        written = scenes_each * self.max_examples(split) - remaining
        self.counts[f"{name} {split}"] = written // scenes_each

    def _scenes_for(
        self, claim: BalancedText[Any], split: str, start: int, used: set[tuple[str, int]]
    ) -> list[Scene] | None:
        """A scene for each answer, searched from number `start`; None if there are not enough."""
        scenes = self.scenes(split)
        chosen: dict[int, Scene] = {}
        for scene in scenes[start:] + scenes[:start]:
            if (claim.text, scene.image_id) in used:
                continue
            answer = claim.answer_of(scene)
            if answer is None:
                continue
            for position, expected in enumerate(claim.answers):
                if expected == answer and position not in chosen:
                    chosen[position] = scene
                    break
            if len(chosen) == len(claim.answers):
                return [chosen[position] for position in range(len(chosen))]
        return None

    def box(self, scene: Scene, number: int) -> list[int]:
        """x, y, width, height of an object's cell; a tight box would reveal size and shape without pixels."""
        corner = scene.things[number]
        return [corner.x, corner.y, self.world.cell, self.world.cell]

    def coco_instances(self, images: Sequence[tuple[int, str]]) -> JsonObject:
        """COCO instances of images, given by number and file; the annotations of image n are 2 n and 2 n + 1."""
        entries = []
        annotations = []
        for number, file in images:
            entries.append({"id": number, "file_name": file, **self.shape})
            scene = self.images[file]
            for i in range(len(scene.things)):
                annotation = {
                    "id": 2 * number + i,
                    "image_id": number,
                    "category_id": category_of(scene, i),
                    "iscrowd": 0,
                    "bbox": [float(side) for side in self.box(scene, i)],
                    "area": self.world.cell**2,
                }
                annotations.append(annotation)
        categories = []
        for number, shape in enumerate(SHAPES, 1):
            categories.append({"id": number, "name": shape, "supercategory": "thing"})
        return {
            "info": {},
            "licenses": [],
            "images": entries,
            "annotations": annotations,
            "categories": categories,
        }

    def write_rows(self, path: str, *rows: object) -> None:
        """Write a file below the folder, one row per line: strings unchanged, other values as JSON."""
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        write_lines(self.folder / path, lines)

    def close(self) -> None:
        """Write images, boxes, texts, and last `tasks.json`, which marks a complete folder."""
        pictures: dict[int, bytes] = {}
        for file, scene in self.images.items():
            if scene.image_id not in pictures:
                pictures[scene.image_id] = self._png(scene)
            path = self.folder / "images" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, pictures[scene.image_id])
        if self.world.config.control_images:
            self._write_redrawn()
        numbered = list(enumerate(sorted(self.images), 1))
        self.write_rows("instances.json", self.coco_instances(numbered))
        self.write_rows("texts.txt", *sorted(self.texts))
        settings = world_settings(self.world.config)
        self.write_rows("tasks.json", {"world": settings, "examples": self.counts})

    def _write_redrawn(self) -> None:
        """Write the captioned images again, below `redrawn/images/`, with every visual attribute redrawn.

        These captions describe attributes of all objects, so all are redrawn, unlike in `World.scene`.
        """
        for file in sorted(self.captioned):
            scene = self.images[file]
            rng = generator(self.world.config.seed, "blind tasks", scene.image_id)
            things = tuple(
                replace(thing, attributes=draw_attributes(rng, OBJECTS)) for thing in scene.things
            )
            path = self.folder / "redrawn" / "images" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, self._png(replace(scene, things=things)))

    def _png(self, scene: Scene) -> bytes:
        """A picture as PNG, whatever its file ending: readers detect the format, and JPEG blurs such fine textures."""
        stream = io.BytesIO()
        picture = Image.fromarray(self.world.render_scene(scene))
        picture.save(stream, "PNG", compress_level=1)
        return stream.getvalue()


def category_of(scene: Scene, number: int) -> int:
    """Category number of an object in COCO instances: its shape, from 1."""
    return SHAPES.index(scene.things[number].attributes[1]) + 1
