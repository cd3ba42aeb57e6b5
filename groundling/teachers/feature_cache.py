"""Samples with features of frozen teachers, and the cache of these features."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import numpy as np
from accelerate import PartialState

from groundling.core.batch import FORWARD_BATCH, OutputSizes, Sample, collate
from groundling.core.errors import InputError
from groundling.data.samples import SampleDataset, SampleWrapper
from groundling.data.shards import (
    MANIFEST,
    Facts,
    ProcessRank,
    Record,
    ShardStore,
    ShardWriter,
)
from groundling.runs.folder import PREPARED, json_text, read_object, wait_for_folder
from groundling.runs.progress import Progress
from groundling.teachers import (
    Teacher,
    code_hash,
    compute_features,
    get_fixed,
    name_of,
)

# The cache: features are computed once for equal inputs, and kept in memory or in a folder that runs share.

SHARD = 2048
"""Records per shard; a killed run recomputes at most this many per process."""

RecordFactory = Callable[[Sequence[str]], list[Record]]
"""Computes the records of some ids, in their order; called with at most `FORWARD_BATCH` ids."""


class FeatureStore:
    """One teacher's cached features, by record number, in the memory of this process."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.numbers: dict[str, int] = {}

    def fill(self, ids: Sequence[str], make: RecordFactory, title: str) -> None:
        """Compute the missing records of `ids` with `make`; `title` is the progress bar's title."""
        missing = [one for one in ids if one not in self.numbers]
        progress = Progress(title, len(missing), "input")
        for record in _compute_records(missing, make, progress):
            self.numbers[record.id] = len(self.records)
            self.records.append(record)
        progress.close()

    def index_of(self, record_id: str) -> int:
        """The number of a record."""
        return self.numbers[record_id]

    def get(self, number: int) -> Record:
        """The record; do not write to its arrays."""
        return self.records[number]


class FeatureCache:
    """Caches the features of frozen teachers in a folder or in memory, so that each input is encoded once.

    Every teacher has its own subfolder, named by the hash of its `key()`: runs and teachers share a cache,
    and a killed run resumes with the missing features.
    """

    def __init__(self, folder: str | Path | None = None, limit_gb: float = math.inf) -> None:
        """Features are cached in `folder`, or in memory without one.

        An undivided teacher is cached only if its features take at most `limit_gb` GiB; 0 disables the cache.
        """
        self.folder = None if folder is None else Path(folder)
        self.limit_gb = limit_gb
        self.in_memory: dict[int, tuple[Teacher, FeatureStore]] = {}

    def store(self, teacher: Teacher) -> FeatureStore:
        """The store of a teacher's features; call it after the teacher's `fit`."""
        if self.folder is not None:
            key = {"code": code_hash(type(teacher)), **teacher.key()}
            text = json_text(key, sort_keys=True)
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            return DiskFeatureStore(self.folder / f"{teacher.name}-{digest}", key)
        # Keep the teacher with its features, so that no other object gets its `id`.
        _, store = self.in_memory.setdefault(id(teacher), (teacher, FeatureStore()))
        return store


def cache_folder(teacher_cache: str, out: Path) -> Path:
    """A run's cache folder: --teacher-cache, or a folder below `out` that exists until the run ends."""
    return Path(teacher_cache) if teacher_cache else out / PREPARED / "teacher"


