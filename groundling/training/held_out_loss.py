"""Held-out data of a run: what its objectives lose there, beside what guessing loses, and what may follow from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch import nn

from groundling.core.batch import collate
from groundling.core.errors import InputError
from groundling.core.rng import derive_seed
from groundling.objectives import LossTargets, Objective, order_for_corruption
from groundling.runs.folder import read_log
from groundling.runs.progress import print_notes, track
from groundling.settings.training import EvaluationSettings, TrainConfig
from groundling.teachers import Teacher, add_features
from groundling.training.batch_sampler import DataSource, SampleCorruptor, is_scored_by
from groundling.training.evaluation import Evaluator
from groundling.training.loop import ModelWithObjectives, count_items

# What objectives lose who guess: by how frequent each answer is, or by the mean, without any look at the input.

LEFT = 0.98
"""A loss above this share of what guessing gives has not left it."""


class ConstantBaseline:
    """Gathers what terms are scored against, and tells the loss of the best answer that is always the same."""

    def __init__(self) -> None:
        self.gathered: dict[str, _TermSums] = {}

    def add(self, targets: Mapping[str, LossTargets]) -> None:
        """Some items of every term."""
        for term, some in targets.items():
            self.gathered.setdefault(term, _TermSums(some.kind)).add(some.values.cpu().numpy())

    def losses(self) -> dict[str, float]:
        """The loss of guessing by term: nats for classes and shares; for numbers a squared error.

        A sample has not met every rare class, so that its entropy is too low; Miller's correction (1955) takes away
        about half of that.
        """
        return {term: one.baseline_loss() for term, one in self.gathered.items() if one.items}


class _TermSums:
    """Sums over the items of one term."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.items = 0
        self.total: np.ndarray = np.zeros(0)
        self.squares = 0.0

    def add(self, values: np.ndarray) -> None:
        """Classes (n,), or shares or numbers (n, K)."""
        self.items += len(values)
        if self.kind == "class":
            values = np.bincount(values.astype(int), minlength=len(self.total))
            self.total = np.pad(self.total, (0, len(values) - len(self.total))) + values
            return
        values = values.astype(float)
        self.total = values.sum(0) + (self.total if len(self.total) else 0)
        self.squares += float((values**2).sum())

    def baseline_loss(self) -> float:
        mean = self.total / self.items
        if self.kind == "number":
            return self.squares / self.items - float((mean**2).sum())
        # Of regions without any class a store's shares sum to 0: they add nothing to a loss, nor here.
        whole = mean.sum()
        there = mean[mean > 0]
        entropy = -float((there * np.log(there / whole)).sum()) if whole else 0.0
        unseen = (len(there) - 1) / (2 * self.items) if self.kind == "class" else 0.0
        return entropy + unseen


# What a run's log says, epoch by epoch, of terms that are only watched.


def summarize_monitored_terms(
    objectives: Sequence[Objective], folder: Path, trained: Mapping[str, Any]
) -> tuple[dict[str, list[float]], list[str]]:
    """The mean of every watched term in each epoch of a finished training, and what is to be said of them, once.

    `trained` is what `train` returned, and `folder` where it wrote its log.
    """
    terms = [term for objective in objectives for term in objective.monitored_terms]
    if not terms:
        return {}, []
    # An epoch of fewer than a ten-thousandth is written as 0.
    epoch = trained["steps"] / max(trained["epochs"], 1e-4)
    means = means_by_epoch(folder / "log.jsonl", terms, epoch)
    # Terms that share a gate say the same of it.
    notes = list(dict.fromkeys(line for one in objectives for line in one.notes(means)))
    return means, notes


def means_by_epoch(log: Path, terms: Sequence[str], epoch: float) -> dict[str, list[float]]:
    """Mean of each term in every epoch of `log.jsonl`, where it was logged at all.

    A line counts by the steps it covers (one that covers none says nothing), and belongs to the epoch in which it ends,
    of `epoch` steps each. Raises InputError as `read_log`.
    """
    sums: dict[str, dict[int, tuple[float, int]]] = {term: {} for term in terms}
    before = 0
    for line in read_log(log):
        steps = line["step"] - before
        before = line["step"]
        number = ceil(round(before / epoch, 6))
        for term in terms:
            if line.get(term) is not None and steps:
                total, covered = sums[term].get(number, (0.0, 0))
                sums[term][number] = (total + steps * line[term], covered + steps)
    return {
        term: [total / covered for _, (total, covered) in sorted(of_term.items())]
        for term, of_term in sums.items()
        if of_term
    }


