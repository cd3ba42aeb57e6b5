"""From run folders to a verdict: tables, JSON, a report, and one plain sentence per comparison.

The page has the sentences, a forest plot, every seed, what was compared, and what the words mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.metrics import COLLAPSED, NEARLY, Metric
from groundling.runs.folder import json_safe, read_object, write_json
from groundling.runs.report import (
    ForestRow,
    ReportSection,
    TableRow,
    forest_plot,
    format_table,
    in_two_widths,
    write_report,
)
from groundling.stats.finished_runs import collect_runs
from groundling.stats.verdict import ALPHA, SeedRuns, Verdict, decide, judge

RunsByGroup = Mapping[str, Mapping[str, tuple[SeedRuns, Metric]]]
"""By group and task: the runs, and what they are compared by."""
PublishedByGroup = Mapping[str, Mapping[str, float]]
"""By group and task: what a paper reports, in the metric's own units."""
TERMS = {
    "seed": "A run's number, from which all its random choices are drawn. Runs of one model that differ in nothing "
    "else show how much is chance.",
    "examples": "The questions of the task's split that every run answered.",
    "median": "The middle one of the seeds' scores.",
    "difference": "The mean over the model's seeds less the mean over the control's. In points where scores are shares "
    "of 100, otherwise in the metric's own unit.",
    "95 % interval": "Where the difference lies in 95 of 100 resamples of seeds and examples (a bootstrap on two "
    "levels). An interval that holds 0 may be chance.",
    "permutation p": "How often the difference is as large when the same runs are dealt out at random between model "
    "and control; in brackets the least that so many seeds can give.",
    "after Holm": "That p, made larger because several tasks were judged together.",
    "votes": "Each side's answer to an example is the one most of its seeds gave. Examples that only the model has "
    "right : those that only the control has right, and McNemar's p of it. It leaves out what single seeds do: where "
    "most seeds of both sides agree on every example, nothing is counted, however far the means are apart. Not part "
    "of the verdict.",
    "wins": "Right answers of the model beyond the control's, summed over the seeds both have.",
    "reliable": f"Yes, if the interval leaves out 0 and p after Holm is at most {ALPHA:g}.",
    "collapsed": f"Of a run: it gives one and the same answer to {100 * COLLAPSED:.0f} % of the examples or more, or "
    f"to {100 * NEARLY:.0f} % where the most common right answer is clearly rarer.",
    "published": "What a paper reports, on its own models.",
}
"""What the words of the page mean."""
FOREST = (
    "A row for each comparison. The square is the difference of the means, full if it is reliable and empty if it is "
    "not; the line is its 95 % interval; each dot below it is one seed. On the dashed line there is no difference.",
)
ALIKE = "none differs"
"""In place of 0 : 0 votes, which would look like no difference between the seeds either."""


def judge_folders(
    groups: Mapping[str, str | Path],
    out: str | Path,
    log: Callable[[str], None] = print,
    published: PublishedByGroup | None = None,
    tasks: Sequence[str] = (),
    trust: Sequence[str] = (),
) -> dict[str, Any]:
    """Judge every group of runs against the first one; writes `out/verdict.json` and `out/verdict.html`.

    Args:
        groups: name to run folder, the control first.
        out: folder of the report.
        log: prints a line.
        published: by group and task, what a paper reports, which stands beside what was measured.
        tasks: judge these alone, on all their splits, in this order; empty: all.
        trust: tasks of the user's own, MODULE:NAME, that may be imported for their metrics.
    """
    return write_verdict(collect_groups(groups, tasks, trust), out, log, published)


def collect_groups(
    groups: Mapping[str, str | Path], tasks: Sequence[str] = (), trust: Sequence[str] = ()
) -> RunsByGroup:
    """The finished runs of every group by task, as `judge_folders` takes them; nothing is written."""
    return {
        name: _wanted(collect_runs(name, folder, trust), tasks) for name, folder in groups.items()
    }


def are_comparable(collected: RunsByGroup) -> bool:
    """Whether any group has a task in common with the first one, the control."""
    control, *others = collected.values()
    return any(not control.keys().isdisjoint(other) for other in others)


