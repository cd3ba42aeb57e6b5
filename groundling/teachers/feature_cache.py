"""Samples with frozen teachers beside them, and the cache of the teachers' features."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from accelerate import PartialState

from groundling.core.batch import OutputSizes, Sample, collate
from groundling.core.errors import InputError, raise_first
from groundling.core.field_docs import with_field_docs
from groundling.core.rng import generator
from groundling.data.samples import SampleDataset
from groundling.data.shards import (
    Facts,
    ProcessRank,
    Record,
    ShardIndex,
    ShardStore,
    ShardWriter,
    changed_files,
    lock_folder,
    shard_file,
)
from groundling.runs.folder import PREPARED, json_text, read_object
from groundling.runs.progress import Progress
from groundling.teachers import Teacher, compute_feature_arrays, read_input_keys, read_inputs

# Features of frozen teachers, computed once for equal inputs: in memory, or in a folder that runs share.

SHARD = 2048
"""Records of a file; a killed run computes as many again at most, per process."""
BATCH = 64
"""Inputs a teacher reads at a time."""
SCALAR = "_as_row"
"""Ends the names of single numbers, which a store holds as arrays of one."""

CHECKED: set[tuple[tuple[Path, int, int], ...]] = set()
"""Shards whose hashes this process has compared, by path, size and time of their files: splits and seeds share them."""

RecordFactory = Callable[[Sequence[str]], list[Record]]
"""Records of some ids, in their order; is asked for at most `BATCH` at a time."""


class FeatureStore(Protocol):
    """One teacher's cached features by number, once `fill` has computed those that are missing."""

    def fill(self, ids: Sequence[str], make: RecordFactory, what: str) -> None:
        """Let `make` compute the records of those ids that are not there; progress calls it `what`."""
        ...

    def index_of(self, record_id: str) -> int:
        """Where a record is."""
        ...

    def get(self, number: int) -> Record:
        """The record; its arrays are to be copied soon, and are not to be written to."""
        ...


@with_field_docs
class FeatureCache:
    """Keeps the features of frozen teachers, so that each input is read once: in a folder, or in memory.

    In a folder every teacher has one of its own, named by the hash of its `key`: runs and teachers share a cache, and
    a killed run resumes with what is missing.
    """

    def __init__(self, folder: str | Path | None = None, limit_gb: float = math.inf) -> None:
        """Features go to `folder`, or stay in memory without one.

        A teacher without parts is cached if its features take at most `limit_gb` GiB; if that is 0, none is.
        """
        self.folder = None if folder is None else Path(folder)
        self.limit_gb = limit_gb
        self.in_memory: dict[int, tuple[Teacher, MemoryFeatureStore]] = {}

    def store(self, teacher: Teacher) -> FeatureStore:
        """Where a teacher's features are, after its `fit`."""
        if self.folder is not None:
            key = teacher.key()
            text = json_text(key, sort_keys=True)
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            return DiskFeatureStore(self.folder / f"{teacher.name}-{digest}", key)
        # The teacher stays beside its features: no other object takes its `id`.
        _, store = self.in_memory.setdefault(id(teacher), (teacher, MemoryFeatureStore()))
        return store


def cache_folder(teacher_cache: str, out: Path) -> Path:
    """Where a run caches features: in --teacher-cache, or without one below its folder `out`, until it ends."""
    return Path(teacher_cache) if teacher_cache else out / PREPARED / "teacher"


