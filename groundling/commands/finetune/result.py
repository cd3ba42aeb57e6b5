"""Results of fine-tuning: per seed, over all seeds, and baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from groundling.commands.finetune import FinetuneConfig
from groundling.commands.finetune.data import dev_splits_trained_on
from groundling.core.batch import Example
from groundling.core.metrics import Metric
from groundling.core.output_types import OpenAnswer, OutputType, RegionSelection, Regression
from groundling.objectives import Objective
from groundling.settings.input_settings import PixelInputSettings, RegionSettings
from groundling.settings.objectives import ExtraObjectiveSettings, ObjectiveSettings
from groundling.tasks import Task
from groundling.training.batch_sampler import DataSource
from groundling.training.evaluation import labels_of
from groundling.training.image_use import credit_of_answers, image_use_note

FEW_STEPS = 500
"""Below this many steps, an adapter may not have begun to learn."""


def describe_seed(
    task: Task,
    config: FinetuneConfig,
    seed: int,
    objectives: Sequence[Objective],
    source: DataSource,
) -> dict[str, Any]:
    """What a seed's result is of: the task, its metrics and splits, objectives and unlabelled examples."""
    result: dict[str, Any] = {
        "seed": seed,
        "task": config.task or task.name,
        "metrics": [metric.name for metric in task.metrics],
        "splits": list(task.dev),
        "higher_is_better": task.metrics[0].higher_is_better,
        "objectives": [one.name for one in objectives],
    }
    if config.shuffle_images:
        result["shuffled_images"] = True
    if config.display_name:
        result["display_name"] = config.display_name
    trained_on = dev_splits_trained_on(task, config.train_splits)
    if trained_on:
        result["trained_on"] = trained_on
    if source.extra_samples is not None:
        counts = {"examples": len(source.extra_samples), "per_labelled": source.extra_per_sample}
        result["unlabelled_examples"] = counts
    return result


def summary(
    task: Task, runs: list[dict[str, Any]], model: str, trained_on: Sequence[str] = ()
) -> dict[str, Any]:
    """Scores of every seed and their medians, by split and metric; None where a median is undefined."""
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
    degenerate = [one for one in runs if any("constant" in own for own in one["scores"].values())]
    speeds = [run.get("speed", {}) for run in runs]
    result: dict[str, Any] = {
        "task": task.name,
        "version": task.version,
        "model": model,
        "headline": task.metrics[0].name,
        "seeds": [run["seed"] for run in runs],
        "scores": every,
        "median": medians,
        "official": official,
        "degenerate_seeds": [run["seed"] for run in degenerate],
        "truncated_tokens": sum(run["truncated_tokens"] for run in runs),
        "truncated_regions": sum(run.get("truncated_regions", 0) for run in runs),
        "speed": {
            name: _median([one.get(name) for one in speeds])
            for name in dict.fromkeys(chain(*speeds))
        },
    }
    alike = ("unlabelled_examples", "n", "majority", "shuffled_images")
    result |= {name: run[name] for run in runs[:1] for name in alike if name in run}
    uses = [run["image_use"] for run in runs if "image_use" in run]
    if uses:  # of the seed with the median difference, since an interval has no median
        result["image_use"] = {split: _median_use(uses, split) for split in uses[0]}
    if trained_on:
        result["trained_on"] = list(trained_on)
    return result


