"""What an answer owes to its inputs: by replacing them (Frank et al. 2021), and by integrated gradients.

What an answer loses beside them, it owes to what they lack. Attention cannot tell that: a model may look at what it
makes nothing of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from groundling.core.batch import Batch, Example, Perturbation, Sample, TextRow, require
from groundling.core.errors import InputError
from groundling.core.output_types import OutputType, RegionSelection
from groundling.core.rng import generator
from groundling.data.samples import MappedDataset, SampleDataset
from groundling.data.shards import ProcessRank
from groundling.models.formats import RegionEncoder
from groundling.studies.attention.forward_passes import SampleArrays, iterate_batches
from groundling.studies.attention.importance import (
    Bootstrap,
    ClsAttention,
    mean_with_interval,
    right_choice_row,
)
from groundling.studies.attention.inspected_models import (
    HiddenWordsOutcome,
    ModalityModel,
    Outcome,
    shuffle_images,
)
from groundling.vision_language.single_stream import SingleStreamModel

InputState = Literal["own", "blank", "shuffled", "swapped"]


class InputCondition(NamedTuple):
    """What a model is given of an example."""

    image: InputState = "own"
    """blank: boxes without looks; shuffled: own boxes with the looks of another image; swapped: another image."""
    text: InputState = "own"
    """blank: padding in place of every piece; shuffled: own words in another order; swapped: another text."""

    @property
    def name(self) -> str:
        """What tables call it."""
        if self.image == self.text:
            return "as it is" if self.image == "own" else "both blank"
        if self.text == "own":
            return f"image {self.image}"
        return f"text {self.text}"


OWN = InputCondition()
INPUT_CONDITIONS = (
    OWN,
    InputCondition(image="blank"),
    InputCondition(image="shuffled"),
    InputCondition(image="swapped"),
    InputCondition(text="blank"),
    InputCondition(text="shuffled"),
    InputCondition(text="swapped"),
    InputCondition("blank", "blank"),
)
"""All that is tried."""


def undefined_reason(
    given: InputCondition, outcome: Outcome, form: OutputType | None, examples: Sequence[Example]
) -> str:
    """Why a model cannot be asked so; empty if it can."""
    if given.image == "swapped":
        if isinstance(form, RegionSelection):
            return "what is right is a region of the example's own image"
        if any(example.object_count for example in examples):
            return "texts name objects of their own image"
    if given.text in ("shuffled", "swapped"):
        if isinstance(outcome, HiddenWordsOutcome):
            return "the words that are asked for belong to their own text"
        if form is not None and form.head_input == "phrase":
            return "what is asked for is a phrase of the example's own text"
    return ""


# -- the image ---------------------------------------------------------------------------------------------------------


def zero_region_features(width: int) -> Callable[[Sample], Sample]:
    """Takes from a sample all that its regions look like; boxes stay, as for `finetune --zero-region-features`."""

    def change(sample: Sample) -> Sample:
        return replace(sample.each_row(row), pixels=None)

    def row(one: Sample) -> Sample:
        if one.regions is None:
            return one
        zeros = np.zeros((len(one.regions), width), np.float32)
        return replace(one, pixels=None, regions=replace(one.regions, features=zeros))

    return change


def swap_images(examples: Sequence[Example], partner: Mapping[str, str]) -> list[Example]:
    """The examples, each with the images of another one in place of its own."""
    return [
        replace(example, images=tuple(partner[image] for image in example.images))
        for example in examples
    ]


# -- the text ----------------------------------------------------------------------------------------------------------


def word_token_mask(row: TextRow, kept: Sequence[int]) -> np.ndarray:
    """Which pieces (T,) are of words, and none of the special pieces `kept`, such as a head's [MASK]."""
    return ~row.special_tokens_mask & ~np.isin(row.input_ids, kept)


def blank_words(kept: Sequence[int]) -> Callable[[Sample], Sample]:
    """Puts padding in the place of every piece of a sample's texts, but for special ones; lengths stay."""

    def row(one: Sample) -> Sample:
        if one.text is None:
            return one
        ids = np.where(word_token_mask(one.text, kept), one.text.pad_token_id, one.text.input_ids)
        return replace(one, text=replace(one.text, input_ids=ids))

    return lambda sample: sample.each_row(row)


