"""The bench's numbers by hand: pairs, intervals, noise, Holm, and the sentences."""

from __future__ import annotations

from math import isnan, sqrt

import pytest

from groundling.studies.bench.curves import judge_curves
from groundling.studies.bench.judge import (
    difference,
    judge_methods,
    noise_of,
    value_of,
)
from groundling.studies.bench.report import cell, table_rows

TEXTS = "abc"


def entry(method: str, arm: str, world: int, seed: int, visual: float | None, **more) -> dict:
    """An arm of a method whose visual reading is this number."""
    readings = {"visual": {"dev": 0.0, "test": visual, "chance": 0.26}}
    readings |= {name: {"test": value} for name, value in more.pop("readings", {}).items()}
    about = {"method": method, "arm": arm, "world": world, "seed": seed, "readings": readings}
    about["family"] = "objects"
    return about | {"texts": TEXTS, "weight": 1.0, "remarks": []} | more


def arms(method: str, own: list, text: list, shuffled: list, **more) -> list[dict]:
    """Entries of three arms, each a list of worlds with a list of seeds."""
    made = []
    for name, arm, values in (
        (method, "method", own),
        ("", "text control", text),
        (method, "shuffled images", shuffled),
    ):
        for world, seeds in enumerate(values):
            for seed, value in enumerate(seeds):
                made.append(entry(name, arm, world, seed, value, **more))
    return made


ABOUT = {"data": "captions with images", "source": {}, "stages": [], "grid": []}
OWN = [[0.50, 0.54], [0.60, 0.62], [0.40, 0.44]]
TEXT = [[0.30, 0.30], [0.30, 0.32], [0.30, 0.30]]
SHUFFLED = [[0.30, 0.34], [0.30, 0.32], [0.30, 0.34]]


def test_differences_are_paired_by_world_and_seed_and_their_interval_is_students() -> None:
    entries = arms("a", OWN, TEXT, SHUFFLED)
    method = [one for one in entries if one["arm"] == "method"]
    control = [one for one in entries if one["arm"] == "text control"]
    found = difference(method, control[::-1], "visual", 0.0)
    # Worlds: (.20 + .24) / 2 = .22, (.30 + .30) / 2 = .30, (.10 + .14) / 2 = .12; mean .64 / 3 = .21333.
    assert found.worlds == (0, 1, 2)
    assert found.by_world == pytest.approx((0.22, 0.30, 0.12))
    assert found.mean == pytest.approx(0.2133333)
    # Squares: .0000444 + .0075111 + .0087111 = .0162667; / 2 = .0081333; root .0901850; / root 3 = .0520683.
    assert found.error == pytest.approx(0.0520683, abs=1e-6)
    # Student's t with 2 degrees of freedom: .975 quantile 4.302653; t = 4.0972; both tails in closed form.
    assert found.interval == pytest.approx((-0.0106981, 0.4373648), abs=1e-5)
    t = 0.2133333 / 0.0520683
    assert found.p == pytest.approx(1 - t / sqrt(2 + t * t), abs=1e-5)
    # As the interval, which includes 0, so p does not say that there is a gain.
    assert found.interval[0] < 0 and found.p > 0.05
    assert difference(control, method, "visual", 0.0).p == 1.0


def test_noise_is_pooled_over_repeated_runs_and_bounds_the_error_from_below() -> None:
    entries = arms("a", OWN, TEXT, SHUFFLED)
    # Squares within pairs, d * d / 2: .04, .02, .04; 0, .02, 0; .04, .02, .04.
    squares = [0.0008, 0.0002, 0.0008, 0, 0.0002, 0, 0.0008, 0.0002, 0.0008]
    assert noise_of(entries, "visual") == pytest.approx(sqrt(sum(squares) / 9))
    assert isnan(noise_of(entries[::2], "visual"))
    same = [[0.5, 0.5]] * 3
    entries = arms("a", same, [[0.3, 0.3]] * 3, same)
    method, control = entries[:6], entries[6:12]
    found = difference(method, control, "visual", 0.06)
    # Each world's difference has the variance 2 * .0036 / 2 seeds; over 3 worlds: root(3 * .0036) / 3.
    assert found.error == pytest.approx(sqrt(3 * 0.0036) / 3)
    assert difference(method, control, "visual", 0.0).p < 1e-9
    assert difference(control, method, "visual", 0.0).p == 1.0
    # Two copies of an entry, as of two commands, are no repeated run.
    once = [one for one in arms("a", OWN, TEXT, SHUFFLED) if one["seed"] == 0]
    assert isnan(noise_of([*once, *once], "visual"))


