"""How well lengths alone tell whether two texts are the same, which a matching objective could learn instead.

XDBERT's MATCH asks whether the text encoder and CLIP read the same text. Of lines, whose lengths differ, a count of
pieces answers that; of blocks of equal length it does not.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

TELLING = 0.6
"""From this area under the ROC curve on, lengths are worth a warning; .5 is chance."""


def told_by_length(one: np.ndarray, other: np.ndarray, same: np.ndarray) -> float:
    """Area under the ROC curve of "these are the same text" by lengths (N,) of both sides, `same` (N,) bool being true.

    Lengths are compared as ratios, beside the median ratio of equal texts: two tokenizers cut differently. 1: always
    right, .5: chance; NaN without pairs of both kinds.
    """
    right = int(same.sum())
    wrong = len(same) - right
    if not right or not wrong:
        return float("nan")
    ratio = np.log(np.maximum(one, 1) / np.maximum(other, 1))
    mismatch = np.abs(ratio - np.median(ratio[same]))
    ranks = stats.rankdata(-mismatch)
    return float((ranks[same].sum() - right * (right + 1) / 2) / (right * wrong))
