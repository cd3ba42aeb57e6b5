"""From which value on does a method's gain rise above chance? One curve per axis, family and method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from groundling.runs.report import format_count
from groundling.stats.verdict import ALPHA
from groundling.studies.bench.arms import METHOD, TEXT_CONTROL
from groundling.studies.bench.curves.axes import AXES, CurveAxis
from groundling.studies.bench.judge import (
    MIN_WORLDS,
    NOT_PLAIN,
    TUNED,
    Difference,
    Entry,
    base_entries,
    difference,
    entries_of,
    families_of,
    noise_of,
    remarks_of,
    words_of,
)
from groundling.studies.bench.readings import VISUAL


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
