"""Verdicts on run folders, as `verdict.json` and a report: sentences, forest plots, scores, a glossary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.errors import InputError, convert_errors
from groundling.core.metrics import DEGENERATE_SHARE, METRICS, NEARLY_DEGENERATE_SHARE, Metric
from groundling.core.registry import check_trust, import_object, is_import_path
from groundling.prediction.predictions import FILE, is_listed, read_predictions
from groundling.runs.folder import RESULT, SETTINGS, json_safe, read_object, write_json, write_whole
from groundling.runs.report import ForestRow, Report, ReportSection, TableRow, forest_svg
from groundling.runs.run_report import differing_settings, format_value, settings_of_run
from groundling.stats.verdict import ALPHA, MIN_GROUPS, SeedRuns, Verdict, decide, judge
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
    first, run = seeds[0], files[order[0]].parent.parent
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
        settings=settings_of_run(run) if (run / SETTINGS).exists() else {},
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


RunsByGroup = Mapping[str, Mapping[str, tuple[SeedRuns, Metric]]]
"""By group and task: the runs, and the metric that compares them."""
PublishedByGroup = Mapping[str, Mapping[str, float]]
"""By group and task: the value in a paper, in the metric's unit."""
TERMS = {
    "95 % interval": "Contains the difference in 95 of 100 resamples of seeds and examples (two-level bootstrap). If "
    "it contains 0, the difference may be chance.",
    "resampled": "What is drawn: single examples, or those with the same image, or with the same text and choices, "
    f"together, whichever makes the interval widest; of at least {MIN_GROUPS} such groups.",
    "permutation p": "Probability of a difference at least this large if runs are assigned at random to model and "
    "control, and the smallest p with this number of seeds; after Holm: corrected for several tasks.",
    "wins": "Right answers of the model minus right answers of the control, summed over common seeds.",
    "reliable": f"Yes if the interval excludes 0 and p after Holm is at most {ALPHA:g}.",
    "degenerate": f"A run that gives the same answer to at least {100 * DEGENERATE_SHARE:.0f} % of the examples, or to "
    f"{100 * NEARLY_DEGENERATE_SHARE:.0f} % where the most common label is clearly rarer.",
}
"""Glossary of the page."""
FOREST = (
    "One row per comparison. The square is the difference of the means, filled if it is reliable; the line is its "
    "95 % interval; each dot below is one seed. The dashed line marks no difference."
)


def collect_groups(
    groups: Mapping[str, str | Path], tasks: Sequence[str] = (), trust: Sequence[str] = ()
) -> RunsByGroup:
    """The finished runs of every group by task, from run folders by name, the control first; of some `tasks` or all."""
    collected = {}
    for name, folder in groups.items():
        runs = collect_runs(name, folder, trust)
        collected[name] = {
            one: runs[one]
            for task in tasks or runs
            for one in runs
            if one == task or one.startswith(f"{task} (")  # TASK (SPLIT)
        }
    return collected


def write_verdict(
    collected: RunsByGroup,
    out: str | Path,
    log: Callable[[str], None] = print,
    published: PublishedByGroup | None = None,
) -> dict[str, Any]:
    """Compare every group with the first, beside papers' values; prints, and writes `verdict.json`, `.html`, `.txt`."""
    control = next(iter(collected))
    verdicts = []
    for by_task in [own for name, own in collected.items() if name != control]:
        shared = {task: runs for task, (runs, _) in collected[control].items() if task in by_task}
        every = [judge(runs, *by_task[task]) for task, runs in shared.items()]
        verdicts += decide(every)  # p is corrected over a group's tasks
    scores = {
        name: {
            task: {
                "metric": metric.name,
                "seeds": list(runs.seeds),
                "scores": runs.scores(metric).tolist(),
            }
            for task, (runs, metric) in by_task.items()
        }
        for name, by_task in collected.items()
    }
    result: dict[str, Any] = json_safe(
        {"control": control, "scores": scores, "verdicts": [one.as_json() for one in verdicts]}
    )
    page = Path(out) / "verdict.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    write_json(page.with_suffix(".json"), result)
    report = _report(collected, verdicts, published or {})
    report.write(page)
    write_whole(page.with_suffix(".txt"), report.text() + "\n")
    log(report.text())
    log(f"page: {page}")
    return result


