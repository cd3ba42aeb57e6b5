"""The report of a training run, alone or beside its control: curves, scores, cost and settings, from its folder."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from groundling.core.errors import InputError, convert_errors
from groundling.runs.folder import LOG, SETTINGS, json_text, read_log, read_object, read_result
from groundling.runs.report import (
    BLUE,
    ORANGE,
    SKY,
    VERMILION,
    Report,
    ReportSection,
    TableRow,
    format_count,
)

MEASUREMENTS = {"step", "lr", "grad_norm", "seconds", "tokens_per_second", "padding", "mfu"}
"""Of a line of the log: all that is no loss."""
SCORES = {
    "scores": "",
    "text_alone": "text alone: ",
    "majority": "majority answer: ",
    "held": "held-out texts: ",
    "guessing": "",
    "learned": "learned: ",
    "retention": "retention: ",
    "retrieval": "retrieval: ",
}
"""Parts of a result that are scores, and their names in a table."""
COUNTS = ("n", "texts", "pairs", "images", "captions")
"""What a part of a result calls the number of its items."""
NO_SCORES = {*COUNTS, "median", "degenerate_seeds", "cut_tokens"}
COST = {
    **{name: name for name in ("steps", "epochs", "seconds")},
    "samples": "samples in the data",
    "tokens_per_second": "tokens per second",
    **{name: name.replace("_", " ") for name in ("parameters", "truncated_tokens")},
}
"""What a training cost, of a result and its speed."""
LINES = 8
"""Most lines of a table of losses."""
CONTENT = "content of "
ORIGINS = ("model", "student")
"""Settings that name the model from which a run starts, often an earlier run's."""


CARD = """---
library_name: {library}
tags: [groundling]
---
# {title}

```python
{load}
```

## Training

{rows}

These are numbers of one run. They show a gain only beside those of a control that differs in nothing else.

The licences of the models from which it started, and of the data, apply.
"""
"""A model card without scores of its own."""


def training_card(title: str, library: str, load: str, parts: Mapping[str, Any]) -> str:
    """The model card of a training: how the model is loaded, and what is known of its training, by name."""
    flat = {
        f"{name}, {part}" if part else name: value
        for name, values in parts.items()
        for part, value in (values.items() if isinstance(values, Mapping) else [("", values)])
        if value not in ("", None, [])
    }
    shown = {
        name: f"{value:,.4g}" if isinstance(value, float) else value for name, value in flat.items()
    }
    rows = "\n".join(f"- {name.replace('_', ' ')}: {value}" for name, value in shown.items())
    return CARD.format(library=library, title=title, load=load, rows=rows)


@dataclass(frozen=True)
class TrainingRun:
    """A run of a training command, finished or not; of fine-tuning, with all of its seeds."""

    folder: Path
    command: str
    settings: Mapping[str, Any]
    """As `settings_of_run` reads them."""
    result: Mapping[str, Any]
    """Content of `result.json`; of an unfinished run, the scores of its finished seeds."""
    is_finished: bool
    trainings: Sequence[Mapping[str, Any]]
    """Results of its finished trainings, one for each seed."""
    logs: Sequence[Sequence[Mapping[str, Any]]]
    """Lines of each training's log."""


def read_training_run(folder: str | Path) -> TrainingRun:
    """The run in a folder; raises InputError if none is there, or none that has trained."""
    path = Path(folder)
    command = read_object(path / SETTINGS).get("kind")
    seeds = sorted(path.glob("seed-*"), key=lambda one: (len(one.name), one.name))
    places = [place for place in (path, *seeds) if (place / LOG).exists()]
    if command is None or not places:
        raise InputError(f"{path}: not the folder of a run that has trained")
    result = read_result(path)
    results = [found for place in places if (found := read_result(place)) is not None]
    parts = {"scores": _by_seed([one["scores"] for one in results if "scores" in one])}
    logs = [read_log(place / LOG) for place in places]
    own = parts if result is None else result
    return TrainingRun(path, command, settings_of_run(path), own, result is not None, results, logs)


def _by_seed(scores: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, Any]]:
    first = scores[0] if scores else {}
    return {
        split: {name: [one[split][name] for one in scores if name in one[split]] for name in own}
        for split, own in first.items()
    }


