"""What a similarity of image and text decides without any training: the rules alone, no models.

CLIP-TD Section 4.1: VCR's choice is the one whose text matches the image best, read as question + answer (IQA) or as
answer alone (IA), and the same for rationales.
"""

from __future__ import annotations

import numpy as np

from groundling.errors import InputError


def choose(similarities: np.ndarray) -> np.ndarray:
    """The best choice (N,) of similarities (N, C), the first of equals; raises InputError where one is not finite."""
    faults = np.flatnonzero(~np.isfinite(similarities).all(1))
    if len(faults):
        raise InputError(
            f"row {faults[0]}: a similarity is not a finite number ({len(faults):,} such)"
        )
    return similarities.argmax(1)


def both_right(
    answers: np.ndarray, rationales: np.ndarray, gold: np.ndarray, gold_rationales: np.ndarray
) -> dict[str, float]:
    """Accuracy, 0..1, of answers (Q->A), of rationales (QA->R) and of items with both right (Q->AR); all (N,)."""
    answer_right = answers == gold
    rationale_right = rationales == gold_rationales
    return {
        "Q->A": float(answer_right.mean()),
        "QA->R": float(rationale_right.mean()),
        "Q->AR": float((answer_right & rationale_right).mean()),
    }
