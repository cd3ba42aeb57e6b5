"""Samples with teachers beside them: their features from a cache, or their inputs for every step of training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from groundling.core.batch import Sample, Sizes, collate
from groundling.core.documented import documented
from groundling.core.errors import InputError
from groundling.core.keyed import generator
from groundling.data.samples import Samples
from groundling.data.shards import Record
from groundling.runs.progress import Progress
from groundling.teachers import Teacher, arrays_of, ids_of, inputs_of
from groundling.teachers.cache import BATCH, FeatureCache, FeatureStore


@documented
class TeacherDataset:
    """Samples with a teacher's features, row by row; a wrapper, in any order with those of regions and pixels.

    With a cache every different input is read once. Without one, samples carry the teacher's inputs as `asides`, and
    `train(..., teachers=[teacher])` runs it in every step.
    """

    def __init__(
        self, samples: Samples, teacher: Teacher, cache: FeatureCache | None = None
    ) -> None:
        """A cache is for inputs that are the same in every epoch; what is drawn anew needs the teacher each step."""
        teacher.fit(samples)
        self.samples = samples
        self.teacher = teacher
        self.ids = samples.ids
        self.lengths = samples.lengths
        self.images = samples.images
        self.store = None if cache is None else cache.store(teacher)
        # Where each row's features are, one sample's rows after the other's, and where each sample's begin.
        self.numbers = np.zeros(0, np.int64)
        self.starts = np.zeros(1, np.int64)
        if self.store is not None:
            self._fill(self.store)

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def sizes(self) -> np.ndarray:
        """(len(self), 3), as without a teacher."""
        return self.samples.sizes

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator] = ()) -> list[Sample]:
        """Samples whose rows carry features, or what the teacher reads, in the order of `indices`."""
        samples = self.samples.get(indices, rngs)
        if self.store is None:
            return [self._with_inputs(sample) for sample in samples]
        each = zip(indices, samples, strict=True)
        return [self._with_features(index, one, self.store) for index, one in each]

    def _with_features(self, index: int, sample: Sample, store: FeatureStore) -> Sample:
        """A sample with its rows' features from the cache."""
        numbers = self.numbers[self.starts[index] : self.starts[index + 1]]
        records = [store.at(int(number)) for number in numbers]
        each = iter(records)
        taught = sample.each_row(
            lambda row: replace(row, features={**row.features, **next(each).arrays})
        )
        return self._truncated(taught, [record.facts.get("dropped", 0) for record in records])

    def _with_inputs(self, sample: Sample) -> Sample:
        """A sample with what the teacher reads of its rows."""
        inputs = inputs_of(self.teacher, sample.rows)
        each = iter(inputs)
        name = self.teacher.name
        taught = sample.each_row(lambda row: replace(row, asides={**row.asides, name: next(each)}))
        return self._truncated(taught, [one.dropped for one in inputs])

    def _truncated(self, sample: Sample, dropped: Sequence[int]) -> Sample:
        """A sample with what was cut off its rows, unless another part of the teacher counts that."""
        return replace(
            sample, dropped=sample.dropped + sum(dropped) * self.teacher.counts_truncated
        )

    def _fill(self, store: FeatureStore) -> None:
        """Every different input, in the order in which it first stands in the data."""
        order: dict[str, int] = {}
        places: list[tuple[int, int]] = []
        rows = []
        counts = []
        progress = Progress(f"inputs of {self.teacher.display_name}", len(self.samples), "sample")
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
            return self._computed([places[order[name]] for name in names])

        store.fill(list(order), make, f"features of {self.teacher.display_name}")
        numbers = np.array([store.number(name) for name in order], np.int64)
        self.numbers = numbers[rows]
        self.starts = np.cumsum([0, *counts])

    def _computed(self, places: Sequence[tuple[int, int]]) -> list[Record]:
        """What is cached of some rows, each told by its sample and its place in it."""
        samples = _fixed(self.samples, [index for index, _ in places])
        rows = [sample.rows[row] for sample, (_, row) in zip(samples, places, strict=True)]
        inputs = inputs_of(self.teacher, rows)
        features = arrays_of(self.teacher, collate(inputs))
        records = []
        for sample, one, arrays in zip(samples, inputs, features, strict=True):
            for name, array in arrays.items():
                if not np.isfinite(array).all():
                    raise InputError(
                        f"{sample.id}: the feature {name} of {self.teacher.display_name} is not a finite number"
                    )
            facts = {"dropped": one.dropped} if one.dropped else {}
            records.append(Record(one.id, arrays, facts))
        return records


