"""The bootstrap: what is drawn adds up, equal things may be told once, and an interval is of the draws."""

from __future__ import annotations

import numpy as np

from groundling.core.rng import generator
from groundling.stats.resampling import (
    DRAWS,
    drawn_counts,
    interval,
    redrawn,
    resampled,
    sums_of,
    times_drawn,
)


def rng(name: str = "test") -> np.random.Generator:
    return generator(0, name)


def test_as_many_are_drawn_as_there_are() -> None:
    ones = np.ones((7, 1))
    assert (resampled(ones, rng()) == 7).all()
    assert resampled(ones, rng(), 150).shape == (150, 1)
    assert (resampled(ones[:3], rng(), often=np.array([4, 2, 1])) == 7).all()
    assert (drawn_counts(7, rng()).sum(1) == 7).all()
    assert (times_drawn(7, 30, rng()).sum(1) == 7).all()
    assert set(redrawn(np.arange(7), rng())) <= set(range(7))


def test_kept_counts_give_the_same_sums() -> None:
    sums = generator(1, "sums").random((23, 3))
    kept = drawn_counts(len(sums), rng())
    assert kept.shape == (DRAWS, 23)
    np.testing.assert_array_equal(sums_of(kept, sums), resampled(sums, rng()))


def test_each_thing_is_drawn_once_on_average() -> None:
    for drawn in (drawn_counts(11, rng()), times_drawn(11, DRAWS, rng())):
        np.testing.assert_allclose(drawn.mean(0), 1, atol=0.1)
    often = np.array([8, 3])
    found = resampled(np.eye(2), rng(), often=often)
    np.testing.assert_allclose(found.mean(0), often, atol=0.1)


def test_an_interval_holds_95_of_100_draws() -> None:
    low, high = interval(np.arange(1000.0))
    assert (low, high) == (24.975, 974.025)
    assert interval(np.zeros((10, 4))).shape == (2, 4)
