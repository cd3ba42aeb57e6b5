"""An oracle as a teacher: features of a rendered world's truth, with noise, in the names and shapes of CLIP's.

A positive control: where no oracle helps a student, that a CLIP does not help says nothing about CLIP.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from functools import cache
from itertools import chain, combinations
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import numpy as np
from annotated_types import Ge, Interval
from torch import Tensor

from groundling.core.batch import Batch, Example, Sample, require
from groundling.core.errors import InputError
from groundling.core.output_types import Classification, MultipleChoice, OpenAnswer, OutputType
from groundling.core.rng import generator
from groundling.data.text import words_of
from groundling.data.text.keywords import select_random_tokens, select_tokens
from groundling.settings.fields import Settings, make_settings, require_settings, settings
from groundling.settings.objectives import parse_options
from groundling.studies.worlds.world import Scene, SceneObject, read_world, world_settings
from groundling.teachers import Teacher, TeacherContext, TeacherSpec, code_hash, digest
from groundling.teachers.clip import UNNORMALIZED_IMAGE, text_for_clip
from groundling.teachers.text import StandardizedTextTeacher

SCENE_ID = re.compile(r"(\d{10,})(?:@\d+)?$")
"""The number of a scene at the end of its image's id, in every data set whose images are of one scene each."""
ATTRIBUTES = "attributes"
ANSWER = "answer"
TEXT_FEATURES = ("sentence", "words", "has")
IMAGE_FEATURES = (
    "clip_image",
    UNNORMALIZED_IMAGE,
    "clip_text",
    "clip_words",
    "clip_word",
    "clip_similarity",
    "clip_confidence",
)
Fact = TypeVar("Fact", str, bool)
SCALE = 10.0
"""Similarity of an image with a right choice; that with a wrong one is 0. CLIP's own scale is at most 100."""


@settings
class OracleOptions(Settings):
    """The values of --option that an oracle reads."""

    world: str = ""
    """Folder of `data make-world` or `data make-tasks`."""
    knows: Literal["attributes", "answer", "attributes+answer"] = "attributes"
    """What it knows of an image."""
    noise: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Probability that a fact is redrawn; 1 is chance."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the noise."""
    width: Annotated[int, Ge(1)] = 128
    """Width E of the features."""


class WorldFacts:
    """Facts of a world as strings, each of which may be redrawn at random; features are sums of their vectors.

    With probability `noise`, a value is replaced by one drawn uniformly from all values of its attribute, the
    true one included, so that at 1 the facts are chance. What is redrawn depends only on the seed and on what
    the fact is about: an image, an example, or a noun in a text. A higher noise redraws all that a lower one
    redraws. An image's facts do not say which object is which, as no model reads an object's number: they are
    the objects' values, each pair of values of one object, and each value with its object's place.
    """

    def __init__(self, options: OracleOptions, output_type: OutputType | None) -> None:
        """`output_type`: the task's, if there is one. Raises InputError if the folder is no rendered world."""
        self.options = options
        self.output_type = output_type
        self.world = read_world(Path(options.world))
        self.attributes = self.world.family.attributes
        self.kinds = list(self.attributes)
        self.kind_of = {value: kind for kind, values in self.attributes.items() for value in values}
        self.nouns = {noun.name: noun.attributes for noun in self.world.nouns}
        self.scenes: dict[str, Scene] = {}

    def key(self, teacher: Teacher) -> dict[str, object]:
        """The code and the options that a teacher's features depend on; the world by its settings, not its folder."""
        return {
            **asdict(self.options),
            "teacher": code_hash(type(teacher)),
            "facts": code_hash(WorldFacts),
            "world": world_settings(self.world.config),
        }

    def sum(self, *groups: Sequence[str]) -> np.ndarray:
        """The sum (E,) of the groups' unit-length sums, so that one fact of a small group is not lost beside many."""
        total = np.zeros(self.options.width, np.float32)
        for facts in groups:
            vectors = [_vector(fact, self.options.width) for fact in facts or ["nothing"]]
            total += _unit(np.sum(vectors, axis=0))
        return total

    def unit(self, *groups: Sequence[str]) -> np.ndarray:
        """`sum`, of unit length."""
        return _unit(self.sum(*groups))

    def redraw(self, true: Fact, options: Sequence[Fact], *about: str | int) -> Fact:
        """The true value or, with probability `noise`, one of all `options`."""
        rng = generator(self.options.seed, "oracle", *about)
        is_redrawn = rng.random() < self.options.noise
        drawn = options[int(rng.integers(len(options)))]
        return drawn if is_redrawn else true

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
        return [
            self.redraw(value, self.attributes[kind], *about, kind)
            for kind, value in zip(self.kinds, values, strict=True)
        ]

    def _true_scene(self, example: Example) -> Scene:
        return self.world.scene(self.scene(example).image_id)

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
        thing, values = self._statement(example, self._true_scene(example))
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
        thing, values = self._statement(example, self._true_scene(example))
        is_right = set(values) <= set(thing.attributes)
        assert isinstance(self.output_type, MultipleChoice)
        options = [True] + [False] * (len(self.output_type.labels) - 1)
        return self.redraw(is_right, options, "right", example.id, example.text_pair or "")

    def seems_right(self, example: Example) -> bool:
        """Whether a row's choice agrees with the attributes in the image, with their noise."""
        thing, values = self._statement(example, self.scene(example))
        return set(values) <= set(thing.attributes)

    def _statement(self, example: Example, scene: Scene) -> tuple[SceneObject, list[str]]:
        """The object of a scene that a choice is about, and the values that it states; InputError without tags."""
        text = require(example.text_pair, "text_pair", "an oracle of choices")
        tags = list(chain(*example.choice_region_tags))
        if not tags:
            raise InputError(
                f"{example.id}: its choices have no object tags, which an oracle needs"
            )
        return scene.things[tags[0][2]], [word for word in words_of(text) if word in self.kind_of]


