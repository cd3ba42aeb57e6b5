"""What a bench finds: is a method beyond its controls over worlds, along curves and on published sets?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import isfinite, nan, sqrt
from typing import Any

import numpy as np
from scipy import stats

from groundling.core.errors import InputError
from groundling.core.metrics import SPEARMAN
from groundling.core.resampling import bootstrap_sums, draw_resample, interval
from groundling.core.rng import generator
from groundling.runs.report import format_count
from groundling.stats.verdict import ALPHA, holm
from groundling.studies.bench.engine import (
    BEFORE,
    METHOD,
    RANDOM,
    SHUFFLED,
    TEXT_CONTROL,
    Entry,
    Methods,
    entries_of,
)
from groundling.studies.bench.methods import TEACHER, TEXT
from groundling.studies.bench.protocol import AXES, TUNING_WORLD, CurveAxis
from groundling.studies.bench.readings import CAUSAL_LM, MASKED_LM, PAIRS, VISUAL

TUNED = TUNING_WORLD.family
"""The family in which weights are chosen."""
MIN_UNITS = 3
"""Minimum number of worlds, or on a real encoder of adaptation seeds, for a verdict."""
PRICES = (MASKED_LM, CAUSAL_LM, PAIRS, "category", "order", "linear/category")
"""Readings that text alone teaches: what a method may cost."""
ROUNDING = 1e-12
"""A standard error up to which units agree, apart from rounding."""
DRAWS = 1000
"""Bootstrap resamples of a set's items."""


# -- one difference ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Difference:
    """A method minus a control in one reading, paired by world and adaptation seed."""

    units: tuple[int, ...] = ()
    """What both have and the test is over: worlds, or on a real encoder adaptation seeds."""
    by_unit: tuple[float, ...] = ()
    """Difference of each; of a world, the mean over its seeds."""
    mean: float = nan
    """Mean over units."""
    error: float = nan
    """Standard error over units, at least that of the noise between adaptation seeds; NaN for one unit."""
    interval: tuple[float, float] = (nan, nan)
    """95 % interval over units (Student's t)."""
    p: float = nan
    """Two-sided p of a paired t-test, 1 for a loss; NaN for fewer than `MIN_UNITS`, and for units that all agree."""
    items: tuple[float, float] = (nan, nan)
    """95 % interval over a set's items (bootstrap) of the mean over seeds; NaN in worlds and for a task."""


def value_of(entry: Entry, reading: str, split: str = "test") -> float | None:
    """A reading's value; None if the arm was not read, or no probe trained."""
    value = entry["readings"].get(reading, {}).get(split)
    return None if value is None else float(value)


def unit_of(entry: Entry) -> int:
    """The world of an entry; on a real encoder, which has no worlds, the adaptation seed."""
    unit: int = entry["world"] if "world" in entry else entry["seed"]
    return unit


def base_entries(entries: Sequence[Entry]) -> list[Entry]:
    """Entries of the protocol's own settings, without those of curves."""
    return [one for one in entries if "condition" not in one]


def noise_of(entries: Sequence[Entry], reading: str) -> float:
    """Standard deviation of a reading between adaptation seeds of one arm in one world, pooled; NaN without repeats."""
    groups: dict[tuple[Any, ...], dict[int, float]] = defaultdict(dict)
    for one in entries:
        value = value_of(one, reading)
        if value is not None and one["arm"] in (METHOD, TEXT_CONTROL, SHUFFLED, RANDOM):
            place = (one.get("world"), one["texts"], one.get("weight"))
            groups[one["method"], one["arm"], *place][one["seed"]] = value
    repeated = [list(values.values()) for values in groups.values() if len(values) > 1]
    freedom = sum(len(values) - 1 for values in repeated)
    total = sum(float(np.var(values)) * len(values) for values in repeated)
    return sqrt(total / freedom) if freedom else nan


