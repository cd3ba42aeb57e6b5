"""A model's answer to an example as a number, and how much it depends on each input (Frank et al. 2021).

For a fine-tuned model, the number is the probability of the right answer; for a pre-trained one,
the log-odds that text and image match, or the log-probability of masked words. Attention cannot
show what an answer depends on: a model may attend to inputs that do not change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from groundling.core.batch import IGNORE, Batch, EncoderOutput, Example, Sample, TextRow, require
from groundling.core.errors import InputError
from groundling.core.metrics import Metric
from groundling.core.output_types import (
    MultipleChoice,
    OpenAnswer,
    OutputType,
    RegionSelection,
    Regression,
)
from groundling.core.rng import generator
from groundling.data.samples import MappedDataset, SampleDataset
from groundling.models.heads import init_lm_head
from groundling.objectives.image_text_matching import ImageTextMatching
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.supervised import SupervisedObjective
from groundling.prediction.similarity import load_match_head
from groundling.studies.attention.commands import ModalityConfig
from groundling.studies.attention.importance import Bootstrap, intervals
from groundling.studies.attention.inspected_models import (
    FineTunedRegionModel,
    RegionModel,
    SampleArrays,
    iterate_batches,
    shuffle_images,
)
from groundling.vision_language import RegionEncoder


class Outcome:
    """Abstract: numbers that are measured for every example, from a model's output."""

    names: tuple[str, ...]
    """Labels of the columns of `values`."""

    @property
    def target_name(self) -> str:
        """Label of the number that `attribution_target` returns."""
        return self.names[0]

    def prepare(self, samples: SampleDataset) -> SampleDataset:
        """The samples prepared for the outcome, such as with masked words; here as they are."""
        return samples

    def values(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(B, len(names)); NaN where a number is undefined for an example."""
        raise NotImplementedError

    def attribution_target(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(B,): the output that is attributed to the inputs; here the first of `values`."""
        return self.values(encoded, batch)[:, 0]


class MatchOutcome(Outcome):
    """How well text and image match, by the image-text matching head of pre-training."""

    names = ("log-odds of a match",)

    def __init__(self, head: ImageTextMatching) -> None:
        self.head = head

    def values(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Log-odds of a match (B, 1), a difference of logits; for multiple choice, the mean."""
        logits = self.head.compute_logits(encoded, batch)
        return (logits[:, 1] - logits[:, 0]).view(len(batch), -1).mean(1, keepdim=True)


class HiddenWordsOutcome(Outcome):
    """Log-probability of masked tokens (masked LM; every chosen token becomes [MASK])."""

    names = ("log-probability of a masked token", "accuracy on masked tokens")

    def __init__(self, head: MaskedLM, seed: int = 0) -> None:
        """`seed` draws the masked tokens, for each example by its id."""
        self.head = head
        self.seed = seed

    def prepare(self, samples: SampleDataset) -> SampleDataset:
        """The samples with masked tokens, at least one each."""
        return MappedDataset(samples, lambda sample: sample.each_row(self._hidden))

    def _hidden(self, row: Sample) -> Sample:
        text = require(row.text, "text", "a masked LM")
        draw = generator(self.seed, "hidden", row.id).random(len(text.input_ids))
        draw[text.special_tokens_mask] = np.inf
        chosen = (draw < self.head.settings.mask_rate) | (draw == draw.min())
        chosen &= ~text.special_tokens_mask
        ids = np.where(chosen, self.head.mask_id, text.input_ids)
        labels = np.where(chosen, text.input_ids, IGNORE)
        return replace(row, text=replace(text, input_ids=ids)).with_label(self.head.name, labels)

    def values(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(B, 2): means over an example's masked tokens."""
        labels = batch.labels[self.head.name]
        logits = self.head.compute_logits(encoded, batch).float()
        masked_ids = labels[labels != IGNORE]
        likely = logits.log_softmax(-1).gather(1, masked_ids[:, None])[:, 0]
        right = (logits.argmax(-1) == masked_ids).float()
        return torch.stack([_mean_of(likely, labels, batch), _mean_of(right, labels, batch)], 1)


def _mean_of(numbers: Tensor, labels: Tensor, batch: Batch) -> Tensor:
    """Means (B,) by example of `numbers`, one for each masked token in order."""
    row = (labels != IGNORE).nonzero()[:, 0] // batch.choices
    sums = numbers.new_zeros(len(batch)).index_add(0, row, numbers)
    counts = numbers.new_zeros(len(batch)).index_add(0, row, torch.ones_like(numbers))
    return sums / counts


PROBABILITY = "probability of the right answer"
ERROR = "squared error, negative"


class RightAnswerOutcome(Outcome):
    """A fine-tuned model's probability of the right answer, and its task's metrics."""

    target_name = "score of the right answer"

    def __init__(self, objective: SupervisedObjective, metrics: Sequence[Metric] = ()) -> None:
        """`metrics`: the first that is a mean over examples is measured."""
        self.objective = objective
        self.metrics = [one for one in metrics if one.is_mean][:1]
        first = ERROR if isinstance(objective.output_type, Regression) else PROBABILITY
        self.names = (first, *(one.name for one in self.metrics))

    def values(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(B, 1 + metrics)."""
        outputs = self.objective.outputs(encoded, batch)
        labels = batch.labels["label"]
        first = right_answer_probability(outputs, labels, self.objective.output_type)
        columns = [first.double().cpu()]
        predictions = self.objective.output_type.predict(outputs.detach().cpu().numpy())
        for metric in self.metrics:
            scored = outputs.detach().cpu().numpy() if metric.uses_scores else predictions
            columns.append(torch.from_numpy(metric.per_example(scored, labels.cpu().numpy())))
        return torch.stack(columns, 1)

    def attribution_target(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """The right answer's score (B,) before softmax; the mean of several right regions."""
        outputs = self.objective.outputs(encoded, batch)
        form = self.objective.output_type
        if isinstance(form, Regression):
            return outputs[:, 0]
        weights = _right(outputs, batch.labels["label"], form)
        return (_scores(outputs, form) * weights).sum(1) / weights.sum(1).clamp(min=1)


def _scores(outputs: Tensor, form: OutputType) -> Tensor:
    """One score (B, K) for each answer; of UNITER's two per choice, the second."""
    if isinstance(form, MultipleChoice) and form.head_width == 2:
        return outputs[:, 1::2]
    return outputs


def _right(outputs: Tensor, labels: Tensor, form: OutputType) -> Tensor:
    """1 for right answers (B, K); for soft targets, the best one; all 0 if none is right."""
    scores = _scores(outputs, form)
    if isinstance(form, RegionSelection):
        return (labels > 0).to(scores.dtype)
    if isinstance(form, OpenAnswer) and labels.ndim == 3:
        place, credit = labels.unbind(-1)
        best = credit.where(place >= 0, -1.0).argmax(1, keepdim=True)
        is_given = (place >= 0) & (credit > 0)
        right = place.gather(1, best).clamp(min=0).long()
        weight = is_given.gather(1, best).to(scores.dtype)
        return torch.zeros_like(scores).scatter(1, right, weight)
    return torch.zeros_like(scores).scatter(1, labels.long()[:, None], 1.0)


def right_answer_probability(outputs: Tensor, labels: Tensor, form: OutputType) -> Tensor:
    """The softmax probability (B,) of the right answer, for any loss; NaN if none is right.

    For `Regression`, minus the squared error.
    """
    if isinstance(form, Regression):
        return -((outputs[:, 0] - labels) ** 2)
    scores = _scores(outputs, form)
    if isinstance(form, RegionSelection):
        scores = scores.masked_fill(labels < 0, -torch.inf)
    right = _right(outputs, labels, form)
    share = (scores.softmax(-1) * right).sum(1)
    return share.where(right.sum(1) > 0, torch.nan)


def outcome_of(
    subject: RegionModel, config: ModalityConfig, device: torch.device
) -> Outcome | None:
    """A model's answer as a number, by the head that it was saved with; None without a head.

    For a pre-trained model, the image-text matching head or the masked-LM head, see `ModalityConfig.outcome`.
    """
    if isinstance(subject, FineTunedRegionModel):
        return RightAnswerOutcome(subject.fitted.objective, subject.fitted.task.metrics)
    model, folder = subject.model, Path(subject.config.model)
    match = None if config.outcome == "words" else load_match_head(model, folder, device)
    if match is not None:
        return MatchOutcome(match)
    if config.outcome == "match":
        return None
    mask = getattr(model.text_tokenizer, "mask_token_id", None)
    if mask is None:
        return None
    head = MaskedLM(model.sizes, mask_id=mask)
    if init_lm_head(head.head, folder) == "new":
        return None
    return HiddenWordsOutcome(head.to(device).eval(), config.seed)


# -- ablation ----------------------------------------------------------------------------------------------------------
InputState = Literal["own", "blank", "shuffled", "swapped"]


class InputCondition(NamedTuple):
    """The inputs of an example that a model receives, each its own or ablated."""

    image: InputState = "own"
    """blank: boxes with zero features; shuffled: own boxes, features of another image; swapped:
    boxes and features of another image.
    """
    text: InputState = "own"
    """blank: padding for every token; shuffled: own words reordered; swapped: another text."""


INPUT_CONDITIONS = {
    "as it is": InputCondition(),
    "image blank": InputCondition(image="blank"),
    "image shuffled": InputCondition(image="shuffled"),
    "image swapped": InputCondition(image="swapped"),
    "text blank": InputCondition(text="blank"),
    "text shuffled": InputCondition(text="shuffled"),
    "text swapped": InputCondition(text="swapped"),
    "both blank": InputCondition("blank", "blank"),
}
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


def zero_region_features(sample: Sample, width: int) -> Sample:
    """Set region features to zero, as `finetune --zero-region-features` does; boxes stay."""

    def row(one: Sample) -> Sample:
        regions = require(one.regions, "regions", "modality")
        zeros = np.zeros((len(regions), width), np.float32)
        return replace(one, pixels=None, regions=replace(regions, features=zeros))

    return replace(sample.each_row(row), pixels=None)


def word_token_mask(row: TextRow, special_ids: Sequence[int]) -> np.ndarray:
    """Which tokens (T,) belong to words, without special ones and `special_ids` (a head's [MASK])."""
    return ~row.special_tokens_mask & ~np.isin(row.input_ids, special_ids)


def blank_words(sample: Sample, special_ids: Sequence[int]) -> Sample:
    """Replace all tokens but special ones by padding; lengths stay."""

    def row(one: Sample) -> Sample:
        text = require(one.text, "text", "modality")
        is_word = word_token_mask(text, special_ids)
        ids = np.where(is_word, text.pad_token_id, text.input_ids)
        return replace(one, text=replace(text, input_ids=ids))

    return sample.each_row(row)


def shuffle_words(sample: Sample, special_ids: Sequence[int], seed: int) -> Sample:
    """Shuffle the words of each text; a word's tokens stay together."""

    def row(one: Sample) -> Sample:
        text = require(one.text, "text", "modality")
        rng = generator(seed, "order", sample.id)
        inner = word_token_mask(text, special_ids)
        part = text.token_type_ids if text.part_index is None else text.part_index
        places = np.arange(len(inner))
        for number in np.unique(part[inner]):
            own = np.flatnonzero(inner & (part == number))
            words = text.word_ids[own]
            order = rng.permutation(np.unique(words))
            places[own] = np.concatenate([own[words == word] for word in order])
        return replace(one, text=text.take(places))

    return sample.each_row(row)


def swap_texts(examples: Sequence[Example], seed: int) -> list[Example]:
    """The examples, each with the text of one with other text and images; choices stay.

    The swap depends on the seed only. Raises InputError if there is none for an example.
    """
    order = generator(seed, "strangers").permutation(len(examples))
    place = np.argsort(order)
    swapped = []
    for number, example in enumerate(examples):
        others = (
            examples[order[(place[number] + step) % len(order)]] for step in range(len(order))
        )
        stranger = next(
            (
                one
                for one in others
                if one.text != example.text and set(one.images).isdisjoint(example.images)
            ),
            None,
        )
        if stranger is None:
            raise InputError(
                f"{example.id}: no example differs in both text and image, so there is nothing to swap in; use more "
                "examples, or pass perturbed_inputs=False"
            )
        objects = example.object_count
        tags = tuple(tag for tag in stranger.region_tags if not objects or tag[2] < objects)
        own = {"text": stranger.text, "text_pair": stranger.text_pair, "region_tags": tags}
        swapped.append(replace(example, **own, part_starts=stranger.part_starts))
    return swapped


def ablate_inputs(
    subject: RegionModel,
    outcome: Outcome | None,
    examples: Sequence[Example],
    config: ModalityConfig,
    bootstrap: Bootstrap,
) -> dict[str, Any]:
    """A model's answers with ablated inputs, as `inputs` in `result.json`; `bootstrap` over the examples."""
    if outcome is None:
        return {"undefined": "the model has no image-text matching head"}
    unchanged = np.zeros(0)
    rows = []
    for name, condition in INPUT_CONDITIONS.items():
        row: dict[str, Any] = {"given": name, **condition._asdict()}
        reason = undefined_reason(condition, outcome, subject.form, examples)
        if reason:
            rows.append(row | {"undefined": reason})
            continue
        samples = _samples_under(condition, subject, outcome, examples, config.seed)
        values = measure_outcomes(subject.model, outcome, samples, config.batch)
        if condition == InputCondition():
            unchanged = values
        row["values"] = intervals(bootstrap.means(values))
        row["changes"] = intervals(bootstrap.means(values - unchanged))
        rows.append(row)
    return {"measures": list(outcome.names), "rows": rows}


def _samples_under(
    condition: InputCondition,
    subject: RegionModel,
    outcome: Outcome,
    examples: Sequence[Example],
    seed: int,
) -> SampleDataset:
    partner: Mapping[str, str] | None = None
    if condition.image in ("shuffled", "swapped"):
        partner = shuffle_images([name for one in examples for name in one.images], seed)
    if condition.image == "swapped" and partner is not None:
        examples = [
            replace(one, images=tuple(partner[image] for image in one.images)) for one in examples
        ]
    if condition.text == "swapped":
        examples = swap_texts(examples, seed)
    shuffled = partner if condition.image == "shuffled" else None
    model = subject.model
    samples = outcome.prepare(subject.samples(examples, shuffled))
    if condition.image == "blank":
        zeros = partial(zero_region_features, width=model.sizes.regions)
        samples = MappedDataset(samples, zeros)
    if condition.text == "blank":
        samples = MappedDataset(samples, partial(blank_words, special_ids=model.special_ids))
    if condition.text == "shuffled":
        shuffle = partial(shuffle_words, special_ids=model.special_ids, seed=seed)
        samples = MappedDataset(samples, shuffle)
    return samples


@torch.no_grad()
def measure_outcomes(
    model: RegionEncoder, outcome: Outcome, samples: SampleDataset, batch: int
) -> np.ndarray:
    """The outcome of every sample, (samples, numbers of the outcome).

    `samples`: prepared by the outcome's `prepare`.
    """
    rows = SampleArrays()
    for seen in iterate_batches(model, samples, batch):
        values = outcome.values(model(seen.batch), seen.batch)
        rows.put(seen.places, 0, values.double().cpu().numpy())
    return rows.stacked()[:, 0]
