"""What a model says of an example as one number, so that it can be seen what the number depends on.

A fine-tuned model's is the probability of the right answer, a pre-trained one's that of a match of text and image or
of words that are hidden from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from groundling.core.batch import IGNORE, Batch, Encoded, Sample, needed
from groundling.core.forms import Answer, Choose, Form, Pick, Regress
from groundling.core.keyed import generator
from groundling.core.metrics import Metric
from groundling.data.samples import Changed, Samples
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.sentence_image import SentenceImage
from groundling.objectives.supervised import Supervised


class Outcome(Protocol):
    """What is measured of every example."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the numbers of `values` are, in words."""
        ...

    @property
    def explains(self) -> str:
        """What the number of `explained` is, in words."""
        ...

    def put(self, samples: Samples) -> Samples:
        """The samples as they are asked."""
        ...

    def values(self, encoded: Encoded, batch: Batch) -> Tensor:
        """(B, len(names)); NaN where an example has no such number."""
        ...

    def explained(self, encoded: Encoded, batch: Batch) -> Tensor:
        """(B,), the output that attributions add up to."""
        ...


class Match:
    """How well text and image belong together, as the head of pre-training has it."""

    names = ("log-odds of a match",)
    explains = names[0]

    def __init__(self, head: SentenceImage) -> None:
        self.head = head

    def put(self, samples: Samples) -> Samples:
        """The samples themselves."""
        return samples

    def values(self, encoded: Encoded, batch: Batch) -> Tensor:
        """(B, 1)."""
        return self.explained(encoded, batch)[:, None]

    def explained(self, encoded: Encoded, batch: Batch) -> Tensor:
        """The logit of a match less that of none (B,); of a multiple choice, the mean over choices."""
        logits = self.head.read(encoded, batch)
        return (logits[:, 1] - logits[:, 0]).view(len(batch), -1).mean(1)


class HiddenWords:
    """How likely the pieces are that were hidden from the text (masked LM, every chosen piece as [MASK])."""

    names = ("log-probability of a hidden piece", "share of them that is guessed")
    explains = names[0]

    def __init__(self, head: MaskedLM, seed: int = 0) -> None:
        """`seed` draws the pieces, for each example by its id."""
        self.head = head
        self.seed = seed

    def put(self, samples: Samples) -> Samples:
        """The samples with hidden pieces, at least one each."""
        return Changed(samples, lambda sample: sample.each_row(self._hidden))

    def _hidden(self, row: Sample) -> Sample:
        text = needed(row.text, "text", "a masked LM")
        draw = generator(self.seed, "hidden", row.id).random(len(text.ids))
        draw[text.special] = np.inf
        chosen = (draw < self.head.rate) | (draw == draw.min())
        chosen &= ~text.special
        ids = np.where(chosen, self.head.mask_id, text.ids)
        labels = np.where(chosen, text.ids, IGNORE)
        return replace(row, text=replace(text, ids=ids)).with_label(self.head.name, labels)

    def values(self, encoded: Encoded, batch: Batch) -> Tensor:
        """(B, 2)."""
        labels = batch.labels[self.head.name]
        logits = self.head.read(encoded, batch).float()
        asked = labels[labels != IGNORE]
        likely = logits.log_softmax(-1).gather(1, asked[:, None])[:, 0]
        right = (logits.argmax(-1) == asked).float()
        return torch.stack([_mean_of(likely, labels, batch), _mean_of(right, labels, batch)], 1)

    def explained(self, encoded: Encoded, batch: Batch) -> Tensor:
        """The mean log-probability (B,) of an example's hidden pieces."""
        return self.values(encoded, batch)[:, 0]


def _mean_of(numbers: Tensor, labels: Tensor, batch: Batch) -> Tensor:
    """Means (B,) of one number for each hidden piece, in the order of rows and pieces."""
    row = (labels != IGNORE).nonzero()[:, 0] // batch.choices
    sums = numbers.new_zeros(len(batch)).index_add(0, row, numbers)
    counts = numbers.new_zeros(len(batch)).index_add(0, row, torch.ones_like(numbers))
    return sums / counts


PROBABILITY = "probability of the right answer"
ERROR = "squared error, negative"


class RightAnswer:
    """What a fine-tuned model gives the right answer, and what its task scores."""

    explains = "score of the right answer"

    def __init__(self, objective: Supervised, metrics: Sequence[Metric] = ()) -> None:
        """Of `metrics` the first that is a mean over examples is told."""
        self.objective = objective
        self.metrics = [one for one in metrics if one.is_mean][:1]
        first = ERROR if isinstance(objective.form, Regress) else PROBABILITY
        self.names = (first, *(one.name for one in self.metrics))

    def put(self, samples: Samples) -> Samples:
        """The samples themselves."""
        return samples

    def values(self, encoded: Encoded, batch: Batch) -> Tensor:
        """(B, 1 + metrics)."""
        outputs = self.objective.outputs(encoded, batch)
        labels = batch.labels["label"]
        first = right_share(outputs, labels, self.objective.form)
        columns = [first.double().cpu()]
        predictions = self.objective.form.predict(outputs.detach().cpu().numpy())
        for metric in self.metrics:
            said = outputs.detach().cpu().numpy() if metric.ranked else predictions
            columns.append(torch.from_numpy(metric.gained(said, labels.cpu().numpy())))
        return torch.stack(columns, 1)

    def explained(self, encoded: Encoded, batch: Batch) -> Tensor:
        """The output (B,) of the right answer, before any softmax; of several right regions, their mean."""
        outputs = self.objective.outputs(encoded, batch)
        form = self.objective.form
        if isinstance(form, Regress):
            return outputs[:, 0]
        weights = _right(outputs, batch.labels["label"], form)
        return (_scores(outputs, form) * weights).sum(1) / weights.sum(1).clamp(min=1)


def _scores(outputs: Tensor, form: Form) -> Tensor:
    """One score (B, K) of each answer; of UNITER's two of each choice the right one."""
    if isinstance(form, Choose) and form.outputs == 2:
        return outputs[:, 1::2]
    return outputs


def _right(outputs: Tensor, labels: Tensor, form: Form) -> Tensor:
    """1 for answers (B, K) that are right, 0 for others: of soft targets, the best one; all 0 where nothing is."""
    scores = _scores(outputs, form)
    if isinstance(form, Pick):
        return (labels > 0).to(scores.dtype)
    if isinstance(form, Answer) and labels.ndim == 3:
        place, credit = labels.unbind(-1)
        best = credit.where(place >= 0, -1.0).argmax(1, keepdim=True)
        there = (place >= 0) & (credit > 0)
        right = place.gather(1, best).clamp(min=0).long()
        weight = there.gather(1, best).to(scores.dtype)
        return torch.zeros_like(scores).scatter(1, right, weight)
    return torch.zeros_like(scores).scatter(1, labels.long()[:, None], 1.0)


def right_share(outputs: Tensor, labels: Tensor, form: Form) -> Tensor:
    """The right answer's share (B,) of a softmax over answers, whatever the loss was; NaN where nothing is right.

    Of a number (`Regress`) it is minus the squared error.
    """
    if isinstance(form, Regress):
        return -((outputs[:, 0] - labels) ** 2)
    scores = _scores(outputs, form)
    if isinstance(form, Pick):
        scores = scores.masked_fill(labels < 0, -torch.inf)
    right = _right(outputs, labels, form)
    share = (scores.softmax(-1) * right).sum(1)
    return share.where(right.sum(1) > 0, torch.nan)
