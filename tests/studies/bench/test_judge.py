"""The bench's numbers by hand: pairs, intervals, noise, Holm, curves, published sets, and their sentences."""

from __future__ import annotations

import re
from math import isnan, sqrt
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr, t

from groundling.core.errors import InputError
from groundling.studies.bench.engine import BEFORE, METHOD, SHUFFLED, TEXT_CONTROL
from groundling.studies.bench.judge import (
    BenchVerdict,
    Difference,
    MethodCurve,
    decide,
    difference,
    entries_at,
    judge_curves,
    judge_methods,
    judge_sets,
    noise_of,
    set_sentences,
    value_of,
)
from groundling.studies.bench.protocol import find_axes
from groundling.studies.bench.readings import shared_sets
from groundling.studies.bench.report import cell, curve_rows, scale_warning, table_rows


def entry(method: str, arm: str, world: int, seed: int, visual: float | None, **more) -> dict:
    """An arm of a method whose visual reading is this number."""
    readings = {"visual": {"dev": 0.0, "test": visual, "chance": 0.26}}
    about = {"method": method, "arm": arm, "world": world, "seed": seed, "readings": readings}
    return about | {"family": "objects", "texts": "abc", "weight": 1.0} | more


def arms(method: str, own: list, text: list, shuffled: list, **more) -> list[dict]:
    """Entries of three arms, each a list of worlds with a list of seeds."""
    return [
        entry(name, arm, world, seed, value, **more)
        for name, arm, values in (
            (method, METHOD, own),
            ("", TEXT_CONTROL, text),
            (method, SHUFFLED, shuffled),
        )
        for world, seeds in enumerate(values)
        for seed, value in enumerate(seeds)
    ]


ABOUT = {"data": "captions with images", "source": {}, "stages": [], "grid": []}
OWN = [[0.50, 0.54], [0.60, 0.62], [0.40, 0.44]]
TEXT = [[0.30, 0.30], [0.30, 0.32], [0.30, 0.30]]
IMAGES = [[0.30, 0.34], [0.30, 0.32], [0.30, 0.34]]
STRONG = [[0.9, 0.92], [0.91, 0.92], [0.9, 0.9]]
WEAK = [[0.30, 0.31], [0.31, 0.30], [0.29, 0.30]]


# -- worlds ------------------------------------------------------------------------------------------------------------
def test_differences_are_paired_by_world_and_seed_and_their_interval_is_students() -> None:
    entries = arms("a", OWN, TEXT, IMAGES)
    method, control = entries[:6], entries[6:12]
    found = difference(method, control[::-1], "visual", 0.0)
    # Worlds: (.20 + .24) / 2 = .22, (.30 + .30) / 2 = .30, (.10 + .14) / 2 = .12; mean .64 / 3 = .21333.
    assert found.units == (0, 1, 2)
    assert found.by_unit == pytest.approx((0.22, 0.30, 0.12))
    assert found.mean == pytest.approx(0.2133333)
    # Squares: .0000444 + .0075111 + .0087111 = .0162667; / 2 = .0081333; root .0901850; / root 3 = .0520683.
    assert found.error == pytest.approx(0.0520683, abs=1e-6)
    # Student's t with 2 degrees of freedom: .975 quantile 4.302653; t = 4.0972; both tails in closed form.
    assert found.interval == pytest.approx((-0.0106981, 0.4373648), abs=1e-5)
    ratio = 0.2133333 / 0.0520683
    assert found.p == pytest.approx(1 - ratio / sqrt(2 + ratio * ratio), abs=1e-5)
    # As the interval, which includes 0, so p does not say that there is a gain.
    assert found.interval[0] < 0 and found.p > 0.05
    assert difference(control, method, "visual", 0.0).p == 1.0


def test_noise_is_pooled_over_repeated_runs_and_bounds_the_error_from_below() -> None:
    entries = arms("a", OWN, TEXT, IMAGES)
    # Squares within pairs, d * d / 2: .04, .02, .04; 0, .02, 0; .04, .02, .04.
    squares = [0.0008, 0.0002, 0.0008, 0, 0.0002, 0, 0.0008, 0.0002, 0.0008]
    assert noise_of(entries, "visual") == pytest.approx(sqrt(sum(squares) / 9))
    # Two copies of an entry, as of two commands, are no repeated run.
    once = [one for one in entries if one["seed"] == 0]
    assert isnan(noise_of([*once, *once], "visual"))
    entries = arms("a", [[0.5, 0.5]] * 3, [[0.3, 0.3]] * 3, [])
    method, control = entries[:6], entries[6:]
    found = difference(method, control, "visual", 0.06)
    # Each world's difference has the variance 2 * .0036 / 2 seeds; over 3 worlds: root(3 * .0036) / 3.
    assert found.error == pytest.approx(sqrt(3 * 0.0036) / 3) and found.p < 0.05
    # Units that all agree do not show how much they vary, nor do two.
    assert isnan(difference(method, control, "visual", 0.0).p)
    assert isnan(difference(method[:4], control, "visual", 0.06).p)


