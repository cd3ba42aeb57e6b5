"""Results of fine-tuning: per seed, over all seeds, and baselines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from statistics import median
from typing import Any

import numpy as np

from groundling.commands.finetune import FinetuneConfig
from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.metrics import Metric, is_degenerate, most_common
from groundling.core.output_types import OpenAnswer, OutputType, RegionSelection, Regression
from groundling.data.samples import SampleDataset
from groundling.models.formats import Encoder
from groundling.objectives.supervised import SupervisedObjective
from groundling.settings.input_settings import PixelInputSettings, RegionSettings
from groundling.settings.objectives import ExtraObjectiveSettings, ObjectiveSettings
from groundling.settings.training import EvaluationSettings
from groundling.tasks import Task
from groundling.training.batch_sampler import DataSource
from groundling.training.evaluation import EvaluationOutput, Evaluator, evaluate


def describe_seed(task: Task, name: str, display_name: str, seed: int) -> dict[str, Any]:
    """Identification of a seed's result: task `name` as given, display name, metrics."""
    result: dict[str, Any] = {"seed": seed, "task": name or task.name}
    if display_name:
        result["display_name"] = display_name
    result |= {"metrics": [metric.name for metric in task.metrics], "splits": list(task.dev)}
    return result | {"higher_is_better": task.metrics[0].higher_is_better}


def unlabelled_counts(source: DataSource) -> dict[str, int]:
    """Number of unlabelled training examples, and how many per labelled one; empty for none."""
    if source.extra_samples is None:
        return {}
    return {"examples": len(source.extra_samples), "per_labelled": source.extra_per_sample}


def summary(
    task: Task, runs: list[dict[str, Any]], model: str, trained_on: Sequence[str] = ()
) -> dict[str, Any]:
    """Scores of every seed and their medians, by split and metric; None where a median is
    undefined.

    `trained_on`: evaluated splits that are also training splits.

    Medians of the benchmark's own scores (`Task.official_scores`) are stored separately, as `official`.
    """
    medians: dict[str, dict[str, float | None]] = {}
    every: dict[str, dict[str, list[float]]] = {}
    official: dict[str, dict[str, float | None]] = {}
    for split in task.dev:
        present = [run["scores"][split] for run in runs if split in run["scores"]]
        names = [metric.name for metric in task.metrics]
        every[split] = {name: [scores[name] for scores in present] for name in names}
        # No seed is left out: where a metric is undefined (constant labels), so is its median.
        medians[split] = {name: _median(values) for name, values in every[split].items() if values}
        more = dict.fromkeys(name for scores in present for name in scores)
        own = [name for name in more if name not in (*names, "constant")]
        official[split] = {name: _median([scores[name] for scores in present]) for name in own}
    degenerate_seeds = [
        run["seed"]
        for run in runs
        if any("constant" in scores for scores in run["scores"].values())
    ]
    unlabelled = [run["unlabelled_examples"] for run in runs[:1] if "unlabelled_examples" in run]
    result: dict[str, Any] = {
        "task": task.name,
        "version": task.version,
        "model": model,
        "headline": task.metrics[0].name,
        "seeds": [run["seed"] for run in runs],
        "scores": every,
        "median": medians,
        "official": official,
        "degenerate_seeds": degenerate_seeds,
        "truncated_tokens": sum(run["truncated_tokens"] for run in runs),
        "truncated_regions": sum(run.get("truncated_regions", 0) for run in runs),
        **({"unlabelled_examples": unlabelled[0]} if unlabelled else {}),
    }
    for name in ("n", "majority"):
        if runs and name in runs[0]:
            result[name] = runs[0][name]
    if trained_on:
        result["trained_on"] = list(trained_on)
    return result


def _median(values: Sequence[float | None]) -> float | None:
    """None if one of the values is undefined."""
    defined = [value for value in values if value is not None and isfinite(value)]
    return median(defined) if len(defined) == len(values) else None


def best_constant_answer(form: OutputType, examples: Sequence[Example]) -> float | None:
    """The best constant answer on some examples: the most common label (ties go to the first), for
    numbers the mean.

    None for tasks without comparable answers (regions), or without labels.
    """
    labels = [example.label for example in examples if example.label is not None]
    if isinstance(form, RegionSelection) or not labels:
        return None
    if isinstance(form, Regression):
        return float(np.mean([float(label) for label in labels]))
    credit: defaultdict[int, float] = defaultdict(float)
    for label in labels:
        pairs = np.array([[label, 1.0]]) if np.ndim(label) == 0 else np.asarray(label)
        for number, score in pairs:
            credit[int(number)] += float(score)
    never = form.excluded_answers if isinstance(form, OpenAnswer) else ()
    offered = [
        one for one in credit if one >= 0 and not (never and form.format_prediction(one) in never)
    ]
    return min(offered, key=lambda one: (-credit[one], one), default=None)