class MemoryFeatureStore:
    """Features of this process alone, as long as it lives."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.numbers: dict[str, int] = {}

    def fill(self, ids: Sequence[str], make: RecordFactory, what: str) -> None:
        """Compute the records of ids that are not there."""
        missing = [one for one in ids if one not in self.numbers]
        progress = Progress(what, len(missing), "input")
        for record in _compute_records(missing, make, progress):
            self.numbers[record.id] = len(self.records)
            self.records.append(record)
        progress.close()

    def index_of(self, record_id: str) -> int:
        """Where a record is."""
        return self.numbers[record_id]

    def get(self, number: int) -> Record:
        """The record."""
        return self.records[number]


class DiskFeatureStore:
    """In a folder of shards, which many runs may read and one run at a time adds to, all its processes together.

    Features are mapped, so that memory holds the ids alone.
    """

    def __init__(self, folder: str | Path, key: Facts) -> None:
        """`key`: what the records depend on beside their ids; see `ShardWriter`."""
        self.folder = Path(folder)
        self.key = dict(key)
        self.store: ShardStore | None = None

    def fill(self, ids: Sequence[str], make: RecordFactory, what: str) -> None:
        """Compute the records of ids that are not there, every process its share of the shards.

        Goes on where a killed run stopped, and waits for another run that is adding. Raises InputError if the folder
        holds records of another key, or if a shard with some of these ids is no longer what was written.
        """
        state = PartialState()
        with _locked_folder(self.folder, state):
            self._fill(ids, make, what, state)
        self.store = ShardStore(self.folder, "input of a teacher")

    def _fill(
        self, ids: Sequence[str], make: RecordFactory, what: str, state: PartialState
    ) -> None:
        part = ProcessRank(state.process_index, state.num_processes)
        writer = ShardWriter(self.folder, self.key, part)
        written = writer.complete_shards()
        wanted = set(ids)
        read = [number for number, index in written.items() if not wanted.isdisjoint(index.ids)]
        self._compare(
            {read[place]: written[read[place]] for place in part.shard_numbers(len(read))}
        )
        closed = self._closed(len(written))
        there = {record_id for index in written.values() for record_id in index.ids}
        state.wait_for_everyone()  # nobody writes before all have seen what there is
        missing = [one for one in ids if one not in there]
        chunks = [missing[start : start + SHARD] for start in range(0, len(missing), SHARD)]
        gaps = sum(number not in written for number in range(max(written, default=-1) + 1))
        chunks += [[]] * (gaps - len(chunks))  # a store has no gaps
        numbers = list(islice((n for n in count() if n not in written), len(chunks)))
        own = part.shard_numbers(len(chunks))
        progress = Progress(what, sum(len(chunks[place]) for place in own), "input")
        for place in own:
            records = _compute_records(chunks[place], make, progress)
            writer.write(numbers[place], [_with_row_axis(record) for record in records])
        progress.close()
        if chunks or not closed:
            writer.close({"features_of": self.key}, barrier=state.wait_for_everyone)

    def index_of(self, record_id: str) -> int:
        """Where a record is; raises InputError if it is not there."""
        return self._filled().index_of(record_id)

    def get(self, number: int) -> Record:
        """The record, its arrays mapped; raises InputError if its shard is damaged."""
        store = self._filled()
        return Record(store.ids[number], _scalars(store.array_views(number)), store.facts(number))

    def _filled(self) -> ShardStore:
        if self.store is None:
            raise RuntimeError(f"{self.folder}: read before it was filled")
        return self.store

    def _compare(self, shards: Mapping[int, ShardIndex]) -> None:
        """Raises InputError if a file of some shards has another hash than the one that was written."""
        path = self.folder / "manifest.json"
        manifest = read_object(path) if path.is_file() else {}
        for number, index in shards.items():
            files = [shard_file(self.folder, name, number) for name in ("index", *index.columns)]
            stamp = tuple(_file_stamp(file) for file in files)
            if stamp in CHECKED:
                continue
            own = shard_file(self.folder, "index", number)
            faults = changed_files(self.folder, number, index, manifest)
            raise_first(
                [f"{one}; remove {own}, and its features are computed anew" for one in faults]
            )
            CHECKED.add(stamp)

    def _closed(self, shards: int) -> bool:
        """Whether the manifest speaks of all shards that are there."""
        manifest = self.folder / "manifest.json"
        return manifest.is_file() and read_object(manifest).get("shards") == shards


def _compute_records(
    ids: Sequence[str], make: RecordFactory, progress: Progress
) -> Iterator[Record]:
    """Records of ids, computed batch by batch."""
    for start in range(0, len(ids), BATCH):
        some = ids[start : start + BATCH]
        yield from make(some)
        progress.step(len(some))


def _file_stamp(path: Path) -> tuple[Path, int, int]:
    """What tells a file from what stood there before; zeros for one that is gone."""
    try:
        about = path.stat()
    except OSError:
        return path, 0, 0
    return path, about.st_size, about.st_mtime_ns


@contextmanager
def _locked_folder(folder: Path, state: PartialState) -> Iterator[None]:
    """As the only run that adds to a folder; its main process holds it for all of them."""
    with lock_folder(folder, "adding features") if state.is_main_process else nullcontext():
        state.wait_for_everyone()
        yield


def _with_row_axis(record: Record) -> Record:
    """A record whose arrays all have a first axis, as a store wants it."""
    arrays = {}
    for name, array in record.arrays.items():
        if array.ndim:
            arrays[name] = array
        else:
            arrays[name + SCALAR] = array[None]
    return Record(record.id, arrays, record.facts)


def _scalars(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The arrays as they were before `_rows`."""
    found: dict[str, Any] = {}
    for name, array in arrays.items():
        if name.endswith(SCALAR):
            found[name.removesuffix(SCALAR)] = array[0]
        else:
            found[name] = array
    return found


