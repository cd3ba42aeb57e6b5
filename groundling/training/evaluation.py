"""Evaluation: predictions and metrics of a model on a task's examples, at the end or during training."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from scipy.special import softmax
from torch import nn

from groundling.core.batch import FORWARD_BATCH, IGNORE, Example, Sample, collate
from groundling.core.metrics import is_degenerate
from groundling.data.samples import SampleDataset
from groundling.objectives.supervised import SupervisedObjective
from groundling.runs.folder import json_text, whole_file, write_whole
from groundling.runs.progress import track
from groundling.settings.training import EvaluationSettings
from groundling.tasks import Task

# Evaluation during training: how often, which step's weights are kept, when to stop.

EvaluationScores = Mapping[str, float | None]
"""`step` and scores by name of one evaluation; None for an undefined score."""
EvaluationHistory = Sequence[EvaluationScores]
"""All evaluations so far."""


@dataclass(frozen=True)
class Evaluator:
    """Evaluates a model on held-out data during training, keeps the best weights, and stops early."""

    settings: EvaluationSettings
    """How often, which step's weights the model has after training, and when to stop; off without `eval_every`."""
    split: str
    """The evaluated split."""
    metric: str
    """The score by which steps are compared."""
    measure: Callable[[], Mapping[str, float]]
    """Computes the current model's scores by name; called in every process, with equal results."""
    higher_is_better: bool = True
    """False if the metric is an error."""

    def is_due(self, step: int, steps: int, per_epoch: float) -> bool:
        """Whether to evaluate after `step` of `steps`, at `per_epoch` steps per epoch."""
        interval = self.settings.eval_every * per_epoch
        return step == steps or _floor_rounded(step / interval) > _floor_rounded(
            (step - 1) / interval
        )

    def best(self, history: EvaluationHistory) -> EvaluationScores:
        """The best evaluation; ties go to the first, and an undefined score is the worst."""
        return max(history, key=self._rank_value)

    def kept_step(self, history: EvaluationHistory) -> int:
        """The step of the best evaluation, if its weights are kept; else 0."""
        if not self.settings.keep_best or not history:
            return 0
        return int(self.best(history)["step"] or 0)

    def should_stop(self, history: EvaluationHistory) -> bool:
        """Whether to stop early: `patience` evaluations without a new best."""
        patience = self.settings.patience
        if not patience or not history:
            return False
        return len(history) - 1 - history.index(self.best(history)) >= patience

    def describe(self, history: EvaluationHistory) -> str:
        """The line printed after the latest evaluation."""
        latest = dict(history[-1])
        step = latest.pop("step")
        scores = ", ".join(f"{name} {_format_score(one)}" for name, one in latest.items())
        best = self.best(history)
        compared = f"best so far: {_format_score(best[self.metric])} at step {best['step']:,}"
        return f"step {step:,}: {self.split} {scores} ({compared})"

    def report(self, history: EvaluationHistory, step: int, steps: int) -> dict[str, Any]:
        """The summary of all evaluations in a result, after `step` of `steps` planned steps."""
        return {
            "split": self.split,
            "metric": self.metric,
            "keep_best": self.settings.keep_best,
            "evaluations": len(history),
            "kept_step": self.kept_step(history) or step,
            "stopped_early": step < steps,
            "scores": list(history),
        }

    def _rank_value(self, scores: EvaluationScores) -> float:
        value = scores[self.metric]
        if value is None or math.isnan(value):
            return -math.inf
        return value if self.higher_is_better else -value


def _format_score(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4g}"


def _floor_rounded(number: float) -> int:
    # Round first, so that a fraction such as 1/3 does not lose a step to rounding errors.
    return math.floor(round(number, 6))


MAX_OUTPUTS = 100
"""Maximum number of outputs to keep per example: VQA's 3,129 for its 214,354 questions would take 20 GB."""
BATCH_BY_DEVICE = {"cpu": 16}
"""Batch size by device type: a CPU is fastest while a layer's states fit in its caches."""
TOP_CLASSES = 20
"""Number of most likely classes kept instead, with their probabilities, which ensembles average."""


