"""What is reported of a fine-tuning: of a seed, over all of them, and what scores stand beside."""

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
from groundling.settings.input_settings import PixelSettings, RegionSettings
from groundling.settings.objectives import ExtraObjectiveSettings, ObjectiveSettings
from groundling.settings.training import EvaluationSettings
from groundling.tasks import Task
from groundling.training.batch_sampler import DataSource
from groundling.training.evaluation import EvaluationOutput, Evaluator, evaluate
from groundling.training.held_out_loss import make_evaluator


def describe_seed(task: Task, name: str, called: str, seed: int) -> dict[str, Any]:
    """Which seed of which task a result is of: its `name` as it was asked for, and what reports call it."""
    told: dict[str, Any] = {"seed": seed, "task": name or task.name}
    if called:
        told["display_name"] = called
    told |= {"metrics": [metric.name for metric in task.metrics], "splits": list(task.dev)}
    return told | {"higher_is_better": task.metrics[0].higher_is_better}


def unlabelled_counts(learning: DataSource) -> dict[str, int]:
    """How many examples without labels were learned from, and how many beside each other one; empty for none."""
    if learning.extra_samples is None:
        return {}
    return {"examples": len(learning.extra_samples), "beside_each": learning.extra_per_sample}


def summary(
    task: Task, runs: list[dict[str, Any]], model: str, learned: Sequence[str] = ()
) -> dict[str, Any]:
    """Every seed's scores and their medians, by split and metric; None where a median is undefined.

    `learned` are the splits that are scored although they were learned from.

    Medians of the benchmark's own scores (`Task.official_scores`) stand apart, as `official`.
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
    collapsed_seeds = [
        run["seed"]
        for run in runs
        if any("constant" in scores for scores in run["scores"].values())
    ]
    unlabelled = [run["unlabelled"] for run in runs[:1] if "unlabelled" in run]
    result: dict[str, Any] = {
        "task": task.name,
        "version": task.version,
        "model": model,
        "headline": task.metrics[0].name,
        "seeds": [run["seed"] for run in runs],
        "scores": every,
        "median": medians,
        "official": official,
        "collapsed_seeds": collapsed_seeds,
        "dropped_pieces": sum(run["dropped_pieces"] for run in runs),
        "dropped_regions": sum(run.get("dropped_regions", 0) for run in runs),
        **({"unlabelled": unlabelled[0]} if unlabelled else {}),
    }
    if runs and "majority" in runs[0]:
        result["majority"] = runs[0]["majority"]
    if learned:
        result["trained_on"] = list(learned)
    return result


def _median(values: Sequence[float | None]) -> float | None:
    """None if one of the values is undefined."""
    defined = [value for value in values if value is not None and isfinite(value)]
    return median(defined) if len(defined) == len(values) else None


def constant_of(form: OutputType, examples: Sequence[Example]) -> float | None:
    """The answer to everything that examples suggest: the most common one, the first of equals; of numbers the mean.

    None where no answer means the same for two examples (regions), or nobody knows any.
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
    """What the one answer reaches that is most common among those learned from."""

    def __init__(self, task: Task, learned: Sequence[Example]) -> None:
        """`learned`: the training examples."""
        self.task = task
        self.answer = constant_of(task.form, learned)
        self.scores: dict[str, dict[str, float]] = {}

    def add(self, split: str, answers: EvaluationOutput) -> None:
        """Score a split whose labels are known, by every metric that is one of answers."""
        if self.answer is None or answers.labels is None:
            return
        same = np.full(len(answers.ids), self.answer)
        self.scores[split] = {
            metric.name: metric.compute(same, answers.labels)
            for metric in self.task.metrics
            if not metric.uses_scores
        }

    def as_result(self) -> dict[str, Any]:
        """As a result has it; nothing where there is no such answer."""
        if self.answer is None or not self.scores:
            return {}
        said = self.answer
        answer = (
            said
            if isinstance(self.task.form, Regression)
            else self.task.form.format_prediction(said)
        )
        return {"majority": {"answer": answer, "scores": self.scores}}


def constant_answer_note(task: Task, split: str, answers: EvaluationOutput) -> list[str]:
    """A line if nearly all answers to a split are the same."""
    if not is_degenerate(answers.predictions, answers.labels):
        return []
    said, share = most_common(answers.predictions)
    name = (
        f"{said:g}"
        if isinstance(task.form, Regression)
        else repr(task.form.format_prediction(said))
    )
    note = f"{split}: {100 * share:.0f} % of the answers are {name}"
    labels = answers.labels
    if labels is None or labels.ndim > 1:
        return [note]
    return [f"{note}, which is right in {100 * float((labels == said).mean()):.0f} %"]


def majority_note(task: Task, result: Mapping[str, Any]) -> list[str]:
    """A line for each split on which the median run is no better than one answer to everything."""
    notes = []
    headline: Metric = task.metrics[0]
    majority = result.get("majority", {"scores": {}})
    for split, scores in majority["scores"].items():
        there = result["median"].get(split, {}).get(headline.name)
        one = scores.get(headline.name)
        if there is None or one is None or np.isnan([there, one]).any():
            continue
        gain = there - one if headline.higher_is_better else one - there
        if gain <= 0:
            notes.append(
                f"{split}: the median {headline.name}, {there:.3g}, is no better than that of always answering "
                f"{majority['answer']!r}, {one:.3g}"
            )
    return notes


def degenerate_seeds_note(result: Mapping[str, Any]) -> list[str]:
    """A line if every seed gives nearly one answer to everything."""
    if not set(result["seeds"]) <= set(result["collapsed_seeds"]):
        return []
    return ["every seed answers nearly everything alike: none has learned the task"]


def without_images(config: FinetuneConfig, task: Task) -> FinetuneConfig:
    """The same fine-tuning on the texts alone, by the task's own loss; where a region is the answer, on boxes, too."""
    plain = replace(
        config,
        text_only_baseline=False,
        save_model=False,
        extra_objectives=ExtraObjectiveSettings(),
        unlabelled_per_labelled=0,
        settings=ObjectiveSettings(masking=config.settings.masking),
    )
    if task.label_regions is not None:
        return replace(plain, zero_region_features=True)
    regions = RegionSettings(object_tags=config.regions.object_tags)
    return replace(plain, regions=regions, pixels=PixelSettings())


def text_only_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """What the result of the other run tells in this one's."""
    told = {name: result[name] for name in ("scores", "median", "collapsed_seeds")}
    return {"text_alone": told}


def evaluator_of(
    student: Encoder,
    objective: SupervisedObjective,
    task: Task,
    samples: Mapping[str, SampleDataset],
    examining: EvaluationSettings,
) -> Evaluator | None:
    """What is measured every --eval-every epochs; None without."""
    split = task.dev[0]
    metric = task.metrics[0]

    def measure() -> dict[str, float]:
        return evaluate(student, objective, task, samples[split]).metrics

    return make_evaluator(examining, split, metric.name, measure, metric.higher_is_better)


def check_evaluator(task: Task, learned: Sequence[str], examining: EvaluationSettings) -> None:
    """Raises InputError if the split that would be looked at is learned from."""
    if examining.eval_every and task.dev[0] in learned:
        raise InputError(
            f"--eval-every: {task.dev[0]} is learned from (--train-splits), so that it says nothing of held-out data; "
            "leave one of the two out"
        )
