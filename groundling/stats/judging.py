"""From run folders to a verdict: tables, JSON, a report, and one plain sentence per comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.metrics import Metric
from groundling.runs.folder import plain, write_json
from groundling.runs.report import table
from groundling.stats.finished_runs import collect
from groundling.stats.verdict import Runs, Verdict, decide, judge
from groundling.stats.verdict_page import title_of, write_verdicts

Collected = Mapping[str, Mapping[str, tuple[Runs, Metric]]]
"""By group and task: the runs, and what they are compared by."""
Published = Mapping[str, Mapping[str, float]]
"""By group and task: what a paper reports, in the metric's own units."""


def judge_folders(
    groups: Mapping[str, str | Path],
    out: str | Path,
    say: Callable[[str], None] = print,
    published: Published | None = None,
    tasks: Sequence[str] = (),
    trust: Sequence[str] = (),
) -> dict[str, Any]:
    """Judge every group of runs against the first one; writes `out/verdict.json` and `out/verdict.html`.

    Args:
        groups: name to run folder, the control first.
        out: folder of the report.
        say: prints a line.
        published: by group and task, what a paper reports, which stands beside what was measured.
        tasks: judge these alone, on all their splits, in this order; empty: all.
        trust: tasks of the user's own, MODULE:NAME, that may be imported for their metrics.
    """
    return write_judged(collected_of(groups, tasks, trust), out, say, published)


def collected_of(
    groups: Mapping[str, str | Path], tasks: Sequence[str] = (), trust: Sequence[str] = ()
) -> Collected:
    """The finished runs of every group by task, as `judge_folders` takes them; nothing is written."""
    return {name: _wanted(collect(name, folder, trust), tasks) for name, folder in groups.items()}


def are_comparable(collected: Collected) -> bool:
    """Whether any group has a task in common with the first one, the control."""
    control, *others = collected.values()
    return any(not control.keys().isdisjoint(other) for other in others)


def write_judged(
    collected: Collected, out: str | Path, say: Callable[[str], None], published: Published | None
) -> dict[str, Any]:
    """What `judge_folders` does with the runs that it found."""
    control = next(iter(collected))
    for note in _unmatched(collected, control):
        say(note)
    verdicts = _verdicts(collected, control)
    scores = {
        name: {task: _scores(runs, metric) for task, (runs, metric) in by_task.items()}
        for name, by_task in collected.items()
    }
    told = [one.as_json() for one in verdicts]
    result: dict[str, Any] = plain({"control": control, "scores": scores, "verdicts": told})
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "verdict.json", result)

    rows = score_rows(collected, control, published or {})
    # Notes on the control's runs are the same in every comparison.
    notes = list(dict.fromkeys(f"{one.task}, {note}" for one in verdicts for note in one.notes))
    say(table(rows))
    for one in verdicts:
        say(one.sentence)
    for note in notes:
        say(f"note: {note}")
    page = out / "verdict.html"
    write_verdicts(page, collected, verdicts, published or {}, notes)
    say(f"page: {page}")
    return result


def _wanted(
    by_task: Mapping[str, tuple[Runs, Metric]], tasks: Sequence[str]
) -> Mapping[str, tuple[Runs, Metric]]:
    """The runs of some tasks and of their further splits, `TASK (SPLIT)`; without tasks, of all."""
    if not tasks:
        return by_task
    return {
        name: by_task[name]
        for task in tasks
        for name in by_task
        if name == task or name.startswith(f"{task} (")
    }


def _unmatched(collected: Collected, control: str) -> list[str]:
    """What is not judged, because one side has no finished run."""
    notes = []
    for name, by_task in collected.items():
        for task in collected[control].keys() ^ by_task.keys():
            lacking = control if task in by_task else name
            notes.append(f"{lacking}: no finished run of {task}, so it is not judged")
    return notes


def _verdicts(collected: Collected, control: str) -> list[Verdict]:
    """Every group but the control's on every task both have; corrected over the tasks of a group."""
    verdicts = []
    for name, by_task in collected.items():
        if name == control:
            continue
        of_group = []
        for task, (control_runs, _) in collected[control].items():
            if task in by_task:
                runs, metric = by_task[task]
                of_group.append(judge(control_runs, runs, metric))
        verdicts += decide(of_group)
    return verdicts


def _scores(runs: Runs, metric: Metric) -> dict[str, Any]:
    """Every seed's score and what sums them up, over seeds for which the metric is defined."""
    values = runs.scores(metric)
    defined = values[np.isfinite(values)]
    low, median, high = _quartiles(defined)
    return {
        "metric": metric.name,
        "seeds": list(runs.seeds),
        "scores": values.tolist(),
        "median": median,
        "mean": float(defined.mean()) if len(defined) else nan,
        "sd": float(defined.std(ddof=1)) if len(defined) > 1 else nan,
        "quartiles": [low, high],
        "agreement": runs.agreement() if metric.classes else None,
        "collapsed": runs.collapsed(),
        "unfinished": list(runs.unfinished),
    }


def _quartiles(values: np.ndarray) -> tuple[float, float, float]:
    if not len(values):
        return nan, nan, nan
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return low, median, high


def score_rows(collected: Collected, control: str, published: Published) -> list[dict[str, str]]:
    """One row per group, one column per task: median and, in brackets, every seed; published values beside them."""
    metrics = {
        task: metric for by_task in collected.values() for task, (_, metric) in by_task.items()
    }
    # A column of published values stands beside a task for which any of the groups has one.
    tasks_with_published: set[str] = set()
    for reported in published.values():
        tasks_with_published |= reported.keys()
    rows = []
    for name, by_task in collected.items():
        row = {"": title_of(name, control)}
        values = published.get(name, {})
        for task, metric in metrics.items():
            direction = "" if metric.higher_is_better else ", lower is better"
            cell = "-"
            if task in by_task:
                cell = _score_cell(by_task[task][0].scores(metric), metric)
            row[f"{task} ({metric.name}{direction})"] = cell
            if task in tasks_with_published:
                row[f"{task}, published"] = str(values.get(task, "-"))
        rows.append(row)
    return rows


def _score_cell(scores: np.ndarray, metric: Metric) -> str:
    digits = 1 if metric.scale == 100 else 3
    scaled = scores * metric.scale
    _, median, _ = _quartiles(scaled[np.isfinite(scaled)])
    seeds = " ".join(f"{score:.{digits}f}" for score in scaled)
    return f"{median:.{digits}f} [{seeds}]"