def _median_use(uses: Sequence[Mapping[str, Any]], split: str) -> dict[str, Any]:
    every = sorted((use[split] for use in uses), key=lambda one: one["difference"])
    return dict(every[(len(every) - 1) // 2])


def seed_notes(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The notes of the seeds with their numbers; once, without them, those that all of several seeds have."""
    told = {one["seed"]: list(one.get("notes", ())) for one in runs}
    first = next(iter(told.values())) if len(told) > 1 else []
    shared = [note for note in first if all(note in notes for notes in told.values())]
    rest = [(seed, note) for seed, notes in told.items() for note in notes if note not in shared]
    return [*shared, *(f"seed {seed}: {note}" for seed, note in rest)]


def few_steps_note(config: FinetuneConfig, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A note if an adapter had few steps: with few rows, so has every number of epochs that is usual elsewhere."""
    steps = runs[0].get("steps", FEW_STEPS)
    if config.adapter_settings.adapter == "none" or steps >= FEW_STEPS:
        return []
    return [
        f"{steps} steps are too few for an adapter, however many epochs they are; try steps=1000"
    ]


def image_use_notes(result: Mapping[str, Any]) -> list[str]:
    """A note for each split on whether the run with the median difference uses the photographs."""
    of = ", the median seed" if len(result["seeds"]) > 1 else ""
    without = result.get("text_alone", {"median": {}})["median"]
    return [
        image_use_note(split, use, of, without.get(split, {}).get(use["metric"]))
        for split, use in result.get("image_use", {}).items()
    ]


def _median(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None and isfinite(value)]
    return median(defined) if len(defined) == len(values) else None


def best_constant_answer(form: OutputType, examples: Sequence[Example]) -> float | None:
    """The most common label (ties go to the first), for numbers the mean; None for regions, and without labels."""
    labels = [example.label for example in examples if example.label is not None]
    if isinstance(form, RegionSelection) or not labels:
        return None
    if isinstance(form, Regression):
        return float(np.mean([float(label) for label in labels]))
    credit = credit_of_answers(labels)
    never = form.excluded_answers if isinstance(form, OpenAnswer) else ()
    offered = [
        one for one in credit if one >= 0 and not (never and form.format_prediction(one) in never)
    ]
    return min(offered, key=lambda one: (-credit[one], one), default=None)


def majority_baseline(
    task: Task, examples: Sequence[Example], splits: Mapping[str, Sequence[Example]]
) -> dict[str, Any]:
    """The best constant answer of the training `examples`, and its scores on labelled `splits`; empty without one.

    It is computed before training, so that a metric of one's own that fails does so before hours are spent.
    """
    answer = best_constant_answer(task.form, examples)
    labels = {split: some for split in splits if (some := labels_of(splits[split])) is not None}
    if answer is None or not labels:
        return {}
    scores = {
        split: {
            metric.name: metric.compute(np.full(len(some), answer), some)
            for metric in task.metrics
            if not metric.uses_scores
        }
        for split, some in labels.items()
    }
    text = answer if isinstance(task.form, Regression) else task.form.format_prediction(answer)
    return {"majority": {"answer": text, "scores": scores}}


def majority_note(task: Task, result: Mapping[str, Any]) -> list[str]:
    """A note for each split on which the median run is no better than the majority answer."""
    notes = []
    headline: Metric = task.metrics[0]
    majority = result.get("majority", {"scores": {}})
    for split, scores in majority["scores"].items():
        score = result["median"].get(split, {}).get(headline.name)
        baseline = scores.get(headline.name)
        if score is None or baseline is None:
            continue
        gain = score - baseline if headline.higher_is_better else baseline - score
        if gain <= 0:  # undefined scores give NaN
            notes.append(
                f"{split}: the median {headline.name}, {score:.3g}, is no better than always answering "
                f"{majority['answer']!r} ({baseline:.3g})"
            )
    return notes


def degenerate_seeds_note(result: Mapping[str, Any]) -> list[str]:
    """Note if seeds are degenerate."""
    seeds = result["degenerate_seeds"]
    if not seeds:
        return []
    count = f"{len(seeds)} of {len(result['seeds'])} seeds: {', '.join(map(str, seeds))}"
    return [f"degenerate, with nearly the same answer to every example: {count}"]


def without_images(config: FinetuneConfig, task: Task) -> FinetuneConfig:
    """The configuration of the text-only baseline, with the task's own loss; with boxes if the answer is a region."""
    plain = replace(
        config,
        text_only_baseline=False,
        shuffle_images=False,
        save_model=False,
        extra_objectives=ExtraObjectiveSettings(),
        unlabelled_per_labelled=0,
        objective_settings=ObjectiveSettings(masking=config.objective_settings.masking),
    )
    if task.label_regions is not None:
        return replace(plain, zero_region_features=True)
    regions = RegionSettings(object_tags=config.regions.object_tags)
    return replace(plain, regions=regions, train_regions="", pixels=PixelInputSettings())


def model_card(config: FinetuneConfig, result: Mapping[str, Any]) -> str:
    """The model card of one seed: how the model is asked, and its scores beside those of the best constant answer."""
    metrics = result["metrics"]
    constant = result.get("majority", {}).get("scores", {})
    table = [
        f"| split | answers of | examples | {' | '.join(metrics)} |",
        f"|---|---|---:|{'---:|' * len(metrics)}",
    ]
    for split, scores in result["scores"].items():
        for name, some in (("this model", scores), ("always the same", constant.get(split, {}))):
            cells = [f"{some[one]:.4f}" if some.get(one) is not None else "" for one in metrics]
            table.append(f"| {split} | {name} | {result['n'][split]} | {' | '.join(cells)} |")
    base = "" if Path(config.model).exists() else f"base_model: {config.model}\n"
    scored = "\n".join(table)
    return f"""---
library_name: groundling
{base}tags: [groundling]
---
# {Path(config.model).name}, fine-tuned on {result["task"]}

```python
import groundling

model = groundling.load("FOLDER")
```

`groundling predict --model FOLDER --data FILE --out answers.csv` answers the rows of a file.

## Scores

{scored}

Seed {result["seed"]}, {result["steps"]:,} steps. These are the scores of one seed. If it was chosen among several by
the score of a split, its score there is slightly too high.

The licences of the model that was fine-tuned and of the data apply.
"""
