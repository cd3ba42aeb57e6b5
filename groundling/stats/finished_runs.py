"""Reads finished fine-tuning runs from their folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.errors import InputError, convert_errors
from groundling.core.metrics import METRICS, Metric
from groundling.core.registry import is_import_path, resolve, resolve_builtin
from groundling.prediction.predictions import FILE, read_predictions
from groundling.runs.folder import RESULT, read_result
from groundling.stats.verdict import SeedRuns
from groundling.tasks import Task

BASELINE = "text-alone"
"""Subfolder of a fine-tuning run with its text-only baseline (`--text-only-baseline`), which is a run of its own."""
TOLERANCE = 1e-6
"""Tolerance of recomputed scores."""


@dataclass(frozen=True)
class SplitPredictions:
    """A seed's predictions on one split."""

    ids: tuple[str, ...]
    """N example ids."""
    labels: np.ndarray
    """(N,); for a metric that uses example scores, (N, R) by region or (N, K, 2) pairs of class and score."""
    answers: np.ndarray
    """(N,)."""
    groups: dict[str, np.ndarray]
    """Number of each example's group (N,) by kind, e.g. of the examples with the same image; empty if unknown."""


@dataclass(frozen=True)
class FinishedSeed:
    """A finished seed on one split."""

    folder: Path
    split: str
    result: dict[str, Any]
    """The seed's `result.json`: seed, task, metric names with the headline first, splits."""

    @property
    def predictions(self) -> Path:
        """The file of its predictions."""
        return self.folder / FILE.format(self.split)


SeedsByTask = dict[str, dict[int, FinishedSeed]]
"""By task name (with the split, where a task has several) and seed."""


def collect_runs(
    name: str, folder: str | Path, trust: Sequence[str] = ()
) -> dict[str, tuple[SeedRuns, Metric]]:
    """All finished fine-tuning runs below a folder, by task (and split, where a task has several).

    The metric is the task's headline metric; if it uses example scores (regions, VQA), runs hold the score of each
    answer. `trust` lists your own tasks, MODULE:NAME, that may be imported for their metrics.

    Raises:
        InputError: a file cannot be read, a seed is repeated, or seeds have different examples.
    """
    finished, unfinished = _search(Path(folder))
    if not finished:
        raise InputError(
            f"{folder}: contains no finished fine-tuning run (seed-*/result.json with a task)"
        )
    collected = {}
    for task, seeds in finished.items():
        runs = {seed.folder.parent for seed in seeds.values()}
        own = sorted(seed for run, seed in unfinished if run in runs)
        collected[task] = _runs(name, task, seeds, tuple(own), trust)
    return collected


def _search(folder: Path) -> tuple[SeedsByTask, list[tuple[Path, int]]]:
    """All finished seeds, and the run folder and number of each unfinished one."""
    finished: SeedsByTask = {}
    unfinished = []
    # Runs without training, such as an ensemble or zero-shot predictions, have no log.
    folders = {path.parent for path in folder.rglob("seed-*/result.json")}
    for place in sorted(folders | {path.parent for path in folder.rglob("log.jsonl")}):
        if BASELINE in place.relative_to(folder).parts:
            continue
        result = read_result(place)
        number = place.name.removeprefix("seed-")
        if result is not None and ("task" in result or "splits" in result):  # not of `adapt`
            _add(finished, place, result)
        elif result is None and number.isdigit():
            unfinished.append((place.parent, int(number)))
    return finished, unfinished


def _add(finished: SeedsByTask, place: Path, result: dict[str, Any]) -> None:
    """Add a seed under its task and splits."""
    match result:
        case {
            "task": str(task),
            "seed": int(seed),
            "metrics": [str(), *_],
            "splits": [str(first), *others],
        }:
            pass
        case _:
            raise InputError(
                f"{place / RESULT}: not the result of a fine-tuning run; delete it and run this seed again"
            )
    # Runs of one task at several training sizes have different display names and are never pooled.
    shown = result.get("display_name") or task
    for split in (first, *others):
        name = shown if split == first else f"{shown} ({split})"
        if split in result.get("trained_on", []):  # never compared with a run that held it out
            name = f"{shown} ({split}, learned from)"
        seeds = finished.setdefault(name, {})
        if seed in seeds:
            raise InputError(f"{place}: seed {seed} of {name} is also in {seeds[seed].folder}")
        seeds[seed] = FinishedSeed(place, split, result)