def test_both_controls_must_be_beaten_and_p_is_corrected_over_methods() -> None:
    entries = arms("strong", STRONG, WEAK, WEAK)
    entries += [one for one in arms("texty", STRONG, [], STRONG) if one["method"]]
    entries += [one for one in arms("null", WEAK, [], WEAK) if one["method"]]
    methods = dict.fromkeys(("strong", "texty", "null"), ABOUT)
    one, texty, null = judge_methods(entries, methods)
    assert (one.is_beyond, texty.is_beyond, null.is_beyond) == (True, False, False)
    assert one.p == max(one.text.p, one.shuffled.p) and one.holm == pytest.approx(3 * one.p)
    assert texty.p == texty.shuffled.p > 0.05 > texty.text.p
    assert one.sentence.startswith("strong: visual attributes beyond its text control (+0.61, 95 %")
    assert "; 3 worlds, p = " in one.sentence and "after Holm over 3 methods" in one.sentence
    assert "but not beyond shuffled images" in texty.sentence
    assert null.sentence.startswith("null: no visual attributes beyond its text control (+0.00")
    # A method without a p is not counted.
    few = [one for one in arms("few", STRONG[:1], [], WEAK[:1]) if one["method"]]
    one, _ = judge_methods([*entries[:18], *few], dict.fromkeys(["strong", "few"], ABOUT))
    assert one.holm == one.p and "after Holm over 1 method." in one.sentence


def test_too_few_worlds_or_seeds_leave_no_verdict_and_text_alone_transfers_nothing() -> None:
    (found,) = judge_methods(arms("a", STRONG[:2], WEAK, WEAK), {"a": ABOUT})
    assert isnan(found.holm) and not found.is_beyond
    assert "no verdict with 2 worlds, at least 3 are needed" in found.sentence
    single = [[0.9], [0.9001], [0.9002]]
    (found,) = judge_methods(arms("a", single, [[0.3]] * 3, [[0.3]] * 3), {"a": ABOUT})
    assert isnan(found.holm) and not found.is_beyond
    assert "no verdict is possible without repeated adaptation seeds" in found.sentence
    assert "text control (+0.60) and" in found.sentence  # without an interval of no width
    (found,) = judge_methods(arms("a", STRONG, WEAK, []), {"a": {**ABOUT, "data": "text"}})
    assert found.holm < 0.05 and not found.is_beyond
    assert "It reads no images, so this is not visual transfer." in found.sentence
    taught = {"a": {**ABOUT, "data": "text and teacher"}}
    (found,) = judge_methods(arms("a", STRONG, WEAK, WEAK), taught)
    assert "a teacher with redrawn attributes (+0.61" in found.sentence


def test_prices_and_table_by_hand() -> None:
    entries = arms("a", OWN, TEXT, IMAGES)
    for number, one in enumerate(entries):
        loss = 1.5 if one["arm"] == METHOD else 1.25
        one["readings"]["masked LM"] = {"test": loss}
        one["readings"]["truth"] = {"test": None if number == 0 else 0.75, "chance": 0.5}
    _, price = judge_methods(entries, {"a": ABOUT})
    assert price.reading == "masked LM" and not price.gain and price.sentence == ""
    assert price.text.mean == pytest.approx(0.25) and isnan(price.holm)
    method = [one for one in entries if one["arm"] == METHOD]
    # Means of the worlds .52, .61, .42; their mean .51667 and standard deviation .09504.
    assert cell(method, "visual") == "0.52 ± 0.10"
    assert value_of(method[0], "truth") is None and cell(method[:1], "truth") == "did not train"
    rows = table_rows(entries, {"a": ABOUT}, {"visual": "visual", "masked LM": "loss"})
    assert [row["arm"] for row in rows] == [
        *("a", "  a: text control", "  a: shuffled images"),
        *("guessing", "noise"),
    ]
    assert rows[-2]["visual"] == "0.26" and rows[-1]["loss"] == "0.000"
    assert scale_warning(1.0) == ""


# -- curves ------------------------------------------------------------------------------------------------------------
(STEPS,) = find_axes(["steps"])
LOW, MIDDLE, HIGH = (0.00, 0.04, -0.02), (0.10, 0.12, 0.14), (0.20, 0.22, 0.24)
"""Gains in three worlds: one of chance, and two above it."""
Gains = dict[int | None, tuple[float, ...]]


