"""Curves of the bench: from which value of an axis on does a method's gain rise above chance?

A curve changes one thing and keeps the rest; at the protocol's own value the runs are the bench's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from groundling.core.errors import InputError
from groundling.runs.report import (
    BLACK,
    GUESSING,
    MARKS,
    WIDTH,
    ReportSection,
    TableRow,
    format_count,
    new_figure,
    svg_of,
)
from groundling.stats.verdict import ALPHA
from groundling.studies.bench.engine import (
    IMAGE_TOWER,
    METHOD,
    TEXT_CONTROL,
    TOWER,
    Entry,
    entries_of,
)
from groundling.studies.bench.judge import (
    MIN_WORLDS,
    NOT_PLAIN,
    TUNED,
    Difference,
    base_entries,
    difference,
    families_of,
    noise_of,
    remarks_of,
    value_of,
    words_of,
)
from groundling.studies.bench.methods import TEXT, BenchMethod
from groundling.studies.bench.protocol import AXES, BenchCondition, BenchWorld, CurveAxis
from groundling.studies.bench.readings import VISUAL
from groundling.studies.bench.report import cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Levels = Mapping[int, Sequence[float]]
"""By value of an axis: a number for each world."""


def find_axes(names: Sequence[str]) -> list[CurveAxis]:
    """Axes by name; raises InputError for an unknown one."""
    offered = {axis.name: axis for axis in AXES}
    for name in names:
        if name not in offered:
            raise InputError(f"curve={name}: expected some of {', '.join(offered)}")
    return [offered[name] for name in dict.fromkeys(names)]


def is_changed(condition: BenchCondition, method: BenchMethod, arm: str) -> bool:
    """Whether a condition changes anything that an arm of a method reads or does.

    A method's own number of steps stays as it is, since the axis would say another one.
    """
    read = {text.partition("=")[0] for stage in method.stages for text in stage.texts}
    read.add("encoder")
    if arm != TEXT_CONTROL and method.data != TEXT:
        read.add("teacher")
    is_longer = condition.steps != 1 and not method.steps
    return is_longer or not read.isdisjoint(condition.makes)


def changed_world(world: BenchWorld, method: BenchMethod) -> BenchWorld:
    """The world of a method's text control: without the condition, if that does not change it."""
    return world if is_changed(world.condition, method, TEXT_CONTROL) else world.base


def why_no_curve(axis: CurveAxis, method: BenchMethod) -> str:
    """Why a method has no curve on an axis; empty if it has one."""
    condition = axis.conditions()[0]
    if is_changed(condition, method, METHOD):
        return ""
    if condition.steps != 1:
        return f"{method.name} asks for {method.steps} steps of its own, so it has no curve over {axis.unit}"
    return f"{method.name} reads nothing that changes with {axis.unit}"


def check_axes(axes: Sequence[CurveAxis], methods: Sequence[BenchMethod]) -> None:
    """Raises InputError for an axis on which none of the methods has a curve."""
    for axis in axes:
        reasons = [why_no_curve(axis, method) for method in methods]
        if all(reasons):
            raise InputError(f"curve={axis.name}: {'; '.join(reasons)}; add another method")