class DiskFeatureStore(FeatureStore):
    """Features in a folder of shards: many runs read it, one run at a time writes, with all its processes.

    Only the ids are in memory.
    """

    def __init__(self, folder: str | Path, key: Facts) -> None:
        """`key`: everything the records depend on except their ids; see `ShardWriter`."""
        self.folder = Path(folder)
        self.key = dict(key)
        self.store: ShardStore  # once it is filled

    def fill(self, ids: Sequence[str], make: RecordFactory, title: str) -> None:
        """Compute the missing records, each process its share of the shards.

        Resumes a killed run, and waits while another run writes. Raises InputError if the folder has
        records of another key.
        """
        state = PartialState()
        # the main process holds the lock for all its processes
        is_main = state.is_main_process
        with wait_for_folder(self.folder, "adding features") if is_main else nullcontext():
            state.wait_for_everyone()
            self._fill(ids, make, title, state)
            self.store = ShardStore(self.folder, "input of a teacher")

    def _fill(
        self, ids: Sequence[str], make: RecordFactory, title: str, state: PartialState
    ) -> None:
        part = ProcessRank(state.process_index, state.num_processes)
        writer = ShardWriter(self.folder, self.key, part)
        written = writer.complete_shards()
        stored = {record_id for index in written.values() for record_id in index.ids}
        manifest = self.folder / MANIFEST
        listed = read_object(manifest).get("shards") if manifest.is_file() else None
        state.wait_for_everyone()  # every process lists the shards before any writes
        missing = [one for one in ids if one not in stored]
        chunks = [missing[start : start + SHARD] for start in range(0, len(missing), SHARD)]
        numbers = list(islice((n for n in count() if n not in written), len(chunks)))
        own = part.shard_numbers(len(chunks))
        progress = Progress(title, sum(len(chunks[place]) for place in own), "input")
        for place in own:
            writer.write(numbers[place], list(_compute_records(chunks[place], make, progress)))
        progress.close()
        if chunks or listed != list(written):
            writer.close({"features_of": self.key}, barrier=state.wait_for_everyone)

    def index_of(self, record_id: str) -> int:
        """The number of a record; raises InputError if it is missing."""
        return self.store.index_of(record_id)

    def get(self, number: int) -> Record:
        """The record."""
        return self.store.record_at(number)


def _compute_records(
    ids: Sequence[str], make: RecordFactory, progress: Progress
) -> Iterator[Record]:
    for start in range(0, len(ids), FORWARD_BATCH):
        some = ids[start : start + FORWARD_BATCH]
        yield from make(some)
        progress.update(len(some))


class TeacherDataset(SampleWrapper):
    """Samples with a teacher's features in every row; can be nested with the wrappers for regions and pixels.

    With a cache, equal inputs are encoded once. Without one, samples carry the teacher's inputs as
    `teacher_inputs`, and `train(..., teachers=[teacher])` runs the teacher in every step.
    """

    def __init__(
        self, samples: SampleDataset, teacher: Teacher, cache: FeatureCache | None = None
    ) -> None:
        """Use a cache for inputs that are the same in every epoch, and none for inputs that are drawn anew."""
        teacher.fit(samples)
        super().__init__(samples)
        self.teacher = teacher
        self.store = None if cache is None else cache.store(teacher)
        # The record number of each row, for all samples' rows in order, and the first row of each sample.
        self.numbers = np.zeros(0, np.int64)
        self.starts = np.zeros(1, np.int64)
        if self.store is not None:
            self._fill(self.store)

    def change(self, sample: Sample, index: int) -> Sample:
        """A sample with features or the teacher's inputs in its rows."""
        if self.store is None:
            return self._with_inputs(sample)
        return self._with_features(index, sample, self.store)

    def _with_features(self, index: int, sample: Sample, store: FeatureStore) -> Sample:
        numbers = self.numbers[self.starts[index] : self.starts[index + 1]]
        records = [store.get(int(number)) for number in numbers]
        rows = [
            replace(row, features={**row.features, **record.arrays})
            for row, record in zip(sample.rows, records, strict=True)
        ]
        truncated = sum(record.facts.get("truncated_tokens", 0) for record in records)
        return sample.with_rows(rows, truncated)

    def _with_inputs(self, sample: Sample) -> Sample:
        inputs = self.teacher.inputs(sample.rows)
        name = self.teacher.name
        rows = [
            replace(row, teacher_inputs={**row.teacher_inputs, name: one})
            for row, one in zip(sample.rows, inputs, strict=True)
        ]
        return sample.with_rows(rows, sum(one.truncated_tokens for one in inputs))

    def _fill(self, store: FeatureStore) -> None:
        """Fill the store with all distinct inputs, in the order of their first occurrence."""
        order: dict[str, int] = {}
        places: list[tuple[int, int]] = []
        rows = []
        counts = []
        progress = Progress(f"inputs of {name_of(self.teacher)}", len(self.samples), "sample")
        for index, sample in enumerate(iterate_samples(self.samples)):
            names = self.teacher.ids(sample.rows)
            progress.update()
            counts.append(len(sample.rows))
            for row, (name, _) in enumerate(zip(names, sample.rows, strict=True)):
                number = order.setdefault(name, len(order))
                if number == len(places):
                    places.append((index, row))
                rows.append(number)

        progress.close()

        def make(names: Sequence[str]) -> list[Record]:
            return self._compute_records([places[order[name]] for name in names])

        store.fill(list(order), make, f"features of {name_of(self.teacher)}")
        numbers = np.array([store.index_of(name) for name in order], np.int64)
        self.numbers = numbers[rows]
        self.starts = np.cumsum([0, *counts])

    def _compute_records(self, places: Sequence[tuple[int, int]]) -> list[Record]:
        """Compute the records of some rows, given as (sample index, row in the sample)."""
        samples = get_fixed(self.samples, [index for index, _ in places])
        rows = [sample.rows[row] for sample, (_, row) in zip(samples, places, strict=True)]
        inputs = self.teacher.inputs(rows)
        batch = collate(inputs)
        features = self.teacher.unbatch(compute_features(self.teacher, batch), batch)
        records = []
        for sample, one, arrays in zip(samples, inputs, features, strict=True):
            for name, array in arrays.items():
                if not np.isfinite(array).all():
                    raise InputError(f"{sample.id}: the teacher's {name} is not finite")
            facts = {"truncated_tokens": one.truncated_tokens} if one.truncated_tokens else {}
            records.append(Record(one.id, arrays, facts))
        return records


