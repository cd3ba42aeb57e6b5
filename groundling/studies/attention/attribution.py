"""How much an answer depends on each input: ablation (Frank et al. 2021), integrated gradients.

Attention cannot show this: a model may attend to inputs that do not change its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from groundling.core.batch import Batch, Example, Sample, TextRow, require
from groundling.core.errors import InputError
from groundling.core.output_types import OutputType, RegionSelection
from groundling.core.rng import generator
from groundling.data.samples import MappedDataset, SampleDataset
from groundling.studies.attention.forward_passes import SampleArrays, iterate_batches
from groundling.studies.attention.importance import (
    Bootstrap,
    ClsAttention,
    intervals,
    mean_with_interval,
    right_choice_row,
)
from groundling.studies.attention.inspected_models import (
    HiddenWordsOutcome,
    ModalityModel,
    Outcome,
    shuffle_images,
)
from groundling.vision_language import RegionEncoder

InputState = Literal["own", "blank", "shuffled", "swapped"]


class InputCondition(NamedTuple):
    """The inputs of an example that a model receives, each its own or ablated."""

    image: InputState = "own"
    """blank: boxes with zero features; shuffled: own boxes, features of another image; swapped:
    boxes and features of another image.
    """
    text: InputState = "own"
    """blank: padding for every token; shuffled: own words reordered; swapped: another text."""

    @property
    def name(self) -> str:
        """Its label in tables."""
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
"""All conditions, in the order of the table."""


def undefined_reason(
    condition: InputCondition,
    outcome: Outcome,
    form: OutputType | None,
    examples: Sequence[Example],
) -> str:
    """Why a condition is undefined for a model and its examples; empty if it is defined."""
    if condition.image == "swapped":
        if isinstance(form, RegionSelection):
            return "the right answer is a region of the example's own image"
        if any(example.object_count for example in examples):
            return "the texts name objects of their own images"
    if condition.text in ("shuffled", "swapped"):
        if isinstance(outcome, HiddenWordsOutcome):
            return "the hidden words belong to the example's own text"
        if form is not None and form.head_input == "phrase":
            return "the question is about a phrase of the example's own text"
    return ""


# -- the image ---------------------------------------------------------------------------------------------------------


def zero_region_features(width: int) -> Callable[[Sample], Sample]:
    """Returns a function that zeroes region features, as `finetune --zero-region-features` does; boxes stay."""

    def change(sample: Sample) -> Sample:
        return replace(sample.each_row(row), pixels=None)

    def row(sample: Sample) -> Sample:
        if sample.regions is None:
            return sample
        zeros = np.zeros((len(sample.regions), width), np.float32)
        return replace(sample, pixels=None, regions=replace(sample.regions, features=zeros))

    return change


# -- the text ----------------------------------------------------------------------------------------------------------


def word_token_mask(row: TextRow, special_ids: Sequence[int]) -> np.ndarray:
    """Which tokens (T,) belong to words, without special ones and `special_ids` (a head's [MASK])."""
    return ~row.special_tokens_mask & ~np.isin(row.input_ids, special_ids)


def blank_words(special_ids: Sequence[int]) -> Callable[[Sample], Sample]:
    """Returns a function that replaces all tokens but special ones by padding; lengths stay."""

    def row(sample: Sample) -> Sample:
        if sample.text is None:
            return sample
        ids = np.where(
            word_token_mask(sample.text, special_ids),
            sample.text.pad_token_id,
            sample.text.input_ids,
        )
        return replace(sample, text=replace(sample.text, input_ids=ids))

    return lambda sample: sample.each_row(row)


def shuffle_words(special_ids: Sequence[int], seed: int) -> Callable[[Sample], Sample]:
    """Returns a function that shuffles the words of each text; a word's tokens stay together."""

    def row(sample: Sample, rng: np.random.Generator) -> Sample:
        if sample.text is None:
            return sample
        inner = word_token_mask(sample.text, special_ids)
        part = (
            sample.text.token_type_ids if sample.text.part_index is None else sample.text.part_index
        )
        places = np.arange(len(inner))
        for number in np.unique(part[inner]):
            own = np.flatnonzero(inner & (part == number))
            words = sample.text.word_ids[own]
            order = rng.permutation(np.unique(words))
            places[own] = np.concatenate([own[words == word] for word in order])
        return replace(sample, text=sample.text.take(places))

    def change(sample: Sample) -> Sample:
        return sample.each_row(lambda one: row(one, generator(seed, "order", sample.id)))

    return change


def choose_swap_partners(examples: Sequence[Example], seed: int) -> list[int]:
    """For each example, the index of one with other text and images; depends on the seed only.

    Raises InputError if there is none for an example.
    """
    order = generator(seed, "strangers").permutation(len(examples))
    place = np.argsort(order)
    partners = []
    for number, example in enumerate(examples):
        for step in range(1, len(examples)):
            other = int(order[(place[number] + step) % len(examples)])
            stranger = examples[other]
            if stranger.text != example.text and set(stranger.images).isdisjoint(example.images):
                partners.append(other)
                break
        else:
            raise InputError(
                f"{example.id}: no example differs in both text and image, so there is nothing to swap in; use more "
                "examples, or pass perturbed_inputs=False"
            )
    return partners


def swap_texts(examples: Sequence[Example], partners: Sequence[int]) -> list[Example]:
    """The examples, each with the text or texts of the example at `partners`; choices stay."""
    swapped = []
    for example, number in zip(examples, partners, strict=True):
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


# -- ablation ----------------------------------------------------------------------------------------------------------


SHUFFLED = InputCondition(image="shuffled")
SWAPPED = InputCondition(image="swapped")


def ablate_inputs(
    subject: ModalityModel, examples: Sequence[Example], seed: int, batch: int, bootstrap: Bootstrap
) -> tuple[dict[str, Any], list[str]]:
    """A model's answers with ablated inputs, as `inputs` in `result.json`, and notes on them.

    `bootstrap` over the examples.
    """
    outcome = subject.outcome
    if outcome is None:
        return {"undefined": "the model has no image-text matching head"}, []
    values: dict[InputCondition, np.ndarray] = {}
    rows = []
    for condition in INPUT_CONDITIONS:
        row: dict[str, Any] = {"given": condition.name, **condition._asdict()}
        reason = undefined_reason(condition, outcome, subject.form, examples)
        if reason:
            rows.append(row | {"undefined": reason})
            continue
        samples = _samples_under(condition, subject, outcome, examples, seed)
        values[condition] = measure_outcomes(subject.model, outcome, samples, batch)
        row["values"] = intervals(bootstrap.means(values[condition]))
        row["changes"] = intervals(bootstrap.means(values[condition] - values[OWN]))
        rows.append(row)
    shuffled, swapped = values[SHUFFLED], values.get(SWAPPED)
    notes = []
    if swapped is not None and np.array_equal(shuffled, swapped, equal_nan=True):
        notes.append(
            f"{SHUFFLED.name} and {SWAPPED.name} give this model the same input: images differ only in their "
            "features, because all have the same number of regions and equal boxes (as in a grid), or because the "
            "model reads no boxes"
        )
    without = int((~np.isfinite(values[OWN][:, 0])).sum())
    return {"measures": list(outcome.names), "without_right_answer": without, "rows": rows}, notes


def _samples_under(
    condition: InputCondition,
    subject: ModalityModel,
    outcome: Outcome,
    examples: Sequence[Example],
    seed: int,
) -> SampleDataset:
    """The examples as the model reads them under a condition."""
    partner: Mapping[str, str] | None = None
    if condition.image in ("shuffled", "swapped"):
        partner = shuffle_images([name for one in examples for name in one.images], seed)
    if condition.image == "swapped" and partner is not None:
        examples = [
            replace(one, images=tuple(partner[image] for image in one.images)) for one in examples
        ]
    if condition.text == "swapped":
        examples = swap_texts(examples, choose_swap_partners(examples, seed))
    shuffled = partner if condition.image == "shuffled" else None
    model = subject.model
    samples = outcome.prepare(subject.samples(examples, shuffled))
    if condition.image == "blank":
        samples = MappedDataset(samples, zero_region_features(model.sizes.regions))
    if condition.text == "blank":
        samples = MappedDataset(samples, blank_words(model.special_ids))
    if condition.text == "shuffled":
        samples = MappedDataset(samples, shuffle_words(model.special_ids, seed))
    return samples


@torch.no_grad()
def measure_outcomes(
    model: RegionEncoder, outcome: Outcome, samples: SampleDataset, batch: int
) -> np.ndarray:
    """The outcome of every sample, (samples, numbers of the outcome).

    `samples`: prepared by the outcome's `prepare`.
    """
    rows = SampleArrays()
    for inputs, _, places in iterate_batches(model, samples, batch):
        values = outcome.values(model(inputs), inputs)
        rows.put(places, 0, values.double().cpu().numpy())
    return rows.stacked()[:, 0]


# Integrated gradients over words and regions (Sundararajan et al. 2017), and whether attention
# agrees with them. The attribution of an input is the gradient of the answer with respect to its
# embedding, averaged along the straight line from the baseline (padding in place of words, zero
# region features) to the input, times the difference between the two. Attributions add up to the
# change in the answer (completeness); the residual is reported.

LINE_POINTS = 64
"""Points on the line from baseline to input."""
POINT_POWER = 3
"""Exponent applied to the Gauss-Legendre points (0..1), so that most of them lie near the baseline.

UNITER projects region features and applies a LayerNorm, which removes their scale: without biases,
the regions' whole effect occurs in the first millionth of the line, with small biases soon after
it. Evenly spaced points miss it, however many there are.
"""
MIN_RANKED = 3
"""Least number of words or regions for a rank correlation."""


@dataclass(frozen=True)
class Attribution:
    """Attributions of one example's answer, for the row that `right_choice_row` selects."""

    tokens: np.ndarray
    """(T,): of each token; 0 for special tokens, which the baseline has too."""
    regions: np.ndarray
    """(R,): of each region."""
    change: float
    """The answer less that of the baseline."""
    residual: float
    """`change` less the attributions of all rows; close to 0 with enough points."""


def attribute_answers(
    model: RegionEncoder,
    outcome: Outcome,
    samples: SampleDataset,
    batch: int,
    steps: int = LINE_POINTS,
) -> list[Attribution]:
    """Attributions of every sample's answer, for a model that reads stored features.

    `samples` as in `measure_outcomes`; `steps`: points on the line.
    """
    model.requires_grad_(False)
    special_ids = model.special_ids
    found: dict[int, Attribution] = {}
    for inputs, batch_samples, places in iterate_batches(model, samples, batch):
        attributions = _attribute_batch(model, outcome, inputs, batch_samples, special_ids, steps)
        found |= zip(places, attributions, strict=True)
    return [found[place] for place in sorted(found)]


def _attribute_batch(
    model: RegionEncoder,
    outcome: Outcome,
    batch: Batch,
    samples: Sequence[Sample],
    special_ids: Sequence[int],
    steps: int,
) -> list[Attribution]:
    """The attributions of a batch."""
    blank, path = _blank_and_path(model, batch, special_ids)

    def answer(point: Sequence[Tensor]) -> Tensor:
        text, regions = point
        moved = replace(blank, perturbation={"text": text, "regions": regions})
        return outcome.attribution_target(model(moved), batch)

    with torch.no_grad():
        change = answer(path) - answer([torch.zeros_like(part) for part in path])
    slopes = [torch.zeros_like(part) for part in path]
    for share, weight in zip(*quadrature_points(steps), strict=True):
        point = [(part * share).requires_grad_() for part in path]
        gradients = torch.autograd.grad(answer(point).sum(), point)
        for slope, gradient in zip(slopes, gradients, strict=True):
            slope += gradient * weight
    shares = [(slope * part).sum(-1) for slope, part in zip(slopes, path, strict=True)]
    rest = change - sum(part.view(len(batch), -1).sum(1) for part in shares)
    tokens, regions = (part.double().cpu().numpy() for part in shares)
    attributions = []
    for number, sample in enumerate(samples):
        choice = right_choice_row(sample)
        row = number * batch.choices + choice
        length = len(require(sample.rows[choice].text, "text", "an attribution").input_ids)
        count = len(require(sample.rows[choice].regions, "regions", "an attribution"))
        attributions.append(
            Attribution(
                tokens[row, :length],
                regions[row, :count],
                float(change[number]),
                float(rest[number]),
            )
        )
    return attributions


def quadrature_points(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Quadrature points (steps,), 0 (baseline) to 1 (input), and weights (steps,) with sum 1."""
    places, weights = np.polynomial.legendre.leggauss(steps)
    places, weights = (places + 1) / 2, weights / 2
    weights = weights * POINT_POWER * places ** (POINT_POWER - 1)
    return places**POINT_POWER, weights / weights.sum()


def _blank_and_path(
    model: RegionEncoder, batch: Batch, special_ids: Sequence[int]
) -> tuple[Batch, list[Tensor]]:
    """The baseline batch, and its differences to `batch`: words (N, T, E), regions (N, R, D).

    Points are the baseline plus a multiple of the difference, which is exact near the baseline;
    subtracting from the input would leave rounding errors there.
    """
    tokens = require(batch.text, "text", "an attribution")
    regions = require(batch.regions, "regions", "an attribution")
    table = model.word_embeddings()
    padding = 0 if model.text_tokenizer is None else model.text_tokenizer.pad_token_id or 0
    special = (
        torch.isin(tokens.input_ids, torch.tensor(special_ids, device=tokens.input_ids.device))
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


# -- results -----------------------------------------------------------------------------------------------------------

COMPLETE_RELATIVE = 0.05
"""Relative tolerance: a complete attribution has a residual of at most this share of the change."""
COMPLETE_ABSOLUTE = 0.01
"""Absolute tolerance: a smaller residual counts as complete even if the change is close to 0."""
MIN_COMPLETE_SHARE = 0.9
"""A note is written if the share of complete examples is below this."""


def attribution_summary(
    attributions: Sequence[Attribution],
    cls_attention: ClsAttention,
    rows: Sequence[Sample],
    bootstrap: Bootstrap,
) -> dict[str, Any]:
    """Integrated gradients as in `result.json`: completeness, and agreement with attention.

    `cls_attention`: [CLS]'s attention in the same samples, which are `rows`; `bootstrap` over their
    examples.
    """
    agreeing = np.stack(
        [
            attribution_agreement(*one)
            for one in zip(cls_attention.attention.by_sample(), attributions, rows, strict=True)
        ]
    )
    change = np.abs([one.change for one in attributions])
    residuals = np.abs([one.residual for one in attributions])
    layers = cls_attention.attention.layers
    return {
        "examples": len(attributions),
        "complete": round(
            float((residuals <= np.maximum(COMPLETE_RELATIVE * change, COMPLETE_ABSOLUTE)).mean()),
            6,
        ),
        "rest_median": round(float(np.median(residuals)), 6),
        "rest_worst": round(float(residuals.max()), 6),
        "change_mean_size": round(float(change.mean()), 6),
        "text_share": mean_with_interval(bootstrap.means(text_share(attributions))),
        "agreement": {
            "words": bootstrap.by_layer(agreeing[..., 0], layers),
            "regions": bootstrap.by_layer(agreeing[..., 1], layers),
        },
    }


def completeness_notes(summary: Mapping[str, Any]) -> list[str]:
    """A note if many attributions are incomplete; `summary` is the result of `attribution_summary`."""
    if summary["complete"] >= MIN_COMPLETE_SHARE:
        return []
    return [
        f"integrated gradients are off by more than {COMPLETE_RELATIVE:.0%} of the change, and by more than "
        f"{COMPLETE_ABSOLUTE}, in {1 - summary['complete']:.0%} of examples; double ig_steps "
        f"({summary['ig_steps']}) until `complete` no longer rises"
    ]


def text_share(attributions: Sequence[Attribution]) -> np.ndarray:
    """The words' share (N,) of the total absolute attribution; NaN where all attributions are 0."""
    words = np.array([np.abs(one.tokens).sum() for one in attributions])
    regions = np.array([np.abs(one.regions).sum() for one in attributions])
    with np.errstate(invalid="ignore"):
        return np.asarray(words / (words + regions))


def sum_by_word(values: np.ndarray, word: np.ndarray) -> np.ndarray:
    """Sums (K,) of tokens' values (T,) over raw words; `word` (T,) is -1 for tokens of no word."""
    inside = word >= 0
    _, number = np.unique(word[inside], return_inverse=True)
    return np.bincount(number, weights=values[inside])


def rank_correlation(values: np.ndarray, other_values: np.ndarray) -> float:
    """Spearman's correlation of two arrays (K,); NaN for fewer than three or for equal numbers."""
    if len(values) < MIN_RANKED or np.ptp(values) == 0 or np.ptp(other_values) == 0:
        return float("nan")
    return float(stats.spearmanr(values, other_values).statistic)


def attribution_agreement(
    attention: np.ndarray, attribution: Attribution, sample: Sample
) -> np.ndarray:
    """Rank correlation of [CLS]'s attention (layers, T + R) with absolute attributions.

    (layers + 1, 2): Spearman's correlation over words and over regions, for each layer and, last,
    for the mean of layers.
    """
    row = sample.rows[right_choice_row(sample)]
    word = require(row.text, "text", "an attribution").word_ids
    tokens = len(word)
    size_of_words = np.abs(sum_by_word(attribution.tokens, word))
    size_of_regions = np.abs(attribution.regions)
    correlations = []
    for layer in (*attention, attention.mean(0)):
        words = rank_correlation(sum_by_word(layer[:tokens], word), size_of_words)
        correlations.append([words, rank_correlation(layer[tokens:], size_of_regions)])
    return np.array(correlations)