def test_both_controls_must_be_beaten_and_p_is_corrected_over_methods() -> None:
    strong = [[0.9, 0.92], [0.91, 0.92], [0.9, 0.9]]
    low = [[0.30, 0.31], [0.31, 0.30], [0.29, 0.30]]
    entries = arms("strong", strong, low, low)
    texts = [one for one in entries if one["arm"] == "text control"]
    entries += [one for one in arms("texty", strong, [], strong) if one["method"]]
    entries += [one for one in arms("null", low, [], low) if one["method"]]
    assert len(texts) == 6
    methods = dict.fromkeys(("strong", "texty", "null"), ABOUT)
    one, texty, null = judge_methods(entries, methods)
    assert (one.transfers, texty.transfers, null.transfers) == (True, False, False)
    assert one.p == max(one.visual.p, one.shuffled.p) and one.holm == pytest.approx(3 * one.p)
    assert texty.p == texty.shuffled.p > 0.05 > texty.visual.p
    assert one.sentence.startswith("strong: visual attributes beyond its text control (+0.61, 95 %")
    assert "; 3 worlds, p = " in one.sentence and "after Holm over 3 methods" in one.sentence
    assert "but not beyond shuffled images" in texty.sentence
    assert null.sentence.startswith("null: no visual attributes beyond its text control (+0.00")


def test_a_model_that_is_not_plain_leaves_no_verdict_and_no_curve() -> None:
    """In another family, or on a curve."""
    strong = [[0.9, 0.92], [0.91, 0.92], [0.9, 0.9]]
    low = [[0.30, 0.31], [0.31, 0.30], [0.29, 0.30]]
    entries = arms("a", strong, low, low)
    assert all(one.transfers for one in judge_methods(entries, {"a": ABOUT}))
    plump = {"remarks": ["not plain: 5 more parameters"]}
    other = entry("a", "method", 0, 0, 0.9, **plump, family="pictograms")
    condition = {"axis": "steps", "value": 100}
    for one in (other, entry("a", "method", 0, 0, 0.9, **plump, condition=condition)):
        found = judge_methods([*entries, one], {"a": ABOUT})
        assert not any(each.transfers for each in found)
        assert "no verdict, since its model is not the handed-over one" in found[0].sentence
    (curve,) = judge_curves([*entries, one], {"a": ABOUT})
    assert (
        curve.sentence
        == "a: no statement, since its model is not the handed-over one with other weights."
    )


def test_holm_counts_methods_that_have_a_p() -> None:
    strong = [[0.9, 0.92], [0.91, 0.92], [0.9, 0.9]]
    low = [[0.30, 0.31], [0.31, 0.30], [0.29, 0.30]]
    few = [one for one in arms("few", strong[:1], [], low[:1]) if one["method"]]
    one, _ = judge_methods([*arms("a", strong, low, low), *few], dict.fromkeys(["a", "few"], ABOUT))
    assert one.holm == one.p and "after Holm over 1 method." in one.sentence


def test_another_model_or_too_few_worlds_leave_no_verdict() -> None:
    strong = [[0.9, 0.92], [0.91, 0.92], [0.9, 0.9]]
    low = [[0.30, 0.31], [0.31, 0.30], [0.29, 0.30]]
    plump = arms("a", strong, low, low, remarks=["not plain: 5 more parameters"])
    (found,) = judge_methods(plump, {"a": ABOUT})
    assert not found.transfers and found.sentence.endswith(
        "no verdict, since its model is not the handed-over one with other weights. Not plain: 5 more parameters."
    )
    (found,) = judge_methods(arms("a", strong[:2], low, low), {"a": ABOUT})
    assert isnan(found.holm) and not found.transfers
    assert "no verdict over worlds is possible with 2 of them, it takes 3" in found.sentence
    single = [[0.9], [0.9001], [0.9002]]
    (found,) = judge_methods(arms("a", single, [[0.3]] * 3, [[0.3]] * 3), {"a": ABOUT})
    assert isnan(found.holm) and not found.transfers
    assert "no verdict is possible without repeated adaptation seeds" in found.sentence
    # Worlds that agree by chance would have an interval of no width.
    assert "text control (+0.60) and" in found.sentence
    of_text = [one for one in arms("a", strong, low, []) if one["arm"] != "shuffled images"]
    (found,) = judge_methods(of_text, {"a": {**ABOUT, "data": "text"}})
    assert found.holm < 0.05 and not found.transfers
    assert "It reads no images, so this is not visual transfer." in found.sentence
    told = {**ABOUT, "data": "text and teacher"}
    (found,) = judge_methods(arms("a", strong, low, low), {"a": told})
    assert "a teacher with redrawn attributes (+0.61" in found.sentence


def test_prices_and_table_by_hand() -> None:
    entries = arms("a", OWN, TEXT, SHUFFLED)
    for number, one in enumerate(entries):
        loss = 1.5 if one["arm"] == "method" else 1.25
        one["readings"]["masked LM"] = {"test": loss}
        one["readings"]["truth"] = {"test": None if number == 0 else 0.75, "chance": 0.5}
    (found,) = judge_methods(entries, {"a": ABOUT})
    assert found.prices["masked LM"].mean == pytest.approx(0.25)
    method = [one for one in entries if one["arm"] == "method"]
    # Means of the worlds .52, .61, .42; their mean .51667 and standard deviation .09504.
    assert cell(method, "visual") == "0.52 ± 0.10"
    assert value_of(method[0], "truth") is None and cell(method[:1], "truth") == "did not train"
    rows = table_rows(entries, {"a": ABOUT})
    assert [row["arm"] for row in rows] == [
        *("a", "  a: text control", "  a: shuffled images"),
        *("guessing", "noise"),
    ]
    assert rows[-2]["visual"] == "0.26" and rows[-1]["masked LM loss"] == "0.000"