def difference(
    method: Sequence[Entry], control: Sequence[Entry], reading: str, noise: float = 0.0
) -> Difference:
    """A method minus a control in a reading's test value, paired by unit, seed and item.

    `noise`: the standard deviation between seeds of a world, without which (NaN) there is no interval. Raises
    InputError if the two have other items.
    """
    of_control = {(unit_of(one), one["seed"]): one for one in control}
    pairs: dict[int, list[tuple[Entry, Entry]]] = defaultdict(list)
    for one in method:
        other = of_control.get((unit_of(one), one["seed"]))
        if other and None not in (value_of(one, reading), value_of(other, reading)):
            pairs[unit_of(one)].append((one["readings"][reading], other["readings"][reading]))
    units = tuple(sorted(pairs))
    by_unit = tuple(
        float(np.mean([own["test"] - other["test"] for own, other in pairs[unit]]))
        for unit in units
    )
    if not units:
        return Difference()
    mean, count = float(np.mean(by_unit)), len(units)
    found = Difference(units, by_unit, mean, items=over_items(reading, [*chain(*pairs.values())]))
    if count < 2 or not isfinite(noise):
        return found
    # Few worlds can agree by chance; they cannot agree better than their seeds do.
    variance = sum(2 * noise**2 / len(pairs[unit]) for unit in units)
    error = max(float(np.std(by_unit, ddof=1)) / sqrt(count), sqrt(variance) / count)
    margin = float(stats.t.ppf(0.975, count - 1)) * error
    p = nan
    if error > ROUNDING and count >= MIN_UNITS:
        p = min(1.0, 2 * float(stats.t.sf(mean / error, count - 1)))
    return replace(found, error=error, interval=(mean - margin, mean + margin), p=p)


def over_items(reading: str, pairs: Sequence[tuple[Entry, Entry]]) -> tuple[float, float]:
    """The interval over items of a mean difference of paired readings; NaN if they have no items.

    Items of one group, such as a noun, are drawn together; pairs of words or texts one by one.
    """
    first = pairs[0][0]
    for one in (side for pair in pairs for side in pair):
        if any(one.get(name) != first.get(name) for name in ("groups", "ratings")):
            raise InputError(f"{reading}: arms were read on other items; use another output folder")
    rng = generator(0, "bench", "items", reading)
    if "cosines" in first:
        ratings = np.array(first["ratings"])
        sides = [(np.array(own["cosines"]), np.array(other["cosines"])) for own, other in pairs]
        found = np.empty(DRAWS)
        for draw in range(DRAWS):
            rows = draw_resample(np.arange(len(ratings)), rng)
            scores = [
                [SPEARMAN.compute(side[rows], ratings[rows]) for side in both] for both in sides
            ]
            found[draw] = np.mean([own - other for own, other in scores])
    elif "items" in first:
        gains = [np.array(own["items"], float) - np.array(other["items"]) for own, other in pairs]
        _, place = np.unique(first["groups"], return_inverse=True)
        sums = np.stack([np.bincount(place, np.mean(gains, 0)), np.bincount(place)], 1)
        drawn = bootstrap_sums(sums, rng, DRAWS)
        found = drawn[:, 0] / drawn[:, 1]
    else:
        return nan, nan
    low, high = interval(found).tolist()
    return low, high


def is_reliable(differences: Sequence[Difference], p: float) -> bool:
    """Whether a method is beyond all of these controls: by their largest p, and over items where there are some."""
    return bool(p <= ALPHA) and not any(one.items[0] <= 0 for one in differences)


def words_of(one: Difference, digits: int = 2) -> str:
    """A difference and its intervals."""
    if not one.units:
        return "not measured"
    words = f"{one.mean:+.{digits}f}"
    for name, (low, high) in (("95 % interval", one.interval), ("over items", one.items)):
        if isfinite(low):
            words += f", {name} {low:+.{digits}f} to {high:+.{digits}f}"
    return words


# -- verdicts ----------------------------------------------------------------------------------------------------------
@dataclass(kw_only=True)
class BenchVerdict:
    """A method against its controls in one reading."""

    method: str
    data: str
    family: str = ""
    """Family of worlds; empty on a real encoder."""
    reading: str
    measure: str = ""
    """Of a published set."""
    gain: bool
    """Whether it is a reading in which methods may gain; else it is the price, which has no test."""
    text: Difference
    """Against the text control."""
    shuffled: Difference | None = None
    """Against shuffled images, or a teacher with other attributes; None if it is not compared with them."""
    before: Difference | None = None
    """On a real encoder: against the unadapted one."""
    p: float = nan
    """The larger p of both controls: both must be beaten."""
    holm: float = nan
    """p after Holm's correction over the verdicts that are made together."""
    is_beyond: bool = False
    """Whether the method is beyond its controls; in worlds also whether it transfers."""
    sentence: str = ""
    """What a gain in worlds amounts to."""

    @property
    def controls(self) -> list[Difference]:
        """Against each control."""
        return [self.text, *([self.shuffled] if self.shuffled is not None else [])]


