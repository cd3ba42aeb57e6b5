"""Which words of a text a teacher distils: visual relevance plus keyword importance (CLIP-TD Eq. 5 and 6)."""

from __future__ import annotations

import numpy as np


def token_scores(
    relevance: np.ndarray, importance: np.ndarray, candidates: np.ndarray
) -> np.ndarray:
    """Score (K,) of each raw word: its shares of relevance and of importance, added (CLIP-TD Eq. 5).

    Shares are of the sum of absolute values over candidates, and keep their signs; numbers that are all 0 have shares
    of 0. Words that are no candidates score 0.

    Args:
        relevance: cosine of image and word, (K,); cosines may be negative.
        importance: what each word is worth to its text, (K,), see `data/keywords.py`.
        candidates: which words may be chosen, (K,) bool.
    """
    return _shares(relevance, candidates) + _shares(importance, candidates)


def _shares(values: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    kept = np.where(candidates, values, 0.0)
    total = np.abs(kept).sum()
    return kept / total if total > 0 else kept


def select(scores: np.ndarray, candidates: np.ndarray, m: int) -> np.ndarray:
    """The m candidates with the highest scores (K,), best first, of equal ones the earlier; all if there are fewer."""
    places = np.flatnonzero(candidates)
    best_first = np.argsort(-scores[places], kind="stable")
    return places[best_first][:m]


def select_random(candidates: np.ndarray, m: int, rng: np.random.Generator) -> np.ndarray:
    """Some m of the candidates (K,), every set of them as likely; the control of CLIP-TD's Table 2."""
    places = np.flatnonzero(candidates)
    return rng.permutation(places)[:m]
