"""A bootstrap over groups, such as images with all of their texts."""

from __future__ import annotations

import numpy as np

DRAWS = 2000
"""Resamples of the bootstrap."""
BLOCK = 100
"""Resamples that are drawn at once, which bounds the memory."""


def resampled(sums: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Sums (I, K) of I groups over groups drawn with replacement: (DRAWS, K)."""
    groups = len(sums)
    chances = np.full(groups, 1 / groups)
    return np.concatenate(
        [rng.multinomial(groups, chances, BLOCK) @ sums for _ in range(DRAWS // BLOCK)]
    )