def shuffle_words(kept: Sequence[int], seed: int) -> Callable[[Sample], Sample]:
    """Puts the words of each of a sample's texts in another order, the pieces of a word together."""

    def row(one: Sample, rng: np.random.Generator) -> Sample:
        if one.text is None:
            return one
        inner = word_token_mask(one.text, kept)
        part = one.text.token_type_ids if one.text.part_index is None else one.text.part_index
        places = np.arange(len(inner))
        for number in np.unique(part[inner]):
            own = np.flatnonzero(inner & (part == number))
            words = one.text.word_ids[own]
            order = rng.permutation(np.unique(words))
            places[own] = np.concatenate([own[words == word] for word in order])
        return replace(one, text=one.text.take(places))

    def change(sample: Sample) -> Sample:
        return sample.each_row(lambda one: row(one, generator(seed, "order", sample.id)))

    return change


def choose_swap_partners(examples: Sequence[Example], seed: int) -> list[int]:
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


def swap_texts(examples: Sequence[Example], other: Sequence[int]) -> list[Example]:
    """The examples, each with the first text of another one, and its second if there are two; choices stay."""
    swapped = []
    for example, number in zip(examples, other, strict=True):
        stranger = examples[number]
        objects = example.object_count
        tags = tuple(tag for tag in stranger.region_tags if not objects or tag[2] < objects)
        swapped.append(
            replace(
                example,
                text=stranger.text,
                text_pair=stranger.text_pair,
                region_tags=tags,
                part_starts=stranger.part_starts,
            )
        )
    return swapped


# -- asking ------------------------------------------------------------------------------------------------------------


SHUFFLED = InputCondition(image="shuffled")
SWAPPED = InputCondition(image="swapped")


class InputAblation:
    """What becomes of a model's answers beside other inputs, once its `passes` are read."""

    def __init__(
        self, subject: ModalityModel, examples: Sequence[Example], seed: int, batch: int
    ) -> None:
        self.subject = subject
        self.examples = examples
        self.seed = seed
        self.notes: list[str] = []
        """What a reader of `about` must know, once that was asked."""
        self.answers: dict[InputCondition, OutcomePass] = {}
        self.why_not: dict[InputCondition, str] = {}
        outcome = subject.outcome
        if outcome is None:
            return
        for given in INPUT_CONDITIONS:
            reason = undefined_reason(given, outcome, subject.form, examples)
            if reason:
                self.why_not[given] = reason
                continue
            samples = partial(self._given, outcome, given)
            self.answers[given] = OutcomePass(subject.model, outcome, samples, batch)

    @property
    def passes(self) -> list[OutcomePass]:
        """One for each input that the model can be asked beside."""
        return list(self.answers.values())

    def to_json(self, bootstrap: Bootstrap) -> dict[str, Any]:
        """What `result.json` says of it; `bootstrap` over the examples."""
        outcome = self.subject.outcome
        if outcome is None:
            return {"undefined": "the model has no head that says how text and image match"}
        values = {given: answers.values for given, answers in self.answers.items()}
        own = values[OWN]
        rows = []
        for given in INPUT_CONDITIONS:
            row: dict[str, Any] = {"given": given.name, "image": given.image, "text": given.text}
            if given in self.why_not:
                rows.append(row | {"undefined": self.why_not[given]})
                continue
            means = bootstrap.means(values[given])
            changes = bootstrap.means(values[given] - own)
            row["values"] = [
                mean_with_interval(means[:, place]) for place in range(len(outcome.names))
            ]
            row["changes"] = [
                mean_with_interval(changes[:, place]) for place in range(len(outcome.names))
            ]
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

    def _given(self, outcome: Outcome, given: InputCondition) -> SampleDataset:
        """The examples as the model is given them."""
        examples = self.examples
        partner: Mapping[str, str] | None = None
        if given.image in ("shuffled", "swapped"):
            partner = shuffle_images([name for one in examples for name in one.images], self.seed)
        if given.image == "swapped" and partner is not None:
            examples = swap_images(examples, partner)
        if given.text == "swapped":
            examples = swap_texts(examples, choose_swap_partners(examples, self.seed))
        shuffled = partner if given.image == "shuffled" else None
        model = self.subject.model
        samples = outcome.prepare(self.subject.samples(examples, shuffled))
        kept = model.special_ids
        if given.image == "blank":
            samples = MappedDataset(samples, zero_region_features(model.sizes.regions))
        if given.text == "blank":
            samples = MappedDataset(samples, blank_words(kept))
        if given.text == "shuffled":
            samples = MappedDataset(samples, shuffle_words(kept, self.seed))
        return samples


