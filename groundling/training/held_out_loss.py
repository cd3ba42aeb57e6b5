"""Losses of a run's objectives on held-out data, and their comparison with constant predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch import nn

from groundling.core.batch import Batch, collate
from groundling.core.errors import convert_read_errors
from groundling.core.rng import derive_seed
from groundling.objectives import Objective, order_for_corruption
from groundling.runs.folder import read_log
from groundling.runs.progress import print_notes, track
from groundling.settings.training import EvaluationSettings, TrainingArguments
from groundling.teachers import Teacher, add_features
from groundling.training.batch_sampler import DataSource, corrupt_samples, is_scored_by
from groundling.training.evaluation import Evaluator, device_of
from groundling.training.loop import (
    ModelWithObjectives,
    count_items,
    count_samples,
    means_of_windows,
)

# The loss of constant predictions, which ignore the input: class frequencies, or the mean of numbers.

BASELINE_SHARE = 0.98
"""A loss above this share of the constant prediction's loss counts as no better than it."""


class ConstantBaseline:
    """Accumulates the targets of a term, and computes the loss of the best constant prediction."""

    def __init__(self, kind: str) -> None:
        """`kind` of `LossTargets`."""
        self.kind = kind
        self.items = 0
        self.total: np.ndarray = np.zeros(0)
        self.squares = 0.0

    def add(self, values: np.ndarray) -> None:
        """Add classes (n,), or probabilities or numbers (n, K)."""
        self.items += len(values)
        if self.kind == "class":
            values = np.bincount(values.astype(int), minlength=len(self.total))
            self.total = np.pad(self.total, (0, len(values) - len(self.total))) + values
            return
        values = values.astype(float)
        self.total = values.sum(0) + (self.total if len(self.total) else 0)
        self.squares += float((values**2).sum())

    def loss(self) -> float:
        """Loss of the constant prediction: in nats for classes and probabilities, a squared error for numbers.

        A finite sample lacks some rare classes, so its entropy is too low; Miller's correction (1955) removes
        about half of this bias.
        """
        mean = self.total / self.items
        if self.kind == "number":
            return self.squares / self.items - float((mean**2).sum())
        # Probabilities of a region without classes sum to 0: it adds nothing to the loss, nor here.
        whole = mean.sum()
        positive = mean[mean > 0]
        entropy = -float((positive * np.log(positive / whole)).sum()) if whole else 0.0
        correction = (len(positive) - 1) / (2 * self.items) if self.kind == "class" else 0.0
        return entropy + correction


# Means per epoch of the terms that are logged but not trained, from a run's log.


def summarize_monitored_terms(
    objectives: Sequence[Objective], folder: Path, train_result: Mapping[str, Any]
) -> tuple[dict[str, list[float]], list[str]]:
    """The mean of each of the `monitored_terms` in every epoch of a finished training, and notes on them.

    `train_result`: the result of `train`; `folder`: the folder of its log.
    """
    terms = [term for objective in objectives for term in objective.monitored_terms]
    if not terms:
        return {}, []
    # Less than 0.0001 epochs is recorded as 0.
    epoch = train_result["steps"] / max(train_result["epochs"], 1e-4)
    means = means_by_epoch(folder / "log.jsonl", terms, epoch)
    # Terms that share a gate return the same notes.
    notes = list(dict.fromkeys(line for one in objectives for line in one.notes(means)))
    return means, notes


def means_by_epoch(log: Path, terms: Sequence[str], epoch: float) -> dict[str, list[float]]:
    """Mean of each term in every epoch of `log.jsonl`; terms that were not logged are missing.

    A line is weighted by the number of steps it covers, and belongs to the epoch of its last step; `epoch`:
    steps per epoch.
    """
    means = {}
    with convert_read_errors(log):
        # An evaluation has no loss.
        lines = [line for line in read_log(log) if "loss" in line]
        ends = np.array([line["step"] for line in lines], int)
        steps = np.diff(ends, prepend=0)
        epochs = np.ceil(np.round(ends / epoch, 6))
        for term in terms:
            values = np.array([line.get(term) for line in lines], float)  # NaN for None
            known = ~np.isnan(values) & (steps > 0)
            in_epochs = [known & (epochs == number) for number in np.unique(epochs[known])]
            if in_epochs:
                means[term] = [
                    float(np.average(values[own], weights=steps[own])) for own in in_epochs
                ]
    return means


HELD_OUT_EPOCH = -1
"""The epoch in the keys of random generators: other masks and pairs than in any training epoch."""
DEFAULT_BATCH = 64
"""Batch size over all processes if batch_tokens is set."""


def selection_bias_note(train_result: Mapping[str, Any]) -> list[str]:
    """The note on selection bias, if the weights were chosen by a score on this split."""
    evaluation = train_result.get("evaluation")
    if evaluation is None or not evaluation["keep_best"] or evaluation["evaluations"] < 2:
        return []
    return [
        f"the weights of step {evaluation['kept_step']} were kept, the best of "
        f"{evaluation['evaluations']} evaluations on "
        f"{evaluation['split']}: scores on {evaluation['split']} are too high (selection bias)"
    ]


def training_overlap_note(held_out: Sequence[str], training: Sequence[str], noun: str) -> list[str]:
    """A note if held-out items are also in the training data; both are given by name."""
    training_names = set(training)
    both = [name for name in dict.fromkeys(held_out) if name in training_names]
    if not both:
        return []
    count = len(set(held_out))
    return [
        f"{len(both):,} of {count:,} held-out {noun} are also in the training data, such as {both[0]!r}: scores on "
        "these are not held-out scores"
    ]


