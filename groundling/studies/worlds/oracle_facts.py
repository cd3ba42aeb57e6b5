"""What an oracle knows of a rendered world: the attributes in an image or of a noun, and the right answer.

And the region store whose features are the objects' attributes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from groundling.core.batch import Example, require
from groundling.core.errors import InputError, convert_read_errors
from groundling.core.output_types import (
    Classification,
    MultipleChoice,
    OpenAnswer,
    OutputType,
)
from groundling.core.registry import resolve_builtin
from groundling.core.rng import generator
from groundling.data.images import image_id
from groundling.data.regions import ImageRegions, Item, RegionWriter
from groundling.data.regions.annotations import read_instances
from groundling.data.text import word_spans
from groundling.runs.folder import json_text, read_json, read_object
from groundling.runs.run import Run
from groundling.settings.fields import make_settings
from groundling.studies.worlds.commands import TrueRegionsConfig, WorldConfig
from groundling.studies.worlds.families import WorldFamily
from groundling.studies.worlds.world import Scene, SceneObject, World, world_settings

SCENE_ID = re.compile(r"(\d{10,})(?:@\d+)?$")
"""The number of a scene at the end of its image's id, in every data set whose images are of one scene each."""
FILES = {"world.json": "config", "tasks.json": "world"}
"""The files that record a world's settings, and the key of the settings in each."""


def read_world(folder: Path) -> World:
    """The world of a folder of `data make-world` or `data make-tasks`; raises InputError for another folder."""
    for name, key in FILES.items():
        path = folder / name
        if path.is_file():
            with convert_read_errors(path):
                settings = {**read_object(path)[key]}
                # A file never names what is imported.
                resolve_builtin("families", WorldFamily, settings.get("family", WorldConfig.family))
                return World(make_settings(WorldConfig, **settings))
    raise InputError(
        f"{folder}: is no rendered world; expected the out of `groundling data make-world` or `data make-tasks`"
    )


class WorldFacts:
    """Facts of a world as strings, each of which may be redrawn at random.

    With probability `noise`, a value is replaced by one drawn uniformly from all values of its attribute, the
    true one included, so that at 1 the facts are chance. What is redrawn depends only on the seed and on what
    the fact is about: an image, an example, or a noun in a text. A higher noise redraws all that a lower one
    redraws. An image's facts do not say which object is which, as no model reads an object's number: they are
    the objects' values, each pair of values of one object, and each value with its object's place.
    """

    def __init__(
        self, world: World, noise: float, seed: int, output_type: OutputType | None
    ) -> None:
        self.world = world
        self.noise = noise
        self.seed = seed
        self.output_type = output_type
        self.attributes = world.family.attributes
        self.kinds = list(self.attributes)
        self.kind_of = {value: kind for kind, values in self.attributes.items() for value in values}
        self.nouns = {noun.name: noun.attributes for noun in world.nouns}
        self.scenes: dict[str, Scene] = {}

    def _rng(self, *about: str | int) -> Generator:
        return generator(self.seed, "oracle", *about)

    def redraw(self, true: str, options: Sequence[str], *about: str | int) -> str:
        """The true value or, with probability `noise`, one of all `options`."""
        rng = self._rng(*about)
        is_redrawn = rng.random() < self.noise
        drawn = options[int(rng.integers(len(options)))]
        return drawn if is_redrawn else true

    # -- images ------------------------------------------------------------------------------------

    def scene(self, example: Example) -> Scene:
        """The scene of an example's image, with noise; raises InputError without exactly one image of the world."""
        name = " ".join(example.images)
        if name not in self.scenes:
            found = SCENE_ID.search(name)
            if found is None or len(example.images) != 1:
                raise InputError(
                    f"{example.id}: an oracle of attributes needs exactly one image, of one scene of a rendered world"
                )
            self.scenes[name] = self.redrawn_scene(int(found[1]))
        return self.scenes[name]

    def redrawn_scene(self, number: int) -> Scene:
        """The scene of a number, with noise."""
        scene = self.world.scene(number)
        about = ("scene", number)
        relation = scene.relation
        if relation:
            relation = self.redraw(relation, self.world.family.relations, *about, "relation")
        things = tuple(
            replace(thing, attributes=tuple(self._redrawn(thing.attributes, *about, place)))
            for place, thing in enumerate(scene.things)
        )
        return replace(scene, relation=relation, things=things)

    def _redrawn(self, values: Sequence[str], *about: str | int) -> list[str]:
        """Values of all attributes, with noise."""
        return [
            self.redraw(value, self.attributes[kind], *about, kind)
            for kind, value in zip(self.kinds, values, strict=True)
        ]

    def of_image(self, example: Example) -> list[str]:
        """The attributes and places of the objects of an example's image."""
        scene = self.scene(example)
        relations = [scene.relation, ""]
        if scene.relation:
            relations[1] = self.world.family.opposite(scene.relation)
        facts = []
        for thing, relation in zip(scene.things, relations, strict=False):
            facts += of_object(thing.attributes)
            facts += [f"{value} {relation}" for value in thing.attributes if relation]
        return facts

    # -- words -------------------------------------------------------------------------------------

    def of_word_in_image(self, word: str, example: Example) -> list[str]:
        """What an image shows of a word: how many objects have the value, or the objects' values of the attribute.

        Empty for other words.
        """
        things = self.scene(example).things
        if word in self.kind_of:
            count = sum(word in thing.attributes for thing in things)
            return [f"{word}: {count}"]
        if word in self.kinds:
            number = self.kinds.index(word)
            return [f"{word}: {thing.attributes[number]}" for thing in things]
        return []

    def of_word(self, word: str, text: str) -> list[str]:
        """What is known of a word of a text without its image: a noun's attributes, or the value that it names."""
        if word in self.nouns:
            return of_object(self._redrawn(self.nouns[word], "noun", word, text))
        if word in self.kind_of:
            return [self.redraw(word, self.attributes[self.kind_of[word]], word, text)]
        return []

    # -- answers -----------------------------------------------------------------------------------

    def answer(self, example: Example) -> str:
        """The right answer to the row's question, with noise: a value, a class, or an answer in words.

        Raises InputError for a task without such answers, or for a row without its label.
        """
        if isinstance(self.output_type, MultipleChoice):
            return " ".join(self._asked_values(example))
        output_type = self.output_type
        if example.label is None or not isinstance(output_type, OpenAnswer | Classification):
            raise InputError(
                f"{example.id}: has no label that is a class or an answer; pass option knows=attributes"
            )
        if isinstance(output_type, OpenAnswer):
            true = output_type.best_answer(example.label)
        else:
            true = output_type.labels[int(example.label)]
        return self.redraw(true, output_type.labels, "answer", example.id)

    def _asked_values(self, example: Example) -> list[str]:
        """The values of the attributes that a question asks for, of the object that its choices are about."""
        thing, values = self._statement(example)
        kinds = {self.kind_of[value] for value in values}
        if len(values) == 1:  # a wrong answer may be of another kind than the question asks for
            kinds = set(words_of(example.text)) & set(self.kinds) or kinds
        return [
            self.redraw(value, self.attributes[kind], "answer", example.id, kind)
            for kind, value in zip(self.kinds, thing.attributes, strict=True)
            if kind in kinds
        ]

    def is_right(self, example: Example) -> bool:
        """Whether a row's choice is right, with noise: then it is right with probability 1 / choices."""
        thing, values = self._statement(example)
        rng = self._rng("right", example.id, example.text_pair or "")
        is_redrawn = rng.random() < self.noise
        form = self.output_type
        choices = len(form.labels) if isinstance(form, MultipleChoice) else 2
        drawn = int(rng.integers(choices)) == 0
        return drawn if is_redrawn else set(values) <= set(thing.attributes)

    def seems_right(self, example: Example) -> bool:
        """Whether a row's choice agrees with the attributes in the image, with their noise."""
        number, values = self._statement_about(example)
        return set(values) <= set(self.scene(example).things[number].attributes)

    def _statement(self, example: Example) -> tuple[SceneObject, list[str]]:
        """The object that a choice is about, as it is, and the values that the choice states."""
        number, values = self._statement_about(example)
        return self.world.scene(self.scene(example).image_id).things[number], values

    def _statement_about(self, example: Example) -> tuple[int, list[str]]:
        """The number of that object, and the values; raises InputError for choices without tags."""
        text = require(example.text_pair, "text_pair", "an oracle of choices")
        tags = list(chain(*example.choice_region_tags))
        if not tags:
            raise InputError(
                f"{example.id}: its choices have no object tags, which an oracle needs"
            )
        return tags[0][2], [word for word in words_of(text) if word in self.kind_of]


