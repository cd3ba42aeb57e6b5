"""Exact k-means on a line, against every possible cut."""

import itertools

import numpy as np
import pytest

from groundling.core.errors import InputError
from groundling.data.kmeans import kmeans_1d


def cheapest(values: np.ndarray, k: int) -> float:
    """The least sum of squares over all ways to cut the sorted values into k runs."""
    ordered = np.sort(values)
    sums = []
    for cuts in itertools.combinations(range(1, len(values)), k - 1):
        runs = np.split(ordered, cuts)
        sums.append(sum(((run - run.mean()) ** 2).sum() for run in runs))
    return min(sums)


@pytest.mark.parametrize("seed", range(20))
def test_no_cut_is_better(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(5, 13))
    values = rng.normal(size=count) if seed % 2 else rng.integers(0, 9, count).astype(float)
    k = min(int(rng.integers(1, 5)), len(set(values)))
    found = kmeans_1d(values, k)
    assert found.variance * count == pytest.approx(cheapest(values, k), abs=1e-9)
    for number, centre in enumerate(found.centres):
        assert values[found.labels == number].mean() == pytest.approx(centre)
    assert (np.diff(found.centres) > 0).all()


def test_order_and_shift_change_nothing_and_k_values_are_their_own_centres():
    values = np.array([3.0, 1.0, 1.1, 9.0, 2.9])
    found = kmeans_1d(values, 3)
    assert found.labels.tolist() == [1, 0, 0, 2, 1]
    moved = kmeans_1d(values[::-1] + 1e6, 3)
    assert moved.labels.tolist() == [1, 2, 0, 0, 1]
    assert kmeans_1d(np.array([2.0, 1.0]), 2).centres.tolist() == [1, 2]
    assert kmeans_1d(np.array([2.0, 1.0]), 2).variance == 0


@pytest.mark.parametrize("values", [[1.0, 1.0, 2.0], [], [1.0, np.nan, 2.0, 3.0]])
def test_what_cannot_be_clustered_is_refused(values):
    with pytest.raises(InputError, match="expected finite numbers, at least 3 of them distinct"):
        kmeans_1d(np.array(values), 3)
