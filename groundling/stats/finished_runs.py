"""Reads finished fine-tuning runs from their folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.errors import InputError
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
    groups: dict[str, np.ndarray] = field(default_factory=dict)
    """Number of each example's group (N,) by kind, e.g. of the examples with the same image; empty if unknown."""


@dataclass(frozen=True)
class FinishedSeed:
    """A finished seed: its prediction file and its result."""

    predictions: Path
    """The seed's `predictions_SPLIT.jsonl`."""
    result: dict[str, Any]
    """The seed's `result.json`: seed, task, metric names with the headline first, splits."""


@dataclass
class FinishedSeeds:
    """All seeds below a folder."""

    finished: dict[str, dict[int, FinishedSeed]] = field(default_factory=dict)
    """By task name (with the split, where a task has several) and seed."""
    unfinished: list[tuple[Path, int]] = field(default_factory=list)
    """Run folders with an unfinished seed, and the seed."""


def collect_runs(
    name: str, folder: str | Path, trust: Sequence[str] = ()
) -> dict[str, tuple[SeedRuns, Metric]]:
    """All finished fine-tuning runs below a folder, by task (and split, where a task has several).

    The metric is the task's headline metric; if it uses example scores (regions, VQA), runs hold the score of each
    answer. `trust` lists your own tasks, MODULE:NAME, that may be imported for their metrics.

    Raises:
        InputError: a file cannot be read, a seed is repeated, or seeds have different examples.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such run folder")
    found = _search(folder)
    if not found.finished:
        raise InputError(
            f"{folder}: contains no finished fine-tuning run (seed-*/result.json with a task)"
        )
    collected = {}
    for task, seeds in found.finished.items():
        places = {seed.predictions.parent.parent for seed in seeds.values()}
        unfinished = sorted(seed for place, seed in found.unfinished if place in places)
        collected[task] = _runs(name, task, seeds, tuple(unfinished), trust)
    return collected


def _search(folder: Path) -> FinishedSeeds:
    found = FinishedSeeds()
    # Runs without training, such as an ensemble or zero-shot predictions, have no log.
    folders = {path.parent for path in folder.rglob("seed-*/result.json")}
    for place in sorted(folders | {path.parent for path in folder.rglob("log.jsonl")}):
        if BASELINE in place.relative_to(folder).parts:
            continue
        result = read_result(place)
        if result is None:
            number = place.name.removeprefix("seed-")
            if number.isdigit():
                found.unfinished.append((place.parent, int(number)))
            continue
        if "task" not in result and "splits" not in result:  # an `adapt` run
            continue
        _check(result, place / "result.json")
        splits = result["splits"]
        for split in splits:
            # Runs of one task at several training sizes have different display names and are never pooled.
            task = result.get("display_name") or result["task"]
            if split in result.get(
                "trained_on", []
            ):  # never compared with a run that held the split out
                task = f"{task} ({split}, learned from)"
            elif split != splits[0]:
                task = f"{task} ({split})"
            seed = result["seed"]
            seeds = found.finished.setdefault(task, {})
            if seed in seeds:
                other = seeds[seed].predictions.parent
                raise InputError(f"{place}: seed {seed} of {task} is also in {other}")
            seeds[seed] = FinishedSeed(place / FILE.format(split), result)
    return found


def _check(result: dict[str, Any], path: Path) -> None:
    """Raises InputError if the result of a fine-tuning run lacks a field, or has one of a wrong type."""
    checks = {
        ("task", "a string"): isinstance(result.get("task"), str),
        ("display_name", "a string"): isinstance(result.get("display_name", ""), str),
        ("seed", "a whole number"): type(result.get("seed")) is int,
        ("metrics", "a list of names"): _are_names(result.get("metrics")),
        ("splits", "a list of names"): _are_names(result.get("splits")),
    }
    for (name, expected), is_as_expected in checks.items():
        if not is_as_expected:
            raise InputError(
                f"{path}: {name!r} is {result.get(name)!r}, expected {expected}; "
                "delete the file and run this seed again"
            )


def _are_names(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


def _runs(
    name: str,
    task: str,
    seeds: dict[int, FinishedSeed],
    unfinished: tuple[int, ...],
    trust: Sequence[str],
) -> tuple[SeedRuns, Metric]:
    """The runs of one task, and the metric that compares them."""
    order = sorted(seeds)
    first = seeds[order[0]]
    metric = headline_metric(first, trust)
    ids: tuple[str, ...] = ()
    labels = np.empty(0)
    groups: dict[str, tuple[np.ndarray, Path]] = {}
    predictions = []
    answers = []
    for seed in order:
        path = seeds[seed].predictions
        split = read_split_predictions(path)
        values, truth = _as_numbers(split, metric, path)
        _check_score(split, metric, seeds[seed])
        if seed == order[0]:
            ids = split.ids
            labels = truth
        elif split.ids != ids or not np.array_equal(truth, labels):
            raise InputError(f"{path}: examples or labels differ from seed {order[0]}")
        for kind, numbers in split.groups.items():
            known, other = groups.setdefault(kind, (numbers, path))
            if not np.array_equal(known, numbers):
                raise InputError(
                    f"{path}: puts examples into other groups ({kind}) than {other}; run one of these seeds again"
                )
        predictions.append(values)
        answers.append(split.answers)
    runs = SeedRuns(
        name,
        task,
        tuple(order),
        ids,
        labels,
        np.stack(predictions),
        unfinished,
        np.stack(answers),
        tuple(seeds[seed].predictions.parent for seed in order),
        {kind: numbers for kind, (numbers, _) in groups.items()},
    )
    return runs, metric.from_per_example() if metric.uses_example_scores else metric


def _check_score(read: SplitPredictions, metric: Metric, seed: FinishedSeed) -> None:
    """Raises InputError if the predictions do not reproduce the score in the run's result.

    Possible causes: another file, an edited file, or your own metric with the name of a metric of this package.
    """
    scores = seed.result.get("scores")
    split = seed.predictions.stem.removeprefix(FILE.partition("{")[0])
    split_scores = scores.get(split) if isinstance(scores, dict) else None
    stored = split_scores.get(metric.name) if isinstance(split_scores, dict) else None
    if isinstance(stored, bool) or not isinstance(stored, int | float):
        return
    found = metric.compute(read.answers, read.labels)
    if not np.isclose(found, stored, rtol=0, atol=TOLERANCE, equal_nan=True):
        task = seed.result["task"]
        own = f"; if your own task has its own {metric.name}, pass --trust {task}"
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
    where = seed.predictions.parent / RESULT
    own = f"; if it is of your own task, pass --trust {task}" if is_import_path(task) else ""
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

    Raises InputError as `read_predictions`, or if a label is missing or has another shape than the first.
    """
    rows = read_predictions(path)
    labels = [row.label for row in rows if row.label is not None]
    if len(labels) < len(rows) or len({label.shape for label in labels}) > 1:
        raise InputError(
            f"{path}: a label is missing, or labels differ in shape; run this seed again"
        )
    return SplitPredictions(
        tuple(row.id for row in rows),
        np.array(labels),
        np.array([row.prediction for row in rows]),
        _numbered_groups([row.groups for row in rows], path),
    )


def _numbered_groups(rows: Sequence[Mapping[str, str]], path: Path) -> dict[str, np.ndarray]:
    """The number of each example's group (N,) by kind; raises InputError unless every line has the same kinds."""
    numbered = {}
    kinds = rows[0].keys() if rows else set()
    for number, row in enumerate(rows, 1):
        if row.keys() != kinds or not all(isinstance(name, str) for name in row.values()):
            raise InputError(
                f"{path}, line {number}: its groups differ in kind from line 1's; run this seed again"
            )
    for kind in kinds:
        _, numbered[kind] = np.unique([row[kind] for row in rows], return_inverse=True)
    return numbered
