"""Reads finished fine-tuning runs from their folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.errors import InputError, convert_errors
from groundling.core.metrics import METRICS, Metric
from groundling.core.registry import check_trust, import_object, is_import_path
from groundling.prediction.predictions import FILE, is_listed, read_predictions
from groundling.runs.folder import RESULT, read_object
from groundling.stats.verdict import SeedRuns
from groundling.tasks import Task

BASELINE = "text-alone"
"""Subfolder of a fine-tuning run with its text-only baseline (`--text-only-baseline`), which is a run of its own."""

SeedsByTask = dict[str, dict[int, Path]]
"""By task name (with the split, where a task has several) and seed: the file of predictions."""


def collect_runs(
    name: str, folder: str | Path, trust: Sequence[str] = ()
) -> dict[str, tuple[SeedRuns, Metric]]:
    """All finished fine-tuning runs below a folder, by task (and split, where a task has several), and their metric.

    Of a folder whose result lists its seeds, only these count.

    `trust` lists your own tasks, MODULE:NAME, which are imported for their metrics.
    """
    finished: SeedsByTask = {}
    for path in sorted(Path(folder).rglob(f"seed-*/{RESULT}")):
        if BASELINE in path.relative_to(folder).parts:
            continue
        result = read_object(path)
        if "task" in result or "splits" in result:  # not of another command
            with convert_errors(f"{path}: not the result of a fine-tuning run"):
                _add(finished, path.parent, result)
    if not finished:
        raise InputError(f"{folder}: contains no finished fine-tuning run (seed-*/result.json)")
    collected = {}
    for task, files in finished.items():
        metric = headline_metric(next(iter(files.values())).parent, trust)
        runs = _read_runs(name, task, files, metric)
        collected[task] = runs, metric.from_per_example() if metric.uses_example_scores else metric
    return collected


def _add(finished: SeedsByTask, place: Path, result: dict[str, Any]) -> None:
    seed = int(result["seed"])
    if not is_listed(place.parent, seed):
        return
    first, *others = result["splits"]
    # Runs of one task at several training sizes have different display names and are never pooled.
    shown = result.get("display_name") or result["task"]
    for split in (first, *others):
        name = shown if split == first else f"{shown} ({split})"
        if split in result.get("trained_on", []):  # never compared with a run that held it out
            name = f"{shown} ({split}, learned from)"
        files = finished.setdefault(name, {})
        if seed in files:
            raise InputError(f"{place}: seed {seed} of {name} is also in {files[seed].parent}")
        files[seed] = place / FILE.format(split)


def headline_metric(folder: Path, trust: Sequence[str] = ()) -> Metric:
    """The first metric of a finished run's task, which must be in `trust` if it is your own."""
    path = folder / RESULT
    with convert_errors(f"{path}: not the result of a fine-tuning run"):
        result = read_object(path)
        task = result["task"]
        metrics = METRICS
        if is_import_path(task):
            check_trust([task], trust, path)
            metrics = import_object(task, Task).metrics
        return {metric.name: metric for metric in metrics}[result["metrics"][0]]


def _read_runs(name: str, task: str, files: dict[int, Path], metric: Metric) -> SeedRuns:
    order = sorted(files)
    seeds = [read_seed(files[seed], metric) for seed in order]
    first = seeds[0]
    for seed, one in zip(order, seeds, strict=True):
        if one.ids != first.ids or not np.array_equal(one.labels, first.labels):
            raise InputError(f"{files[seed]}: examples or labels differ from seed {order[0]}")
    return replace(
        first,
        name=name,
        task=task,
        seeds=tuple(order),
        predictions=np.concatenate([one.predictions for one in seeds]),
        answers=np.concatenate([one.answers for one in seeds if one.answers is not None]),
    )


def read_seed(path: Path, metric: Metric) -> SeedRuns:
    """The runs of a single, unnamed seed, from its `predictions_*.jsonl`, as `SeedRuns` describes them."""
    rows = read_predictions(path)
    predictions = answers = np.array([row.prediction for row in rows])
    with convert_errors(f"{path}: labels or groups differ in kind"):
        labels = np.array([row.label for row in rows], float)
        if np.isnan(labels).any():
            raise InputError(f"{path}: a label is missing; run this seed again")
        groups = {
            kind: np.unique([row.groups[kind] for row in rows], return_inverse=True)[1]
            for kind in rows[0].groups
        }
        if metric.uses_example_scores:
            predictions = metric.per_example(answers, labels)
            labels = np.ones(len(rows))
    ids = tuple(row.id for row in rows)
    return SeedRuns(
        "", "", (0,), ids, labels, predictions[None], answers=answers[None], groups=groups
    )
