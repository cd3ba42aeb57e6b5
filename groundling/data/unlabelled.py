"""Samples whose labels nobody may see, for training with and without labels at once (CLIP-TD, Table 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from groundling.core.batch import IGNORE, Sample
from groundling.data.samples import Changed, Samples


def hidden(label: np.ndarray) -> np.ndarray:
    """What stands in the place of a label of this kind: NaN among floats, IGNORE among integers.

    It has the shape () of a single label, and (1, ...) of one that is padded in a batch, (L, ...).
    """
    fill = np.nan if np.issubdtype(label.dtype, np.floating) else IGNORE
    return np.full((1, *label.shape[1:]) if label.ndim else (), fill, label.dtype)


class Chosen:
    """Some samples of a data set, by number."""

    def __init__(self, samples: Samples, numbers: Sequence[int]) -> None:
        """In the order of `numbers`."""
        self.samples = samples
        self.numbers = np.array(numbers, np.int64)
        self.ids = [samples.ids[number] for number in numbers]
        self.lengths = samples.lengths[self.numbers]
        self.images = [samples.images[number] for number in numbers]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def sizes(self) -> np.ndarray:
        """(len(self), 3), as in the whole data set."""
        return self.samples.sizes[self.numbers]

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator] = ()) -> list[Sample]:
        """Samples in the order of `indices`."""
        return self.samples.get([int(self.numbers[index]) for index in indices], rngs)


class Unlabelled(Changed):
    """Samples without their labels, or that never had any; whatever else they carry stays.

    `Source(labelled, beside=Unlabelled(others, like), each=3)` puts three of them beside each labelled sample.
    """

    def __init__(self, samples: Samples, like: np.ndarray) -> None:
        """`like` is a label of the task, () or (L, ...), as labelled samples beside these have it."""
        super().__init__(samples, self._without)
        self.label = hidden(like)

    def _without(self, sample: Sample) -> Sample:
        example = sample.example
        if example is not None:
            example = replace(example, label=None)
        return replace(sample, example=example).with_label("label", self.label)
