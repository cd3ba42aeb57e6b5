"""Exact one-dimensional k-means, without a seed: an optimal cluster is an
interval of the sorted values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from groundling.core.errors import InputError


class Clusters(NamedTuple):
    """The clustering of N numbers with the least sum of squared distances to the centres."""

    centres: np.ndarray
    """(k,), ascending."""
    labels: np.ndarray
    """(N,) int64: the cluster of each number."""
    variance: float
    """Variance of the numbers around their centres, pooled over clusters: the sum divided by N."""

    def logits(self, values: np.ndarray) -> np.ndarray:
        """Logits (N, k) float64 of numbers (N,): minus the squared distance to each centre over twice the variance."""
        gaps = np.asarray(values, np.float64)[:, None] - self.centres
        return np.asarray(-(gaps**2) / (2 * max(self.variance, 1e-12)))


def kmeans_1d(values: np.ndarray, k: int) -> Clusters:
    """The best k clusters of numbers (N,), by dynamic programming over their sorted order in O(k N log N)."""
    values = np.asarray(values, np.float64)
    different = len(np.unique(values))
    if not np.isfinite(values).all():
        raise InputError("k-means: a value is not a finite number")
    if different < k:
        raise InputError(f"k-means: {different} distinct values cannot form {k} clusters")
    order = np.argsort(values, kind="stable")
    ordered = values[order] - values.mean()  # differences of smaller sums lose less precision
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    squares = np.concatenate([[0.0], np.cumsum(ordered**2)])

    def spread(start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Squared distances to the mean of the ordered values from `start` to `stop`, which must not be empty."""
        total = sums[stop] - sums[start]
        return squares[stop] - squares[start] - total**2 / (stop - start)

    count = len(values)
    stops = np.arange(1, count + 1)
    cost = np.concatenate([[0.0], spread(np.zeros_like(stops), stops)])
    begins = []
    for clusters in range(2, k + 1):
        cost, begin = _add_cluster(cost, spread, clusters)
        begins.append(begin)
    edges = [count]
    for begin in reversed(begins):
        edges.append(int(begin[edges[-1]]))
    bounds = [0, *reversed(edges)]
    labels = np.empty(count, np.int64)
    labels[order] = np.repeat(np.arange(k), np.diff(bounds))
    centres = np.array([values[labels == number].mean() for number in range(k)])
    return Clusters(centres, labels, float(((values - centres[labels]) ** 2).mean()))


def _add_cluster(
    cost: np.ndarray, spread: Callable[[np.ndarray, np.ndarray], np.ndarray], clusters: int
) -> tuple[np.ndarray, np.ndarray]:
    """The least cost (N + 1,) of the first values with one more cluster, and the
    start of the last cluster.

    `cost` is for one cluster fewer. The start of the last cluster never decreases as values
    are added: the middle of a range of ends bounds both halves, and all middles of one
    depth are computed together.
    """
    count = len(cost) - 1
    best = np.full(count + 1, np.inf)
    begin = np.zeros(count + 1, np.int64)
    # Ranges of ends to compute, and the range in which their last clusters begin: first and last of
    # each.
    first = np.array([clusters])
    last = np.array([count])
    low = np.array([clusters - 1])
    high = np.array([count - 1])
    while len(first):
        middle = (first + last) // 2
        tried = np.minimum(high, middle - 1) - low + 1
        offsets = np.cumsum(tried) - tried
        start = np.arange(tried.sum()) - np.repeat(offsets - low, tried)
        values = cost[start] + spread(start, np.repeat(middle, tried))
        least = np.minimum.reduceat(values, offsets)
        is_least = np.flatnonzero(values == np.repeat(least, tried))
        chosen = start[is_least[np.searchsorted(is_least, offsets)]]
        best[middle] = least
        begin[middle] = chosen
        left = first < middle
        right = middle < last
        first = np.concatenate([first[left], middle[right] + 1])
        last = np.concatenate([middle[left] - 1, last[right]])
        low, high = (
            np.concatenate([low[left], chosen[right]]),
            np.concatenate([chosen[left], high[right]]),
        )
    return best, begin