# -- settings ----------------------------------------------------------------------------------------------------------
def settings_of_run(folder: Path) -> dict[str, Any]:
    """Settings by name, what the inputs held, and versions; of a run from which this one starts, after `model: `."""
    path = folder / SETTINGS
    stored = read_object(path)
    with convert_errors(f"{path}: not the settings of a run"):
        found = flat_settings(stored["config"])
        for name, state in stored.get("inputs", {}).items():
            held = state.get("content") or state.get("sizes_and_times")
            found |= {CONTENT + name: held} if held else {}
        found |= {f"version of {name}": one for name, one in stored.get("versions", {}).items()}
    for name in ORIGINS:
        place = Path(str(found.get(name) or "."))
        for before in list(place.parents)[:2] if place.name == "model" else ():
            if (before / SETTINGS).exists() and "kind" in read_object(before / SETTINGS):
                found |= {f"{name}: {key}": one for key, one in settings_of_run(before).items()}
    return found


def flat_settings(groups: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their own names, those of groups included, as JSON has them."""
    found: dict[str, Any] = {}
    for name, value in json.loads(json_text(groups, default=str)).items():
        found |= flat_settings(value) if isinstance(value, dict) else {name: value}
    return found


def differing_settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of what two runs both have, but not alike; of inputs with other paths, only the paths."""
    names = [name for name in one if name in other and one[name] != other[name]]
    return [
        name for name in names if name == (place := name.replace(CONTENT, "")) or place not in names
    ]


def format_value(value: Any) -> str:
    """A setting in a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(format_value, value)) or "-"
    return f"{value:g}" if isinstance(value, float) else str("-" if value in ("", None) else value)


# -- curves ------------------------------------------------------------------------------------------------------------
class Curve(NamedTuple):
    """A measure over steps, of one training."""

    points: Sequence[tuple[int, float]]
    """Step and value."""
    is_control: bool
    is_held_out: bool


def curves_of(run: TrainingRun, is_control: bool = False) -> dict[str, list[Curve]]:
    """Curves by the training term that they are of; a held-out measure of no such term has its own name."""
    # Lines of training have a learning rate, those of evaluations have none.
    terms = dict.fromkeys(name for log in run.logs for line in log if "lr" in line for name in line)
    found: dict[str, list[Curve]] = {}
    for log in run.logs:
        own: dict[tuple[str, bool], list[tuple[int, float]]] = {}
        for line in log:
            is_held_out = "lr" not in line
            for name, value in line.items():
                if name in MEASUREMENTS or value is None:
                    continue
                same = [term for term in terms if is_held_out and name.endswith(f" {term}")]
                key = (same[0] if same else name, is_held_out)
                own.setdefault(key, []).append((line["step"], value))
        for (name, is_held_out), points in own.items():
            found.setdefault(name, []).append(Curve(points, is_control, is_held_out))
    whole = found.pop("loss", [])
    # The loss of a single term is that term.
    others = {name: some for name, some in found.items() if any(one not in whole for one in some)}
    return {"loss": whole, **others} if whole else others


WIDE, HIGH = 340, 200
"""Size of a chart: on a telephone, one pixel each."""
COLOUR, CONTROL_COLOUR = f"light-dark({BLUE}, {SKY})", f"light-dark({VERMILION}, {ORANGE})"
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 26, 24
"""Margins of a chart."""


def chart(title: str, curves: Sequence[Curve]) -> str:
    """A chart of curves over steps as SVG; the control is dashed, and what is held out has dots."""
    steps = [step for one in curves for step, _ in one.points]
    values = [value for one in curves for _, value in one.points]
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or abs(high) * 0.05 or 1.0
    low, high, last = low - margin, high + margin, max(*steps, 1)

    def across(step: float) -> float:
        return round(LEFT + (WIDE - LEFT - RIGHT) * step / last, 1)

    def down(value: float) -> float:
        return round(HIGH - BOTTOM - (HIGH - BOTTOM - TOP) * (value - low) / (high - low), 1)

    parts = [f'<text x="0" y="14" font-weight="600">{html.escape(title)}</text>']
    for value in ticks(low, high):
        y = down(value)
        parts.append(f'<path d="M{LEFT} {y}H{WIDE - RIGHT}" stroke="currentColor" opacity=".2"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{value:.4g}</text>')
    for step in ticks(0, last):
        place = f'x="{across(step)}" y="{HIGH - 6}" text-anchor="middle"'
        parts.append(f"<text {place}>{step:,.0f}</text>")
    for one in sorted(curves, key=lambda curve: not curve.is_control):
        colour = CONTROL_COLOUR if one.is_control else COLOUR
        points = [(across(step), down(value)) for step, value in one.points]
        line = " ".join(f"{x},{y}" for x, y in points)
        dashes = ' stroke-dasharray="5 3"' if one.is_control else ""
        parts.append(
            f'<polyline points="{line}" style="stroke: {colour}"{dashes} stroke-width="1.6" fill="none"/>'
        )
        if one.is_held_out or len(points) == 1:
            parts += [
                f'<circle cx="{x}" cy="{y}" r="3" style="fill: {colour}"/>' for x, y in points
            ]
    size = (
        f'viewBox="0 0 {WIDE} {HIGH}" font-size="11" role="img" aria-label="{html.escape(title)}"'
    )
    return f"<svg {size}>{''.join(parts)}</svg>"


def ticks(low: float, high: float) -> Iterator[float]:
    """Two to five round numbers from `low` to `high`."""
    power = 10.0 ** math.floor(math.log10((high - low) / 2))
    size = next(power * one for one in (1, 2, 5, 10) if (high - low) / (power * one) <= 5)
    place = math.ceil(low / size)
    while place * size <= high:
        yield place * size
        place += 1


# -- the report --------------------------------------------------------------------------------------------------------
def make_report(
    run: TrainingRun, defaults: Mapping[str, Any], control: TrainingRun | None = None
) -> Report:
    """The report of a run, beside its control; `defaults`: its command's settings by name."""
    controls = [control] if control else []
    sentences = []
    if not run.is_finished:
        last = max((line["step"] for log in run.logs for line in log), default=0)
        sentences.append(
            f"Not finished: the log ends at step {last:,}; the same command resumes it."
        )
    differing = []
    for one in controls:
        differing = differing_settings(run.settings, one.settings)
        sentences.append(
            f"Control: {one.folder}; it differs in {', '.join(differing) or 'nothing'}."
        )
        if one.command != run.command:
            sentences.append(
                f"It is a run of {one.command}, not of {run.command}: no control of this run; only settings that both "
                "have are compared."
            )
        if not one.is_finished:
            sentences.append("The control is not finished.")
        if run.result.get("scores") and one.result.get("scores"):
            sentences.append(
                "Whether a difference of scores is more than chance: `groundling verdict`."
            )
    sections = [
        _curve_section(run, controls),
        ReportSection("Scores", rows=_rows("score", [_scores(one) for one in (run, *controls)])),
        ReportSection("Cost", rows=_rows("", [_cost(one) for one in (run, *controls)])),
    ]
    if control:
        rows = setting_rows(differing, {"run": run.settings, "control": control.settings})
        sections.append(ReportSection("Settings that differ from the control", rows=rows))
    names = [
        name for name, value in run.settings.items() if name in defaults and value != defaults[name]
    ]
    rows = setting_rows(names, {"run": run.settings, "default": defaults})
    sections.append(ReportSection("Settings that are not the defaults", rows=rows))
    title = f"{run.command}: {run.folder.absolute().name}"
    return Report(title, sections, sentences, notes=run.result.get("notes", ()))


def setting_rows(names: Sequence[str], runs: Mapping[str, Mapping[str, Any]]) -> list[TableRow]:
    """A row for each setting, with its value in every run."""
    return [
        {
            "setting": name,
            **{run: format_value(own[name]) if name in own else "-" for run, own in runs.items()},
        }
        for name in names
    ]


def _curve_section(run: TrainingRun, controls: Sequence[TrainingRun]) -> ReportSection:
    """Charts and a table of all measures."""
    of_run = curves_of(run)
    found = {name: list(some) for name, some in of_run.items()}
    for one in controls:
        for name, some in curves_of(one, is_control=True).items():
            found.setdefault(name, []).extend(some)
    charts = "".join(chart(name, some) for name, some in found.items())
    which = " Solid: this run; dashed: the control." if controls else ""
    seeds = " A line for each seed." if len(run.logs) > 1 else ""
    return ReportSection(
        "Losses",
        figures=[f'<div class="charts">{charts}</div>'] if charts else [],
        caption=f"Over steps.{which} Dots: held-out data.{seeds}",
        rows=_loss_rows(run, controls),
    )


def _loss_rows(run: TrainingRun, controls: Sequence[TrainingRun]) -> list[TableRow]:
    """At most `LINES` of the log's steps, evenly spaced; of several seeds, their means, and a control's beside them."""
    own = _losses_by_step(run)
    others = [_losses_by_step(one) for one in controls]
    steps = sorted(own)
    last = min(LINES, len(steps)) - 1
    shown = dict.fromkeys(
        steps[round(n * (len(steps) - 1) / max(last, 1))] for n in range(last + 1)
    )
    names = dict.fromkeys(name for one in own.values() for name in one)
    terms = dict.fromkeys(
        name for by_step in others for one in by_step.values() for name in one if name != "lr"
    )
    return [
        {
            "step": f"{step:,}",
            **{name: _mean(own[step].get(name, ())) for name in names},
            **{
                f"control: {name}": _mean(by_step.get(step, {}).get(name, ()))
                for by_step in others
                for name in terms
            },
        }
        for step in shown
    ]


def _losses_by_step(run: TrainingRun) -> dict[int, dict[str, list[float]]]:
    """By step the losses and the learning rate of every seed."""
    found: dict[int, dict[str, list[float]]] = {}
    for line in (line for log in run.logs for line in log):
        for name, value in line.items():
            if value is not None and (name == "lr" or name not in MEASUREMENTS):
                found.setdefault(line["step"], {}).setdefault(name, []).append(value)
    return found


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.4g}" if values else "-"


