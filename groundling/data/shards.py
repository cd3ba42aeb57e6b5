"""A ragged store on disk: records of named arrays in safetensors shards, read by slices of rows.

A store is a folder. `shard-K.safetensors` has a tensor for every array name: the arrays of its
records, concatenated along the first axis. Its metadata holds the records' ids, lengths and facts,
so a shard is complete when its file exists. `manifest.json` completes the store. Text tokens,
teacher features and image regions are stored in this format.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from groundling.core.errors import InputError, convert_errors
from groundling.data.images import normalize_unicode
from groundling.runs.folder import (
    difference,
    disk_errors,
    json_text,
    read_object,
    renamed,
    write_json,
)

OPEN_FILES = 1024
"""Maximum number of shards that a store keeps mapped; a mapped file needs no file handle."""
MANIFEST = "manifest.json"
"""File that completes a store."""
INDEX = "index"
"""Name of a shard's index in the metadata of its file."""

Facts = Mapping[str, Any]
"""JSON values, by name."""

_SHARD_FILE = re.compile(r"shard-(\d{5,})\.safetensors")


@dataclass(frozen=True)
class Record:
    """One entry of a store."""

    id: str
    """Unique in its store."""
    arrays: Mapping[str, np.ndarray]
    """Arrays by name: (L, ...), or () for a number; only L, which may be 0, may differ between records."""
    facts: Facts = field(default_factory=dict)
    """Small JSON facts about this record, which readers keep in memory."""


@dataclass(frozen=True)
class ShardIndex:
    """The contents of a shard, without its numbers."""

    ids: list[str]
    """Ids of its records, in order."""
    lengths: dict[str, list[int] | None]
    """By array name: the rows of each record; None if every record has one number, not rows."""
    shapes: dict[str, list[int]]
    """By array name: the shape of one row."""
    facts: list[dict[str, Any]]
    """Facts of each record; empty if no record has any."""
    skip_reasons: list[str]
    """A reason for each record that was skipped."""
    key: dict[str, Any]
    """Everything that the contents depend on; see `ShardWriter`."""

    def rows(self, name: str) -> int:
        """Number of rows of an array."""
        lengths = self.lengths.get(name, [])
        return len(self.ids) if lengths is None else sum(lengths)


@dataclass(frozen=True)
class ProcessRank:
    """The rank of this process among several; process N % world writes shard N."""

    rank: int = 0
    """Rank of this process, from 0."""
    world: int = 1
    """Number of processes."""

    def shard_numbers(self, shards: int) -> range:
        """The numbers of this process's shards among `shards`."""
        return range(self.rank, shards, self.world)


def shard_file(folder: Path, number: int) -> Path:
    """The file of a shard."""
    return folder / f"shard-{number:05}.safetensors"


def _open(path: Path) -> Any:
    """A shard, mapped; raises InputError if it is missing or was cut."""
    with convert_errors(f"{path}: damaged or missing", "; make the store again"):
        return safe_open(path, "numpy")


def read_index(path: Path) -> ShardIndex:
    """A shard's index; raises InputError if the file is damaged or another one."""
    file = _open(path)
    with convert_errors(f"{path}: not a shard of a store"):
        return ShardIndex(**json.loads(file.metadata()[INDEX]))


# -- writing -----------------------------------------------------------------------------------------------------------


