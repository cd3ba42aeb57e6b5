"""What is said of a picture, as it is true of its mirror image: left and right change places."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from groundling.core.batch import Example, RegionRow, Tags
from groundling.data.text.words import rewritten

_SIDES = re.compile(r"\b(left|right)\b", re.IGNORECASE)
_OTHER = {"left": "right", "right": "left", "Left": "Right", "Right": "Left"}


def _swapped(text: str, tags: Tags = ()) -> tuple[str, Tags]:
    changes = []
    for match in _SIDES.finditer(text):
        word = match.group()
        changes.append((*match.span(), _OTHER.get(word, _OTHER[word.lower()])))
    return rewritten(text, changes, tags)


class Mirror:
    """Examples as they are asked of mirrored pictures (jackroos/VL-BERT, vqa/data/datasets/vqa.py and refcoco.py)."""

    def __init__(self, labels: Sequence[str] = ()) -> None:
        """`labels`: the answers or classes of the task by number, where they are words."""
        place = {label: number for number, label in enumerate(labels)}
        self.other = np.array([place.get(_swapped(label)[0], -1) for label in labels], np.int64)

    def __call__(self, example: Example) -> Example:
        """The example with other sides in its texts and its label; boxes and tags' numbers stay as they are."""
        text, tags = _swapped(example.text, example.tags)
        of_choices = example.choice_tags or ((),) * len(example.choices)
        choices = [
            _swapped(choice, its) for choice, its in zip(example.choices, of_choices, strict=True)
        ]
        return replace(
            example,
            text=text,
            tags=tags,
            pair=None if example.pair is None else _swapped(example.pair)[0],
            choices=tuple(choice for choice, _ in choices),
            choice_tags=tuple(its for _, its in choices) if example.choice_tags else (),
            label=self._label(example.label),
            breaks=(),  # no model that reads pixels reads parts, and these places no longer fit
        )

    def _label(self, label: Any) -> Any:
        """A class, or pairs (K, 2) of class and score, of which those without a counterpart count for nothing."""
        if not len(self.other) or label is None or isinstance(label, float):
            return label
        if np.ndim(label) == 0:
            other = int(self.other[label])
            return label if other < 0 else other
        if np.ndim(label) != 2:
            return label
        classes = label[:, 0].astype(np.int64)
        there = classes >= 0
        return np.column_stack(
            [np.where(there, self.other[classes.clip(0)], classes), label[:, 1]]
        ).astype(label.dtype)


def mirrored_regions(row: RegionRow, width: int) -> RegionRow:
    """Regions of a picture of `width` pixels in its mirror image: x becomes W - 1 - x (VL-BERT's release).

    The whole image stays where it is; what objects fill of their boxes turns, too.
    """
    boxes = row.boxes.copy()
    boxes[:, [0, 2]] = (1 - 1 / width - row.boxes[:, [2, 0]]).clip(0)
    boxes[row.whole] = row.boxes[row.whole]
    cover = None if row.cover is None else row.cover[:, :, ::-1].copy()
    return replace(row, boxes=boxes, cover=cover)