class MajorityBaseline:
    """Scores of one constant prediction: the most common training answer, or for numbers the mean."""

    def __init__(self, task: Task, examples: Sequence[Example]) -> None:
        """`examples`: the training examples."""
        self.task = task
        self.answer = best_constant_answer(task.form, examples)
        self.scores: dict[str, dict[str, float]] = {}

    def add(self, split: str, answers: EvaluationOutput) -> None:
        """Score a labelled split, by every metric that needs only answers."""
        if self.answer is None or answers.labels is None:
            return
        predictions = np.full(len(answers.ids), self.answer)
        self.scores[split] = {
            metric.name: metric.compute(predictions, answers.labels)
            for metric in self.task.metrics
            if not metric.uses_scores
        }

    def as_result(self) -> dict[str, Any]:
        """Entry for the result; empty without a constant prediction."""
        if self.answer is None or not self.scores:
            return {}
        answer = (
            self.answer
            if isinstance(self.task.form, Regression)
            else self.task.form.format_prediction(self.answer)
        )
        return {"majority": {"answer": answer, "scores": self.scores}}


def constant_answer_note(task: Task, split: str, answers: EvaluationOutput) -> list[str]:
    """Note if nearly all answers to a split are the same."""
    if not is_degenerate(answers.predictions, answers.labels):
        return []
    answer, share = most_common(answers.predictions)
    name = (
        f"{answer:g}"
        if isinstance(task.form, Regression)
        else repr(task.form.format_prediction(answer))
    )
    note = f"{split}: {100 * share:.0f} % of the answers are {name}"
    labels = answers.labels
    if labels is None or labels.ndim > 1:
        return [note]
    return [f"{note}; the right answer in {100 * float((labels == answer).mean()):.0f} %"]


def majority_note(task: Task, result: Mapping[str, Any]) -> list[str]:
    """A note for each split on which the median run is no better than the majority answer."""
    notes = []
    headline: Metric = task.metrics[0]
    majority = result.get("majority", {"scores": {}})
    for split, scores in majority["scores"].items():
        score = result["median"].get(split, {}).get(headline.name)
        baseline = scores.get(headline.name)
        if score is None or baseline is None or np.isnan([score, baseline]).any():
            continue
        gain = score - baseline if headline.higher_is_better else baseline - score
        if gain <= 0:
            notes.append(
                f"{split}: the median {headline.name}, {score:.3g}, is no better than always answering "
                f"{majority['answer']!r} ({baseline:.3g})"
            )
    return notes


def degenerate_seeds_note(result: Mapping[str, Any]) -> list[str]:
    """Note if every seed is degenerate."""
    if not set(result["seeds"]) <= set(result["degenerate_seeds"]):
        return []
    return ["all seeds are degenerate: each gives nearly the same answer to every example"]


def without_images(config: FinetuneConfig, task: Task) -> FinetuneConfig:
    """The configuration of the text-only baseline, with the task's own loss; with boxes only, if
    the answer is a region.
    """
    plain = replace(
        config,
        text_only_baseline=False,
        save_model=False,
        extra_objectives=ExtraObjectiveSettings(),
        unlabelled_per_labelled=0,
        objective_settings=ObjectiveSettings(masking=config.objective_settings.masking),
    )
    if task.label_regions is not None:
        return replace(plain, zero_region_features=True)
    regions = RegionSettings(object_tags=config.regions.object_tags)
    return replace(plain, regions=regions, train_regions="", pixels=PixelInputSettings())


def text_only_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Scores of the text-only baseline for this run's result."""
    scores = {name: result[name] for name in ("scores", "median", "degenerate_seeds")}
    return {"text_alone": scores}


def evaluator_of(
    student: Encoder,
    objective: SupervisedObjective,
    task: Task,
    samples: Mapping[str, SampleDataset],
    examining: EvaluationSettings,
) -> Evaluator | None:
    """Evaluator that runs every --eval-every epochs; None without --eval-every."""
    split = task.dev[0]
    metric = task.metrics[0]

    def measure() -> dict[str, float]:
        return evaluate(student, objective, task, samples[split]).metrics

    return Evaluator(examining, split, metric.name, measure, metric.higher_is_better)


def check_evaluator(task: Task, trained_on: Sequence[str], examining: EvaluationSettings) -> None:
    """Raises InputError if the split for evaluation during training is a training split."""
    if examining.eval_every and task.dev[0] in trained_on:
        raise InputError(
            f"eval_every: {task.dev[0]} is a training split (train_splits) and not held out; "
            "leave one of the two flags out"
        )
