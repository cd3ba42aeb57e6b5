"""Verdicts on run folders as `verdict.json` and as a report: one sentence per comparison, a forest plot, the scores
of every seed, the sources of the runs, and a glossary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.errors import convert_errors
from groundling.core.metrics import DEGENERATE_SHARE, NEARLY_DEGENERATE_SHARE, Metric
from groundling.runs.folder import SETTINGS, json_safe, read_object, write_json
from groundling.runs.report import ForestRow, Report, ReportSection, TableRow, forest_svg
from groundling.stats.finished_runs import collect_runs
from groundling.stats.verdict import ALPHA, MIN_GROUPS, SeedRuns, Verdict, decide, judge

RunsByGroup = Mapping[str, Mapping[str, tuple[SeedRuns, Metric]]]
"""By group and task: the runs, and the metric that compares them."""
PublishedByGroup = Mapping[str, Mapping[str, float]]
"""By group and task: the value in a paper, in the metric's unit."""
TERMS = {
    "95 % interval": "Contains the difference in 95 of 100 resamples of seeds and examples (two-level bootstrap). If "
    "it contains 0, the difference may be chance.",
    "resampled": "What is drawn for the interval: single examples, or all examples with the same image, or with the "
    "same text and choices, together, whichever makes the interval widest. Examples that share one are not "
    f"independent. Fewer than {MIN_GROUPS} groups are not drawn.",
    "permutation p": "Probability of a difference at least this large if runs are assigned at random to model and "
    "control; in brackets the smallest possible p with this number of seeds.",
    "after Holm": "The same p after Holm's correction for several tasks.",
    "wins": "Right answers of the model minus right answers of the control, summed over common seeds.",
    "reliable": f"Yes if the interval excludes 0 and p after Holm is at most {ALPHA:g}.",
    "degenerate": f"A run that gives the same answer to at least {100 * DEGENERATE_SHARE:.0f} % of the examples, or to "
    f"{100 * NEARLY_DEGENERATE_SHARE:.0f} % where the most common label is clearly rarer.",
}
"""Glossary of the page."""
SOURCE = ("model", "data", "commit")
"""What a table says of runs beside their seeds."""
FOREST = (
    "One row per comparison. The square is the difference of the means, filled if it is reliable; the line is its "
    "95 % interval; each dot below is one seed. The dashed line marks no difference."
)


def collect_groups(
    groups: Mapping[str, str | Path], tasks: Sequence[str] = (), trust: Sequence[str] = ()
) -> RunsByGroup:
    """The finished runs of every group by task, from run folders by name, the control first.

    Args:
        groups: run folder by name.
        tasks: only these tasks, on all their splits, in this order; empty: all.
        trust: your own tasks, MODULE:NAME, which are imported for their metrics.
    """
    return {
        name: _select_tasks(collect_runs(name, folder, trust), tasks)
        for name, folder in groups.items()
    }


def write_verdict(
    collected: RunsByGroup,
    out: str | Path,
    log: Callable[[str], None] = print,
    published: PublishedByGroup | None = None,
) -> dict[str, Any]:
    """Compare every group with the first; writes `out/verdict.json` and `out/verdict.html`.

    Args:
        collected: the runs, see `collect_groups`.
        out: folder of the report.
        log: prints a line.
        published: values from papers, shown beside the measured scores.
    """
    control = next(iter(collected))
    verdicts = _verdicts(collected, control)
    scores = {
        name: {task: _scores(runs, metric) for task, (runs, metric) in by_task.items()}
        for name, by_task in collected.items()
    }
    result: dict[str, Any] = json_safe(
        {"control": control, "scores": scores, "verdicts": [one.as_json() for one in verdicts]}
    )
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "verdict.json", result)
    report = _report(collected, verdicts, published or {})
    page = out / "verdict.html"
    report.write(page)
    log(report.text())
    log(f"page: {page}")
    return result


def _select_tasks(
    by_task: Mapping[str, tuple[SeedRuns, Metric]], tasks: Sequence[str]
) -> Mapping[str, tuple[SeedRuns, Metric]]:
    """The runs of some tasks and their further splits, `TASK (SPLIT)`; without `tasks`, all runs."""
    if not tasks:
        return by_task
    return {
        name: by_task[name]
        for task in tasks
        for name in by_task
        if name == task or name.startswith(f"{task} (")
    }


def _unmatched(collected: RunsByGroup, control: str) -> list[str]:
    """Notes on tasks that are not compared because one side has no finished run."""
    notes = []
    for name, by_task in collected.items():
        for task in collected[control].keys() ^ by_task.keys():
            lacking = control if task in by_task else name
            notes.append(f"{lacking}: no finished run of {task}, so this task is not compared")
    return notes


def _verdicts(collected: RunsByGroup, control: str) -> list[Verdict]:
    """Verdicts of every group on every task it shares with the control; p is corrected over a group's tasks."""
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