def _rows(title: str, columns: Sequence[Mapping[str, tuple[str, str]]]) -> list[TableRow]:
    """A table of the run's values and their n, beside the control's, whose n is shown where one is another."""
    rows = []
    headings = ("run", "n", "control", "n of control")
    for name in dict.fromkeys(name for one in columns for name in one):
        cells = [cell for one in columns for cell in one.get(name, ("-", "-"))]
        rows.append({title: name, **dict(zip(headings, cells, strict=False))})
    alike = all(row.get("n of control", "-") in ("-", row["n"]) for row in rows)
    unseen = {"n of control"} if alike else set()
    unseen |= set() if any(row["n"].strip("-") for row in rows) else {"n", "n of control"}
    return [{key: cell for key, cell in row.items() if key not in unseen} for row in rows]


def _scores(run: TrainingRun) -> dict[str, tuple[str, str]]:
    """Scores and numbers of items by name; of several seeds, the median and each."""
    found: dict[str, tuple[str, str]] = {}
    for part, words in SCORES.items():
        found |= dict(_score_leaves(words, run.result.get(part), run.result.get("n", {})))
    return found


def _score_leaves(
    name: str, value: Any, counts: Mapping[str, int], n: str = ""
) -> Iterator[tuple[str, tuple[str, str]]]:
    if isinstance(value, dict):
        own = [f"{value[one]:,.0f} {one}".removesuffix(" n") for one in COUNTS if one in value]
        n = ", ".join(own) or n
        for inner, one in value.items():
            if inner in NO_SCORES:
                continue
            words = name if inner in ("scores", "terms") else f"{name}{inner} "
            count = f"{counts[inner]:,}" if inner in counts else n
            yield from _score_leaves(words, one, counts, count)
    elif isinstance(value, list) and value:
        defined = [one for one in value if one is not None]
        middle = f"{median(defined):.4g}" if len(defined) == len(value) else "-"
        seeds = " ".join("-" if one is None else f"{one:.4g}" for one in value)
        yield name.strip(), (f"{middle} [{seeds}]" if len(value) > 1 else middle, n)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name.strip(), (f"{value:.4g}", n)


def _cost(run: TrainingRun) -> dict[str, tuple[str, str]]:
    """What a training cost, on average over seeds."""
    found = {}
    for key, words in COST.items():
        values = [{**one, **one.get("speed", {})}.get(key) for one in run.trainings]
        known = [value for value in values if value is not None]
        if known:
            each = ", each of " + format_count(len(known), "seed") if len(known) > 1 else ""
            found[words + each] = (f"{sum(known) / len(known):,.2f}".rstrip("0").rstrip("."), "")
    return found
