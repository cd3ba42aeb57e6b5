"""Exact one-dimensional k-means, without a seed: an optimal cluster is an interval of the sorted values."""

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
    if not np.isfinite(values).all() or len(np.unique(values)) < k:
        raise InputError(f"k-means: expected finite numbers, at least {k} of them distinct")
    order = np.argsort(values, kind="stable")
    ordered = values[order] - values.mean()  # differences of smaller sums lose less precision
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    squares = np.concatenate([[0.0], np.cumsum(ordered**2)])

    def spread(start: int | np.ndarray, stop: int | np.ndarray) -> np.ndarray:
        """Squared distances to the mean of the ordered values from `start` to `stop`, which must not be empty."""
        total = sums[stop] - sums[start]
        return squares[stop] - squares[start] - total**2 / (stop - start)

    count = len(values)
    stops = np.arange(1, count + 1)
    cost = np.concatenate([[0.0], spread(0, stops)])
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
    cost: np.ndarray,
    spread: Callable[[int | np.ndarray, int | np.ndarray], np.ndarray],
    clusters: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The least cost (N + 1,) of the first values with one more cluster than `cost` is for, and the start of the last.

    The start of the last cluster never decreases as values are added: that of the middle of a range of ends bounds
    both halves.
    """
    count = len(cost) - 1
    best = np.full(count + 1, np.inf)
    begin = np.zeros(count + 1, np.int64)
    # Ranges of ends to compute, and the range in which their last clusters begin.
    ranges = [(clusters, count, clusters - 1, count - 1)]
    while ranges:
        first, last, low, high = ranges.pop()
        if first > last:
            continue
        middle = (first + last) // 2
        starts = np.arange(low, min(high, middle - 1) + 1)
        costs = cost[starts] + spread(starts, middle)
        least = int(costs.argmin())
        best[middle] = costs[least]
        begin[middle] = low + least
        ranges.append((first, middle - 1, low, low + least))
        ranges.append((middle + 1, last, low + least, high))
    return best, begin