def at(value: int | None) -> dict[str, Any]:
    """What an entry at a number of steps has; None: the bench's own."""
    return {} if value is None else {"condition": {"axis": "steps", "value": value}}


def curve_of(gains: Gains) -> list[dict]:
    """Entries of a method with these gains over a control at .30, by value and world."""
    return [
        one
        for value, by_world in gains.items()
        for world, gain in enumerate(by_world)
        for one in (
            entry("a", METHOD, world, 0, 0.30 + gain, **at(value)),
            entry("", TEXT_CONTROL, world, 0, 0.30, **at(value)),
        )
    ]


def judged(gains: Gains) -> MethodCurve:
    (curve,) = judge_curves(curve_of(gains), {"a": ABOUT})
    return curve


def test_gains_are_those_of_each_value_and_the_own_one_is_the_benchs() -> None:
    curve = judged({100: LOW, None: MIDDLE, 1000: HIGH, 3000: HIGH})
    assert (curve.axis, curve.family, curve.method) == ("steps", "objects", "a")
    assert list(curve.gains) == [100, 300, 1000, 3000]
    means = [gain.mean for gain in curve.gains.values()]
    assert means == pytest.approx([0.02 / 3, 0.12, 0.22, 0.22])
    # .10, .12, .14 have the standard deviation .02; over root 3 it is .011547.
    assert curve.gains[300].error == pytest.approx(0.011547, abs=1e-6)
    assert curve.gains[300].by_unit == pytest.approx(MIDDLE)


@pytest.mark.parametrize(
    ("gains", "match"),
    [
        (
            {100: LOW, None: MIDDLE, 1000: HIGH},
            r"beyond its text control from 300 steps on \(at 300",
        ),
        ({100: HIGH, None: HIGH}, r"from 100 steps on, the fewest that were run \(at 100: \+0\.22"),
        ({None: LOW, 1000: HIGH}, r"from 1,000 steps on \(at 1,000: \+0\.22, 95 % interval"),
        ({100: HIGH, None: LOW}, r"at 100 steps, but not at every larger number \(at 300: \+0\.01"),
        (
            {100: LOW, None: LOW},
            r"no visual attributes beyond its text control at any of 100 to 300",
        ),
        ({100: HIGH, None: HIGH[:2]}, r"no statement on steps is possible: it needs 3 worlds"),
        (
            {100: LOW, None: (*HIGH, 0.3), 1000: (*HIGH, 0.3)},
            r"3 worlds, the same at every value; gain beyond .* at 1,000",
        ),
        ({100: HIGH[:2], None: HIGH[:2]}, r"no statement on steps is possible"),
    ],
)
def test_a_sentence_says_from_where_on_a_method_works(gains: Gains, match: str) -> None:
    sentence = judged(gains).sentence
    assert re.search(match, sentence), sentence
    assert sentence.startswith("a: ") and sentence.endswith(".") and "\n" not in sentence


def test_curve_tables_have_gains_with_stars_and_each_control_once() -> None:
    entries = curve_of({100: LOW, None: MIDDLE})
    entries.append(entry("", "teacher's text tower", 0, 0, 0.6))
    curves = judge_curves(entries, {"a": ABOUT})
    rows = curve_rows(STEPS, curves, entries)
    assert rows == [
        {"steps": "gain of a", "100": "+0.01 ± 0.03", "300 (bench)": "+0.12 ± 0.02*"},
        {"steps": "  a: worlds", "100": "3", "300 (bench)": "3"},
        {"steps": "text control of a", "100": "0.30 ± 0.00", "300 (bench)": "0.30 ± 0.00"},
    ]
    # A teacher that the axis changes has rows of its own.
    more = entry("", "teacher's text tower", 0, 0, 0.4, **at(100))
    (row,) = curve_rows(STEPS, curves, [*entries, more])[3:]
    assert row == {"steps": "teacher's text tower", "100": "0.40", "300 (bench)": "0.60"}


def test_a_curve_has_its_own_worlds_and_seed_and_no_part_in_the_verdict() -> None:
    entries = curve_of({100: HIGH, None: (*HIGH, 0.5)})
    entries.append(entry("a", METHOD, 0, 1, 0.9))
    places = {(one["world"], one["seed"]) for one in entries_at(entries, STEPS, 300)}
    assert places == {(0, 0), (1, 0), (2, 0)}
    base = curve_of({None: MIDDLE})
    assert judge_curves(base, {"a": ABOUT}) == []
    (verdict,) = judge_methods(base, {"a": ABOUT})
    (other,) = judge_methods([*base, *curve_of({100: LOW, 3000: LOW})], {"a": ABOUT})
    assert str(other) == str(verdict)