def of_object(values: Sequence[str]) -> list[str]:
    """An object's values, and each pair of them."""
    return [*values, *(f"{one} {other}" for one, other in combinations(values, 2))]


@cache
def _vector(fact: str, width: int) -> np.ndarray:
    """A fact's fixed random vector (E,)."""
    return generator("oracle", fact).standard_normal(width).astype(np.float32)


def _unit(vector: np.ndarray) -> np.ndarray:
    unit: np.ndarray = vector / np.linalg.norm(vector)
    return unit


class OracleTextTeacher(StandardizedTextTeacher):
    """An oracle of texts: `words` are the attributes of each noun, `sentence` those of all nouns of the text.

    A word that names a value has that value; other words have no feature. Needs no image.
    """

    name = "oracle_text"

    def __init__(self, facts: WorldFacts, standardise: bool = True) -> None:
        super().__init__(standardise)
        self.facts = facts
        self.width = facts.options.width

    def key(self) -> dict[str, object]:
        """The oracle's options, and the texts of the mean and standard deviation."""
        return {**self.facts.key(self), "standardised_on": self.calibrated_on}

    def ids(self, rows: Sequence[Sample]) -> list[str]:
        """A hash of each row's text."""
        return [digest(text_for_clip(_example(row)).encode()) for row in rows]

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        """The features of each row, before they are standardised, and its words."""
        inputs = []
        for name, row in zip(self.ids(rows), rows, strict=True):
            text = text_for_clip(_example(row))
            of_words = [self.facts.of_word(word, text) for word in words_of(text)]
            nothing = np.zeros(self.width, np.float32)
            words = [self.facts.unit(facts) if facts else nothing for facts in of_words]
            features = {
                "sentence": self.facts.unit(list(chain(*of_words))),
                "words": np.stack(words),
                "has": np.array([bool(facts) for facts in of_words]),
            }
            inputs.append(Sample(name, word_type_ids=row.word_type_ids, features=features))
        return inputs

    def raw_features(self, batch: Batch) -> dict[str, Tensor]:
        """The features that the inputs carry."""
        return {name: batch.features[name] for name in TEXT_FEATURES}