class TeacherSet:
    """The teachers of a run and the cache of their features, shared by all seeds."""

    def __init__(self, teachers: Sequence[Teacher] = (), cache: FeatureCache | None = None) -> None:
        """Teachers, and the cache of their features, if any; raises InputError if two teachers share a name."""
        names = [teacher.name for teacher in teachers]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"two teachers are called {name!r}; give each its own `name`")
        self.teachers = teachers
        self.limit_gb = 0.0 if cache is None else cache.limit_gb
        self.cache = cache if self.limit_gb else None
        self.sizes_gb: dict[int, dict[tuple[int, str, str], float]] = {}
        """By teacher and data set, the size of cached features; infinite if they are computed in every step."""

    def wrap(
        self, samples: SampleDataset, fixed: bool = True, texts_only: bool = False
    ) -> tuple[SampleDataset, list[Teacher]]:
        """The samples wrapped in `TeacherDataset`s, and the teachers that run in every step.

        `texts_only`: the samples have no images, so teachers that read images are skipped.

        Pass `fixed=False` for samples that are drawn anew in every epoch: only features of images are cached
        then. Wrap samples before adding regions and pixels, so that filling the cache does not load these.
        """
        uncached: list[Teacher] = []
        for teacher in self.teachers:
            if teacher.image_features and texts_only:
                continue
            if teacher.reads_student_batch:
                uncached.append(teacher)
                continue
            cached, rest = teacher.split(fixed)
            if self.cache is None or (teacher in cached and not self._fits(teacher, samples)):
                cached, rest = [], [teacher]
            for part in cached:
                samples = TeacherDataset(samples, part, self.cache)
            for part in rest:
                samples = TeacherDataset(samples, part)
            uncached += rest
        return samples, uncached

    def _fits(self, teacher: Teacher, samples: SampleDataset) -> bool:
        """Whether the features of an undivided teacher fit the limit beside those of earlier data sets.

        A data set is known by its ids, since every seed makes its own of the same samples.
        """
        if self.limit_gb == math.inf:
            return True
        sizes = self.sizes_gb.setdefault(id(teacher), {})
        data = (len(samples), samples.ids[0], samples.ids[len(samples) - 1])
        if data not in sizes:
            teacher.fit(samples)
            used = sum(size for size in sizes.values() if size < math.inf)
            size = teacher.size_gb(samples)
            sizes[data] = size if used + size <= self.limit_gb else math.inf
        return sizes[data] < math.inf

    def sizes(self, sizes: OutputSizes) -> OutputSizes:
        """A model's sizes with the teachers' widths; raises InputError if their text features differ in width."""
        widths = {teacher.width for teacher in self.teachers if teacher.width}
        if len(widths) > 1:
            raise InputError(f"the objectives read text features of two widths, {sorted(widths)}")
        images = [teacher.image_width for teacher in self.teachers]
        return sizes._replace(teacher=max(widths, default=0), teacher_image=max(images, default=0))


def iterate_samples(samples: SampleDataset) -> Iterator[Sample]:
    """Iterate over all samples, with fixed random generators."""
    for start in range(0, len(samples), FORWARD_BATCH):
        yield from get_fixed(samples, range(start, min(start + FORWARD_BATCH, len(samples))))
