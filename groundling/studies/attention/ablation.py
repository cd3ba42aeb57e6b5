"""Other inputs in place of a model's own: blank, shuffled and swapped image or text (Frank et al. 2021).

What an answer loses beside them, it owes to what they lack. Attention cannot tell that: a model may look at what it
makes nothing of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from groundling.core.batch import Example, Row, Sample
from groundling.core.errors import InputError
from groundling.core.forms import Form, Pick
from groundling.core.keyed import generator
from groundling.data.samples import Changed, Samples
from groundling.data.shards import Part
from groundling.models.kinds import RegionReader
from groundling.studies.attention.attending import partners
from groundling.studies.attention.importance import Bootstrap, told
from groundling.studies.attention.passes import Rows, batches_of
from groundling.studies.attention.subjects import HiddenWords, Outcome, Subject

State = Literal["own", "blank", "shuffled", "swapped"]


class Given(NamedTuple):
    """What a model is given of an example."""

    image: State = "own"
    """blank: boxes without looks; shuffled: own boxes with the looks of another image; swapped: another image."""
    text: State = "own"
    """blank: padding in place of every piece; shuffled: own words in another order; swapped: another text."""

    @property
    def name(self) -> str:
        """What tables call it."""
        if self.image == self.text:
            return "as it is" if self.image == "own" else "both blank"
        if self.text == "own":
            return f"image {self.image}"
        return f"text {self.text}"


OWN = Given()
GIVEN = (
    OWN,
    Given(image="blank"),
    Given(image="shuffled"),
    Given(image="swapped"),
    Given(text="blank"),
    Given(text="shuffled"),
    Given(text="swapped"),
    Given("blank", "blank"),
)
"""All that is tried."""


def undefined(
    given: Given, outcome: Outcome, form: Form | None, examples: Sequence[Example]
) -> str:
    """Why a model cannot be asked so; empty if it can."""
    if given.image == "swapped":
        if isinstance(form, Pick):
            return "what is right is a region of the example's own image"
        if any(example.objects for example in examples):
            return "texts name objects of their own image"
    if given.text in ("shuffled", "swapped"):
        if isinstance(outcome, HiddenWords):
            return "the words that are asked for belong to their own text"
        if form is not None and form.reads == "phrase":
            return "what is asked for is a phrase of the example's own text"
    return ""


# -- the image ---------------------------------------------------------------------------------------------------------


def without_looks(width: int) -> Callable[[Sample], Sample]:
    """Takes from a sample all that its regions look like; boxes stay, as for `finetune --blind`."""

    def change(sample: Sample) -> Sample:
        return replace(sample.each_row(row), pixels=None)

    def row(one: Sample) -> Sample:
        if one.regions is None:
            return one
        zeros = np.zeros((len(one.regions), width), np.float32)
        return replace(one, pixels=None, regions=replace(one.regions, features=zeros))

    return change


def with_images(examples: Sequence[Example], partner: Mapping[str, str]) -> list[Example]:
    """The examples, each with the images of another one in place of its own."""
    return [
        replace(example, images=tuple(partner[image] for image in example.images))
        for example in examples
    ]


# -- the text ----------------------------------------------------------------------------------------------------------


def words_in(row: Row, kept: Sequence[int]) -> np.ndarray:
    """Which pieces (T,) are of words, and none of the special pieces `kept`, such as a head's [MASK]."""
    return ~row.special & ~np.isin(row.ids, kept)


def without_words(kept: Sequence[int]) -> Callable[[Sample], Sample]:
    """Puts padding in the place of every piece of a sample's texts, but for special ones; lengths stay."""

    def row(one: Sample) -> Sample:
        if one.text is None:
            return one
        ids = np.where(words_in(one.text, kept), one.text.pad, one.text.ids)
        return replace(one, text=replace(one.text, ids=ids))

    return lambda sample: sample.each_row(row)


def in_other_order(kept: Sequence[int], seed: int) -> Callable[[Sample], Sample]:
    """Puts the words of each of a sample's texts in another order, the pieces of a word together."""

    def row(one: Sample, rng: np.random.Generator) -> Sample:
        if one.text is None:
            return one
        inner = words_in(one.text, kept)
        part = one.text.types if one.text.part is None else one.text.part
        places = np.arange(len(inner))
        for number in np.unique(part[inner]):
            own = np.flatnonzero(inner & (part == number))
            words = one.text.word[own]
            order = rng.permutation(np.unique(words))
            places[own] = np.concatenate([own[words == word] for word in order])
        return replace(one, text=one.text.take(places))

    def change(sample: Sample) -> Sample:
        return sample.each_row(lambda one: row(one, generator(seed, "order", sample.id)))

    return change


def strangers(examples: Sequence[Example], seed: int) -> list[int]:
    """For each example the number of another one, whose text and images are others; the same for the same seed.

    Raises InputError if an example finds none.
    """
    order = generator(seed, "strangers").permutation(len(examples))
    place = np.argsort(order)
    found = []
    for number, example in enumerate(examples):
        for step in range(1, len(examples)):
            other = int(order[(place[number] + step) % len(examples)])
            stranger = examples[other]
            if stranger.text != example.text and set(stranger.images).isdisjoint(example.images):
                found.append(other)
                break
        else:
            raise InputError(
                f"{example.id}: no other example has another text and another image, to be read in its place"
            )
    return found