def _report(
    collected: RunsByGroup, verdicts: Sequence[Verdict], published: PublishedByGroup
) -> Report:
    control = next(iter(collected))
    comparisons = ReportSection(
        "Differences",
        figures=_forests(collected, verdicts),
        caption=FOREST,
        rows=[_comparison_row(one, collected) for one in verdicts],
    )
    # Notes on the control's runs repeat in every comparison.
    notes = dict.fromkeys(f"{one.task}, {note}" for one in verdicts for note in one.notes)
    unmatched = [
        f"{control if task in by_task else name}: no finished run of {task}, so this task is not compared"
        for name, by_task in collected.items()
        for task in collected[control].keys() ^ by_task.keys()
    ]
    return Report(
        f"Against {control}",
        [
            ReportSection("Scores", rows=_score_rows(collected, published)),
            *([comparisons] if verdicts else []),
            ReportSection(f"Settings that differ from {control}", rows=_settings(collected)),
        ],
        [one.sentence for one in verdicts],
        notes=[*unmatched, *notes],
        terms=TERMS,
    )


def _score_rows(collected: RunsByGroup, published: PublishedByGroup) -> list[TableRow]:
    metrics = {
        task: metric for by_task in collected.values() for task, (_, metric) in by_task.items()
    }
    # A task has a column of published values if any group has one.
    with_published = {task for values in published.values() for task in values}
    rows: list[TableRow] = []
    for name, by_task in collected.items():
        row = {"": name}
        for task, metric in metrics.items():
            direction = "" if metric.higher_is_better else ", lower is better"
            cell = "-"
            if task in by_task:
                digits = 1 if metric.scale == 100 else 3
                scaled = by_task[task][0].scores(metric) * metric.scale
                defined = scaled[np.isfinite(scaled)]
                median = np.median(defined) if len(defined) else nan
                seeds = " ".join(f"{score:.{digits}f}" for score in scaled)
                cell = f"{median:.{digits}f} [{seeds}]"
            row[f"{task} ({metric.name}{direction})"] = cell
            if task in with_published:
                row[f"{task}, published"] = str(published.get(name, {}).get(task, "-"))
        rows.append(row)
    return rows


def _settings(collected: RunsByGroup) -> list[TableRow]:
    """A row for each setting that a group has unlike the control, with the tasks where it has."""
    (control, by_task), *others = collected.items()
    tasks: dict[tuple[str, ...], list[str]] = {}
    for name, own in others:
        for task in (one for one in own if one in by_task):
            runs, base = own[task][0].settings, by_task[task][0].settings
            for one in differing_settings(runs, base):
                values = (format_value(side[one]) for side in (base, runs))
                tasks.setdefault((name, one, *values), []).append(task)
    return [
        {"runs": name, "setting": one, control: before, "theirs": value, "task": ", ".join(some)}
        for (name, one, before, value), some in tasks.items()
    ]


def _forests(collected: RunsByGroup, verdicts: Sequence[Verdict]) -> list[str]:
    by_unit: dict[str, list[ForestRow]] = {}
    for one in verdicts:
        if np.isfinite(one.difference):
            side = "right" if one.metric.higher_is_better else "left"
            unit = f"{one.unit}; {side} of 0 is better than the control"
            row = ForestRow(
                f"{one.other}, {one.task}",
                _counts(one, collected),
                one.scaled(one.difference),
                (one.scaled(one.interval[0]), one.scaled(one.interval[1])),
                [one.scaled(value) for value in one.by_seed],
                one.reliable,
            )
            by_unit.setdefault(unit, []).append(row)
    return [forest_svg(rows, unit) for unit, rows in by_unit.items()]


def _counts(one: Verdict, collected: RunsByGroup) -> str:
    runs, control = (collected[name][one.task][0] for name in (one.other, one.control))
    same = len(control.seeds) == len(runs.seeds)
    seeds = f"{len(runs.seeds)}{'' if same else f' (control: {len(control.seeds)})'}"
    return f"{len(runs.ids):,} examples, {seeds} seeds"


def _comparison_row(one: Verdict, collected: RunsByGroup) -> TableRow:
    low, high = (one.scaled(end) for end in one.interval)
    p = one.permutation
    return {
        "runs": one.other,
        "task": one.task,
        "of": _counts(one, collected),
        "difference": f"{one.scaled(one.difference):+.3g}",
        "95 % interval": f"{low:+.3g} to {high:+.3g}",
        "resampled": one.resampled,
        "permutation p": f"{p['p']:.3g} (minimum {p['smallest']:.2g})",
        "after Holm": f"{p['holm']:.3g}",
        "wins": "-" if one.wins is None else f"{one.wins:+d}",
        "reliable": "yes" if one.reliable else "no",
    }
