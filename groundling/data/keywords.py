"""Stand-in until the keyword scorer is there."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np


class Keyword(NamedTuple):
    """A phrase that matters to a text."""

    phrase: str
    spans: tuple[tuple[int, int], ...]
    score: float


class Keywords(Protocol):
    """Finds the keywords of a text."""

    def __call__(self, text: str) -> list[Keyword]:
        """Any order; a text may have none."""
        ...


class BuiltIn:
    """Stand-in."""

    def __call__(self, text: str) -> list[Keyword]:
        """No keywords."""
        return []


def keyword_importance(text: str, words: np.ndarray, keywords: Keywords) -> np.ndarray:
    """(K,) float64: 1 / (1 + score) of each word's best keyword."""
    worth = np.zeros(len(words))
    for keyword in keywords(text):
        for start, stop in keyword.spans:
            covered = (words[:, 0] < stop) & (words[:, 1] > start)
            worth[covered] = np.maximum(worth[covered], 1 / (1 + keyword.score))
    return worth