class TeacherSet:
    """The teachers of a run and the cache of their features; one serves all seeds."""

    def __init__(self, teachers: Sequence[Teacher] = (), cache: FeatureCache | None = None) -> None:
        """Teachers whose features go to `cache`, or none of them without one; raises InputError if two share a name."""
        names = [teacher.name for teacher in teachers]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"two teachers are called {name!r}; each needs a name of its own")
        self.teachers = teachers
        self.limit_gb = 0.0 if cache is None else cache.limit_gb
        self.cache = cache if self.limit_gb else None
        self.fits: dict[int, bool] = {}

    def wrap(self, samples: Samples, fixed: bool = True) -> tuple[Samples, list[Teacher]]:
        """The samples with the teachers beside them, and the teachers that run in every step.

        Samples that are drawn anew in every epoch say `fixed=False`: of them only what depends on the image alone is
        cached. A teacher belongs below regions and pixels, which it need not wait for.
        """
        live: list[Teacher] = []
        for teacher in self.teachers:
            cached, rest = self._split(teacher, samples, fixed)
            for part in cached:
                samples = TeacherDataset(samples, part, self.cache)
            for part in rest:
                samples = TeacherDataset(samples, part)
            live += rest
        return samples, live

    def _split(
        self, teacher: Teacher, samples: Samples, fixed: bool
    ) -> tuple[Sequence[Teacher], Sequence[Teacher]]:
        """The parts of a teacher whose features are cached, and what runs in every step."""
        parts = teacher.parts()
        usual = {"always", "fixed"} if fixed else {"always"}
        cached = [part for part in parts if part.cacheable in usual]
        is_whole = parts[0] is teacher
        if self.cache is None or (is_whole and cached and not self._fits(teacher, samples)):
            cached = []
        rest = [part for part in parts if part not in cached]
        return cached, teacher.uncached(rest) if rest else []

    def _fits(self, teacher: Teacher, samples: Samples) -> bool:
        """Whether the features of a teacher without parts are small enough; the first samples decide for all."""
        if self.limit_gb == math.inf:
            return True
        if id(teacher) not in self.fits:
            teacher.fit(samples)
            self.fits[id(teacher)] = features_gb(samples, teacher) <= self.limit_gb
        return self.fits[id(teacher)]

    def sizes(self, sizes: Sizes) -> Sizes:
        """A model's sizes with the teachers' widths; raises InputError if two teachers' texts differ in width."""
        widths = {teacher.width for teacher in self.teachers if teacher.width}
        if len(widths) > 1:
            raise InputError(
                f"the objectives read features of texts of two widths, {min(widths)} and {max(widths)}, because of "
                "--teacher-text or --space; train them in two runs"
            )
        images = [teacher.image_width for teacher in self.teachers]
        return sizes._replace(teacher=max(widths, default=0), teacher_image=max(images, default=0))


MEASURED = 64
"""Samples from which the size of all features is estimated."""


def features_gb(samples: Samples, teacher: Teacher) -> float:
    """About how many GiB a teacher's features of all samples take, from some of them."""
    count = min(MEASURED, len(samples))
    places = [len(samples) * number // count for number in range(count)]
    rows = [row for sample in _fixed(samples, places) for row in sample.rows]
    measured = sum(
        values.nbytes
        for row in arrays_of(teacher, collate(inputs_of(teacher, rows)))
        for values in row.values()
    )
    return measured / count * len(samples) / 2**30


def each_of(samples: Samples) -> Iterator[Sample]:
    """Every sample, as it is without a draw."""
    for start in range(0, len(samples), BATCH):
        yield from _fixed(samples, range(start, min(start + BATCH, len(samples))))


def _fixed(samples: Samples, indices: Sequence[int]) -> list[Sample]:
    return samples.get(indices, [generator("once", samples.ids[index]) for index in indices])
