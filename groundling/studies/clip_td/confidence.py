"""Implicit mitigation (CLIP-TD's IM): items that a model answers from the text alone, and is sure of, are left out.

CLIP-TD Sections 4.1.2 and 8.4, threshold 0.90. The paper calls `language_biased` what the text-only model gets right
with at least that probability and `image_biased` what it gets wrong; right answers below it belong to neither. The IM
evaluation set is everything but the language-biased items, the reading that fits the paper's numbers (76.02 to 70.64
for VL-BERT); Table 9's rows "IM = Y" fit the language-biased group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import softmax

from groundling.core.errors import InputError, refuse
from groundling.studies.clip_td.files import Line, Part


@dataclass
class Groups:
    """The items of a split by what a text-only model makes of them."""

    language_biased: list[Line] = field(default_factory=list)
    """Right, with at least the threshold's probability."""
    image_biased: list[Line] = field(default_factory=list)
    """Wrong, however sure."""
    unsure: list[Line] = field(default_factory=list)
    """Right, but below the threshold."""
    kept: list[Line] = field(default_factory=list)
    """The IM evaluation set: all but the language-biased ones, in file order."""

    def sizes(self) -> dict[str, int]:
        """How many items each group has."""
        return {name: len(lines) for name, lines in self.__dict__.items()}


def groups(
    lines: Sequence[Line], scores: Mapping[str, np.ndarray], threshold: float, part: Part = "answer"
) -> Groups:
    """The items by group, from the scores (4,) of their choices before a softmax, by annot_id.

    Raises:
        InputError: An item without scores, scores of another number or not finite, or a threshold outside 0..1.
    """
    if not 0 < threshold <= 1:
        raise InputError(f"--confident {threshold}: expected a probability above 0, at most 1")
    refuse([f"no prediction for {line.item.id}" for line in lines if line.item.id not in scores])
    out = Groups()
    for line in lines:
        of_item = scores[line.item.id]
        if of_item.shape != (len(line.choices(part)),) or not np.isfinite(of_item).all():
            raise InputError(f"{line.item.id}: expected {len(line.choices(part))} finite scores")
        chances = softmax(of_item)
        if chances.argmax() != line.right(part):
            out.image_biased.append(line)
        elif chances.max() < threshold:
            out.unsure.append(line)
        else:
            out.language_biased.append(line)
            continue
        out.kept.append(line)
    return out
