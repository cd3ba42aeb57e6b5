"""Features of frozen teachers, computed once for equal inputs: in memory, or in a folder that runs share."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from accelerate import PartialState

from groundling.core.documented import documented
from groundling.core.errors import refuse
from groundling.data.shards import (
    Facts,
    Index,
    Part,
    Record,
    ShardStore,
    ShardWriter,
    alone,
    changed,
    load_json,
    shard_file,
)
from groundling.runs.folder import PREPARED, json_text
from groundling.runs.progress import Progress
from groundling.teachers import Teacher

SHARD = 2048
"""Records of a file; a killed run computes as many again at most, per process."""
BATCH = 64
"""Inputs a teacher reads at a time."""
SCALAR = "_as_row"
"""Ends the names of single numbers, which a store holds as arrays of one."""

CHECKED: set[tuple[tuple[Path, int, int], ...]] = set()
"""Shards whose hashes this process has compared, by path, size and time of their files: splits and seeds share them."""

Make = Callable[[Sequence[str]], list[Record]]
"""Records of some ids, in their order; is asked for at most `BATCH` at a time."""


class FeatureStore(Protocol):
    """One teacher's cached features by number, once `fill` has computed those that are missing."""

    def fill(self, ids: Sequence[str], make: Make, what: str) -> None:
        """Let `make` compute the records of those ids that are not there; progress calls it `what`."""
        ...

    def number(self, record_id: str) -> int:
        """Where a record is."""
        ...

    def at(self, number: int) -> Record:
        """The record; its arrays are to be copied soon, and are not to be written to."""
        ...


@documented
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
        self.in_memory: dict[int, tuple[Teacher, InMemory]] = {}

    def store(self, teacher: Teacher) -> FeatureStore:
        """Where a teacher's features are, after its `fit`."""
        if self.folder is not None:
            key = teacher.key()
            text = json_text(key, sort_keys=True)
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            return OnDisk(self.folder / f"{teacher.name}-{digest}", key)
        # The teacher stays beside its features: no other object takes its `id`.
        _, store = self.in_memory.setdefault(id(teacher), (teacher, InMemory()))
        return store


def cache_folder(teacher_cache: str, out: Path) -> Path:
    """Where a run caches features: in --teacher-cache, or without one below its folder `out`, until it ends."""
    return Path(teacher_cache) if teacher_cache else out / PREPARED / "teacher"


class InMemory:
    """Features of this process alone, as long as it lives."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.numbers: dict[str, int] = {}

    def fill(self, ids: Sequence[str], make: Make, what: str) -> None:
        """Compute the records of ids that are not there."""
        missing = [one for one in ids if one not in self.numbers]
        progress = Progress(what, len(missing), "input")
        for record in _made(missing, make, progress):
            self.numbers[record.id] = len(self.records)
            self.records.append(record)
        progress.close()

    def number(self, record_id: str) -> int:
        """Where a record is."""
        return self.numbers[record_id]

    def at(self, number: int) -> Record:
        """The record."""
        return self.records[number]


class OnDisk:
    """In a folder of shards, which many runs may read and one run at a time adds to, all its processes together.

    Features are mapped, so that memory holds the ids alone.
    """

    def __init__(self, folder: str | Path, key: Facts) -> None:
        """`key`: what the records depend on beside their ids; see `ShardWriter`."""
        self.folder = Path(folder)
        self.key = dict(key)
        self.store: ShardStore | None = None

    def fill(self, ids: Sequence[str], make: Make, what: str) -> None:
        """Compute the records of ids that are not there, every process its share of the shards.

        Goes on where a killed run stopped, and waits for another run that is adding. Raises InputError if the folder
        holds records of another key, or if a shard with some of these ids is no longer what was written.
        """
        state = PartialState()
        with _alone(self.folder, state):
            self._fill(ids, make, what, state)
        self.store = ShardStore(self.folder, "input of a teacher")

    def _fill(self, ids: Sequence[str], make: Make, what: str, state: PartialState) -> None:
        part = Part(state.process_index, state.num_processes)
        writer = ShardWriter(self.folder, self.key, part)
        written = writer.written()
        wanted = set(ids)
        read = [number for number, index in written.items() if not wanted.isdisjoint(index.ids)]
        self._compare({read[place]: written[read[place]] for place in part.of(len(read))})
        closed = self._closed(len(written))
        there = {record_id for index in written.values() for record_id in index.ids}
        state.wait_for_everyone()  # nobody writes before all have seen what there is
        missing = [one for one in ids if one not in there]
        chunks = [missing[start : start + SHARD] for start in range(0, len(missing), SHARD)]
        gaps = sum(number not in written for number in range(max(written, default=-1) + 1))
        chunks += [[]] * (gaps - len(chunks))  # a store has no gaps
        numbers = list(islice((n for n in count() if n not in written), len(chunks)))
        own = part.of(len(chunks))
        progress = Progress(what, sum(len(chunks[place]) for place in own), "input")
        for place in own:
            records = _made(chunks[place], make, progress)
            writer.write(numbers[place], [_rows(record) for record in records])
        progress.close()
        if chunks or not closed:
            writer.close({"features_of": self.key}, barrier=state.wait_for_everyone)

    def number(self, record_id: str) -> int:
        """Where a record is; raises InputError if it is not there."""
        return self._filled().number(record_id)

    def at(self, number: int) -> Record:
        """The record, its arrays mapped; raises InputError if its shard is damaged."""
        store = self._filled()
        return Record(store.ids[number], _scalars(store.views(number)), store.facts(number))

    def _filled(self) -> ShardStore:
        if self.store is None:
            raise RuntimeError(f"{self.folder}: read before it was filled")
        return self.store

    def _compare(self, shards: Mapping[int, Index]) -> None:
        """Raises InputError if a file of some shards has another hash than the one that was written."""
        path = self.folder / "manifest.json"
        manifest = load_json(path) if path.is_file() else {}
        for number, index in shards.items():
            files = [shard_file(self.folder, name, number) for name in ("index", *index.columns)]
            stamp = tuple(_stamp(file) for file in files)
            if stamp in CHECKED:
                continue
            own = shard_file(self.folder, "index", number)
            faults = changed(self.folder, number, index, manifest)
            refuse([f"{one}; remove {own}, and its features are computed anew" for one in faults])
            CHECKED.add(stamp)

    def _closed(self, shards: int) -> bool:
        """Whether the manifest speaks of all shards that are there."""
        manifest = self.folder / "manifest.json"
        return manifest.is_file() and load_json(manifest).get("shards") == shards


def _made(ids: Sequence[str], make: Make, progress: Progress) -> Iterator[Record]:
    """Records of ids, computed batch by batch."""
    for start in range(0, len(ids), BATCH):
        some = ids[start : start + BATCH]
        yield from make(some)
        progress.step(len(some))


def _stamp(path: Path) -> tuple[Path, int, int]:
    """What tells a file from what stood there before; zeros for one that is gone."""
    try:
        about = path.stat()
    except OSError:
        return path, 0, 0
    return path, about.st_size, about.st_mtime_ns


@contextmanager
def _alone(folder: Path, state: PartialState) -> Iterator[None]:
    """As the only run that adds to a folder; its main process holds it for all of them."""
    with alone(folder, "adding features") if state.is_main_process else nullcontext():
        state.wait_for_everyone()
        yield


def _rows(record: Record) -> Record:
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
