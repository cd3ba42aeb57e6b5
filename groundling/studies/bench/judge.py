"""Does a method give the encoder visual attributes? Paired over worlds, against both controls, Holm over methods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf, isfinite, nan, sqrt
from typing import Any

import numpy as np
from scipy import stats

from groundling.runs.report import format_count
from groundling.stats.verdict import ALPHA, holm
from groundling.studies.bench.engine import (
    METHOD,
    RANDOM,
    SHUFFLED,
    TEXT_CONTROL,
    Entry,
    entries_of,
)
from groundling.studies.bench.protocol import TUNING_WORLD
from groundling.studies.bench.readings import MASKED_LM, PAIRS, VISUAL

TUNED = TUNING_WORLD.family
"""The family in which weights are chosen."""
MIN_WORLDS = 3
"""Minimum number of worlds for a verdict."""
PRICES = (MASKED_LM, PAIRS, "category", "order", "linear/category")
"""Readings that text alone teaches: what a method may cost."""
NOT_PLAIN = "its model is not the handed-over one with other weights"
"""What every remark on a run means."""


@dataclass(frozen=True)
class Difference:
    """A method minus a control in one reading, paired by world and adaptation seed."""

    worlds: tuple[int, ...]
    """The worlds that have both."""
    by_world: tuple[float, ...]
    """Mean difference of each world's seeds."""
    mean: float = nan
    """Mean over worlds."""
    error: float = nan
    """Standard error over worlds, at least that of the noise between adaptation seeds; NaN for one world."""
    interval: tuple[float, float] = (nan, nan)
    """95 % interval over worlds (Student's t)."""
    p: float = nan
    """p of a gain: of a paired two-sided t-test over worlds if the mean is above 0, as the interval; else 1."""


@dataclass
class MethodVerdict:
    """What the bench finds of a method."""

    method: str
    family: str
    """Family of worlds."""
    data: str
    visual: Difference
    """Against the text control."""
    shuffled: Difference | None
    """Against shuffled images, or a teacher with redrawn attributes; None if the method reads no teacher."""
    prices: dict[str, Difference] = field(default_factory=dict)
    """By reading: against the text control."""
    p: float = nan
    """The larger p of both controls: both must be beaten."""
    holm: float = nan
    """p after Holm's correction over methods."""
    remarks: list[str] = field(default_factory=list)
    """Why models are not plain."""
    transfers: bool = False
    sentence: str = ""

    def as_json(self) -> dict[str, Any]:
        """For `bench.json`."""
        return asdict(self)


def value_of(entry: Entry, reading: str, split: str = "test") -> float | None:
    """A reading's value; None if the arm was not read, or no probe trained."""
    found = entry["readings"].get(reading)
    value = None if found is None else found.get(split)
    return None if value is None else float(value)


def base_entries(entries: Sequence[Entry]) -> list[Entry]:
    """Entries of the protocol's own settings, without those of curves."""
    return [one for one in entries if "condition" not in one]


def noise_of(entries: Sequence[Entry], reading: str) -> float:
    """Standard deviation of a reading between adaptation seeds of one arm in one world, pooled; NaN without repeats."""
    groups: dict[tuple[Any, ...], dict[int, float]] = defaultdict(dict)
    for one in entries:
        value = value_of(one, reading)
        if value is not None and one["arm"] in (METHOD, TEXT_CONTROL, SHUFFLED, RANDOM):
            place = (one["world"], one["texts"], one.get("weight"))
            groups[one["method"], one["arm"], *place][one["seed"]] = value
    repeated = [list(values.values()) for values in groups.values() if len(values) > 1]
    freedom = sum(len(values) - 1 for values in repeated)
    total = sum(float(np.var(values)) * len(values) for values in repeated)
    return sqrt(total / freedom) if freedom else nan


def difference(
    method: Sequence[Entry], control: Sequence[Entry], reading: str, noise: float
) -> Difference:
    """A method minus a control in a reading's test value.

    `noise`: the standard deviation between seeds, without which (NaN) there is no interval.
    """
    of_control = {(one["world"], one["seed"]): value_of(one, reading) for one in control}
    pairs: dict[int, list[float]] = defaultdict(list)
    for one in method:
        own = value_of(one, reading)
        other = of_control.get((one["world"], one["seed"]))
        if own is not None and other is not None:
            pairs[one["world"]].append(own - other)
    worlds = tuple(sorted(pairs))
    by_world = tuple(float(np.mean(pairs[world])) for world in worlds)
    if not worlds:
        return Difference((), ())
    mean = float(np.mean(by_world))
    count = len(worlds)
    if count < 2 or not isfinite(noise):
        return Difference(worlds, by_world, mean)
    # Few worlds can agree by chance; they cannot agree better than their seeds do.
    variance = sum(2 * noise**2 / len(pairs[world]) for world in worlds)
    error = max(float(np.std(by_world, ddof=1)) / sqrt(count), sqrt(variance) / count)
    margin = float(stats.t.ppf(0.975, count - 1)) * error
    ratio = mean / error if error else inf
    p = min(1.0, 2 * float(stats.t.sf(ratio, count - 1))) if mean > 0 else 1.0
    return Difference(worlds, by_world, mean, error, (mean - margin, mean + margin), p)


