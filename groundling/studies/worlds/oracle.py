"""An oracle as a teacher: features of a rendered world's truth, with noise, in the names and shapes of CLIP's.

A positive control: where no oracle helps a student, that a CLIP does not help says nothing about CLIP.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Interval
from torch import Tensor

from groundling.core.batch import Batch, Example, Sample, require
from groundling.core.errors import InputError
from groundling.core.output_types import Classification, MultipleChoice, OpenAnswer
from groundling.core.rng import generator
from groundling.data.text.keywords import select_random_tokens, select_tokens
from groundling.settings.fields import Settings, make_settings, require_settings, settings
from groundling.settings.objectives import parse_options
from groundling.studies.worlds.oracle_facts import FactVectors, WorldFacts, read_world, words_of
from groundling.studies.worlds.world import world_settings
from groundling.teachers import Teacher, TeacherContext, TeacherSpec, code_hash
from groundling.teachers.clip import UNNORMALIZED_IMAGE, text_for_clip
from groundling.teachers.text import StandardizedTextTeacher

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


def read_options(given: Sequence[str]) -> OracleOptions:
    """The options of an oracle from values of --option; raises InputError for a missing or an unknown one."""
    options = make_settings(OracleOptions, **parse_options(given))
    require_settings(options, "an oracle", "world")
    return options


class OracleTextTeacher(StandardizedTextTeacher):
    """An oracle of texts: `words` are the attributes of each noun, `sentence` those of all nouns of the text.

    A word that names a value has that value; other words have no feature. Needs no image.
    """

    name = "oracle_text"

    def __init__(self, options: OracleOptions, facts: WorldFacts, standardise: bool = True) -> None:
        """`facts`: those of the world of the `options`."""
        super().__init__(standardise)
        self.options = options
        self.width = options.width
        self.facts = facts
        self.vectors = FactVectors(options.width)

    def key(self) -> dict[str, object]:
        """The oracle's options, and the texts of the mean and standard deviation."""
        return {**_key(self), "standardised_on": self.calibrated_on}

    def ids(self, rows: Sequence[Sample]) -> list[str]:
        """A hash of each row's text."""
        return [_digest(text_for_clip(_example(row))) for row in rows]

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        """The features of each row, before they are standardised, and its words."""
        return [self._input(name, row) for name, row in zip(self.ids(rows), rows, strict=True)]

    def _input(self, name: str, row: Sample) -> Sample:
        text = text_for_clip(_example(row))
        of_words = [self.facts.of_word(word, text) for word in words_of(text)]
        known = [facts for facts in of_words if facts]
        nothing = np.zeros(self.width, np.float32)
        features = {
            "sentence": self.vectors.unit([fact for facts in known for fact in facts]),
            "words": np.stack(
                [self.vectors.unit(facts) if facts else nothing for facts in of_words]
            ),
            "has": np.array([bool(facts) for facts in of_words]),
        }
        return Sample(name, word_type_ids=row.word_type_ids, features=features)

    def raw_features(self, batch: Batch) -> dict[str, Tensor]:
        """The features that the inputs carry."""
        return {name: batch.features[name] for name in TEXT_FEATURES}

    def countable_features(self, batch: Batch) -> Mapping[str, Tensor]:
        """`has` (U, K)."""
        return {"has": batch.features["has"]}


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
        options: OracleOptions,
        facts: WorldFacts,
        feature_names: Collection[str],
        num_words: int = 2,
        word_selection: str = "top",
    ) -> None:
        """`feature_names`: some of `IMAGE_FEATURES`; the rest as in `TargetedDistillationSettings`."""
        self.options = options
        self.width = options.width
        self.image_width = options.width
        self.facts = facts
        self.image_features = tuple(name for name in IMAGE_FEATURES if name in feature_names)
        self.knows_answer = ANSWER in options.knows
        self.num_words = num_words
        self.word_selection = word_selection
        self.vectors = FactVectors(options.width)

    def key(self) -> dict[str, object]:
        """The oracle's options, the task's answers, and how words are selected."""
        return {
            **_key(self),
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
            names.append(_digest(repr((*about, label))))
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
        """The requested features of a row."""
        attributes = [self.facts.of_image(example)] if ATTRIBUTES in self.options.knows else []
        computed: dict[str, np.ndarray] = {}
        if {"clip_image", UNNORMALIZED_IMAGE} & set(self.image_features):
            groups = [*attributes]
            if self.knows_answer:
                groups.append([f"answer: {self.facts.answer(example)}"])
            computed["clip_image"] = self.vectors.unit(*groups)
            computed[UNNORMALIZED_IMAGE] = self.vectors.sum(*groups)
        judgement = [self._judgement(example)] if self.knows_answer else []
        if "clip_text" in self.image_features:
            computed["clip_text"] = self.vectors.unit(*attributes, *judgement)
        if {"clip_words", "clip_word"} & set(self.image_features):
            computed |= self._of_words(example, attributes, judgement)
        if "clip_similarity" in self.image_features:
            computed["clip_similarity"] = np.array(SCALE * self._agrees(example), np.float32)
        if "clip_confidence" in self.image_features:
            computed["clip_confidence"] = np.array(self._confidence(), np.float32)
        return {name: computed[name] for name in self.image_features}

    def _judgement(self, example: Example) -> list[str]:
        """Whether the row's choice is right or, without choices, the right answer."""
        if isinstance(self.facts.output_type, MultipleChoice):
            return ["right" if self.facts.is_right(example) else "wrong"]
        return [f"answer: {self.facts.answer(example)}"]

    def _of_words(
        self, example: Example, attributes: Sequence[Sequence[str]], judgement: Sequence[list[str]]
    ) -> dict[str, np.ndarray]:
        """Numbers (M,) of the selected words, and their features (M, E): values first, then names of attributes."""
        text = text_for_clip(example)
        words = words_of(text)
        numbers = np.full(self.num_words, -1, np.int64)
        chosen = self._selected(text, words)
        numbers[: len(chosen)] = chosen
        features = np.zeros((self.num_words, self.width), np.float32)
        for place, number in enumerate(chosen):
            shown = attributes
            if attributes:
                shown = [self.facts.of_word_in_image(words[number], example) or attributes[0]]
            features[place] = self.vectors.unit(*shown, *judgement)
        return {"clip_word": numbers, "clip_words": features}

    def _selected(self, text: str, words: Sequence[str]) -> np.ndarray:
        """Numbers of at most M words."""
        is_candidate = np.array([word[0].isalnum() for word in words], bool)
        if self.word_selection == "random":
            rng = generator("clip_words", text)
            return select_random_tokens(is_candidate, self.num_words, rng)
        scores = [2 * (word in self.facts.kind_of) + (word in self.facts.kinds) for word in words]
        return select_tokens(np.array(scores), is_candidate, self.num_words)

    def _agrees(self, example: Example) -> bool:
        """Whether the oracle holds a row's choice for right."""
        if self.knows_answer:
            return self.facts.is_right(example)
        return self.facts.seems_right(example)

    def _confidence(self) -> float:
        """The probability that the oracle's answer is right; raises InputError for one without answers."""
        output_type = self.facts.output_type
        if not self.knows_answer or not isinstance(output_type, Classification | OpenAnswer):
            raise InputError(
                "td_gate compares the confidence in an answer, which this oracle does not know; pass option "
                "knows=answer, or omit the gate"
            )
        return 1 - self.options.noise + self.options.noise / len(output_type.labels)


def _example(row: Sample) -> Example:
    return require(row.example, "example", "an oracle")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _key(teacher: OracleTextTeacher | OracleTeacher) -> dict[str, object]:
    """The code and the options that an oracle's features depend on; the world by its settings, not its folder."""
    options = teacher.options
    return {
        "teacher": code_hash(type(teacher)),
        "facts": code_hash(WorldFacts),
        "world": world_settings(teacher.facts.world.config),
        "knows": options.knows,
        "noise": options.noise,
        "seed": options.seed,
        "width": options.width,
    }


def make_oracle(context: TeacherContext) -> Teacher:
    """The oracle of a run's --option values; raises InputError if it does not know what the objectives read."""
    options = read_options(context.settings.option)
    facts = WorldFacts(
        read_world(Path(options.world)), options.noise, options.seed, context.output_type
    )
    of_texts = context.features & set(TEXT_FEATURES)
    if not of_texts:
        targeted = context.settings.targeted_distillation
        return OracleTeacher(
            options, facts, context.features, targeted.num_words, targeted.word_selection
        )
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
    return OracleTextTeacher(options, facts, standardise)


ORACLE = TeacherSpec("oracle", (*TEXT_FEATURES, *IMAGE_FEATURES), make_oracle)
