"""What an oracle knows of a rendered world: the attributes in an image or of a noun, and the right answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, combinations
from pathlib import Path

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
from groundling.data.text import word_spans
from groundling.runs.folder import read_object
from groundling.settings.fields import make_settings
from groundling.studies.worlds.commands import WorldConfig
from groundling.studies.worlds.families import WorldFamily
from groundling.studies.worlds.world import Scene, World

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
        self.kinds = list(world.family.attributes)
        self.kind_of = {
            value: kind for kind, values in world.family.attributes.items() for value in values
        }
        self.scenes: dict[str, Scene] = {}

    @cached_property
    def nouns(self) -> Mapping[str, Sequence[str]]:
        """The true attributes of each noun."""
        return {noun.name: noun.attributes for noun in self.world.nouns}

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
        return self._with_noise(self.world.scene(number))

    def _with_noise(self, scene: Scene) -> Scene:
        about = ("scene", scene.image_id)
        relation = scene.relation
        if relation:
            relation = self.redraw(relation, self.world.family.relations, *about, "relation")
        things = []
        for number, thing in enumerate(scene.things):
            values = self._redrawn(thing.attributes, *about, number)
            things.append(replace(thing, attributes=tuple(values)))
        return replace(scene, relation=relation, things=tuple(things))

    def _redrawn(self, values: Sequence[str], *about: str | int) -> list[str]:
        """Values of all attributes, with noise."""
        options = self.world.family.attributes
        return [
            self.redraw(value, options[kind], *about, kind)
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
            return [self.redraw(word, self.world.family.attributes[self.kind_of[word]], word, text)]
        return []

    # -- answers -----------------------------------------------------------------------------------

    def answer(self, example: Example) -> str:
        """The right answer to the row's question, with noise: a value, a class, or an answer in words.

        Raises InputError for a task without such answers, or for a row without its label.
        """
        if isinstance(self.output_type, MultipleChoice):
            number, values = self._statement(example)
            thing = self._true_scene(example).things[number]
            words = [example.text[start:stop] for start, stop in word_spans(example.text)]
            kinds = {self.kind_of[value] for value in values}
            if len(values) == 1:  # a wrong answer may be of another kind than the question asks for
                kinds = {word for word in words if word in self.kinds} or kinds
            asked = [
                self.redraw(value, self.world.family.attributes[kind], "answer", example.id, kind)
                for kind, value in zip(self.kinds, thing.attributes, strict=True)
                if kind in kinds
            ]
            return " ".join(asked)
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

    def is_right(self, example: Example) -> bool:
        """Whether a row's choice is right, with noise: then it is right with probability 1 / choices."""
        number, values = self._statement(example)
        attributes = self._true_scene(example).things[number].attributes
        rng = self._rng("right", example.id, example.text_pair or "")
        is_redrawn = rng.random() < self.noise
        choices = (
            len(self.output_type.labels) if isinstance(self.output_type, MultipleChoice) else 2
        )
        drawn = int(rng.integers(choices)) == 0
        return drawn if is_redrawn else set(values) <= set(attributes)

    def seems_right(self, example: Example) -> bool:
        """Whether a row's choice agrees with the attributes in the image, with their noise."""
        number, values = self._statement(example)
        return set(values) <= set(self.scene(example).things[number].attributes)

    def _true_scene(self, example: Example) -> Scene:
        return self.world.scene(self.scene(example).image_id)

    def _statement(self, example: Example) -> tuple[int, list[str]]:
        """The object that a choice is about, and the values that it states; raises InputError without tags."""
        text = require(example.text_pair, "text_pair", "an oracle of choices")
        tags = list(chain(*example.choice_region_tags))
        if not tags:
            raise InputError(
                f"{example.id}: its choices have no object tags, which an oracle needs"
            )
        words = [text[start:stop] for start, stop in word_spans(text)]
        return tags[0][2], [word for word in words if word in self.kind_of]


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