def write_verdict(
    collected: RunsByGroup,
    out: str | Path,
    say: Callable[[str], None],
    published: PublishedByGroup | None,
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
    result: dict[str, Any] = json_safe({"control": control, "scores": scores, "verdicts": told})
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "verdict.json", result)

    rows = score_rows(collected, control, published or {})
    # Notes on the control's runs are the same in every comparison.
    notes = list(dict.fromkeys(f"{one.task}, {note}" for one in verdicts for note in one.notes))
    say(format_table(rows))
    for one in verdicts:
        say(one.sentence)
    for note in notes:
        say(f"note: {note}")
    page = out / "verdict.html"
    write_verdicts(page, collected, verdicts, published or {}, notes)
    say(f"page: {page}")
    return result


def _wanted(
    by_task: Mapping[str, tuple[SeedRuns, Metric]], tasks: Sequence[str]
) -> Mapping[str, tuple[SeedRuns, Metric]]:
    """The runs of some tasks and of their further splits, `TASK (SPLIT)`; without tasks, of all."""
    if not tasks:
        return by_task
    return {
        name: by_task[name]
        for task in tasks
        for name in by_task
        if name == task or name.startswith(f"{task} (")
    }


def _unmatched(collected: RunsByGroup, control: str) -> list[str]:
    """What is not judged, because one side has no finished run."""
    notes = []
    for name, by_task in collected.items():
        for task in collected[control].keys() ^ by_task.keys():
            lacking = control if task in by_task else name
            notes.append(f"{lacking}: no finished run of {task}, so it is not judged")
    return notes


def _verdicts(collected: RunsByGroup, control: str) -> list[Verdict]:
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


def _scores(runs: SeedRuns, metric: Metric) -> dict[str, Any]:
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
        "agreement": runs.agreement() if metric.is_classification else None,
        "collapsed": runs.degenerate_seeds(),
        "unfinished": list(runs.unfinished),
    }


def _quartiles(values: np.ndarray) -> tuple[float, float, float]:
    if not len(values):
        return nan, nan, nan
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return low, median, high


def score_rows(
    collected: RunsByGroup, control: str, published: PublishedByGroup
) -> list[dict[str, str]]:
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


def write_verdicts(
    path: Path,
    collected: RunsByGroup,
    verdicts: Sequence[Verdict],
    published: Mapping[str, Mapping[str, float]],
    notes: Sequence[str],
) -> None:
    """Write the page of `verdicts` on the runs that were `collected`, the control's first.

    Raises InputError if it cannot be written, or the settings of a run cannot be read.
    """
    control = next(iter(collected))
    sections = []
    if verdicts:
        sections.append(ReportSection("Differences", FOREST, figure=_forests(collected, verdicts)))
    rows = _score_rows(collected, control, published)
    sections.append(ReportSection("Every seed", rows=rows))
    if verdicts:
        comparisons = [_comparison_row(one) for one in verdicts]
        sections.append(ReportSection("Comparisons in numbers", rows=comparisons))
    sections.append(ReportSection("What was compared", rows=_source_rows(collected)))
    today = datetime.now(UTC).date().isoformat()
    sentences = [one.sentence for one in verdicts]
    write_report(
        path,
        f"Against {control}",
        sections,
        sentences,
        notes=[*notes, f"This page is of {today}."],
        terms=TERMS if any(published.values()) else _without(TERMS, "published"),
    )


def _without(terms: Mapping[str, str], name: str) -> dict[str, str]:
    return {term: meaning for term, meaning in terms.items() if term != name}


def _forests(collected: RunsByGroup, verdicts: Sequence[Verdict]) -> str:
    """A forest plot for each unit that differences are in, one below the other."""
    by_unit: dict[str, list[Verdict]] = {}
    for one in verdicts:
        if np.isfinite(one.difference):
            by_unit.setdefault(_unit(one.metric), []).append(one)
    plots = []
    for unit, members in by_unit.items():
        rows = [_difference(one, collected) for one in members]
        told = "; ".join(f"{row.label}: {row.mean:+.3g}" for row in rows)
        plots.append(
            in_two_widths(partial(forest_plot, rows, unit), f"Differences in {unit}. {told}")
        )
    return "".join(plots)


def _unit(metric: Metric) -> str:
    """Of differences, and on which side of 0 they are good."""
    side = "right" if metric.higher_is_better else "left"
    unit = "points" if metric.scale == 100 else metric.name.upper()
    return f"{unit}; {side} of 0 is better than the control"


def _difference(one: Verdict, collected: RunsByGroup) -> ForestRow:
    runs, metric = collected[one.other][one.task]
    control, _ = collected[one.control][one.task]
    seeds = str(len(runs.seeds))
    if len(control.seeds) != len(runs.seeds):
        seeds += f" (control: {len(control.seeds)})"
    low, high = one.interval
    return ForestRow(
        f"{one.other}, {one.task}",
        f"{len(runs.ids):,} examples, {seeds} seeds",
        one.difference * metric.scale,
        (low * metric.scale, high * metric.scale),
        [value * metric.scale for value in one.by_seed],
        one.reliable,
    )


