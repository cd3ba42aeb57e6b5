"""What is reported of a fine-tuning: of every seed, and over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from statistics import median
from typing import Any

from groundling.commands.finetune import FinetuneConfig
from groundling.commands.finetune.examples import trained_on
from groundling.tasks import Task
from groundling.training.feed import Source


def about(task: Task, config: FinetuneConfig, seed: int) -> dict[str, Any]:
    """Which seed of which task a result is of."""
    told: dict[str, Any] = {"seed": seed, "task": config.task or task.name}
    if config.called:
        told["called"] = config.called
    told |= {"metrics": [metric.name for metric in task.metrics], "splits": list(task.dev)}
    return told | {"higher_is_better": task.metrics[0].higher_is_better}


def mixed(learning: Source) -> dict[str, int]:
    """How many examples without labels were learned from, and how many beside each other one; empty for none."""
    if learning.beside is None:
        return {}
    return {"examples": len(learning.beside), "beside_each": learning.each}


def summary(task: Task, runs: list[dict[str, Any]], config: FinetuneConfig) -> dict[str, Any]:
    """Every seed's scores and their medians, by split and metric; None where a median is undefined.

    Medians of the benchmark's own scores (`Task.extra`) stand apart, as `official`.
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
        "model": config.model,
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
    if trained_on(task, config):
        result["trained_on"] = trained_on(task, config)
    return result


def _median(values: Sequence[float | None]) -> float | None:
    """None if one of the values is undefined."""
    defined = [value for value in values if value is not None and isfinite(value)]
    return median(defined) if len(defined) == len(values) else None