class OutcomePass:
    """A pass that asks a model for its outcome of every sample."""

    def __init__(
        self,
        model: RegionEncoder,
        outcome: Outcome,
        samples: Callable[[], SampleDataset],
        batch: int,
    ) -> None:
        """`samples` as `AttentionPass` has them, put as the outcome puts them."""
        self.model = model
        self.outcome = outcome
        self.samples = samples
        self.batch = batch
        self.rows = SampleArrays()

    @torch.no_grad()
    def run(self, part: ProcessRank) -> None:
        """Ask a process's share."""
        for batch, _, places in iterate_batches(self.model, self.samples(), part, self.batch):
            values = self.outcome.values(self.model(batch), batch)
            self.rows.put(places, 0, values.double().cpu().numpy())

    def local_result(self) -> Any:
        """What came out of the share."""
        return self.rows.local_result()

    def merge(self, parts: Sequence[Any]) -> None:
        """What came out of all shares."""
        self.rows.merge(parts)

    @property
    def values(self) -> np.ndarray:
        """What came out of every sample, (samples, numbers of the outcome)."""
        return self.rows.stacked()[:, 0]


# Integrated gradients over words and regions (Sundararajan et al. 2017), and whether attention agrees with them.
# An input's share of an answer is the gradient of the answer by its embedding, averaged along the straight line
# from a blank input (padding in place of words, regions without looks) to the input itself, times the way. All
# shares add up to what the answer changes by on that way, which is reported.

LINE_POINTS = 64
"""Points on the line."""
POINT_POWER = 3
"""Power of Gauss' and Legendre's places that are the shares of the way: many of them are near its beginning.

UNITER normalises what it makes of a region's features, and a LayerNorm forgets how long its input is: without biases,
all that the regions do happens before a millionth of the way, and with small ones soon after it. Even places, however
many, step over that.
"""
MIN_RANKED = 3
"""Words or regions below which no ranks are compared."""


@dataclass(frozen=True)
class Attribution:
    """Shares of one example's answer, of the row that `right_choice_row` names."""

    pieces: np.ndarray
    """(T,): of each piece, 0 of special ones, which the blank input has too."""
    regions: np.ndarray
    """(R,)."""
    change: float
    """The answer less that of a blank input."""
    residual: float
    """What the shares of all rows lack to that change; 0 if the line had points enough."""


class AttributionPass:
    """A pass that attributes every sample's answer, of a model that reads stored features."""

    def __init__(
        self,
        model: SingleStreamModel,
        outcome: Outcome,
        samples: Callable[[], SampleDataset],
        batch: int,
        steps: int = LINE_POINTS,
    ) -> None:
        """`samples` as `AttentionPass` has them, put as the outcome puts them."""
        self.model = model
        self.outcome = outcome
        self.samples = samples
        self.batch = batch
        self.steps = steps
        self.found: dict[int, Attribution] = {}

    def run(self, part: ProcessRank) -> None:
        """Explain a process's share."""
        model = self.model.requires_grad_(False)
        kept = model.text.tokenizer.all_special_ids
        for batch, some, places in iterate_batches(model, self.samples(), part, self.batch):
            found = _attributed(model, self.outcome, batch, some, kept, self.steps)
            self.found.update(zip(places, found, strict=True))

    def local_result(self) -> dict[int, Attribution]:
        """The attributions of the share by the number of the sample."""
        return self.found

    def merge(self, parts: Sequence[dict[int, Attribution]]) -> None:
        """Those of all shares."""
        self.found = {place: one for part in parts for place, one in part.items()}

    @property
    def attributions(self) -> list[Attribution]:
        """One of every sample, in their order."""
        return [self.found[place] for place in sorted(self.found)]


