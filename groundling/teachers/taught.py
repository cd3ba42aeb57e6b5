"""Samples with a teacher beside them: its features from a cache, or its inputs for a live teacher in the loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from groundling.batch import Sample, collate
from groundling.data.samples import Samples
from groundling.keyed import generator
from groundling.teachers import Teacher

BATCH = 64
"""Inputs a teacher reads at a time."""


class Taught:
    """Samples that a teacher teaches, row by row; a wrapper like those of regions and pixels, in any order with them.

    With `cached` every different input is read once, here, and its features stay in memory. Without, samples carry the
    teacher's inputs as `asides`, and `train(..., teachers=[teacher])` asks it in every step.
    """

    def __init__(self, samples: Samples, teacher: Teacher, cached: bool = True) -> None:
        """`cached` is for samples that are the same in every epoch: what is drawn anew needs a live teacher."""
        teacher.fit(samples)
        self.samples = samples
        self.teacher = teacher
        self.cached = cached
        self.ids = samples.ids
        self.lengths = samples.lengths
        self.images = samples.images
        self.features: dict[str, dict[str, np.ndarray]] = {}
        self.places: list[tuple[str, ...]] = []
        self.dropped: list[int] = []
        if cached:
            self._read()

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def sizes(self) -> np.ndarray:
        """(len(self), 3), as without a teacher."""
        return self.samples.sizes

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator] = ()) -> list[Sample]:
        """Samples whose rows carry features, or what the teacher reads, in the order of `indices`."""
        samples = self.samples.get(indices, rngs)
        if not self.cached:
            return [self._beside(sample) for sample in samples]
        out = []
        for index, sample in zip(indices, samples, strict=True):
            taught = [self.features[place] for place in self.places[index]]
            dropped = sample.dropped + self.dropped[index]
            out.append(replace(_with_features(sample, taught), dropped=dropped))
        return out

    def _beside(self, sample: Sample) -> Sample:
        inputs = self.teacher.inputs(sample.rows)
        each = iter(inputs)
        name = self.teacher.name
        beside = sample.each_row(lambda row: replace(row, asides={**row.asides, name: next(each)}))
        return replace(beside, dropped=beside.dropped + sum(one.dropped for one in inputs))

    def _read(self) -> None:
        """Every different input, in the order in which it first stands in the data."""
        waiting: list[Sample] = []
        known: set[str] = set()
        for sample in _each(self.samples):
            inputs = self.teacher.inputs(sample.rows)
            self.places.append(tuple(one.id for one in inputs))
            self.dropped.append(sum(one.dropped for one in inputs))
            for one in inputs:
                if one.id not in known:
                    known.add(one.id)
                    waiting.append(one)
            while len(waiting) >= BATCH:
                self._ask(waiting[:BATCH])
                waiting = waiting[BATCH:]
        if waiting:
            self._ask(waiting)

    def _ask(self, inputs: Sequence[Sample]) -> None:
        batch = collate(inputs)
        with torch.no_grad():
            features = self.teacher.features(batch)
        for one, kept in zip(inputs, self.teacher.kept(features, batch), strict=True):
            self.features[one.id] = kept


def _each(samples: Samples) -> Iterator[Sample]:
    """Every sample, as it is without a draw."""
    for start in range(0, len(samples), BATCH):
        indices = range(start, min(start + BATCH, len(samples)))
        yield from samples.get(indices, [generator("once", samples.ids[i]) for i in indices])


def _with_features(sample: Sample, taught: Sequence[dict[str, np.ndarray]]) -> Sample:
    each = iter(taught)
    return sample.each_row(lambda row: replace(row, features={**row.features, **next(each)}))
