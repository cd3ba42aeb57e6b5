"""Pairs of captions of the same image, as samples of two rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from groundling.core.batch import Sample
from groundling.core.errors import InputError
from groundling.data.samples import SampleDataset, SampleWrapper

IS_PAIR = "is_pair"
"""Label () of a sample: 1 if its rows are two captions, 0 if they are one caption twice."""


class CaptionPairs(SampleWrapper):
    """Samples whose second row is another caption of the same image, drawn anew in every epoch.

    All samples of a batch need as many rows, so a caption that is the only one of its image is repeated,
    with the label `is_pair` 0. The parts of a long caption count as captions of their own.
    """

    def __init__(self, samples: SampleDataset, who: str) -> None:
        """Samples of one row and one image each; raises InputError, in the name of `who`, if no image has two."""
        super().__init__(samples)
        numbers: dict[Sequence[str], int] = {}
        each = [numbers.setdefault(tuple(images), len(numbers)) for images in samples.images]
        self.group = np.array(each, np.int64)
        self.members = np.argsort(self.group, kind="stable")
        counts = np.bincount(self.group, minlength=len(numbers))
        self.starts = np.concatenate([[0], np.cumsum(counts)])
        if not (counts > 1).any():
            raise InputError(f"{who} compares captions of an image, but every image has one")

    @cached_property
    def sizes(self) -> np.ndarray:
        """(len(self), 3): two rows, as long as the longest caption of the image."""
        sizes = self.samples.sizes.copy()
        most = np.maximum.reduceat(sizes[self.members], self.starts[:-1], axis=0)
        sizes[:, 0] = 2
        sizes[:, 1:] = most[self.group, 1:]
        return sizes

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator] = ()) -> list[Sample]:
        """Pairs in the order of `indices`, each drawn with its own generator."""
        seconds = [self._draw(int(index), rng) for index, rng in zip(indices, rngs, strict=True)]
        rows = self.samples.get([*indices, *seconds], [*rngs, *rngs])
        pairs = zip(indices, seconds, rows[: len(seconds)], rows[len(seconds) :], strict=True)
        return [_pair(one, other, int(index) != second) for index, second, one, other in pairs]

    def _draw(self, index: int, rng: np.random.Generator) -> int:
        """Another caption of the same image; `index` itself if there is none."""
        start, stop = self.starts[self.group[index] : self.group[index] + 2].tolist()
        others = self.members[start:stop]
        others = others[others != index]
        return int(rng.choice(others)) if len(others) else index


def _pair(one: Sample, other: Sample, is_pair: bool) -> Sample:
    return Sample(
        one.id,
        labels={IS_PAIR: np.array(int(is_pair))},
        truncated_tokens=one.truncated_tokens + other.truncated_tokens,
        choices=(one, other),
        example=one.example,
    )