@dataclass(frozen=True)
class EvaluationOutput:
    """A model's outputs, predictions and metrics on one split."""

    examples: Sequence[Example]
    """The N examples."""
    outputs: np.ndarray
    """(N, outputs); if there are more than `MAX_OUTPUTS` outputs, (N, 1), the highest."""
    predictions: np.ndarray
    """(N,)."""
    labels: np.ndarray | None
    """(N,), or (N, K, 2) for soft targets, or (N, R) for regions; None if unknown."""
    metrics: dict[str, float]
    """The task's metrics by name; empty without labels."""
    top_classes: Sequence[Sequence[tuple[int, float]]] = ()
    """If there are more than `MAX_OUTPUTS` outputs: the most likely classes and their probabilities, best first."""
    truncated_tokens: int = 0
    """Number of truncated tokens."""
    truncated_regions: int = 0
    """Number of truncated regions."""

    @property
    def official_ids(self) -> list[str]:
        """Ids of the examples in the data set's own files, where they have some."""
        return [example.official_id for example in self.examples]

    def write(self, path: Path) -> None:
        """Write one JSON line per example: id, official id, prediction, label, outputs, most likely classes, groups."""
        groups = group_examples(self.examples)
        with whole_file(path) as file:
            for number, example in enumerate(self.examples):
                line: dict[str, object] = {"id": example.id}
                if example.official_id:
                    line["official"] = example.official_id
                outputs = self.outputs[number]
                real = np.append(-1, np.flatnonzero(np.asarray(outputs) != -np.inf))
                line |= {
                    "prediction": self.predictions[number].item(),
                    "label": None if self.labels is None else self.labels[number].tolist(),
                    "outputs": [round(float(one), 5) for one in outputs[: real[-1] + 1]],
                }
                if self.top_classes and self.top_classes[number]:
                    line["likely"] = self.top_classes[number]
                if groups:
                    line["groups"] = {kind: names[number] for kind, names in groups.items()}
                file.write(json_text(line) + "\n")


def group_examples(examples: Sequence[Example]) -> dict[str, list[str]]:
    """Each example's group by kind: `image`, the examples with its images, and `text`, those with its text and choices.

    Such examples are not independent: a question has several images in balanced data, an image several questions, a
    passage several statements. A kind is omitted if an example lacks it, or if no group has two examples.
    """
    parts = {
        "image": [one.images for one in examples],
        "text": [(one.text, *one.choices) for one in examples],
    }
    groups = {
        kind: [
            hashlib.blake2b("\n".join(own).encode(), digest_size=8).hexdigest()
            for own in every
            if any(own)
        ]
        for kind, every in parts.items()
    }
    return {
        kind: names
        for kind, names in groups.items()
        if len(names) == len(examples) and len(set(names)) < len(names)
    }


def score_split(
    answers: EvaluationOutput, task: Task, split: str, folder: Path, is_whole: bool = True
) -> dict[str, float]:
    """The task's metrics, for a whole split also the benchmark's own scores.

    `constant` marks a run that always predicts one answer.
    """
    scores = dict(answers.metrics)
    if is_whole:
        scores |= task.official(folder, split, answers.official_ids, answers.predictions)
    if is_degenerate(answers.predictions, answers.labels):
        scores["constant"] = 1.0  # the run is marked, not excluded
    return scores


def write_predictions(answers: EvaluationOutput, task: Task, split: str, folder: Path) -> None:
    """Write predictions and, for an unlabelled split, the evaluation server's file, to an existing folder."""
    answers.write(folder / f"predictions_{split}.jsonl")
    server_file = task.test.get(split)
    if server_file:
        text = task.submission(split, answers.official_ids, answers.predictions)
        write_whole(folder / server_file, text)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    objective: SupervisedObjective,
    task: Task,
    samples: SampleDataset,
    batch: int = 0,
) -> EvaluationOutput:
    """Evaluate `model` on all samples, distributed over processes; with metrics if the samples have labels.

    `batch`: batch size; 0: a default for the device.
    """
    state = PartialState()
    device = device_of(model, objective)
    batch = batch or BATCH_BY_DEVICE.get(device.type, FORWARD_BATCH)
    training = model.training
    model.eval()
    objective.eval()
    order = np.argsort(samples.lengths, kind="stable")  # sorted by length to reduce padding
    places: list[int] = []
    parts: list[EvaluationOutput] = []
    starts = range(state.process_index * batch, len(order), batch * state.num_processes)
    for start in track(starts, f"evaluating {task.name}", "batch"):
        chosen = order[start : start + batch].tolist()
        places += chosen
        parts.append(_predict_batch(model, objective, device, samples.get(chosen, ())))
    model.train(training)
    objective.train(training)
    if state.num_processes > 1:
        places = gather_object(places)
        parts = gather_object(parts)
    return concatenate_outputs(parts, task, np.argsort(places))


