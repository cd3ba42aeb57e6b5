"""Samples with a teacher beside them: its features, computed once and kept, or its inputs for a live teacher."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from groundling.core.batch import Sample, collate
from groundling.core.errors import InputError
from groundling.core.keyed import generator
from groundling.data.samples import Samples
from groundling.data.shards import Record
from groundling.runs.progress import Progress
from groundling.teachers import Teacher, features_of, ids_of, inputs_of, kept_of
from groundling.teachers.kept import BATCH, InMemory, Kept, OnDisk


class Taught:
    """Samples that a teacher teaches, row by row; a wrapper like those of regions and pixels, in any order with them.

    With `cached` every different input is read once and its features are kept. Without, samples carry the teacher's
    inputs as `asides`, and `train(..., teachers=[teacher])` asks it in every step.
    """

    def __init__(
        self,
        samples: Samples,
        teacher: Teacher,
        cached: bool = True,
        folder: str | Path | None = None,
    ) -> None:
        """`cached` is for inputs that are the same in every epoch: what is drawn anew needs a live teacher.

        Features are kept in `folder`, or in memory without one. Raises InputError if another teacher's are there.
        """
        teacher.fit(samples)
        self.samples = samples
        self.teacher = teacher
        self.cached = cached
        self.ids = samples.ids
        self.lengths = samples.lengths
        self.images = samples.images
        self.kept: Kept = InMemory() if folder is None else OnDisk(folder, teacher.key())
        # Where each row's features are, one sample's rows after the other's, and where each sample's begin.
        self.numbers = np.zeros(0, np.int64)
        self.starts = np.zeros(1, np.int64)
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
        return [self._told(index, one) for index, one in zip(indices, samples, strict=True)]

    def _told(self, index: int, sample: Sample) -> Sample:
        """A sample with its rows' features, as they were kept."""
        numbers = self.numbers[self.starts[index] : self.starts[index + 1]]
        records = [self.kept.at(int(number)) for number in numbers]
        each = iter(records)
        told = sample.each_row(
            lambda row: replace(row, features={**row.features, **next(each).arrays})
        )
        return self._cut(told, [record.facts.get("dropped", 0) for record in records])

    def _cut(self, sample: Sample, dropped: Sequence[int]) -> Sample:
        """A sample with what was cut off its rows, unless another part of the teacher counts that."""
        return replace(sample, dropped=sample.dropped + sum(dropped) * self.teacher.counts)

    def _beside(self, sample: Sample) -> Sample:
        inputs = inputs_of(self.teacher, sample.rows)
        each = iter(inputs)
        name = self.teacher.name
        beside = sample.each_row(lambda row: replace(row, asides={**row.asides, name: next(each)}))
        return self._cut(beside, [one.dropped for one in inputs])

    def _read(self) -> None:
        """Every different input, in the order in which it first stands in the data."""
        order: dict[str, int] = {}
        places: list[tuple[int, int]] = []
        rows = []
        counts = []
        progress = Progress(f"what {self.teacher.called} is asked", len(self.samples), "sample")
        for index, sample in enumerate(each_of(self.samples)):
            names = ids_of(self.teacher, sample.rows)
            progress.step()
            counts.append(len(names))
            for row, name in enumerate(names):
                number = order.setdefault(name, len(order))
                if number == len(places):
                    places.append((index, row))
                rows.append(number)

        progress.close()

        def make(names: Sequence[str]) -> list[Record]:
            return self._ask([places[order[name]] for name in names])

        self.kept.fill(list(order), make, f"features of {self.teacher.called}")
        numbers = np.array([self.kept.number(name) for name in order], np.int64)
        self.numbers = numbers[rows]
        self.starts = np.cumsum([0, *counts])

    def _ask(self, places: Sequence[tuple[int, int]]) -> list[Record]:
        """What is to be kept of some rows, each told by its sample and its place in it."""
        samples = _fixed(self.samples, [index for index, _ in places])
        rows = [sample.rows[row] for sample, (_, row) in zip(samples, places, strict=True)]
        inputs = inputs_of(self.teacher, rows)
        batch = collate(inputs)
        kept = kept_of(self.teacher, features_of(self.teacher, batch), batch)
        records = []
        for sample, one, arrays in zip(samples, inputs, kept, strict=True):
            for name, array in arrays.items():
                if not np.isfinite(array).all():
                    raise InputError(
                        f"{sample.id}: the feature {name} of {self.teacher.called} is not a finite number"
                    )
            facts = {"dropped": one.dropped} if one.dropped else {}
            records.append(Record(one.id, arrays, facts))
        return records


def each_of(samples: Samples) -> Iterator[Sample]:
    """Every sample, as it is without a draw."""
    for start in range(0, len(samples), BATCH):
        yield from _fixed(samples, range(start, min(start + BATCH, len(samples))))


def _fixed(samples: Samples, indices: Sequence[int]) -> list[Sample]:
    return samples.get(indices, [generator("once", samples.ids[index]) for index in indices])
