"""A bootstrap over groups, such as images with all of their texts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

DRAWS = 2000
"""Resamples of the bootstrap."""
BLOCK = 100
"""Resamples that are drawn at once, which bounds the memory."""


def resampled(sums: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Sums (I, K) of I groups over groups drawn with replacement: (DRAWS, K)."""
    return np.concatenate([block @ sums for block in _blocks(len(sums), rng)])


def draws(groups: int, rng: np.random.Generator) -> np.ndarray:
    """How often each group is drawn, (DRAWS, I) uint8, for resamples that serve again and again."""
    return np.concatenate([block.astype(np.uint8) for block in _blocks(groups, rng)])


def _blocks(groups: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The resamples, (BLOCK, I) at a time."""
    chances = np.full(groups, 1 / groups)
    for _ in range(DRAWS // BLOCK):
        yield rng.multinomial(groups, chances, BLOCK)