def families_of(entries: Sequence[Entry]) -> list[str]:
    """The families of worlds that have been run, the one in which weights are chosen first."""
    return sorted({one["family"] for one in entries}, key=lambda name: (name != TUNED, name))


def judge_methods(
    entries: Sequence[Entry], methods: Mapping[str, Mapping[str, Any]]
) -> list[MethodVerdict]:
    """The verdict of every method in every family of worlds; entries of curves have no part in it."""
    remarks = {name: remarks_of(entries, name) for name in methods}
    entries = base_entries(entries)
    verdicts = []
    for family in families_of(entries):
        own = [one for one in entries if one["family"] == family]
        verdicts += _judge_family(family, own, methods, remarks)
    return verdicts


def remarks_of(entries: Sequence[Entry], method: str) -> list[str]:
    """Remarks on a method's runs and controls, in every family and on every curve.

    A control reads with the method's code, and what is read of one world can be kept for a run on another.
    """
    own = [one for one in entries if one["method"] == method]
    return list(dict.fromkeys(remark for one in own for remark in one.get("remarks", ())))


def _judge_family(
    family: str,
    entries: Sequence[Entry],
    methods: Mapping[str, Mapping[str, Any]],
    remarks: Mapping[str, list[str]],
) -> list[MethodVerdict]:
    """The verdict of every method that has been run in a family, p corrected over them."""
    noise = noise_of(entries, VISUAL)
    verdicts = []
    for name, about in methods.items():
        own = entries_of(entries, name, METHOD)
        if not own:
            continue
        text = entries_of(entries, name, TEXT_CONTROL)
        shuffled = entries_of(entries, name, SHUFFLED)
        verdict = MethodVerdict(
            name,
            family,
            about["data"],
            difference(own, text, VISUAL, noise),
            difference(own, shuffled, VISUAL, noise) if about["data"] != "text" else None,
        )
        for reading in PRICES:
            if any(value_of(one, reading) is not None for one in own):
                price = difference(own, text, reading, noise_of(entries, reading))
                verdict.prices[reading] = price
        verdict.remarks = remarks[name]
        both = [verdict.visual, *([verdict.shuffled] if verdict.shuffled is not None else [])]
        if isfinite(noise) and all(len(one.worlds) >= MIN_WORLDS for one in both):
            verdict.p = max(one.p for one in both)
        verdicts.append(verdict)
    for verdict, p in zip(verdicts, holm([one.p for one in verdicts]), strict=True):
        verdict.holm = p
        is_plain = not verdict.remarks
        verdict.transfers = bool(p <= ALPHA) and verdict.shuffled is not None and is_plain
        verdict.sentence = _sentence(verdict, sum(isfinite(one.p) for one in verdicts))
    return verdicts


def words_of(one: Difference) -> str:
    """A difference and its interval."""
    if not one.worlds:
        return "not measured"
    if not isfinite(one.error):
        return f"{one.mean:+.2f}"
    low, high = one.interval
    return f"{one.mean:+.2f}, 95 % interval {low:+.2f} to {high:+.2f}"


def control_word(data: str) -> str:
    """The shuffled control in words, by data class."""
    return "a teacher with redrawn attributes" if data == "text and teacher" else SHUFFLED


def _sentence(one: MethodVerdict, methods: int) -> str:
    place = "" if one.family == TUNED else f"In {one.family}, where no setting was tuned: "
    return place + _finding(one, methods)


def _finding(one: MethodVerdict, methods: int) -> str:
    control = control_word(one.data)
    beyond_text = f"text control ({words_of(one.visual)})"
    beyond_images = "" if one.shuffled is None else f"{control} ({words_of(one.shuffled)})"
    both = f"{beyond_text} and {beyond_images}" if beyond_images else beyond_text
    remarks = "".join(f" {remark[0].upper()}{remark[1:]}." for remark in one.remarks)
    differences = [one.visual, *([one.shuffled] if one.shuffled is not None else [])]
    worlds = min(len(each.worlds) for each in differences)
    if worlds < MIN_WORLDS:
        return (
            f"{one.method}: no verdict over worlds is possible with {worlds} of them, it takes {MIN_WORLDS}; visual "
            f"attributes minus those of its {both}.{remarks}"
        )
    if one.remarks:
        return f"{one.method}: no verdict, since {NOT_PLAIN}.{remarks}"
    if not isfinite(one.holm):
        return (
            f"{one.method}: no verdict is possible without repeated adaptation seeds, which show their noise; visual "
            f"attributes minus those of its {both}.{remarks}"
        )
    corrected = (
        f"{worlds} worlds, p = {one.holm:.2g} after Holm over {format_count(methods, 'method')}"
    )
    if one.transfers:
        return f"{one.method}: visual attributes beyond its {both}; {corrected}.{remarks}"
    if one.shuffled is None and one.holm <= ALPHA:
        return (
            f"{one.method}: visual attributes beyond its {both}; {corrected}. It reads no images, so this is not "
            f"visual transfer.{remarks}"
        )
    if one.visual.p <= ALPHA and one.shuffled is not None and one.shuffled.p > ALPHA:
        return (
            f"{one.method}: beyond its {beyond_text}, but not beyond {beyond_images}; its gain does not come from what "
            f"the images show ({corrected}).{remarks}"
        )
    return f"{one.method}: no visual attributes beyond its {both}; {corrected}.{remarks}"
