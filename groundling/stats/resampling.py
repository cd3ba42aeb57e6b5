"""The bootstrap: what is drawn with replacement, such as images with all of their texts, and the interval it gives.

Resamples of sums are drawn as counts (`resampled`), others thing by thing (`draw_item_counts`, `redrawn`): either way N of
N, with equal chances.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

DRAWS = 2000
"""Resamples of the bootstrap."""
BLOCK = 100
"""Resamples that are drawn at once, which bounds the memory."""
ENDS = (0.025, 0.975)
"""Of an interval, as quantiles of the resamples."""


def bootstrap_sums(
    sums: np.ndarray,
    rng: np.random.Generator,
    draws: int = DRAWS,
    often: np.ndarray | None = None,
) -> np.ndarray:
    """Sums (I,) or (I, K) of I groups over groups drawn with replacement: (draws,) or (draws, K).

    `often`: (I,) how many equal groups each row stands for; None: 1 each.
    """
    counts = np.ones(len(sums), int) if often is None else often
    return np.concatenate([block @ sums for block in _blocks(counts, rng, draws)])


def draw_resample_counts(groups: int, rng: np.random.Generator) -> np.ndarray:
    """How often each group is drawn, (DRAWS, I) uint8, for resamples that serve again and again (`sum_resamples`)."""
    blocks = _blocks(np.ones(groups, int), rng, DRAWS)
    return np.concatenate([block.astype(np.uint8) for block in blocks])


def sum_resamples(counts: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Sums (I, K) of groups over resamples whose counts (draws, I) are known: (draws, K)."""
    blocks = np.array_split(counts, len(counts) // BLOCK)
    # As float, all of them would take eight times as much.
    return np.concatenate([block.astype(float) @ sums for block in blocks])


def _blocks(often: np.ndarray, rng: np.random.Generator, draws: int) -> Iterator[np.ndarray]:
    """The resamples, (BLOCK, I) at a time."""
    total = int(often.sum())
    for start in range(0, draws, BLOCK):
        yield rng.multinomial(total, often / total, min(BLOCK, draws - start))


def draw_item_counts(count: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """How often each of `count` things is drawn, one after the other: (draws, count) float."""
    picked = rng.integers(count, size=(draws, count))
    apart = picked + count * np.arange(draws)[:, None]
    counts = np.bincount(apart.ravel(), minlength=count * draws)
    return counts.reshape(draws, count).astype(float)


def draw_resample(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """As many of N values (N, ...) as there are, drawn with replacement, for what is no function of sums."""
    return values[rng.integers(len(values), size=len(values))]


def interval(values: np.ndarray) -> np.ndarray:
    """The ends (2, ...) of the 95 % interval of what resamples (draws, ...) make."""
    return np.asarray(np.quantile(values, ENDS, axis=0))