def title_of(name: str, control: str) -> str:
    """What tables call a group of runs: the control is marked, unless its name says it already."""
    return f"{name} (control)" if name == control and "control" not in name.lower() else name


def _score_rows(
    collected: RunsByGroup, control: str, published: Mapping[str, Mapping[str, float]]
) -> list[TableRow]:
    """A row for each group and task."""
    rows: list[TableRow] = []
    for name, by_task in collected.items():
        for task, (runs, metric) in by_task.items():
            direction = "" if metric.higher_is_better else ", lower is better"
            scores = runs.scores(metric) * metric.scale
            digits = 1 if metric.scale == 100 else 3
            defined = scores[np.isfinite(scores)]
            row = {
                "runs": title_of(name, control),
                "task": task,
                "metric": f"{metric.name}{direction}",
                "examples": f"{len(runs.ids):,}",
                "median": f"{np.median(defined):.{digits}f}" if len(defined) else "-",
                "every seed": " ".join(f"{score:.{digits}f}" for score in scores),
            }
            if any(published.values()):
                row["published"] = str(published.get(name, {}).get(task, "-"))
            rows.append(row)
    return rows


def _comparison_row(one: Verdict) -> dict[str, str]:
    scale = one.metric.scale
    low, high = one.interval
    p = one.permutation
    votes = "-"
    if one.mcnemar is not None:
        gained = one.mcnemar["only_other"]
        lost = one.mcnemar["only_control"]
        votes = f"{gained} : {lost}, p {one.mcnemar['p']:.3g}" if gained or lost else ALIKE
    return {
        "runs": one.other,
        "task": one.task,
        "difference": f"{one.difference * scale:+.3g}",
        "95 % interval": f"{low * scale:+.3g} to {high * scale:+.3g}",
        "permutation p": f"{p['p']:.3g} (at least {p['smallest']:.2g})",
        "after Holm": f"{p['holm']:.3g}",
        "votes": votes,
        "wins": "-" if one.wins is None else f"{one.wins:+d}",
        "reliable": "yes" if one.reliable else "no",
    }


# -- where it comes from -----------------------------------------------------------------------------------------------


def _source_rows(collected: RunsByGroup) -> list[TableRow]:
    """A row for each group and what its runs say of themselves; equal ones of several tasks stand once."""
    rows: list[TableRow] = []
    for name, by_task in collected.items():
        for runs, _ in by_task.values():
            row = {"runs": name, **_source(runs)}
            if row not in rows:
                rows.append(row)
    return rows


def _source(runs: SeedRuns) -> dict[str, str]:
    """Models, data, version and date of some runs, from the `config.json` that is nearest to each."""
    told: list[Mapping[str, object]] = [_settings(folder) for folder in runs.folders]
    settings = [config for one in told if isinstance(config := one.get("config"), Mapping)]
    versions = [config for one in told if isinstance(config := one.get("versions"), Mapping)]
    results = [folder / "result.json" for folder in runs.folders]
    days = sorted(_day(path) for path in results if path.is_file())
    return {
        "model": _named(settings, "model"),
        "data": _named(settings, "data"),
        "seeds": ", ".join(map(str, runs.seeds)),
        "groundling": _named(versions, "groundling"),
        "commit": ", ".join(one[:12] for one in _all(told, "commit")) or "not told",
        "finished": " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "not told",
    }


def _settings(folder: Path) -> Mapping[str, object]:
    """What the nearest `config.json` holds, of a seed's folder or of one around it; empty if there is none."""
    for place in (folder, *list(folder.resolve().parents)[:2]):
        path = place / "config.json"
        if path.is_file():
            return read_object(path)
    return {}


def _day(path: Path) -> str:
    return datetime.fromtimestamp(os.stat(path).st_mtime, UTC).date().isoformat()


def _named(told: Sequence[Mapping[str, object]], name: str) -> str:
    return ", ".join(_all(told, name)) or "not told"


def _all(told: Sequence[Mapping[str, object]], name: str) -> list[str]:
    """The different texts under a name, in their order."""
    values = [one.get(name) for one in told]
    return list(dict.fromkeys(value for value in values if isinstance(value, str) and value))