def _attributed(
    model: SingleStreamModel,
    outcome: Outcome,
    batch: Batch,
    some: Sequence[Sample],
    kept: Sequence[int],
    steps: int,
) -> list[Attribution]:
    """The attributions of a batch."""
    blank, way = _blank_and_path(model, batch, kept)

    def answer(at: Sequence[Tensor]) -> Tensor:
        return outcome.attribution_target(
            model(replace(blank, perturbation=Perturbation(*at))), batch
        )

    with torch.no_grad():
        change = answer(_path_point(way, 1.0)) - answer(_path_point(way, 0.0))
    slopes = [torch.zeros_like(part) for part in way]
    for share, weight in zip(*quadrature_points(steps), strict=True):
        at = [part.requires_grad_() for part in _path_point(way, share)]
        gradients = torch.autograd.grad(answer(at).sum(), at)
        for slope, gradient in zip(slopes, gradients, strict=True):
            slope += gradient * weight
    shares = [(slope * part).sum(-1) for slope, part in zip(slopes, way, strict=True)]
    rest = change - sum(part.view(len(batch), -1).sum(1) for part in shares)
    pieces, regions = (part.double().cpu().numpy() for part in shares)
    return [
        _one(
            sample,
            number * batch.choices,
            pieces,
            regions,
            float(change[number]),
            float(rest[number]),
        )
        for number, sample in enumerate(some)
    ]


def _one(
    sample: Sample, first: int, pieces: np.ndarray, regions: np.ndarray, change: float, rest: float
) -> Attribution:
    """A sample's attribution, whose rows begin at `first`, without padding."""
    number = right_choice_row(sample)
    row = sample.rows[number]
    text = require(row.text, "text", "an attribution")
    seen = require(row.regions, "regions", "an attribution")
    place = first + number
    return Attribution(
        pieces[place, : len(text.input_ids)], regions[place, : len(seen)], change, rest
    )