def decide(verdicts: Sequence[BenchVerdict]) -> None:
    """Correct p over verdicts on gains, and set `is_beyond` of each."""
    for one in verdicts:
        one.p = float(np.max([each.p for each in one.controls]))
    for one, p in zip(verdicts, holm([one.p for one in verdicts]), strict=True):
        one.holm = p
        one.is_beyond = is_reliable(one.controls, p)


def families_of(entries: Sequence[Entry]) -> list[str]:
    """The families of worlds that have been run, the one in which weights are chosen first."""
    return sorted({one["family"] for one in entries}, key=lambda name: (name != TUNED, name))


def judge_methods(entries: Sequence[Entry], methods: Methods) -> list[BenchVerdict]:
    """The verdict of every method in every family of worlds, and its prices; entries of curves have no part in it.

    p is corrected over the methods of a family.
    """
    verdicts = []
    for family in families_of(base_entries(entries)):
        in_family = [one for one in base_entries(entries) if one["family"] == family]
        found = [
            verdict
            for name, about in methods.items()
            for verdict in _verdicts_in_worlds(in_family, family, name, about["data"])
        ]
        gains = [one for one in found if one.gain]
        decide(gains)
        for one in gains:
            one.is_beyond &= one.shuffled is not None
            finding = _finding(one, sum(isfinite(each.p) for each in gains))
            one.sentence = f"{_place(family)}{one.method}: {finding}."
        verdicts += found
    return verdicts


def _verdicts_in_worlds(
    entries: Sequence[Entry], family: str, method: str, data: str
) -> list[BenchVerdict]:
    """A method's visual reading against both controls, and its prices against text; empty if it was not run."""
    own = entries_of(entries, method, METHOD)
    text = entries_of(entries, method, TEXT_CONTROL)
    shuffled = entries_of(entries, method, SHUFFLED)
    verdicts = []
    for reading in (VISUAL, *PRICES):
        if all(value_of(one, reading) is None for one in own):
            continue
        noise = noise_of(entries, reading)
        is_gain = reading == VISUAL
        has_shuffled = is_gain and data != TEXT
        verdicts.append(
            BenchVerdict(
                method=method,
                data=data,
                family=family,
                reading=reading,
                gain=is_gain,
                text=difference(own, text, reading, noise),
                shuffled=difference(own, shuffled, reading, noise) if has_shuffled else None,
            )
        )
    return verdicts


def _place(family: str) -> str:
    return "" if family == TUNED else f"In {family}, where no setting was tuned: "


def _finding(one: BenchVerdict, methods: int) -> str:
    text, images = f"text control ({words_of(one.text)})", ""
    if one.shuffled is not None:
        word = "a teacher with redrawn attributes" if one.data == TEACHER else SHUFFLED
        images = f"{word} ({words_of(one.shuffled)})"
    both = f"{text} and {images}" if images else text
    worlds = len(one.text.units)
    minus = f"visual attributes minus those of its {both}"
    if any(len(each.units) < MIN_UNITS for each in one.controls):
        return f"no verdict with {format_count(worlds, 'world')}, at least {MIN_UNITS} are needed; {minus}"
    if not isfinite(one.holm):
        return f"no verdict is possible without repeated adaptation seeds, which give the noise; {minus}"
    count = format_count(methods, "method")
    corrected = f"{worlds} worlds, p = {one.holm:.2g} after Holm over {count}"
    if one.is_beyond:
        return f"visual attributes beyond its {both}; {corrected}"
    if one.shuffled is None and one.holm <= ALPHA:
        return (
            f"visual attributes beyond its {both}; {corrected}. It reads no images, so this is not "
            "visual transfer"
        )
    if one.text.p <= ALPHA and one.shuffled is not None and one.shuffled.p > ALPHA:
        return (
            f"beyond its {text}, but not beyond {images}; its gain does not come from what the images "
            f"show ({corrected})"
        )
    return f"no visual attributes beyond its {both}; {corrected}"