AFTER = -1
"""In an epoch's place in keys: masks and pairs that no epoch of training has."""
TOGETHER = 64
"""Samples in one pass over all processes, where --batch-tokens leaves their number open."""


def make_evaluator(
    examining: EvaluationSettings,
    split: str,
    metric: str,
    measure: Callable[[], Mapping[str, float]],
    higher_is_better: bool = True,
) -> Evaluator | None:
    """What is measured every --eval-every epochs; None without."""
    if not examining.eval_every:
        return None
    return Evaluator(
        split=split,
        metric=metric,
        measure=measure,
        interval_epochs=examining.eval_every,
        keep_best=examining.keep_best,
        patience=examining.patience,
        higher_is_better=higher_is_better,
    )


def selection_bias_note(trained: Mapping[str, Any]) -> list[str]:
    """What a reader must know of a score by which the weights were chosen."""
    evaluation = trained.get("evaluation")
    if evaluation is None or not evaluation["keep_best"] or evaluation["evaluations"] < 2:
        return []
    return [
        f"the weights of step {evaluation['kept_step']} were kept, the best of {evaluation['evaluations']} evaluations on "
        f"{evaluation['split']}: its scores on {evaluation['split']} are flattered by that choice"
    ]


def training_overlap_note(held: Sequence[str], learned: Sequence[str], what: str) -> list[str]:
    """A note if some of what is held out is learned from; both by name."""
    known = set(learned)
    both = [name for name in dict.fromkeys(held) if name in known]
    if not both:
        return []
    count = len(set(held))
    return [
        f"{len(both):,} of {count:,} held-out {what} are learned from, such as {both[0]!r}: what is measured there is "
        "not of held-out data"
    ]


class _ProcessSums(NamedTuple):
    """What some samples add to the means of terms."""

    sums: dict[str, float]
    counts: dict[str, int]
    weights: dict[str, float]