def device_of(*modules: nn.Module) -> torch.device:
    """The device of some modules; an adapter may have no parameters outside the head."""
    return next(parameter for one in modules for parameter in one.parameters()).device


def _predict_batch(
    model: nn.Module,
    objective: SupervisedObjective,
    device: torch.device,
    samples: Sequence[Sample],
) -> EvaluationOutput:
    batch = collate(samples).to(device)
    outputs = objective.outputs(model(batch), batch).cpu().numpy()
    predictions = objective.output_type.predict(outputs)
    top_classes: list[list[tuple[int, float]]] = []
    if outputs.shape[1] > MAX_OUTPUTS and objective.output_type.head_input == "first":
        top_classes = find_top_classes(outputs)
        outputs = np.take_along_axis(outputs, predictions[:, None], 1)
    labels = batch.labels.get("label")
    return EvaluationOutput(
        [sample.example or Example(sample.id, "") for sample in samples],
        outputs,
        predictions,
        None if labels is None else labels.cpu().numpy(),
        metrics={},
        top_classes=top_classes,
        truncated_tokens=batch.truncated_tokens,
        truncated_regions=batch.truncated_regions,
    )


def concatenate_outputs(
    parts: Sequence[EvaluationOutput], task: Task, order: np.ndarray | None = None
) -> EvaluationOutput:
    """Concatenate the outputs on several parts of a split, and score them; `order`: indices (N,) of the result."""
    examples = [example for part in parts for example in part.examples]
    outputs = [row for part in parts for row in part.outputs.tolist()]
    predictions = [one for part in parts for one in part.predictions.tolist()]
    labels = [row for part in parts if part.labels is not None for row in part.labels.tolist()]
    top_classes = [likely for part in parts for likely in part.top_classes]
    if order is None:
        order = np.arange(len(examples))
    padded = _pad_rows(outputs, -np.inf)[order]
    predicted = np.array(predictions)[order]
    is_labelled = bool(labels) and all(part.labels is not None for part in parts)
    known = _pad_rows(labels, IGNORE)[order] if is_labelled else None
    return EvaluationOutput(
        [examples[place] for place in order],
        padded,
        predicted,
        known,
        {} if known is None else task.score(predicted, known, padded),
        top_classes=[top_classes[place] for place in order] if top_classes else [],
        truncated_tokens=sum(part.truncated_tokens for part in parts),
        truncated_regions=sum(part.truncated_regions for part in parts),
    )


def labels_of(examples: Sequence[Example]) -> np.ndarray | None:
    """The examples' labels as in `EvaluationOutput`; None if one is unknown."""
    labels = [one.label for one in examples]
    if any(label is None for label in labels):
        return None
    return _pad_rows([np.asarray(label).tolist() for label in labels], IGNORE)


def find_top_classes(outputs: np.ndarray) -> list[list[tuple[int, float]]]:
    """The classes with the highest outputs (N, outputs) and their softmax probabilities, best first."""
    shares = softmax(outputs.astype(float), axis=1)
    best = np.argsort(-shares, axis=1, kind="stable")[:, :TOP_CLASSES]
    rows = zip(best.tolist(), np.take_along_axis(shares, best, 1).round(6).tolist(), strict=True)
    return [list(zip(classes, values, strict=True)) for classes, values in rows]


def _pad_rows(rows: Sequence[object], fill: float) -> np.ndarray:
    """Rows as one array, padded with `fill`: rows with one number per region differ in length."""
    lists = [row for row in rows if isinstance(row, list)]
    if not lists or len({len(row) for row in lists}) == 1:
        return np.array(rows, float)
    width = max(len(row) for row in lists)
    return np.array([[*row, *[fill] * (width - len(row))] for row in lists], float)
