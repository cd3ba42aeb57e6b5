"""Does a method gain on a published set beyond its controls? Intervals over adaptation seeds and items; the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from math import isfinite, nan, sqrt
from statistics import mean, stdev
from typing import Any

import numpy as np
from scipy import stats

from groundling.core.errors import InputError, prefix_errors
from groundling.core.metrics import SPEARMAN
from groundling.core.rng import generator
from groundling.runs.report import ForestRow, Report, ReportSection, TableRow, forest_svg
from groundling.stats import bootstrap_sums, draw_resample, interval
from groundling.stats.verdict import ALPHA, holm
from groundling.studies.bench.engine import METHOD, SHUFFLED, TEXT_CONTROL, entries_of
from groundling.studies.bench.methods import TEACHER
from groundling.studies.bench.report import cost_rows
from groundling.studies.bench.sets import Reading

BEFORE = "before"
"""The encoder as the user gave it."""
Bench = Mapping[str, Any]
"""Content of a `bench.json` of a real encoder."""
MIN_SEEDS = 3
"""Minimum number of adaptation seeds for a verdict."""
DRAWS = 1000
"""Bootstrap resamples of items."""

BySeed = Mapping[int, Reading]
"""One arm's readings on a set by adaptation seed."""


@dataclass(frozen=True)
class Gain:
    """A method minus a control, or minus the unadapted encoder, on one set."""

    seeds: tuple[int, ...]
    """Adaptation seeds that both have."""
    by_seed: tuple[float, ...]
    """Difference of each seed."""
    mean: float
    over_seeds: tuple[float, float]
    """95 % interval over seeds (Student's t, paired); NaN for one seed."""
    over_items: tuple[float, float]
    """95 % interval over items (bootstrap) of the mean over seeds; NaN for a task."""
    p: float
    """Two-sided p over seeds; NaN for fewer than `MIN_SEEDS`, and for seeds that are all equal."""

    @property
    def is_positive(self) -> bool:
        """Whether the interval over items, if there is one, is above 0."""
        return not isfinite(self.over_items[0]) or self.over_items[0] > 0


@dataclass
class GainVerdict:
    """What the bench finds of a method on one set."""

    method: str
    reading: str
    gain: bool
    """Whether the set is one on which methods may gain; else it is the price."""
    measure: str
    before: Gain
    """Against the unadapted encoder."""
    text: Gain
    """Against the text control."""
    shuffled: Gain | None
    """Against the shuffled control; None without one."""
    holm: float = nan
    """The larger p of both controls after Holm's correction, over all methods and gains."""
    beyond: bool = False
    """Whether the gain is beyond both controls, over seeds and over items."""

    def as_json(self) -> dict[str, Any]:
        """For `bench.json`."""
        return asdict(self)


def compare(method: BySeed, control: BySeed) -> Gain:
    """A method minus a control on one set, paired by adaptation seed and by item.

    Raises InputError if they have no seed in common, or not the same items.
    """
    seeds = tuple(seed for seed in method if seed in control)
    if not seeds:
        raise InputError("no adaptation seed in common; run both with the same adapt_seeds")
    _check_items(seeds, method, control)
    by_seed = tuple(float(method[seed]["value"] - control[seed]["value"]) for seed in seeds)
    mean = float(np.mean(by_seed))
    over_seeds, p = (nan, nan), nan
    if len(seeds) > 1:
        error = float(np.std(by_seed, ddof=1)) / sqrt(len(seeds))
        margin = float(stats.t.ppf(0.975, len(seeds) - 1)) * error
        over_seeds = (mean - margin, mean + margin)
        # Seeds that all agree, as on a set of one item, do not show how much they vary.
        if error and len(seeds) >= MIN_SEEDS:
            p = min(1.0, 2 * float(stats.t.sf(mean / error, len(seeds) - 1)))
    pairs = [(method[seed], control[seed]) for seed in seeds]
    return Gain(seeds, by_seed, mean, over_seeds, over_items(pairs), p)


def _check_items(seeds: Sequence[int], method: BySeed, control: BySeed) -> None:
    """Raises InputError if a reading has other items than the first, or in another order."""
    expected = _items_of(method[seeds[0]])
    for side, readings in (("method", method), ("control", control)):
        for seed in seeds:
            found = _items_of(readings[seed])
            if found != expected:
                raise InputError(
                    f"{side}, seed {seed}: {found[0]} items, not the {expected[0]} items of method, seed {seeds[0]}; "
                    "the set was another one then: use another output folder"
                )


def _items_of(reading: Reading) -> tuple[object, ...]:
    """The number of items, and what identifies them in their order."""
    count = len(reading.get("items") or reading.get("cosines") or ())
    return count, reading.get("groups"), reading.get("ratings")


def over_items(pairs: Sequence[tuple[Reading, Reading]]) -> tuple[float, float]:
    """The interval over items of a mean difference of paired readings; NaN if they have no items."""
    first = pairs[0][0]
    rng = generator(0, "bench", "items", first["reading"])
    if "cosines" in first:
        found = _resampled_correlations(pairs, rng)
    elif "items" in first:
        found = _resampled_means(pairs, rng)
    else:
        return nan, nan
    low, high = interval(found).tolist()
    return low, high


