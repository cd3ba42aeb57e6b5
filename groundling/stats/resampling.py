"""Bootstrap resampling of groups, such as images with all of their texts, and its confidence intervals.

Sums are resampled through multinomial counts (`sum_resamples`), other values one draw at a time
(`draw_item_counts`, `draw_resample`).
Every resample draws N of N groups with replacement and equal probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

DRAWS = 2000
"""Number of bootstrap resamples."""
BLOCK = 100
"""Number of resamples in memory at once."""
ENDS = (0.025, 0.975)
"""Quantiles of the resamples that bound an interval."""


def bootstrap_sums(
    sums: np.ndarray,
    rng: np.random.Generator,
    draws: int = DRAWS,
    counts: np.ndarray | None = None,
) -> np.ndarray:
    """Resampled totals of the groups' sums (I,) or (I, K): (draws,) or (draws, K).

    `counts` is (I,), the number of equal groups that each row represents; None: 1 each.
    """
    counts = np.ones(len(sums), int) if counts is None else counts
    return np.concatenate([block @ sums for block in _blocks(counts, rng, draws)])


def draw_resample_counts(groups: int, rng: np.random.Generator) -> np.ndarray:
    """Count of each group in each resample, (DRAWS, I) uint8, to reuse the same resamples with `sum_resamples`."""
    blocks = _blocks(np.ones(groups, int), rng, DRAWS)
    return np.concatenate([block.astype(np.uint8) for block in blocks])


def sum_resamples(counts: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Resampled totals (draws, K) of the groups' sums (I, K), from the counts (draws, I) of `draw_resample_counts`."""
    blocks = np.array_split(counts, len(counts) // BLOCK)
    # Block by block: float counts take eight times the memory of uint8.
    return np.concatenate([block.astype(float) @ sums for block in blocks])


def _blocks(counts: np.ndarray, rng: np.random.Generator, draws: int) -> Iterator[np.ndarray]:
    """Counts of the groups in blocks of resamples, at most (BLOCK, I)."""
    total = int(counts.sum())
    for start in range(0, draws, BLOCK):
        yield rng.multinomial(total, counts / total, min(BLOCK, draws - start))


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