@with_field_docs
class TeacherDataset:
    """Samples with a teacher's features, row by row; a wrapper, in any order with those of regions and pixels.

    With a cache every different input is read once. Without one, samples carry the teacher's inputs as `asides`, and
    `train(..., teachers=[teacher])` runs it in every step.
    """

    def __init__(
        self, samples: SampleDataset, teacher: Teacher, cache: FeatureCache | None = None
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
        records = [store.get(int(number)) for number in numbers]
        each = iter(records)
        taught = sample.each_row(
            lambda row: replace(row, features={**row.features, **next(each).arrays})
        )
        return self._count_truncated(
            taught, [record.facts.get("truncated_tokens", 0) for record in records]
        )

    def _with_inputs(self, sample: Sample) -> Sample:
        """A sample with what the teacher reads of its rows."""
        inputs = read_inputs(self.teacher, sample.rows)
        each = iter(inputs)
        name = self.teacher.name
        taught = sample.each_row(
            lambda row: replace(row, teacher_inputs={**row.teacher_inputs, name: next(each)})
        )
        return self._count_truncated(taught, [one.truncated_tokens for one in inputs])

    def _count_truncated(self, sample: Sample, dropped: Sequence[int]) -> Sample:
        """A sample with what was cut off its rows, unless another part of the teacher counts that."""
        return replace(
            sample,
            truncated_tokens=sample.truncated_tokens + sum(dropped) * self.teacher.counts_truncated,
        )

    def _fill(self, store: FeatureStore) -> None:
        """Every different input, in the order in which it first stands in the data."""
        order: dict[str, int] = {}
        places: list[tuple[int, int]] = []
        rows = []
        counts = []
        progress = Progress(f"inputs of {self.teacher.display_name}", len(self.samples), "sample")
        for index, sample in enumerate(iterate_samples(self.samples)):
            names = read_input_keys(self.teacher, sample.rows)
            progress.step()
            counts.append(len(names))
            for row, name in enumerate(names):
                number = order.setdefault(name, len(order))
                if number == len(places):
                    places.append((index, row))
                rows.append(number)

        progress.close()

        def make(names: Sequence[str]) -> list[Record]:
            return self._compute_records([places[order[name]] for name in names])

        store.fill(list(order), make, f"features of {self.teacher.display_name}")
        numbers = np.array([store.index_of(name) for name in order], np.int64)
        self.numbers = numbers[rows]
        self.starts = np.cumsum([0, *counts])

    def _compute_records(self, places: Sequence[tuple[int, int]]) -> list[Record]:
        """What is cached of some rows, each told by its sample and its place in it."""
        samples = _get_fixed(self.samples, [index for index, _ in places])
        rows = [sample.rows[row] for sample, (_, row) in zip(samples, places, strict=True)]
        inputs = read_inputs(self.teacher, rows)
        features = compute_feature_arrays(self.teacher, collate(inputs))
        records = []
        for sample, one, arrays in zip(samples, inputs, features, strict=True):
            for name, array in arrays.items():
                if not np.isfinite(array).all():
                    raise InputError(
                        f"{sample.id}: the feature {name} of {self.teacher.display_name} is not a finite number"
                    )
            facts = {"truncated_tokens": one.truncated_tokens} if one.truncated_tokens else {}
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

    def wrap(
        self, samples: SampleDataset, fixed: bool = True
    ) -> tuple[SampleDataset, list[Teacher]]:
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
        self, teacher: Teacher, samples: SampleDataset, fixed: bool
    ) -> tuple[Sequence[Teacher], Sequence[Teacher]]:
        """The parts of a teacher whose features are cached, and what runs in every step."""
        parts = teacher.parts()
        usual = {"always", "fixed"} if fixed else {"always"}
        cached = [part for part in parts if part.cacheable in usual]
        is_whole = parts[0] is teacher
        if self.cache is None or (is_whole and cached and not self._fits(teacher, samples)):
            cached = []
        rest = [part for part in parts if part not in cached]
        return cached, teacher.merge_uncached(rest) if rest else []

    def _fits(self, teacher: Teacher, samples: SampleDataset) -> bool:
        """Whether the features of a teacher without parts are small enough; the first samples decide for all."""
        if self.limit_gb == math.inf:
            return True
        if id(teacher) not in self.fits:
            teacher.fit(samples)
            self.fits[id(teacher)] = estimate_features_gb(samples, teacher) <= self.limit_gb
        return self.fits[id(teacher)]

    def sizes(self, sizes: OutputSizes) -> OutputSizes:
        """A model's sizes with the teachers' widths; raises InputError if two teachers' texts differ in width."""
        widths = {teacher.width for teacher in self.teachers if teacher.width}
        if len(widths) > 1:
            raise InputError(
                f"the objectives read features of texts of two widths, {min(widths)} and {max(widths)}, because of "
                "--teacher-text or --teacher-space; train them in two runs"
            )
        images = [teacher.image_width for teacher in self.teachers]
        return sizes._replace(teacher=max(widths, default=0), teacher_image=max(images, default=0))


MEASURED = 64
"""Samples from which the size of all features is estimated."""


def estimate_features_gb(samples: SampleDataset, teacher: Teacher) -> float:
    """About how many GiB a teacher's features of all samples take, from some of them."""
    count = min(MEASURED, len(samples))
    places = [len(samples) * number // count for number in range(count)]
    rows = [row for sample in _get_fixed(samples, places) for row in sample.rows]
    measured = sum(
        values.nbytes
        for row in compute_feature_arrays(teacher, collate(read_inputs(teacher, rows)))
        for values in row.values()
    )
    return measured / count * len(samples) / 2**30


def iterate_samples(samples: SampleDataset) -> Iterator[Sample]:
    """Every sample, as it is without a draw."""
    for start in range(0, len(samples), BATCH):
        yield from _get_fixed(samples, range(start, min(start + BATCH, len(samples))))


def _get_fixed(samples: SampleDataset, indices: Sequence[int]) -> list[Sample]:
    return samples.get(indices, [generator("once", samples.ids[index]) for index in indices])