def _scores(runs: SeedRuns, metric: Metric) -> dict[str, Any]:
    """Every seed's score, and summary statistics over the seeds with a defined metric."""
    values = runs.scores(metric)
    defined = values[np.isfinite(values)]
    return {
        "metric": metric.name,
        "seeds": list(runs.seeds),
        "scores": values.tolist(),
        "median": float(np.median(defined)) if len(defined) else nan,
        "mean": float(defined.mean()) if len(defined) else nan,
        "sd": float(defined.std(ddof=1)) if len(defined) > 1 else nan,
        "collapsed": runs.degenerate_seeds(),
        "unfinished": list(runs.unfinished),
    }


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
    today = f"written on {datetime.now(UTC).date().isoformat()}"
    return Report(
        f"Against {control}",
        [
            ReportSection("Scores", rows=_score_rows(collected, control, published)),
            *([comparisons] if verdicts else []),
            ReportSection("What was compared", rows=_source_rows(collected)),
        ],
        [one.sentence for one in verdicts],
        notes=[*_unmatched(collected, control), *notes, today],
        terms=TERMS,
    )


def _score_rows(
    collected: RunsByGroup, control: str, published: PublishedByGroup
) -> list[TableRow]:
    """One row per group, one column per task: the median, every seed in brackets, and published values."""
    metrics = {
        task: metric for by_task in collected.values() for task, (_, metric) in by_task.items()
    }
    # A task has a column of published values if any group has one.
    with_published = {task for values in published.values() for task in values}
    rows: list[TableRow] = []
    for name, by_task in collected.items():
        is_named = name != control or "control" in name.lower()
        row = {"": name if is_named else f"{name} (control)"}
        for task, metric in metrics.items():
            direction = "" if metric.higher_is_better else ", lower is better"
            cell = "-"
            if task in by_task:
                cell = _score_cell(by_task[task][0].scores(metric), metric)
            row[f"{task} ({metric.name}{direction})"] = cell
            if task in with_published:
                row[f"{task}, published"] = str(published.get(name, {}).get(task, "-"))
        rows.append(row)
    return rows


def _score_cell(scores: np.ndarray, metric: Metric) -> str:
    digits = 1 if metric.scale == 100 else 3
    scaled = scores * metric.scale
    defined = scaled[np.isfinite(scaled)]
    median = np.median(defined) if len(defined) else nan
    seeds = " ".join(f"{score:.{digits}f}" for score in scaled)
    return f"{median:.{digits}f} [{seeds}]"


def _forests(collected: RunsByGroup, verdicts: Sequence[Verdict]) -> list[str]:
    by_unit: dict[str, list[ForestRow]] = {}
    for one in verdicts:
        if np.isfinite(one.difference):
            by_unit.setdefault(_unit(one.metric), []).append(_forest_row(one, collected))
    return [forest_svg(rows, unit) for unit, rows in by_unit.items()]


def _unit(metric: Metric) -> str:
    """Axis label: the unit of differences, and the side of 0 that is better."""
    side = "right" if metric.higher_is_better else "left"
    unit = "points" if metric.scale == 100 else metric.name.upper()
    return f"{unit}; {side} of 0 is better than the control"


def _forest_row(one: Verdict, collected: RunsByGroup) -> ForestRow:
    low, high = one.interval
    scale = one.metric.scale
    return ForestRow(
        f"{one.other}, {one.task}",
        _counts(one, collected),
        one.difference * scale,
        (low * scale, high * scale),
        [value * scale for value in one.by_seed],
        one.reliable,
    )


def _counts(one: Verdict, collected: RunsByGroup) -> str:
    runs, _ = collected[one.other][one.task]
    control, _ = collected[one.control][one.task]
    seeds = str(len(runs.seeds))
    if len(control.seeds) != len(runs.seeds):
        seeds += f" (control: {len(control.seeds)})"
    return f"{len(runs.ids):,} examples, {seeds} seeds"


def _comparison_row(one: Verdict, collected: RunsByGroup) -> TableRow:
    scale = one.metric.scale
    low, high = one.interval
    p = one.permutation
    return {
        "runs": one.other,
        "task": one.task,
        "of": _counts(one, collected),
        "difference": f"{one.difference * scale:+.3g}",
        "95 % interval": f"{low * scale:+.3g} to {high * scale:+.3g}",
        "resampled": one.resampled,
        "permutation p": f"{p['p']:.3g} (minimum {p['smallest']:.2g})",
        "after Holm": f"{p['holm']:.3g}",
        "wins": "-" if one.wins is None else f"{one.wins:+d}",
        "reliable": "yes" if one.reliable else "no",
    }


def _source_rows(collected: RunsByGroup) -> list[TableRow]:
    """Models, data and version of each group's runs; equal rows of several tasks appear once."""
    rows: list[TableRow] = []
    for name, by_task in collected.items():
        for runs, _ in by_task.values():
            sources = [_source(folder) for folder in runs.folders]
            row = {"runs": name, "seeds": ", ".join(map(str, runs.seeds))}
            for column in SOURCE:
                found = dict.fromkeys(str(one[column]) for one in sources if one.get(column))
                row[column] = ", ".join(found) or "unknown"
            if row not in rows:
                rows.append(row)
    return rows


def _source(folder: Path) -> dict[str, Any]:
    """Model, data and commit in the nearest `config.json`, in the seed's folder or up to two above."""
    for place in (folder, *list(folder.resolve().parents)[:2]):
        path = place / SETTINGS
        if path.is_file():
            stored = read_object(path)
            with convert_errors(f"{path}: not a run's settings"):
                return {**stored["config"], "commit": stored.get("commit")}
    return {}
