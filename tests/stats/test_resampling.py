"""The bootstrap: what is drawn adds up, equal things may be told once, and an interval is of the draws."""

from __future__ import annotations

import numpy as np

from groundling.core.rng import generator
from groundling.stats import (
    DRAWS,
    bootstrap_sums,
    derangement,
    draw_item_counts,
    draw_resample,
    interval,
)


def rng(name: str = "test") -> np.random.Generator:
    return generator(0, name)


def test_as_many_are_drawn_as_there_are() -> None:
    ones = np.ones((7, 1))
    assert (bootstrap_sums(ones, rng()) == 7).all()
    assert bootstrap_sums(ones, rng(), 150).shape == (150, 1)
    assert (bootstrap_sums(ones[:3], rng(), counts=np.array([4, 2, 1])) == 7).all()
    assert (draw_item_counts(7, 30, rng()).sum(1) == 7).all()
    assert set(draw_resample(np.arange(7), rng())) <= set(range(7))


def test_each_thing_is_drawn_once_on_average() -> None:
    for drawn in (bootstrap_sums(np.eye(11), rng()), draw_item_counts(11, DRAWS, rng())):
        np.testing.assert_allclose(drawn.mean(0), 1, atol=0.1)
    often = np.array([8, 3])
    found = bootstrap_sums(np.eye(2), rng(), counts=often)
    np.testing.assert_allclose(found.mean(0), often, atol=0.1)


def test_an_interval_holds_95_of_100_draws() -> None:
    low, high = interval(np.arange(1000.0))
    assert (low, high) == (24.975, 974.025)
    assert interval(np.zeros((10, 4))).shape == (2, 4)


def test_a_derangement_is_one_cycle_without_a_fixed_point() -> None:
    for count in (2, 3, 40):
        moved = derangement(count, rng())
        place, seen = 0, []
        for _ in range(count):
            place = int(moved[place])
            seen.append(place)
        assert sorted(seen) == list(range(count))
    assert derangement(40, rng()).tolist() != derangement(40, rng("other")).tolist()