def _resampled_means(
    pairs: Sequence[tuple[Reading, Reading]], rng: np.random.Generator
) -> np.ndarray:
    """Resampled mean differences (DRAWS,); items of one group, such as a noun, are drawn together."""
    first = pairs[0][0]
    differences = np.mean(
        [np.array(one["items"], float) - np.array(other["items"], float) for one, other in pairs], 0
    )
    _, place = np.unique(first["groups"], return_inverse=True)
    sums = np.stack([np.bincount(place, differences), np.bincount(place)], 1)
    drawn = bootstrap_sums(sums, rng, DRAWS)
    return np.asarray(drawn[:, 0] / drawn[:, 1])


def _resampled_correlations(
    pairs: Sequence[tuple[Reading, Reading]], rng: np.random.Generator
) -> np.ndarray:
    """Resampled differences of rank correlations (DRAWS,), the mean over seeds; pairs of words or texts are drawn."""
    ratings = np.array(pairs[0][0]["ratings"])
    sides = [(np.array(one["cosines"]), np.array(other["cosines"])) for one, other in pairs]
    found = np.empty(DRAWS)
    for draw in range(DRAWS):
        rows = draw_resample(np.arange(len(ratings)), rng)
        found[draw] = np.mean(
            [
                SPEARMAN.compute(one[rows], ratings[rows])
                - SPEARMAN.compute(other[rows], ratings[rows])
                for one, other in sides
            ]
        )
    return found


def judge_gains(bench: Bench) -> list[GainVerdict]:
    """Every method on every set that it and its controls are read on; raises InputError as `compare`."""
    (before,) = (one for one in bench["runs"] if one["arm"] == BEFORE)
    verdicts = []
    for method, about in bench["methods"].items():
        arms = {
            arm: entries_of(bench["runs"], method, arm) for arm in (METHOD, TEXT_CONTROL, SHUFFLED)
        }
        for name, first in before["readings"].items():
            by_seed = {
                arm: {
                    one["seed"]: one["readings"][name] for one in entries if name in one["readings"]
                }
                for arm, entries in arms.items()
            }
            own = by_seed[METHOD]
            # An earlier command may not have finished, and had other sets.
            if not all(own.keys() & by_seed[control].keys() for control in about["controls"]):
                continue
            by_seed[BEFORE] = dict.fromkeys(own, first)
            found = {}
            for control in (BEFORE, *about["controls"]):
                with prefix_errors(f"{method} on {name}, beyond {control}"):
                    found[control] = compare(own, by_seed[control])
            verdicts.append(
                GainVerdict(
                    method,
                    name,
                    first["gain"],
                    first["measure"],
                    before=found[BEFORE],
                    text=found[TEXT_CONTROL],
                    shuffled=found.get(SHUFFLED),
                )
            )
    decide(verdicts)
    return verdicts


def decide(verdicts: Sequence[GainVerdict]) -> None:
    """Correct p over all methods and gains, and set `beyond`; the price is reported without a test."""
    gains = [one for one in verdicts if one.gain]
    larger = [float(np.max([each.p for each in _controls(one)])) for one in gains]
    for one, p in zip(gains, holm(larger), strict=True):
        one.holm = p
        one.beyond = bool(p <= ALPHA) and all(each.is_positive for each in _controls(one))


def _controls(one: GainVerdict) -> list[Gain]:
    return [one.text, *([one.shuffled] if one.shuffled is not None else [])]


def gain_words(gain: Gain | None) -> str:
    """A difference with its interval over seeds, then over items."""
    if gain is None:
        return "-"
    text = f"{gain.mean:+.3f}"
    for name, (low, high) in (("seeds", gain.over_seeds), ("items", gain.over_items)):
        if isfinite(low):
            text += f", {name} {low:+.3f} to {high:+.3f}"
    return text


def sentences_of(verdicts: Sequence[GainVerdict], shuffled: Mapping[str, str]) -> list[str]:
    """One sentence for each method that has a gain: on which sets it is beyond its controls.

    `shuffled`: by method, what its shuffled control is; empty for none.
    """
    sentences = []
    tests = sum(isfinite(one.holm) for one in verdicts)
    for method in dict.fromkeys(one.method for one in verdicts if one.gain):
        own = [one for one in verdicts if one.method == method and one.gain]
        # Commands of one folder may give its sets different numbers of seeds.
        seeds = max(min(len(each.seeds) for each in _controls(one)) for one in own)
        if seeds < MIN_SEEDS:
            sentences.append(
                f"{method}: no verdict with {seeds} adaptation seeds, it takes {MIN_SEEDS}"
            )
            continue
        beyond = [f"{one.reading} ({gain_words(one.text)})" for one in own if one.beyond]
        control = shuffled[method]
        controls = f"its text control and {control}" if control else "its text control"
        about = (
            f"beyond {controls} on {'; '.join(beyond)}"
            if beyond
            else f"no gain beyond {controls} on any set"
        )
        sentences.append(
            f"{method}: {about} (Holm over {tests} tests, and the interval over items)"
        )
    return sentences


