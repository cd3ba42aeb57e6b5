"""What every training command does: trains, follows the loss on held-out data, and saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch import nn

from groundling.core.batch import FORWARD_BATCH, Batch, collate
from groundling.core.errors import InputError
from groundling.core.rng import derive_seed
from groundling.models.loading import Encoder
from groundling.objectives import (
    Objective,
    ObjectiveContext,
    in_batch_negatives_note,
    make_objectives,
    order_for_corruption,
    save_objective_heads,
)
from groundling.runs.progress import print_notes, track
from groundling.runs.run import RunFolder
from groundling.settings.objectives import TrainingStepSettings
from groundling.settings.training import EvaluationSettings, TrainingArguments
from groundling.teachers import Teacher, add_features
from groundling.teachers.feature_cache import TeacherSet
from groundling.training.batch_sampler import DataSource, corrupt_samples, is_scored_by
from groundling.training.evaluation import Evaluator, device_of
from groundling.training.loop import (
    ModelWithObjectives,
    add_counts,
    count_samples,
    means_of_windows,
    train,
)
from groundling.training.training_steps import load_training_step

BASELINE_SHARE = 0.98
"""A loss above this share of the constant prediction's loss counts as no better than it."""


def constant_loss(kind: str, values: np.ndarray) -> float:
    """Loss of the best constant prediction of the targets `values` of a kind; see `LossTargets`.

    In nats for classes and probabilities, a squared error for numbers. A finite sample lacks some rare classes, so its
    entropy is too low; Miller's correction (1955) removes about half of this bias.
    """
    if kind == "number":
        return float(values.astype(float).var(0).sum())
    totals = np.bincount(values) if kind == "class" else values.astype(float).sum(0)
    totals = totals[totals > 0]
    # Probabilities of a region without classes sum to 0: it adds nothing to the loss, nor here.
    entropy = -float(totals @ np.log(totals / totals.sum())) / len(values)
    return entropy + ((len(totals) - 1) / (2 * len(values)) if kind == "class" else 0.0)


HELD_OUT_EPOCH = -1
"""The epoch in the keys of random generators: other masks and pairs than in any training epoch."""


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

        The loss is the sum of the means with their weights, so that evaluations are comparable.
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
        """Loss of constant predictions on the same samples, by term; see `constant_loss`."""
        targets: dict[tuple[str, str], list[np.ndarray]] = {}
        for source in self.sources:
            count = len(source.samples)
            for start in range(0, count, FORWARD_BATCH):
                indices = np.arange(start, min(start + FORWARD_BATCH, count))
                active, batch = self._corrupted_batch(source, indices)
                for objective in active:
                    for term, one in objective.loss_targets(batch).items():
                        targets.setdefault((term, one.kind), []).append(one.values.numpy())
        found = {key: np.concatenate(parts) for key, parts in targets.items()}
        return {
            term: constant_loss(kind, values)
            for (term, kind), values in found.items()
            if len(values)
        }

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
        """Of this process's samples: each term's sum, items and weight."""
        sums: dict[str, tuple[float, int, float]] = {}
        is_main = PartialState().is_main_process
        for number, (source, indices) in enumerate(track(self._batches(), "held out", "batch")):
            torch.manual_seed(derive_seed(self.training.seed, "held out", number))
            active, own = self._corrupted_batch(source, indices)
            batch = own.to(device)
            for teacher in self.teachers:
                batch = add_features(teacher, batch)
            counts = add_counts(one.count(batch.cpu_copy) for one in active)
            for term, value in step(batch, [one.name for one in active]).terms.items():
                total, items, _ = sums.get(term, (0.0, 0, 1.0))
                # A term without a count is averaged over batches, each counted once.
                items += counts.get(term, int(is_main))
                sums[term] = (total + float(value), items, step.weight(term))
        return sums

    def _batches(self) -> list[tuple[DataSource, np.ndarray]]:
        """This process's samples in every batch; batches are sorted by length and of about equal size.

        Contrastive losses depend on a batch's samples, so batches are the same for any number of processes.
        """
        state = PartialState()
        batch_size = self.training.batch // self.training.gradient_accumulation_steps
        if self.training.batch_tokens:
            batch_size = max(FORWARD_BATCH, state.num_processes)
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


def taught_objectives(
    names: Sequence[str], context: ObjectiveContext, teacher_set: TeacherSet, seed: int
) -> list[Objective]:
    """Objectives with heads as wide as their teachers' features."""
    context = replace(context, sizes=teacher_set.sizes(context.sizes))
    return make_objectives(names, context, seed)


Data = tuple[Sequence[DataSource], Sequence[Teacher]]
"""Data sources, and the teachers that run in every step, since the features of their samples are not cached."""


def fit(
    model: nn.Module,
    objectives: Sequence[Objective],
    data: Data,
    training: TrainingArguments,
    run: RunFolder,
    *,
    training_step: TrainingStepSettings = TrainingStepSettings(),  # noqa: B008  (frozen)
    evaluation: EvaluationSettings = EvaluationSettings(),  # noqa: B008  (frozen)
    held_out: Data | None = None,
    evaluator: Evaluator | None = None,
    saves: Mapping[int, Callable[[], None]] = MappingProxyType({}),
) -> dict[str, Any]:
    """`train` in the run's folder, with notes on what limits the result; returns it with the loss on `held_out`.

    Evaluation during training is by the `evaluator` or, without one, by this loss.
    """
    sources, teachers = data
    loss = None
    if held_out is not None:
        loss = HeldOutLoss("texts", held_out[0], model, objectives, held_out[1], training)
        evaluator = evaluator or loss.evaluator(evaluation)
    if evaluation.eval_every and evaluator is None:
        raise InputError("eval_every: there is no held-out data to evaluate on")
    run.note(*in_batch_negatives_note(objectives, training))
    result: dict[str, Any] = train(
        model,
        objectives,
        sources,
        training,
        run.folder,
        teachers=teachers,
        training_step=load_training_step(training_step),
        evaluator=evaluator,
        saves=saves,
    )
    # Terms that share a gate return the same notes.
    monitored = [note for one in objectives for note in one.notes(result["train_metrics"])]
    run.note(*dict.fromkeys(monitored), *selection_bias_note(result))
    return result if loss is None else {**result, "held": loss.report()}


def save_trained(folder: Path, model: Encoder, objectives: Sequence[Objective]) -> None:
    """Write a trained model with the heads of its objectives."""
    model.export(folder)
    save_objective_heads(folder, objectives)