def with_controls(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries with those controls again, under a method's condition, that the condition does not change."""
    by_name = {one["name"]: one for one in entries}
    copies = {}
    for one in entries:
        control = by_name.get(one.get("control", ""))
        if control is not None and control.get("condition") != one.get("condition"):
            copies[control["name"], str(one["condition"])] = {
                **control,
                "condition": one["condition"],
            }
    return [*entries, *copies.values()]


# -- the statement ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MethodCurve:
    """A method's gain against what grows."""

    axis: str
    """Name of a `CurveAxis`."""
    family: str
    """Family of worlds."""
    method: str
    values: tuple[int, ...]
    """The values that were run, in ascending order."""
    gains: tuple[Difference, ...]
    """At each value: the method minus its text control, in the visual reading of test nouns."""
    sentence: str
    """What the curve says."""

    def as_json(self) -> dict[str, Any]:
        """For `bench.json`."""
        return asdict(self)


def entries_at(entries: Sequence[Entry], axis: CurveAxis, value: int) -> list[Entry]:
    """Entries at a value of an axis; at the protocol's own, those of the bench with adaptation seed 0.

    Only worlds in which another value was run too have a place on a curve.
    """
    own = [one for one in entries if one.get("condition", {}).get("axis") == axis.name]
    if value != axis.base:
        return [one for one in own if one["condition"]["value"] == value]
    worlds = {(one["family"], one["world"]) for one in own}
    return [
        one
        for one in base_entries(entries)
        if one["seed"] == 0 and (one["family"], one["world"]) in worlds
    ]


def judge_curves(
    entries: Sequence[Entry], methods: Mapping[str, Mapping[str, Any]]
) -> list[MethodCurve]:
    """The curves of every axis, family and method that have been run."""
    curves = []
    for axis in AXES:
        for family in families_of(entries):
            own = [one for one in entries if one["family"] == family]
            noise = noise_of(base_entries(own), VISUAL)
            noise = noise if isfinite(noise) else 0.0  # curves alone have one seed
            for method in methods:
                is_plain = not remarks_of(entries, method)
                curve = _judge_curve(axis, family, method, own, noise, is_plain)
                if curve is not None:
                    curves.append(curve)
    return curves


def _judge_curve(
    axis: CurveAxis,
    family: str,
    method: str,
    entries: Sequence[Entry],
    noise: float,
    is_plain: bool,
) -> MethodCurve | None:
    """A method's curve in a family; None if it was run at no value but the protocol's own."""
    gains: dict[int, Difference] = {}
    for value in axis.values:
        at_value = entries_at(entries, axis, value)
        own = entries_of(at_value, method, METHOD)
        if own:
            control = entries_of(at_value, method, TEXT_CONTROL)
            gains[value] = difference(own, control, VISUAL, noise)
    if not any(value != axis.base for value in gains):
        return None
    values, differences = tuple(gains), tuple(gains.values())
    place = "" if family == TUNED else f"In {family}, where no setting was tuned: "
    finding = _finding(axis, gains) if is_plain else f"no statement, since {NOT_PLAIN}"
    sentence = f"{place}{method}: {finding}."
    return MethodCurve(axis.name, family, method, values, differences, sentence)


def is_above_chance(gain: Difference) -> bool:
    """Whether a gain is above 0 in the test of the bench's verdict, without a correction."""
    return len(gain.worlds) >= MIN_WORLDS and gain.p <= ALPHA


def _finding(axis: CurveAxis, gains: Mapping[int, Difference]) -> str:
    """What a curve says of a method."""
    values = list(gains)
    last = f"at {values[-1]:,}: {words_of(gains[values[-1]])}"
    lacking = _lacking_worlds(gains)
    if lacking:
        return (
            f"no statement on {axis.unit} is possible, because the values rest on different worlds: "
            f"{', '.join(lacking)}; gain beyond its text control {last}"
        )
    worlds = len(gains[values[-1]].worlds)
    if worlds < MIN_WORLDS:
        return (
            f"no statement on {axis.unit} is possible with {format_count(worlds, 'world')}, it takes {MIN_WORLDS}; "
            f"gain beyond its text control {last}"
        )
    above = [value for value in values if is_above_chance(gains[value])]
    since = next((v for v in values if all(one in above for one in values if one >= v)), None)
    if since is not None:
        fewest = ", the fewest that were run" if since == values[0] else ""
        at_start = "" if since == values[-1] else f"at {since:,}: {words_of(gains[since])}; "
        return (
            f"visual attributes beyond its text control from {since:,} {axis.unit} on{fewest} "
            f"({at_start}{last})"
        )
    if above:
        some = " and ".join(f"{value:,}" for value in above)
        return (
            f"visual attributes beyond its text control at {some} {axis.unit}, but not at every larger number "
            f"({last})"
        )
    return (
        f"no visual attributes beyond its text control at any of {values[0]:,} to {values[-1]:,} {axis.unit} "
        f"({last})"
    )


def _lacking_worlds(gains: Mapping[int, Difference]) -> list[str]:
    """The values that lack worlds that others have, in words."""
    every = sorted({world for gain in gains.values() for world in gain.worlds})
    lacking = []
    for value, gain in gains.items():
        names = [str(world) for world in every if world not in gain.worlds]
        if names:
            noun = "world" if len(names) == 1 else "worlds"
            lacking.append(f"{value:,} lacks {noun} {' and '.join(names)}")
    return lacking


# -- tables and figures ------------------------------------------------------------------------------------------------


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
