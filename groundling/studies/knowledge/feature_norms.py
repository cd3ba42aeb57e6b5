"""Mean average precision over all labels of feature norms, by production frequency (Visual Property Norms)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.metrics import average_precision_score

from groundling.core.errors import InputError
from groundling.studies.knowledge.visual_facts import VisualFact

LEAST = (2, 5, 10, 20, 30)
"""Production frequencies from which a label counts as right, as in the release."""


def mean_average_precision(
    facts: Sequence[VisualFact], scores: Sequence[np.ndarray]
) -> dict[str, dict[str, float]]:
    """MAP over all labels, by minimal production frequency: `map`, `queries`, and `chance`.

    A query counts if one of its labels has this frequency; these labels are its right ones. `chance` is
    the mean share of right labels, the average precision of equal scores. As in the release,
    scikit-learn's average precision.

    Args:
        facts: F facts with frequencies.
        scores: The model's score of each label (options,), by fact.
    """
    result = {}
    for least in LEAST:
        precisions = average_precisions(facts, scores, least)
        defined = np.isfinite(precisions)
        shares = [
            (fact.frequencies >= least).mean()
            for fact, counts in zip(facts, defined, strict=True)
            if counts and fact.frequencies is not None
        ]
        if shares:
            result[str(least)] = {
                "map": float(precisions[defined].mean()),
                "queries": len(shares),
                "chance": float(np.mean(shares)),
            }
    return result


def average_precisions(
    facts: Sequence[VisualFact], scores: Sequence[np.ndarray], least: int
) -> np.ndarray:
    """The average precision of each fact's labels, (F,), for a minimal production frequency; NaN if none has it.

    Raises InputError for facts without production frequencies.
    """
    precisions = np.full(len(facts), np.nan)
    for number, (fact, score) in enumerate(zip(facts, scores, strict=True)):
        if fact.frequencies is None:
            raise InputError(f"{fact.id}: has no production frequencies; expected feature norms")
        right = fact.frequencies >= least
        if right.any():
            precisions[number] = average_precision_score(right, score)
    return precisions