@dataclass(frozen=True)
class HeldOutLoss:
    """Losses of a model's objectives on held-out data, with fixed masks and negatives."""

    sample_noun: str
    """Noun for its samples in messages, e.g. `texts`."""
    sources: Sequence[DataSource]
    """The data sets, and the objectives of each; their ratios are ignored."""
    model: nn.Module
    objectives: Sequence[Objective]
    teachers: Sequence[Teacher]
    """Teachers without a cache, whose inputs the samples carry."""
    training: TrainingArguments
    """Its seed determines the random choices; a batch is about as large as a micro-batch of all processes."""

    def evaluator(self, settings: EvaluationSettings) -> Evaluator:
        """An evaluator of this loss."""
        split = f"held-out {self.sample_noun}"
        return Evaluator(settings, split, "loss", self.measure, higher_is_better=False)

    def report(self) -> dict[str, Any]:
        """Number of distinct samples, loss, and mean of every term, which are also printed."""
        terms = self.measure()
        loss = terms.pop("loss")
        count = count_samples(self.sources)
        means = ", ".join(f"{term} {mean:.4g}" for term, mean in terms.items())
        print_notes([f"held-out {self.sample_noun} ({count:,}): loss {loss:.4g} ({means})"])
        return {self.sample_noun: count, "loss": loss, "terms": terms}

    def measure(self) -> dict[str, float]:
        """`loss` and every term's mean over its items for the current model; equal in all processes.

        The loss is the sum of the means with their weights after warm-up, so that evaluations are comparable.
        Runs in eval mode, and restores the model's mode and the random state.
        """
        was_training = self.model.training
        step = ModelWithObjectives(self.model, self.objectives)
        step.eval()
        device = device_of(self.model, *self.objectives)
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            own = dict(sorted(self._sums(step, device).items()))
        step.train(was_training)
        every = gather_object([own]) if PartialState().num_processes > 1 else [own]
        means, _ = means_of_windows([{"terms": terms} for terms in every])
        return means

    def baseline_losses(self) -> dict[str, float]:
        """Loss of constant predictions on the same samples, by term; see `ConstantBaseline`."""
        baselines: dict[str, ConstantBaseline] = {}
        for source in self.sources:
            for start in range(0, len(source.samples), DEFAULT_BATCH):
                indices = np.arange(start, min(start + DEFAULT_BATCH, len(source.samples)))
                active, batch = self._corrupted_batch(source, indices)
                for objective in active:
                    for term, target in objective.loss_targets(batch).items():
                        baseline = baselines.setdefault(term, ConstantBaseline(target.kind))
                        baseline.add(target.values.cpu().numpy())
        return {term: one.loss() for term, one in baselines.items() if one.items}

    def _corrupted_batch(
        self, source: DataSource, indices: np.ndarray
    ) -> tuple[list[Objective], Batch]:
        active = order_for_corruption([one for one in self.objectives if is_scored_by(source, one)])
        seed = self.training.seed
        return active, collate(
            corrupt_samples(source.samples, indices, seed, HELD_OUT_EPOCH, active)
        )

    def _sums(
        self, step: ModelWithObjectives, device: torch.device
    ) -> dict[str, tuple[float, int, float]]:
        """Of this process's samples: each term's sum, items and weight after warm-up."""
        sums: dict[str, tuple[float, int, float]] = {}
        warm = max((objective.warmup for objective in self.objectives), default=0)
        is_main = PartialState().is_main_process
        for number, (source, indices) in enumerate(track(self._batches(), "held out", "batch")):
            torch.manual_seed(derive_seed(self.training.seed, "held out", number))
            active, own = self._corrupted_batch(source, indices)
            batch = own.to(device)
            for teacher in self.teachers:
                batch = add_features(teacher, batch)
            counts = count_items(active, [batch.cpu_copy])
            for term, value in step(batch, [one.name for one in active]).terms.items():
                total, items, _ = sums.get(term, (0.0, 0, 1.0))
                # A term without a count is averaged over batches, each counted once.
                items += counts.get(term, int(is_main))
                sums[term] = (total + float(value), items, step.weight(term, warm))
        return sums

    def _batches(self) -> list[tuple[DataSource, np.ndarray]]:
        """This process's samples in every batch; batches are sorted by length and of about equal size.

        Contrastive losses depend on a batch's samples, so batches are the same for any number of processes.
        """
        state = PartialState()
        batch_size = self.training.batch // self.training.gradient_accumulation_steps
        if self.training.batch_tokens:
            batch_size = max(DEFAULT_BATCH, state.num_processes)
        passes = []
        for source in self.sources:
            order = np.argsort(source.samples.lengths, kind="stable")
            for indices in np.array_split(order, max(1, len(order) // batch_size)):
                own = indices[state.process_index :: state.num_processes]
                if len(own):
                    passes.append((source, own))
        return passes


def compare_with_baseline(
    held_out_loss: HeldOutLoss, consequence: str
) -> tuple[dict[str, Any], list[str]]:
    """Losses and constant-prediction losses by term, and a note for each term that is no better.

    `consequence`: the end of such a note: what the loss implies.
    """
    levels = held_out_loss.baseline_losses()
    losses = held_out_loss.measure()
    comparison = {
        term: {"loss": losses[term], "guessing": level}
        for term, level in levels.items()
        if term in losses
    }
    notes = [
        f"{term} is no better than a constant prediction: its loss is {one['loss']:.4g}, that of predicting class "
        f"frequencies (for numbers: their mean) is {one['guessing']:.4g}; {consequence}"
        for term, one in comparison.items()
        if not one["loss"] < BASELINE_SHARE * one["guessing"]
    ]
    return comparison, notes