def _runs(
    name: str,
    task: str,
    seeds: dict[int, FinishedSeed],
    unfinished: tuple[int, ...],
    trust: Sequence[str],
) -> tuple[SeedRuns, Metric]:
    """The runs of one task, and the metric that compares them."""
    order = sorted(seeds)
    metric = headline_metric(seeds[order[0]], trust)
    groups: dict[str, np.ndarray] = {}
    splits: list[SplitPredictions] = []
    values: list[np.ndarray] = []
    labels = np.empty(0)
    for seed in order:
        path = seeds[seed].predictions
        split = read_split_predictions(path)
        scored, truth = _as_numbers(split, metric, path)
        _check_score(split, metric, seeds[seed])
        labels = labels if splits else truth
        splits.append(split)
        values.append(scored)
        if split.ids != splits[0].ids or not np.array_equal(truth, labels):
            raise InputError(f"{path}: examples or labels differ from seed {order[0]}")
        for kind, numbers in split.groups.items():
            if not np.array_equal(groups.setdefault(kind, numbers), numbers):
                raise InputError(
                    f"{path}: puts examples into other groups ({kind}) than an earlier seed; run one of both again"
                )
    runs = SeedRuns(
        name,
        task,
        tuple(order),
        splits[0].ids,
        labels,
        np.stack(values),
        unfinished,
        np.stack([split.answers for split in splits]),
        tuple(seeds[seed].folder for seed in order),
        groups,
    )
    return runs, metric.from_per_example() if metric.uses_example_scores else metric


def _check_score(read: SplitPredictions, metric: Metric, seed: FinishedSeed) -> None:
    """Raises InputError if the predictions do not reproduce the score in the run's result.

    Possible causes: another file, an edited file, or your own metric with the name of a metric of this package.
    """
    match seed.result.get("scores"):
        case {seed.split: {metric.name: int() | float() as stored}}:
            pass
        case _:
            return
    found = metric.compute(read.answers, read.labels)
    if not np.isclose(found, stored, rtol=0, atol=TOLERANCE, equal_nan=True):
        task = seed.result["task"]
        own = f"; if your own task has its own {metric.name}, list {task} in trust"
        raise InputError(
            f"{seed.predictions}: its {metric.name} is {found:.6f}, but {RESULT} beside it has {stored:.6f}; run this "
            f"seed again{own if is_import_path(task) else ''}"
        )


def _as_numbers(
    read: SplitPredictions, metric: Metric, path: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and labels, (N,) each; if the metric uses example scores, each answer's score and labels of 1."""
    if metric.uses_example_scores != (read.labels.ndim > 1):
        expected = "a list" if metric.uses_example_scores else "a number"
        raise InputError(f"{path}: {metric.name} expects every label to be {expected}")
    if not metric.uses_example_scores:
        return read.answers, read.labels
    return metric.per_example(read.answers, read.labels), np.ones(len(read.ids))


def headline_metric(seed: FinishedSeed, trust: Sequence[str] = ()) -> Metric:
    """The headline metric of a finished run: the first of its task.

    For a task outside the package and not in `trust` (your own file or module), the metric is looked up by name among
    the package's metrics.

    Raises:
        InputError: no metric has that name, or a task of `trust` does not exist.
    """
    task = seed.result["task"]
    name = seed.result["metrics"][0]
    metrics = resolve("tasks", Task, task).metrics if task in trust else _builtin_metrics(task)
    for metric in metrics:
        if metric.name == name:
            return metric
    where = seed.folder / RESULT
    own = f"; if it is of your own task, list {task} in trust" if is_import_path(task) else ""
    names = ", ".join(metric.name for metric in metrics)
    raise InputError(f"{where}: {task} has no metric {name!r}; there are {names}{own}")


def _builtin_metrics(task: str) -> tuple[Metric, ...]:
    """A task's metrics; all metrics for a task outside the package."""
    try:
        return resolve_builtin("tasks", Task, task).metrics
    except InputError:
        return METRICS


def read_split_predictions(path: Path) -> SplitPredictions:
    """Read the answers, labels and groups of a `predictions_*.jsonl`.

    Raises InputError as `read_predictions`, or if labels or groups differ in kind.
    """
    rows = read_predictions(path)
    labels = [row.label for row in rows if row.label is not None]
    if len(labels) < len(rows) or len({label.shape for label in labels}) > 1:
        raise InputError(
            f"{path}: a label is missing, or labels differ in shape; run this seed again"
        )
    kinds = rows[0].groups.keys() if rows else ()
    with convert_errors(f"{path}: groups differ in kind"):
        numbered = {
            kind: np.unique([row.groups[kind] for row in rows], return_inverse=True)[1]
            for kind in kinds
        }
    return SplitPredictions(
        tuple(row.id for row in rows),
        np.array(labels),
        np.array([row.prediction for row in rows]),
        numbered,
    )