@dataclass(frozen=True)
class HeldOutLoss:
    """What a model's objectives lose on held-out data, with masks, pairs and draws of its own."""

    sample_noun: str
    """What messages call its samples, e.g. `texts`."""
    sources: Sequence[DataSource]
    """The data, and which objectives score each; their ratios have no part."""
    model: nn.Module
    objectives: Sequence[Objective]
    teachers: Sequence[Teacher]
    """Live ones, whose inputs the data carries."""
    training: TrainConfig
    """Its seed keys what is drawn; a pass has about as many samples as a micro-batch of all processes."""

    def __post_init__(self) -> None:
        """Raises InputError if there are fewer samples than processes, each of which has a share of every pass."""
        world = PartialState().num_processes
        for source in self.sources:
            if len(source.samples) < world:
                raise InputError(
                    f"{source.name}: {len(source.samples)} held-out {self.sample_noun}, expected at least one for each of "
                    f"{world} processes"
                )

    def evaluator(self, examining: EvaluationSettings) -> Evaluator | None:
        """This loss every --eval-every epochs, less being better; None without."""
        split = f"held-out {self.sample_noun}"
        return make_evaluator(examining, split, "loss", self.measure, higher_is_better=False)

    def report(self) -> dict[str, Any]:
        """How many samples there are, each once however many kinds of steps see it, the loss, and every term."""
        different = {id(source.samples): len(source.samples) for source in self.sources}
        terms = self.measure()
        loss = terms.pop("loss")
        return {self.sample_noun: sum(different.values()), "loss": loss, "terms": terms}

    def describe(self, report: Mapping[str, Any]) -> str:
        """A report in words."""
        terms = ", ".join(f"{term} {mean:.4g}" for term, mean in report["terms"].items())
        return f"held out, {report[self.sample_noun]:,} {self.sample_noun}: loss {report['loss']:.4g} ({terms})"

    def measure(self) -> dict[str, float]:
        """`loss`, and every term's mean over its items, of the model as it is now; the same in all processes.

        The loss is the sum of the means, each with the weight that it has after its warm-up, so that exams compare.
        The model is asked in evaluation mode; neither that mode nor the training's random state outlasts it.
        """
        was_training = self.model.training
        step = ModelWithObjectives(self.model, self.objectives)
        step.eval()
        device = self._device()
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            own = self._share(step, device)
        step.train(was_training)
        every = gather_object([own]) if PartialState().num_processes > 1 else [own]
        # Not every process need have met every term.
        names = sorted({term for share in every for term in share.sums})
        means = {}
        loss = 0.0
        for term in names:
            total = sum(share.sums.get(term, 0.0) for share in every)
            means[term] = total / max(1, sum(share.counts.get(term, 0) for share in every))
            weight = next(share.weights[term] for share in every if term in share.weights)
            loss += weight * means[term]
        return {"loss": loss, **means}

    def baseline_losses(self) -> dict[str, float]:
        """What who guesses loses on the same samples by term, of those for which one can; see `ConstantBaseline`."""
        corruption = SampleCorruptor(self.training.seed)
        found = ConstantBaseline()
        for source in self.sources:
            active = order_for_corruption(
                [one for one in self.objectives if is_scored_by(source, one)]
            )
            for start in range(0, len(source.samples), TOGETHER):
                indices = range(start, min(start + TOGETHER, len(source.samples)))
                batch = collate(corruption(source.samples, indices, AFTER, active))
                for objective in active:
                    found.add(objective.loss_targets(batch))
        return found.losses()

    def _share(self, step: ModelWithObjectives, device: torch.device) -> _ProcessSums:
        """What this process's samples add."""
        share = _ProcessSums(defaultdict(float), defaultdict(int), {})
        corruption = SampleCorruptor(self.training.seed)
        warm = max((objective.warmup for objective in self.objectives), default=0)
        is_main = PartialState().is_main_process
        for number, (source, indices) in enumerate(track(self._batches(), "held out", "batch")):
            torch.manual_seed(derive_seed(self.training.seed, "held out", number))
            active = order_for_corruption(
                [one for one in self.objectives if is_scored_by(source, one)]
            )
            batch = collate(corruption(source.samples, indices, AFTER, active)).to(device)
            for teacher in self.teachers:
                batch, checks = add_features(teacher, batch)
                for check in checks:
                    check.raise_if_not_finite(float(check.number))
            counts = count_items(active, [batch.cpu_copy])
            for term, value in step(batch, [one.name for one in active]).terms.items():
                share.sums[term] += float(value)
                # What nobody counts is a mean over passes, each of which is counted once.
                share.counts[term] += counts.get(term, int(is_main))
                share.weights[term] = step.weight(term, warm)
        return share

    def _batches(self) -> list[tuple[DataSource, np.ndarray]]:
        """This process's samples in every pass: equal lengths together, no pass much smaller than the others.

        Contrastive losses depend on what stands in a pass, so that it is the same on any number of processes.
        """
        state = PartialState()
        together = self.training.batch // self.training.gradient_accumulation_steps
        if self.training.batch_tokens:
            together = max(TOGETHER, state.num_processes)
        passes = []
        for source in self.sources:
            order = np.argsort(source.samples.lengths, kind="stable")
            for indices in np.array_split(order, max(1, len(order) // together)):
                passes.append((source, indices[state.process_index :: state.num_processes]))
        return passes

    def _device(self) -> torch.device:
        return next(
            chain(self.model.parameters(), *(o.parameters() for o in self.objectives))
        ).device


def compare_with_baseline(held: HeldOutLoss, skilled: str) -> tuple[dict[str, Any], list[str]]:
    """Of every term for which one can guess: its loss on some samples and what guessing loses there; notes of those
    that have not left it, which end in what is `skilled`.
    """
    levels = held.baseline_losses()
    losses = held.measure()
    told = {
        term: {"loss": losses[term], "guessing": level}
        for term, level in levels.items()
        if term in losses
    }
    notes = [
        f"{term} has not left guessing: {one['loss']:.4g}, where {one['guessing']:.4g} is what who knows no more than "
        f"how frequent each answer is (of numbers: their mean) loses; {skilled}"
        for term, one in told.items()
        if not one["loss"] < LEFT * one["guessing"]
    ]
    return told, notes


def report_held_out(held: HeldOutLoss | None) -> dict[str, Any]:
    """`held` of a result, which is said, too; nothing where nothing is held out."""
    if held is None:
        return {}
    report = held.report()
    print_notes([held.describe(report)])
    return {"held": report}