def with_texts(examples: Sequence[Example], other: Sequence[int]) -> list[Example]:
    """The examples, each with the first text of another one, and its second if there are two; choices stay."""
    swapped = []
    for example, number in zip(examples, other, strict=True):
        stranger = examples[number]
        objects = example.objects
        tags = tuple(tag for tag in stranger.tags if not objects or tag[2] < objects)
        swapped.append(
            replace(
                example,
                text=stranger.text,
                pair=stranger.pair,
                tags=tags,
                breaks=stranger.breaks,
            )
        )
    return swapped


# -- asking ------------------------------------------------------------------------------------------------------------


SHUFFLED = Given(image="shuffled")
SWAPPED = Given(image="swapped")


class Ablation:
    """What becomes of a model's answers beside other inputs, once its `passes` are read."""

    def __init__(
        self, subject: Subject, examples: Sequence[Example], seed: int, batch: int
    ) -> None:
        self.subject = subject
        self.examples = examples
        self.seed = seed
        self.notes: list[str] = []
        """What a reader of `about` must know, once that was asked."""
        self.answers: dict[Given, Measured] = {}
        self.why_not: dict[Given, str] = {}
        outcome = subject.outcome
        if outcome is None:
            return
        for given in GIVEN:
            reason = undefined(given, outcome, subject.form, examples)
            if reason:
                self.why_not[given] = reason
                continue
            samples = partial(self._given, outcome, given)
            self.answers[given] = Measured(subject.model, outcome, samples, batch)

    @property
    def passes(self) -> list[Measured]:
        """One for each input that the model can be asked beside."""
        return list(self.answers.values())

    def about(self, bootstrap: Bootstrap) -> dict[str, Any]:
        """What `result.json` says of it; `bootstrap` over the examples."""
        outcome = self.subject.outcome
        if outcome is None:
            return {"undefined": "the model has no head that says how text and image match"}
        values = {given: answers.values for given, answers in self.answers.items()}
        own = values[OWN]
        rows = []
        for given in GIVEN:
            row: dict[str, Any] = {"given": given.name, "image": given.image, "text": given.text}
            if given in self.why_not:
                rows.append(row | {"undefined": self.why_not[given]})
                continue
            means = bootstrap.means(values[given])
            changes = bootstrap.means(values[given] - own)
            row["values"] = [told(means[:, place]) for place in range(len(outcome.names))]
            row["changes"] = [told(changes[:, place]) for place in range(len(outcome.names))]
            rows.append(row)
        shuffled, swapped = values[SHUFFLED], values.get(SWAPPED)
        if swapped is not None and np.array_equal(shuffled, swapped, equal_nan=True):
            self.notes.append(
                f"{SHUFFLED.name} and {SWAPPED.name} are the same input to this model, as images differ in nothing "
                "but looks: all have as many regions, and their boxes are equal (as in a grid), or the model reads no "
                "boxes"
            )
        without = int((~np.isfinite(own[:, 0])).sum())
        return {"measures": list(outcome.names), "without_right_answer": without, "rows": rows}

    def _given(self, outcome: Outcome, given: Given) -> Samples:
        """The examples as the model is given them."""
        examples = self.examples
        partner: Mapping[str, str] | None = None
        if given.image in ("shuffled", "swapped"):
            partner = partners([name for one in examples for name in one.images], self.seed)
        if given.image == "swapped" and partner is not None:
            examples = with_images(examples, partner)
        if given.text == "swapped":
            examples = with_texts(examples, strangers(examples, self.seed))
        shuffled = partner if given.image == "shuffled" else None
        model = self.subject.model
        samples = outcome.put(self.subject.samples(examples, shuffled))
        kept = model.special
        if given.image == "blank":
            samples = Changed(samples, without_looks(model.sizes.regions))
        if given.text == "blank":
            samples = Changed(samples, without_words(kept))
        if given.text == "shuffled":
            samples = Changed(samples, in_other_order(kept, self.seed))
        return samples


class Measured:
    """A pass that asks a model for its outcome of every sample."""

    def __init__(
        self, model: RegionReader, outcome: Outcome, samples: Callable[[], Samples], batch: int
    ) -> None:
        """`samples` as `Look` has them, put as the outcome puts them."""
        self.model = model
        self.outcome = outcome
        self.samples = samples
        self.batch = batch
        self.rows = Rows()

    @torch.no_grad()
    def read(self, part: Part) -> None:
        """Ask a process's share."""
        for batch, _, places in batches_of(self.model, self.samples(), part, self.batch):
            values = self.outcome.values(self.model(batch), batch)
            self.rows.put(places, 0, values.double().cpu().numpy())

    def kept(self) -> Any:
        """What came out of the share."""
        return self.rows.kept()

    def merge(self, parts: Sequence[Any]) -> None:
        """What came out of all shares."""
        self.rows.merge(parts)

    @property
    def values(self) -> np.ndarray:
        """What came out of every sample, (samples, numbers of the outcome)."""
        return self.rows.stacked()[:, 0]