class OracleTeacher(Teacher):
    """An oracle of images and of a task's answers, with the features of `ClipTeacher`.

    An oracle of attributes knows the values of the objects in the image and their places: they are in the features of
    image and text, and a word has what the image shows of it. An oracle of the answer knows the right answer, in the
    feature of the image, and whether a row's choice is right, in those of its text and words; without choices, the
    right answer is in all three.
    """

    name = "oracle"

    def __init__(
        self,
        facts: WorldFacts,
        feature_names: Collection[str],
        num_words: int = 2,
        word_selection: str = "top",
    ) -> None:
        """`feature_names`: some of `IMAGE_FEATURES`; the rest as in `TargetedDistillationSettings`."""
        self.facts = facts
        self.width = self.image_width = facts.options.width
        self.image_features = tuple(name for name in IMAGE_FEATURES if name in feature_names)
        self.knows_answer = ANSWER in facts.options.knows
        self.num_words = num_words
        self.word_selection = word_selection

    def key(self) -> dict[str, object]:
        """The oracle's options, the task's answers, and how words are selected."""
        return {
            **self.facts.key(self),
            "task": repr(self.facts.output_type),
            "features": list(self.image_features),
            "selection": [self.num_words, self.word_selection],
        }

    def ids(self, rows: Sequence[Sample]) -> list[str]:
        """A hash of each row's example, texts, tags and label."""
        names = []
        for row in rows:
            one = _example(row)
            about = (one.id, one.text, one.text_pair, one.images, one.choice_region_tags)
            label = one.label.tolist() if isinstance(one.label, np.ndarray) else one.label
            names.append(digest(repr((*about, label)).encode()))
        return names

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        """The features of each row."""
        return [
            Sample(name, features=self._features(_example(row)))
            for name, row in zip(self.ids(rows), rows, strict=True)
        ]

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """The features that the inputs carry."""
        return {name: batch.features[name] for name in self.image_features}

    def _features(self, example: Example) -> dict[str, np.ndarray]:
        facts, names = self.facts, self.image_features
        attributes = [facts.of_image(example)] if ATTRIBUTES in facts.options.knows else []
        answer: list[list[str]] = []
        judgement: list[list[str]] = []
        if self.knows_answer:
            answer = judgement = [[f"answer: {facts.answer(example)}"]]
            if isinstance(facts.output_type, MultipleChoice):
                judgement = [["right" if facts.is_right(example) else "wrong"]]
        computed = {
            "clip_image": facts.unit(*attributes, *answer),
            UNNORMALIZED_IMAGE: facts.sum(*attributes, *answer),
            "clip_text": facts.unit(*attributes, *judgement),
        }
        if "clip_words" in names or "clip_word" in names:
            computed |= self._of_words(example, attributes, judgement)
        if "clip_similarity" in names:
            agrees = facts.is_right if self.knows_answer else facts.seems_right
            computed["clip_similarity"] = np.array(SCALE * agrees(example), np.float32)
        if "clip_confidence" in names:
            computed["clip_confidence"] = np.array(self._confidence(), np.float32)
        return {name: computed[name] for name in names}

    def _of_words(
        self, example: Example, attributes: Sequence[list[str]], judgement: Sequence[list[str]]
    ) -> dict[str, np.ndarray]:
        """Numbers (M,) of the selected words, and their features (M, E): values first, then names of attributes."""
        facts = self.facts
        text = text_for_clip(example)
        words = words_of(text)
        is_candidate = np.array([word[0].isalnum() for word in words], bool)
        if self.word_selection == "random":
            rng = generator("clip_words", text)
            chosen = select_random_tokens(is_candidate, self.num_words, rng)
        else:
            scores = np.array(
                [2 * (word in facts.kind_of) + (word in facts.kinds) for word in words]
            )
            chosen = select_tokens(scores, is_candidate, self.num_words)
        numbers = np.full(self.num_words, -1, np.int64)
        numbers[: len(chosen)] = chosen
        features = np.zeros((self.num_words, self.width), np.float32)
        for place, number in enumerate(chosen):
            shown = attributes
            if attributes:
                shown = [facts.of_word_in_image(words[number], example) or attributes[0]]
            features[place] = facts.unit(*shown, *judgement)
        return {"clip_word": numbers, "clip_words": features}

    def _confidence(self) -> float:
        """The probability that the oracle's answer is right; raises InputError for one without answers."""
        output_type = self.facts.output_type
        if not self.knows_answer or not isinstance(output_type, Classification | OpenAnswer):
            raise InputError(
                "td_gate compares the confidence in an answer, which this oracle does not know; pass option "
                "knows=answer, or omit the gate"
            )
        noise = self.facts.options.noise
        return 1 - noise + noise / len(output_type.labels)


def _example(row: Sample) -> Example:
    return require(row.example, "example", "an oracle")


def make_oracle(context: TeacherContext) -> Teacher:
    """The oracle of a run's --option values.

    Raises InputError for a missing or an unknown option, or if the oracle does not know what the objectives read.
    """
    options = make_settings(OracleOptions, **parse_options(context.settings.option))
    require_settings(options, "an oracle", "world")
    facts = WorldFacts(options, context.output_type)
    of_texts = context.features & set(TEXT_FEATURES)
    if not of_texts:
        targeted = context.settings.targeted_distillation
        return OracleTeacher(facts, context.features, targeted.num_words, targeted.word_selection)
    if of_texts != context.features:
        raise InputError(
            "an oracle has features of texts alone, for l1 and contrastive, or of images, for the other objectives; "
            "train them in two runs"
        )
    if ANSWER in options.knows:
        raise InputError(
            "option knows: texts alone have no answer; an oracle for l1 and contrastive knows attributes"
        )
    standardise = context.settings.distillation.l1_targets == "standard"
    return OracleTextTeacher(facts, standardise)


ORACLE = TeacherSpec("oracle", (*TEXT_FEATURES, *IMAGE_FEATURES), make_oracle)