# -- the report --------------------------------------------------------------------------------------------------------

PERMUTED = "permuted teacher"
"""The shuffled control of a method that reads text and teacher, in tables."""
TERMS = {
    BEFORE: "The encoder as it was given, before any method.",
    TEXT_CONTROL: "Masked LM on exactly the texts that the method reads, for as many steps: the caption control.",
    SHUFFLED: "The method on captions with each other's images.",
    PERMUTED: "The method with a teacher whose token embeddings are permuted among tokens of similar frequency: the "
    "shuffled control of a method that reads its text tower.",
    "seeds": "95 % interval over adaptation seeds: Student's t, paired by seed.",
    "items": "95 % interval over the set's items, such as nouns or pairs of words: bootstrap, paired by item.",
}
"""Glossary of the page."""


def table_rows(bench: Bench, gain: bool) -> list[TableRow]:
    """The unadapted encoder, each method and its controls: mean ± standard deviation of each reading over seeds."""
    before = [one for one in bench["runs"] if one["arm"] == BEFORE]
    names = [name for name, one in before[0]["readings"].items() if one["gain"] == gain]
    if not names:
        return []
    rows = [_row(BEFORE, before, names)]
    for method, about in bench["methods"].items():
        for arm in (METHOD, TEXT_CONTROL, SHUFFLED):
            entries = entries_of(bench["runs"], method, arm)
            if entries:
                word = _control_word(about["data"]) if arm == SHUFFLED else arm
                label = method if arm == METHOD else f"  {method}: {word}"
                rows.append(_row(label, entries, names))
    return rows


def _control_word(data: str) -> str:
    """The shuffled control of a data class, in a word."""
    return PERMUTED if data == TEACHER else SHUFFLED


def _row(label: str, entries: Sequence[Mapping[str, Any]], names: Sequence[str]) -> TableRow:
    return {"arm": label, **{name: _cell(entries, name) for name in names}}


def _cell(entries: Sequence[Mapping[str, Any]], name: str) -> str:
    values = [one["readings"][name]["value"] for one in entries if name in one["readings"]]
    if not values:
        return "-"
    spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{spread}"


def verdict_rows(bench: Bench, verdicts: Sequence[GainVerdict]) -> list[TableRow]:
    """The differences behind the verdicts; of prices, those to the text control and to the unadapted encoder."""
    return [
        {
            "method": one.method,
            "reads": bench["methods"][one.method]["data"],
            "set": one.reading,
            "measure": one.measure,
            f"beyond {TEXT_CONTROL}": gain_words(one.text),
            "beyond shuffled control": gain_words(one.shuffled),
            f"since {BEFORE}": f"{one.before.mean:+.3f}",
            "p after Holm": f"{one.holm:.2g}" if isfinite(one.holm) else "-",
            "beyond controls": ("yes" if one.beyond else "no") if isfinite(one.holm) else "-",
        }
        for one in verdicts
    ]


def make_report(bench: Bench, verdicts: Sequence[GainVerdict], sentences: Sequence[str]) -> Report:
    """Readings, gains, price, controls and cost."""
    gains = [one for one in verdicts if one.gain]
    prices = [one for one in verdicts if not one.gain]
    controls: list[TableRow] = [
        {"method": name, "control": control, "what it is": words}
        for name, about in bench["methods"].items()
        for control, words in about["controls"].items()
    ]
    sections = [
        ReportSection("Readings", rows=table_rows(bench, True)),
        ReportSection("Gains", rows=verdict_rows(bench, gains), figures=_forest(bench, gains)),
        ReportSection("Price", rows=table_rows(bench, False)),
        ReportSection("Price, differences", rows=verdict_rows(bench, prices)),
        ReportSection("Controls", rows=controls),
        ReportSection(
            "Cost of a run", rows=cost_rows(bench["methods"], partial(entries_of, bench["runs"]))
        ),
    ]
    notes = [*bench["notes"], f"written on {datetime.now(UTC).date().isoformat()}"]
    title = "Which method gives this encoder visual knowledge?"
    return Report(title, sections, sentences, notes=notes, terms=TERMS)


def _forest(bench: Bench, verdicts: Sequence[GainVerdict]) -> list[str]:
    """Both differences of each method and set, with their intervals over seeds."""
    rows = []
    for one in verdicts:
        word = _control_word(bench["methods"][one.method]["data"])
        for control, found in ((TEXT_CONTROL, one.text), (word, one.shuffled)):
            if found is not None and isfinite(found.over_seeds[0]):
                label = f"{one.method}, {one.reading}, beyond {control}"
                counts = f"{len(found.seeds)} adaptation seeds, each a dot"
                rows.append(
                    ForestRow(
                        label, counts, found.mean, found.over_seeds, found.by_seed, one.beyond
                    )
                )
    unit = "difference in the set's measure; right of 0 is better than the control"
    return [forest_svg(rows, unit)] if rows else []
