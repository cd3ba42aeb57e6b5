"""Tables and figures of curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from groundling.runs.report import (
    BLACK,
    GUESSING,
    MARKS,
    WIDTH,
    ReportSection,
    TableRow,
    new_figure,
    svg_of,
)
from groundling.studies.bench.arms import IMAGE_TOWER, TEXT_CONTROL, TOWER
from groundling.studies.bench.curves.axes import AXES, CurveAxis
from groundling.studies.bench.curves.judge import MethodCurve, entries_at, is_above_chance
from groundling.studies.bench.judge import Difference, Entry, entries_of, value_of
from groundling.studies.bench.readings import VISUAL
from groundling.studies.bench.report import cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Levels = Mapping[int, Sequence[float]]
"""By value of an axis: a number for each world."""


def curve_groups(
    curves: Sequence[MethodCurve],
) -> Iterator[tuple[CurveAxis, str, list[MethodCurve]]]:
    """The curves of each axis and family of worlds."""
    for axis in AXES:
        of_axis = [one for one in curves if one.axis == axis.name]
        for family in dict.fromkeys(one.family for one in of_axis):
            yield axis, family, [one for one in of_axis if one.family == family]


def curve_rows(
    axis: CurveAxis, curves: Sequence[MethodCurve], entries: Sequence[Entry]
) -> list[TableRow]:
    """Gains of an axis's methods in one family with their numbers of worlds, then the readings of controls and teacher.

    `entries`: those of the family. The protocol's own value has "(bench)" beside it.
    """
    values = _values(curves)
    headings = {value: f"{value:,}{' (bench)' if value == axis.base else ''}" for value in values}
    rows: list[TableRow] = []
    for one in curves:
        gains = dict(zip(one.values, one.gains, strict=True))
        cells = {headings[value]: _gain_cell(gains.get(value)) for value in values}
        rows.append({axis.unit: f"gain of {one.method}", **cells})
        counts = {value: str(len(gain.worlds)) for value, gain in gains.items()}
        cells = {headings[value]: counts.get(value, "-") for value in values}
        rows.append({axis.unit: f"  {one.method}: worlds", **cells})
    for label, by_value in _level_entries(axis, curves, entries).items():
        cells = {headings[value]: cell(by_value.get(value, ()), VISUAL) for value in values}
        rows.append({axis.unit: label, **cells})
    return rows


def curve_sections(curves: Sequence[MethodCurve], entries: Sequence[Entry]) -> list[ReportSection]:
    """A section with sentences, a figure and a table for each axis and family."""
    sections = []
    for axis, family, own in curve_groups(curves):
        in_family = [one for one in entries if one["family"] == family]
        sections.append(
            ReportSection(
                f"{family.capitalize()}: gain against {axis.unit}",
                [axis.about, *(one.sentence for one in own)],
                figures=[_figure(axis, own, in_family)],
                rows=curve_rows(axis, own, in_family),
            )
        )
    return sections


def _values(curves: Sequence[MethodCurve]) -> list[int]:
    return sorted({value for one in curves for value in one.values})


def _gain_cell(gain: Difference | None) -> str:
    if gain is None or not gain.worlds:
        return "-"
    spread = f" ± {stdev(gain.by_world):.2f}" if len(gain.worlds) > 1 else ""
    star = "*" if is_above_chance(gain) else ""
    return f"{gain.mean:+.2f}{spread}{star}"


def _level_entries(
    axis: CurveAxis, curves: Sequence[MethodCurve], entries: Sequence[Entry]
) -> dict[str, dict[int, list[Entry]]]:
    """By label and value: entries of the text controls, each once, and of the teacher, if it changes."""
    found: dict[str, dict[int, list[Entry]]] = {}
    sharing: dict[str, list[str]] = {}
    for one in curves:
        texts = next((run["texts"] for run in entries if run["method"] == one.method), "")
        sharing.setdefault(texts, []).append(one.method)
    for names in sharing.values():
        label = f"{TEXT_CONTROL} of {' and '.join(names)}"
        found[label] = {
            value: entries_of(entries_at(entries, axis, value), names[0], TEXT_CONTROL)
            for value in _values(curves)
        }
    for tower in (TOWER, IMAGE_TOWER):
        by_value = {
            value: [run for run in entries_at(entries, axis, value) if run["arm"] == tower]
            for value in _values(curves)
        }
        if any(by_value[value] for value in by_value if value != axis.base):
            found[tower] = by_value
    return found


def _world_means(entries: Sequence[Entry]) -> list[float]:
    """The visual reading in each world."""
    by_world: dict[int, list[float]] = {}
    for one in entries:
        value = value_of(one, VISUAL)
        if value is not None:
            by_world.setdefault(one["world"], []).append(value)
    return [mean(by_world[world]) for world in sorted(by_world)]


def _figure(axis: CurveAxis, curves: Sequence[MethodCurve], entries: Sequence[Entry]) -> str:
    gains = {
        one.method: {
            value: gain.by_world for value, gain in zip(one.values, one.gains, strict=True)
        }
        for one in curves
    }
    levels = {
        label: {value: _world_means(own) for value, own in by_value.items()}
        for label, by_value in _level_entries(axis, curves, entries).items()
    }
    chances = [
        run["readings"][VISUAL].get("chance") for run in entries if VISUAL in run["readings"]
    ]
    known = [chance for chance in chances if chance is not None]
    guessing = mean(known) if known else None
    label = "; ".join(
        f"{one.method}: "
        + ", ".join(
            f"{gain.mean:+.2f} at {value:,}"
            for value, gain in zip(one.values, one.gains, strict=True)
            if isfinite(gain.mean)
        )
        for one in curves
    )
    figure = _curve_plot(axis.unit, gains, levels, guessing)
    return svg_of(figure, f"Gain against {axis.unit}. {label}")


def _curve_plot(
    unit: str,
    gains: Mapping[str, Levels],
    levels: Mapping[str, Levels],
    guessing: float | None,
) -> Figure:
    """Gains of methods, and the readings of their text controls and of the teacher."""
    figure = new_figure(WIDTH, 3.9)
    left, right = figure.subplots(1, 2)
    _draw_lines(left, gains, unit, "gain: visual reading beyond the text control", 0)
    _draw_lines(right, levels, unit, "visual reading; dashed: guessing", len(gains))
    left.axhline(0, color=BLACK, linestyle="dashed", linewidth=0.9, zorder=1)
    if guessing is not None:
        right.axhline(guessing, **GUESSING)
    return figure


def _draw_lines(
    axes: Axes, lines: Mapping[str, Levels], unit: str, words: str, first_mark: int
) -> None:
    """A line through the means of each series, with a dot for every world."""
    ticks = sorted({value for by_value in lines.values() for value in by_value})
    for number, (name, by_value) in enumerate(lines.items(), first_mark):
        colour, mark = MARKS[number % len(MARKS)]
        points = {value: numbers for value, numbers in sorted(by_value.items()) if numbers}
        means = [mean(numbers) for numbers in points.values()]
        style: dict[str, Any] = {"color": colour, "marker": mark, "linewidth": 1.5, "markersize": 7}
        axes.plot(list(points), means, label=name, zorder=3, **style)
        for value, numbers in points.items():
            axes.scatter([value] * len(numbers), numbers, s=9, color=colour, zorder=4)
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{value:,}" for value in ticks], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel(unit, fontsize=9)
    axes.set_ylabel(words, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