def words_of(text: str) -> list[str]:
    """The raw words of a text, as the student numbers them."""
    return [text[start:stop] for start, stop in word_spans(text)]


def of_object(values: Sequence[str]) -> list[str]:
    """An object's values, and each pair of them."""
    return [*values, *(f"{one} {other}" for one, other in combinations(values, 2))]


class FactVectors:
    """A fixed random vector for each fact; a feature is the sum of its facts' vectors."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.vectors: dict[str, np.ndarray] = {}

    def sum(self, *groups: Sequence[str]) -> np.ndarray:
        """The sum (E,) of the groups' unit-length sums, so that one fact of a small group is not lost beside many."""
        total = np.zeros(self.width, np.float32)
        for facts in groups:
            own = np.sum([self._vector(fact) for fact in facts or ["nothing"]], axis=0)
            total += own / np.linalg.norm(own)
        return total

    def unit(self, *groups: Sequence[str]) -> np.ndarray:
        """`sum`, of unit length."""
        total = self.sum(*groups)
        length: np.ndarray = total / np.linalg.norm(total)
        return length

    def _vector(self, fact: str) -> np.ndarray:
        if fact not in self.vectors:
            rng = generator("oracle", fact)
            self.vectors[fact] = rng.standard_normal(self.width).astype(np.float32)
        return self.vectors[fact]


# Regions of the truth.

SHARD = 256
"""Images per shard."""


def make_store(config: TrueRegionsConfig, run: Run) -> dict[str, Any]:
    """Write the store to the run folder, from annotated objects with a one-hot vector of each attribute; its counts.

    The whole image is the first region; its features are the mean of the objects'. Raises InputError for a folder that
    `data make-tasks` did not write.
    """
    folder = Path(config.data)
    facts = WorldFacts(read_world(folder), config.noise, config.seed, None)
    path = folder / "instances.json"
    instances = read_instances(path, read_json(path))
    columns = list(facts.kind_of)

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
