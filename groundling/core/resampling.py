"""Bootstrap resampling of N of N groups, such as images with all of their texts; intervals; and derangements."""

from __future__ import annotations

import numpy as np

DRAWS = 2000
"""Number of bootstrap resamples."""
BLOCK = 100
"""Number of resamples in memory at once."""
ENDS = (0.025, 0.975)
"""Quantiles of the resamples that bound an interval."""


def bootstrap_sums(
    sums: np.ndarray, rng: np.random.Generator, draws: int = DRAWS, counts: np.ndarray | None = None
) -> np.ndarray:
    """Resampled totals (draws,) or (draws, K) of the groups' sums (I,) or (I, K); `counts`: equal groups in each row.

    Equal generators and numbers of groups give the same resamples, so the draws of two models are paired.
    """
    counts = np.ones(len(sums), int) if counts is None else counts
    total = int(counts.sum())
    blocks = []
    for start in range(0, draws, BLOCK):
        drawn = rng.multinomial(total, counts / total, min(BLOCK, draws - start))
        blocks.append(drawn @ sums)
    return np.concatenate(blocks)


def draw_item_counts(count: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Count of each of `count` elements in each resample, drawn one at a time: (draws, count) float."""
    drawn = rng.integers(count, size=(draws, count))
    offset = drawn + count * np.arange(draws)[:, None]
    counts = np.bincount(offset.ravel(), minlength=count * draws)
    return counts.reshape(draws, count).astype(float)


def draw_resample(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A resample (N, ...) of N values, drawn with replacement, for statistics that are not functions of sums."""
    return values[rng.integers(len(values), size=len(values))]


def interval(values: np.ndarray) -> np.ndarray:
    """Bounds (2, ...) of the 95 % interval of resampled values (draws, ...)."""
    return np.asarray(np.quantile(values, ENDS, axis=0))


def derangement(count: int, rng: np.random.Generator) -> np.ndarray:
    """Another place for each of `count` places, (count,): one cycle through all of them in random order."""
    order = rng.permutation(count)
    moved = np.empty(count, int)
    moved[order] = np.roll(order, -1)
    return moved