# -- published sets ----------------------------------------------------------------------------------------------------
def read(value: float, **more: Any) -> dict[str, Any]:
    return {"test": value, "gain": True, "measure": "accuracy", **more}


def on_set(method: str, arm: str, *readings: dict[str, Any]) -> list[dict]:
    """Entries on a real encoder, one for each seed."""
    return [
        {"method": method, "arm": arm, "texts": "abc", "seed": seed, "readings": {"set": one}}
        for seed, one in enumerate(readings)
    ]


def test_a_gain_on_a_set_by_hand() -> None:
    groups = ["a", "a", "b", "c"]
    own = on_set("m", METHOD, *[read(0.5, groups=groups, items=[1, 0, 0, 1])] * 3)
    controls = [read(value, groups=groups, items=[0, 0, 0, 1]) for value in (0.2, 0.3, 0.4)]
    found = difference(own, on_set("", TEXT_CONTROL, *controls), "set")
    assert found.by_unit == pytest.approx((0.3, 0.2, 0.1)) and found.mean == pytest.approx(0.2)
    margin = t.ppf(0.975, 2) * 0.1 / np.sqrt(3)
    assert found.interval == pytest.approx((0.2 - margin, 0.2 + margin))
    assert found.p == pytest.approx(2 * t.sf(0.2 / (0.1 / np.sqrt(3)), 2))
    # Of two items of the group a, one differs; without that group nothing does, and with it alone half of all.
    assert found.items == pytest.approx((0.0, 0.5), abs=0.1)


def test_correlations_are_resampled_by_pair() -> None:
    rng = np.random.default_rng(0)
    ratings = rng.normal(size=200)
    sides = [
        read(spearmanr(one, ratings).statistic, cosines=one.tolist(), ratings=ratings.tolist())
        for one in (ratings + rng.normal(size=200), rng.normal(size=200))
    ]
    found = difference(on_set("m", METHOD, sides[0]), on_set("", TEXT_CONTROL, sides[1]), "set")
    low, high = found.items
    assert 0.2 < low < found.mean < high and np.isnan(found.p)


def gain(p: float, low: float = 0.1) -> Difference:
    return Difference((0, 1, 2), (0.1, 0.1, 0.1), 0.1, 0.04, (0.0, 0.2), p, (low, 0.2))


def test_a_gain_counts_beyond_both_controls_over_seeds_and_items() -> None:
    given = {
        "both": (gain(0.001), gain(0.002)),
        "one control": (gain(0.001), gain(0.3)),
        "seeds alone": (gain(0.001), gain(0.001, low=-0.1)),
    }
    about = {"method": "m", "data": "text", "measure": "accuracy", "before": gain(0.5)}
    verdicts = [
        BenchVerdict(reading=name, gain=True, text=text, shuffled=shuffled, **about)
        for name, (text, shuffled) in given.items()
    ]
    decide(verdicts)
    assert [one.is_beyond for one in verdicts] == [True, False, False]
    assert [one.holm for one in verdicts] == pytest.approx([0.004, 0.3, 0.003])
    sentence = "m: beyond its text control and shuffled images on both (Holm over 3 tests)"
    price = BenchVerdict(reading="p", gain=False, text=gain(0.5), shuffled=None, **about)
    assert set_sentences([*verdicts, price]) == [sentence]
    assert set_sentences([price]) == []


@pytest.mark.parametrize(
    "changes",
    [{"items": [1, 0], "groups": ["a", "b"]}, {"groups": ["a", "c", "b"]}, {"ratings": [1, 2, 3]}],
)
def test_arms_that_were_read_on_other_items_are_refused(changes: dict[str, Any]) -> None:
    own = read(0.5, groups=["a", "b", "c"], items=[1, 0, 0])
    entries = [
        *on_set("", BEFORE, own),
        *on_set("m", METHOD, own),
        *on_set("", TEXT_CONTROL, own | changes),
    ]
    with pytest.raises(InputError, match="set: arms were read on other items"):
        judge_sets(entries, {"m": {"data": "text", "controls": {TEXT_CONTROL: ""}}})


def test_sets_that_share_items_are_named_once() -> None:
    found = [
        {"set": "vec/color", "same_items": ["vicomte/color"]},
        {"set": "vicomte/color", "same_items": ["vec/color"]},
        {"set": "coda", "same_items": ["vicomte/coda"]},
    ]
    assert shared_sets(found) == [("vec/color", "vicomte/color")]