def quadrature_points(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Shares (steps,) of the way, 0..1, and weights (steps,) of what is found there, which add up to 1."""
    places, weights = np.polynomial.legendre.leggauss(steps)
    places, weights = (places + 1) / 2, weights / 2
    weights = weights * POINT_POWER * places ** (POINT_POWER - 1)
    return places**POINT_POWER, weights / weights.sum()


def _blank_and_path(
    model: SingleStreamModel, batch: Batch, kept: Sequence[int]
) -> tuple[Batch, list[Tensor]]:
    """A blank batch, and the way from it to the batch's own: of word embeddings (N, T, E) and features (N, R, D).

    The line begins at the blank input, where small shares of the way are exact; taken off the whole input, what is left
    of it would be its rounding.
    """
    tokens = require(batch.text, "text", "an attribution")
    regions = require(batch.regions, "regions", "an attribution")
    table = model.word_embeddings()
    padding = model.text.tokenizer.pad_token_id or 0
    special = (
        torch.isin(tokens.input_ids, torch.tensor(kept, device=tokens.input_ids.device))
        | tokens.special_tokens_mask
    )
    ids = torch.where(special, tokens.input_ids, padding)
    features = regions.features.float()
    blank = replace(
        batch,
        text=replace(tokens, input_ids=ids),
        regions=replace(regions, features=torch.zeros_like(features)),
    )
    return blank, [(table(tokens.input_ids) - table(ids)).detach(), features]


def _path_point(way: Sequence[Tensor], share: float) -> list[Tensor]:
    """What to add to a blank input to be at a share of the way: nothing at its beginning."""
    return [part * share for part in way]


# -- what is told of them ----------------------------------------------------------------------------------------------

COMPLETE_RELATIVE = 0.05
"""Up to which share of the change in an answer attributions may miss it and count as complete."""
COMPLETE_ABSOLUTE = 0.01
"""Up to how much they may miss it anyhow: of a change of nearly nothing, a share says nothing."""
MIN_COMPLETE_SHARE = 0.9
"""Share of examples of which attributions ought to be complete."""


def attribution_summary(
    explained: AttributionPass,
    cls_attention: ClsAttention,
    rows: Sequence[Sample],
    bootstrap: Bootstrap,
) -> dict[str, Any]:
    """What `result.json` says of integrated gradients, whether they are complete, and whether attention agrees.

    `looks`: what was looked at in the same samples, which are `rows`; `bootstrap` over their examples.
    """
    found = explained.attributions
    attention = cls_attention.by_sample.rows
    agreeing = np.stack(
        [
            attribution_agreement(attention[place], one, row)
            for place, (one, row) in enumerate(zip(found, rows, strict=True))
        ]
    )
    change = np.abs([one.change for one in found])
    rest = np.abs([one.residual for one in found])
    layers = cls_attention.layers.numbers
    return {
        "explains": explained.outcome.target_name,
        "examples": len(found),
        "ig_steps": explained.steps,
        "complete": round(
            float((rest <= np.maximum(COMPLETE_RELATIVE * change, COMPLETE_ABSOLUTE)).mean()), 6
        ),
        "rest_median": round(float(np.median(rest)), 6),
        "rest_worst": round(float(rest.max()), 6),
        "change_mean_size": round(float(change.mean()), 6),
        "text_share": mean_with_interval(bootstrap.means(text_share(found))),
        "agreement": {
            "words": bootstrap.by_layer(agreeing[..., 0], layers),
            "regions": bootstrap.by_layer(agreeing[..., 1], layers),
        },
    }


def completeness_notes(found: Mapping[str, Any]) -> list[str]:
    """A note on attributions that miss much of the change, of what `about` tells."""
    if found["complete"] >= MIN_COMPLETE_SHARE:
        return []
    return [
        f"integrated gradients miss more than {COMPLETE_RELATIVE:.0%} of the change, and more than {COMPLETE_ABSOLUTE}, in "
        f"{1 - found['complete']:.0%} of examples; double --ig-steps ({found['ig_steps']}) until `complete` stays"
    ]


def text_share(found: Sequence[Attribution]) -> np.ndarray:
    """How much of the size of all shares (N,) falls to words; NaN where all are 0."""
    words = np.array([np.abs(one.pieces).sum() for one in found])
    regions = np.array([np.abs(one.regions).sum() for one in found])
    with np.errstate(invalid="ignore"):
        return np.asarray(words / (words + regions))


def sum_by_word(values: np.ndarray, word: np.ndarray) -> np.ndarray:
    """Sums (K,) of values (T,) of pieces over raw words, in their order; `word` (T,) is -1 for none."""
    inside = word >= 0
    _, number = np.unique(word[inside], return_inverse=True)
    return np.bincount(number, weights=values[inside])


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's correlation of two rows of numbers (K,); NaN of fewer than three, or where all are equal."""
    if len(one) < MIN_RANKED or np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    return float(stats.spearmanr(one, other).statistic)


def attribution_agreement(attention: np.ndarray, shares: Attribution, sample: Sample) -> np.ndarray:
    """How [CLS]'s attention (layers, T + R) ranks words and regions, against the size of their shares.

    (layers + 1, 2): Spearman's correlations of words and of regions, for each layer and last for the mean of layers.
    """
    row = sample.rows[right_choice_row(sample)]
    word = require(row.text, "text", "an attribution").word_ids
    pieces = len(word)
    size_of_words = np.abs(sum_by_word(shares.pieces, word))
    size_of_regions = np.abs(shares.regions)
    found = []
    for layer in (*attention, attention.mean(0)):
        words = rank_correlation(sum_by_word(layer[:pieces], word), size_of_words)
        found.append([words, rank_correlation(layer[pieces:], size_of_regions)])
    return np.array(found)