# -- published sets ----------------------------------------------------------------------------------------------------
def judge_sets(entries: Sequence[Entry], methods: Methods) -> list[BenchVerdict]:
    """Every method on every set that it and its controls are read on; p is corrected over all gains.

    Raises InputError for arms that were read on other items.
    """
    (before,) = (one for one in entries if one["arm"] == BEFORE)
    verdicts = []
    for method, about in methods.items():
        own = entries_of(entries, method, METHOD)
        unadapted = [{**before, "seed": one["seed"]} for one in own]
        arms = (TEXT_CONTROL,) if about["data"] == TEXT else (TEXT_CONTROL, SHUFFLED)
        controls = {arm: entries_of(entries, method, arm) for arm in arms}
        for name, first in before["readings"].items():
            found = {arm: difference(own, control, name) for arm, control in controls.items()}
            # An earlier command may not have finished, and had other sets.
            if not all(one.units for one in found.values()):
                continue
            verdicts.append(
                BenchVerdict(
                    method=method,
                    data=about["data"],
                    reading=name,
                    measure=first["measure"],
                    gain=first["gain"],
                    text=found[TEXT_CONTROL],
                    shuffled=found.get(SHUFFLED),
                    before=difference(own, unadapted, name),
                )
            )
    decide([one for one in verdicts if one.gain])
    return verdicts


def set_sentences(verdicts: Sequence[BenchVerdict]) -> list[str]:
    """One sentence for each method that has a gain: on which sets it is beyond its controls."""
    sentences = []
    tests = sum(isfinite(one.holm) for one in verdicts)
    for method in dict.fromkeys(one.method for one in verdicts if one.gain):
        own = [one for one in verdicts if one.method == method and one.gain]
        # Commands of one folder may give its sets different numbers of seeds.
        seeds = max(min(len(each.units) for each in one.controls) for one in own)
        names = " and ".join([TEXT_CONTROL, SHUFFLED][: len(own[0].controls)])
        beyond = "; ".join(one.reading for one in own if one.is_beyond)
        finding = f"beyond its {names} on {beyond}" if beyond else f"on no set beyond its {names}"
        if seeds < MIN_UNITS:
            finding = f"no verdict with {format_count(seeds, 'adaptation seed')}, at least {MIN_UNITS} are needed"
        sentences.append(f"{method}: {finding} (Holm over {format_count(tests, 'test')})")
    return sentences


# -- curves ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class MethodCurve:
    """A method's gain against what grows."""

    axis: str
    """Name of a `CurveAxis`."""
    family: str
    """Family of worlds."""
    method: str
    gains: Mapping[int, Difference]
    """By value, ascending: the method minus its text control, in the visual reading of test nouns."""
    sentence: str
    """From which value on the method works."""


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


def judge_curves(entries: Sequence[Entry], methods: Methods) -> list[MethodCurve]:
    """The curves of every axis, family and method that have been run at another value than the protocol's own."""
    curves = []
    for axis in AXES:
        for family in families_of(entries):
            in_family = [one for one in entries if one["family"] == family]
            noise = noise_of(base_entries(in_family), VISUAL)
            for method in methods:
                gains: dict[int, Difference] = {}
                for value in axis.values:
                    at_value = entries_at(in_family, axis, value)
                    if own := entries_of(at_value, method, METHOD):
                        control = entries_of(at_value, method, TEXT_CONTROL)
                        # Curves alone have one seed.
                        bound = noise if isfinite(noise) else 0.0
                        gains[value] = difference(own, control, VISUAL, bound)
                if gains.keys() - {axis.base}:
                    sentence = f"{_place(family)}{method}: {_since(axis, gains)}."
                    curves.append(MethodCurve(axis.name, family, method, gains, sentence))
    return curves


def _since(axis: CurveAxis, gains: Mapping[int, Difference]) -> str:
    values = list(gains)
    first, end = values[0], values[-1]
    last = f"at {end:,}: {words_of(gains[end])}"
    worlds = {one.units for one in gains.values()}
    if len(worlds) > 1 or len(gains[end].units) < MIN_UNITS:
        return (
            f"no statement on {axis.unit} is possible: it needs {MIN_UNITS} worlds, the same at every value; gain "
            f"beyond its text control {last}"
        )
    above = [value for value, one in gains.items() if is_reliable([one], one.p)]
    beyond = "visual attributes beyond its text control"
    if not above:
        return f"no {beyond} at any of {first:,} to {end:,} {axis.unit} ({last})"
    below = [place for place, value in enumerate(values) if value not in above]
    since = values[max(below, default=-1) + 1] if end in above else None
    if since is None:
        some = " and ".join(f"{value:,}" for value in above)
        return f"{beyond} at {some} {axis.unit}, but not at every larger number ({last})"
    fewest = ", the fewest that were run" if since == first else ""
    at_start = "" if since == end else f"at {since:,}: {words_of(gains[since])}; "
    return f"{beyond} from {since:,} {axis.unit} on{fewest} ({at_start}{last})"