class ShardWriter:
    """Writes a store shard by shard, perhaps in several processes; a killed one loses at most one shard."""

    def __init__(
        self, folder: str | Path, key: Facts | None = None, process: ProcessRank | None = None
    ) -> None:
        """Start a store in `folder`, or resume one; `key` is everything that the contents depend on, as JSON."""
        self.folder = Path(folder)
        self.key: dict[str, Any] = json.loads(json_text(key or {}))
        self.process = process or ProcessRank()
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        for number in self._numbers()[:1]:
            self._index(number)

    def is_complete(self, number: int) -> bool:
        """Whether a shard is complete."""
        return shard_file(self.folder, number).exists()

    def pending(self, shards: int) -> Iterator[int]:
        """The numbers of this process's incomplete shards, among `shards`."""
        own = self.process.shard_numbers(shards)
        return (number for number in own if not self.is_complete(number))

    def write(self, number: int, records: Sequence[Record], skipped: Iterable[str] = ()) -> None:
        """Write one shard atomically; `skipped` gives a reason for each skipped record."""
        path = shard_file(self.folder, number)
        names = records[0].arrays.keys() if records else ()
        arrays: dict[str, np.ndarray] = {}
        lengths: dict[str, list[int] | None] = {}
        if any(record.arrays.keys() != names for record in records):
            raise InputError(f"{path}: records have different arrays")
        with convert_errors(f"{path}: arrays that no store can hold"):
            for name in names:
                own = [np.asarray(record.arrays[name]) for record in records]
                together = np.concatenate(own) if own[0].ndim else np.stack(own)
                # safetensors writes the memory of an array as it lies.
                arrays[name] = np.ascontiguousarray(together)
                lengths[name] = [len(one) for one in own] if own[0].ndim else None
            facts = [dict(record.facts) for record in records]
            index = ShardIndex(
                ids=[record.id for record in records],
                lengths=lengths,
                shapes={name: list(array.shape[1:]) for name, array in arrays.items()},
                facts=facts if any(facts) else [],
                skip_reasons=list(skipped),
                key=self.key,
            )
            _save(path, arrays, {INDEX: json_text(asdict(index), ensure_ascii=False)})

    def close(
        self,
        facts: Facts,
        skipped: Sequence[str] = (),
        barrier: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        """Write the manifest with `facts` on how the records were made, and return its contents.

        `skipped`: reasons for records in no shard. `barrier` waits for all processes, each of which calls this.
        """
        if barrier is not None:
            barrier()
        if self.process.rank == 0:
            self._write_manifest(facts, skipped)
        if barrier is not None:
            barrier()
        return read_object(self.folder / MANIFEST)

    def complete_shards(self) -> dict[int, ShardIndex]:
        """The indices of complete shards, by number; raises InputError if one has another key."""
        return {number: self._index(number) for number in self._numbers()}

    def _write_manifest(self, facts: Facts, skipped: Sequence[str]) -> None:
        shards = self.complete_shards()
        indices = list(shards.values())
        ids = Counter(name for index in indices for name in index.ids)
        repeated = [name for name, count in ids.items() if count > 1]
        if repeated:
            raise InputError(f"{self.folder}: two records are called {repeated[0]!r}")
        shapes = [index.shapes for index in indices if index.ids]
        if any(one != shapes[0] for one in shapes):
            raise InputError(f"{self.folder}: records have different arrays")
        reasons = [*skipped, *(reason for index in indices for reason in index.skip_reasons)]
        names = dict.fromkeys(name for index in indices for name in index.lengths)
        rows = {name: sum(index.rows(name) for index in indices) for name in names}
        manifest = {
            "counts": {"records": len(ids), **rows, "skipped": len(reasons)},
            "shards": list(shards),
            **facts,
            "key": self.key,
            "skipped": reasons,
        }
        write_json(self.folder / MANIFEST, manifest)

    def _numbers(self) -> list[int]:
        matches = (_SHARD_FILE.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in matches if match is not None)

    def _index(self, number: int) -> ShardIndex:
        index = read_index(shard_file(self.folder, number))
        differing = difference(index.key, self.key, "key")
        if differing:
            raise InputError(f"{self.folder}: contains a store with other settings ({differing})")
        return index


def _save(path: Path, arrays: Mapping[str, np.ndarray], metadata: dict[str, str]) -> None:
    with renamed(path, synced=True) as partial:
        partial.touch()
        mode = partial.stat().st_mode
        save_file(dict(arrays), partial, metadata)
        partial.chmod(mode)  # safetensors writes files that only their owner can read


# -- reading -----------------------------------------------------------------------------------------------------------


class ShardStore:
    """`store[id]` gives a record; its arrays are read when it is accessed, from files that each process maps."""

    def __init__(self, folder: str | Path, noun: str = "record") -> None:
        """A folder that a `ShardWriter` has closed; `noun` is the word for a record in messages."""
        self.folder = Path(folder)
        self.noun = noun
        path = self.folder / MANIFEST
        if not path.is_file():
            raise InputError(f"{folder}: not a complete store; repeat the command that writes it")
        self.manifest = read_object(path)
        with convert_errors(f"{path}: not the manifest of a store"):
            self.files = [shard_file(self.folder, shard) for shard in self.manifest["shards"]]
        self.indices = [read_index(file) for file in self.files]
        self.ids = [name for index in self.indices for name in index.ids]
        self.shapes = next((index.shapes for index in self.indices if index.ids), {})
        self._starts = list(accumulate((len(index.ids) for index in self.indices), initial=0))
        self._ends = [_ends(index) for index in self.indices]
        self._file = lru_cache(OPEN_FILES)(_open)

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardStore, (self.folder, self.noun)

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __contains__(self, record_id: object) -> bool:
        return isinstance(record_id, str) and normalize_unicode(record_id) in self._numbers

    def __getitem__(self, record_id: str) -> Any:
        """A record; raises InputError if no record has this id."""
        return self.record_at(self.index_of(record_id))

    def record_at(self, number: int) -> Record:
        """The record at a position in `ids`."""
        return Record(self.ids[number], self.arrays(number), self.facts(number))

    def index_of(self, record_id: str) -> int:
        """The position of an id in `ids`; raises InputError if it is not there."""
        number = self._numbers.get(normalize_unicode(record_id))
        if number is None:
            raise InputError(f"{self.folder}: no {self.noun} {record_id!r} among {len(self)}")
        return number

    def arrays(self, number: int, without: str = "") -> dict[str, np.ndarray]:
        """A record's arrays by name, except one, in memory of their own."""
        shard, place = self._locate(number)
        read: dict[str, Any] = {}
        for name, lengths in self.indices[shard].lengths.items():
            if name == without:
                continue
            ends = self._ends[shard][name]
            rows = self._rows(shard, name, ends[place], ends[place + 1])
            read[name] = rows[0] if lengths is None else rows
        return read

    def rows(self, number: int, name: str, start: int, stop: int) -> np.ndarray:
        """Rows of one array of a record, from `start` to `stop`."""
        shard, place = self._locate(number)
        first = self._ends[shard][name][place]
        return self._rows(shard, name, first + start, first + stop)

    def facts(self, number: int) -> dict[str, Any]:
        """A record's facts."""
        shard, place = self._locate(number)
        facts = self.indices[shard].facts
        return facts[place] if facts else {}

    def length(self, number: int, name: str) -> int:
        """The length of a record's array along the first axis, from the index alone."""
        shard, place = self._locate(number)
        ends = self._ends[shard][name]
        return int(ends[place + 1] - ends[place])

    @cached_property
    def _numbers(self) -> dict[str, int]:
        numbers = reversed(range(len(self.ids)))
        return {normalize_unicode(self.ids[number]): number for number in numbers}

    def _rows(self, shard: int, name: str, start: int, stop: int) -> np.ndarray:
        file = self._file(self.files[shard])
        if start < stop:
            rows: np.ndarray = file.get_slice(name)[int(start) : int(stop)]
        elif self._ends[shard][name][-1]:
            rows = file.get_slice(name)[0:0]
        else:  # which safetensors does not slice
            rows = file.get_tensor(name)
        return rows

    def _locate(self, number: int) -> tuple[int, int]:
        shard = bisect_right(self._starts, number) - 1
        return shard, number - self._starts[shard]


def _ends(index: ShardIndex) -> dict[str, np.ndarray]:
    """By array name: the first row of each record, and the end, (records + 1,)."""
    ones = [1] * len(index.ids)
    return {
        name: np.cumsum([0, *(ones if lengths is None else lengths)])
        for name, lengths in index.lengths.items()
    }
