"""A ragged store on disk: records of named arrays in memory-mapped shards with random access.

It never uses pickles.

A store is a folder. Shard K holds a file `NAME-K.npy` for every array name: the arrays of its
records, concatenated along the first axis. `index-K.json`, written last, holds the rows of each
record and the SHA-256 of every file. `manifest.json` completes the store. Text tokens, teacher
features and image regions are stored in this format.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import re
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.errors import (
    InputError,
    convert_errors,
    count_suffix,
    first_line,
    printable,
    raise_first,
)
from groundling.data.images import normalize_unicode
from groundling.runs.folder import (
    difference,
    disk_errors,
    json_text,
    read_object,
    refuse_link,
    write_json,
)
from groundling.runs.hashing import sha256_of
from groundling.runs.progress import Progress

FORMAT = 2
"""Version of the format of indices and manifests."""
LOCK = "lock"
"""Name of the file that a run locks while it adds records."""
OPEN_FILES = 512
"""Minimum number of memory-mapped files that a store keeps open.

Each uses a file handle of the process.
"""
MOST_OPEN = 1 << 16
"""Number of file handles that a process requests from the system."""
BLOCK = 1 << 22
"""Number of values checked at a time, which bounds the memory for a large shard."""

Facts = Mapping[str, Any]
"""JSON values, by name."""

_ARRAY_NAME = re.compile(r"[a-z][a-z0-9_]*")
_INDEX_FILE = re.compile(r"index-(\d{5,})\.json")


@dataclass(frozen=True)
class Record:
    """One entry of a store."""

    id: str
    """Unique in its store."""
    arrays: Mapping[str, np.ndarray]
    """Arrays by name: (L, ...).

    L may be 0 and may differ between arrays and records; the other dimensions may not.
    """
    facts: Facts = field(default_factory=dict)
    """Small JSON facts about this record, which readers keep in memory."""


@dataclass(frozen=True)
class ColumnInfo:
    """Type, shape and rows of one named array in one shard."""

    dtype: str
    """NumPy's type name with byte order, e.g. `<f2`."""
    shape: tuple[int, ...]
    """Shape of one row."""
    rows: int
    """Number of rows in the file."""
    sha256: str = ""
    """SHA-256 of the file; empty if not recorded."""

    @property
    def form(self) -> str:
        """Type and shape of a row, in words; equal in all shards of a store."""
        return f"{np.dtype(self.dtype).name} {self.shape}"


@dataclass(frozen=True)
class ShardIndex:
    """The contents of a shard, without its numbers."""

    ids: list[str]
    """Ids of its records, in order."""
    lengths: dict[str, list[int]]
    """By array name: the length of each record's array along the first axis."""
    columns: dict[str, ColumnInfo]
    """The columns by array name; empty if the shard has no records."""
    facts: list[dict[str, Any]]
    """Facts of each record; empty if no record has any."""
    skip_reasons: list[str]
    """A reason for each record that was skipped."""
    key: dict[str, Any]
    """Everything that the contents depend on; see `ShardWriter`."""


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


def shard_file(folder: Path, name: str, number: int) -> Path:
    """The file of a shard's array, or of its `index`."""
    ending = "json" if name == "index" else "npy"
    return folder / f"{name}-{number:05}.{ending}"


# -- writing -----------------------------------------------------------------------------------------------------------


class ShardWriter:
    """Writes a store shard by shard; a shard is complete when its index exists, so a
    killed run loses at most one.

    Several processes may write to one store, each its own shards.
    """

    def __init__(
        self, folder: str | Path, key: Facts | None = None, process: ProcessRank | None = None
    ) -> None:
        """Start a store in `folder`, or resume one.

        `key` is everything that the contents depend on (checkpoint, preprocessing, hashes
        of inputs), as JSON. `process` is this process's rank. Raises InputError if the folder
        has shards with another key.
        """
        self.folder = Path(folder)
        self.key: dict[str, Any] = json.loads(json_text(key or {}))
        self.process = process or ProcessRank()
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        written = self._numbers()
        if written:
            self._require_key(shard_file(self.folder, "index", written[0]))

    def is_complete(self, number: int) -> bool:
        """Whether a shard is complete."""
        return shard_file(self.folder, "index", number).exists()

    def pending(self, shards: int) -> Iterator[int]:
        """The numbers of this process's incomplete shards, among `shards`."""
        for number in self.process.shard_numbers(shards):
            if not self.is_complete(number):
                yield number

    def write(self, number: int, records: Sequence[Record], skipped: Iterable[str] = ()) -> None:
        """Write one shard atomically; `skipped` gives a reason for each skipped record.

        Raises InputError if records differ in their arrays, or if an id occurs twice.
        """
        forms = self._forms(records)
        columns = {}
        for name, (dtype, shape) in forms.items():
            arrays = [np.ascontiguousarray(record.arrays[name], dtype) for record in records]
            rows = sum(len(array) for array in arrays)
            header = io.BytesIO()
            header_fields = {"descr": dtype.str, "fortran_order": False, "shape": (rows, *shape)}
            np.lib.format.write_array_header_1_0(header, header_fields)
            chunks = [memoryview(header.getvalue()), *(array.data for array in arrays)]
            sha256 = _write(shard_file(self.folder, name, number), chunks)
            columns[name] = ColumnInfo(dtype.str, shape, rows, sha256)
        facts = [dict(record.facts) for record in records]
        index = ShardIndex(
            ids=[record.id for record in records],
            lengths={name: [len(record.arrays[name]) for record in records] for name in forms},
            columns=columns,
            facts=facts if any(facts) else [],
            skip_reasons=list(skipped),
            key=self.key,
        )
        text = json_text({"format": FORMAT, **asdict(index)}, ensure_ascii=False)
        _write(shard_file(self.folder, "index", number), [memoryview(text.encode())])

    def close(
        self,
        facts: Facts,
        skipped: Sequence[str] = (),
        summary: Callable[[Sequence[ShardIndex]], Facts] | None = None,
        barrier: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        """Write the manifest, and return its contents.

        Args:
            facts: how the records were made, as JSON for the manifest.
            skipped: reasons for skipped records that are in no shard.
            summary: further entries of the manifest, computed from all shards'
                indices, e.g. other `counts`.
            barrier: waits for all processes of the run, each of which must call
                this; the first one writes.

        Raises InputError if a shard is missing, has another key or other arrays,
        or if an id occurs twice.
        """
        if barrier is not None:
            barrier()
        if self.process.rank == 0:
            self._write_manifest(facts, skipped, summary)
        if barrier is not None:
            barrier()
        return read_object(self.folder / "manifest.json")

    def complete_shards(self) -> dict[int, ShardIndex]:
        """The indices of complete shards, by number; raises InputError if one has another key."""
        return {n: self._require_key(shard_file(self.folder, "index", n)) for n in self._numbers()}

    def indices(self) -> list[ShardIndex]:
        """The indices of all shards; raises InputError if one is missing or has another key."""
        numbers = self._numbers()
        for place, number in enumerate(numbers):
            if place != number:
                path = shard_file(self.folder, "index", place)
                raise InputError(
                    f"{path}: this shard is missing; resume the run that writes the store"
                )
        return [self._require_key(shard_file(self.folder, "index", at)) for at in numbers]

    def _write_manifest(
        self,
        facts: Facts,
        skipped: Sequence[str],
        summary: Callable[[Sequence[ShardIndex]], Facts] | None,
    ) -> None:
        indices = self.indices()
        reasons = [*skipped, *(reason for index in indices for reason in index.skip_reasons)]
        more = summary(indices) if summary is not None else {}
        rows = total_rows(indices, self.folder)
        raise_first(duplicate_ids(indices, self.folder))
        hashes = {}
        for number, index in enumerate(indices):
            for name, column in index.columns.items():
                hashes[shard_file(self.folder, name, number).name] = column.sha256
            path = shard_file(self.folder, "index", number)
            hashes[path.name] = sha256_of(path)
        records = sum(len(index.ids) for index in indices)
        manifest = {
            "format": FORMAT,
            "counts": {"records": records, **rows, "skipped": len(reasons)},
            "shards": len(indices),
            "records": records,
            "rows": rows,
            **facts,
            **more,
            "key": self.key,
            "skipped": reasons,
            "sha256": hashes,
        }
        write_json(self.folder / "manifest.json", manifest)

    def _numbers(self) -> list[int]:
        matches = (_INDEX_FILE.fullmatch(path.name) for path in self.folder.glob("index-*.json"))
        return sorted(int(match[1]) for match in matches if match is not None)

    def _require_key(self, path: Path) -> ShardIndex:
        """A shard's index; raises InputError if the shard's key differs from this writer's."""
        index = read_index(path)
        differing = difference(index.key, self.key, "key")
        if differing:
            raise InputError(
                f"{self.folder}: contains a store with other settings ({differing}); choose another folder"
            )
        return index

    def _forms(self, records: Sequence[Record]) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """By array name: type and shape of a row, which must be equal for all records of a shard."""
        names = set()
        forms: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        for record in records:
            if record.id in names:
                raise InputError(f"{self.folder}: two records are called {record.id!r}")
            names.add(record.id)
            record_forms = {name: self._form(record, name) for name in record.arrays}
            if not forms:
                forms = record_forms
            if record_forms != forms:
                raise InputError(
                    f"{self.folder}: records differ: {records[0].id!r} has {_words(forms)}, "
                    f"{record.id!r} {_words(record_forms)}; expected arrays of one type and shape"
                )
        return forms

    def _form(self, record: Record, name: str) -> tuple[np.dtype, tuple[int, ...]]:
        array = record.arrays[name]
        dtype = array.dtype
        where = f"{self.folder}: array {name!r} of {record.id!r}"
        if not _ARRAY_NAME.fullmatch(name) or name == "index":
            raise InputError(f"{where}: names are a-z, 0-9 and _, and not index")
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            raise InputError(f"{where} holds {dtype}, expected numbers of at most 8 bytes, or bool")
        if array.ndim == 0:
            raise InputError(f"{where} has no first axis")
        return dtype.newbyteorder("<"), array.shape[1:]


def _words(forms: Mapping[str, tuple[np.dtype, tuple[int, ...]]]) -> str:
    return ", ".join(f"{name} {dtype.name} {shape}" for name, (dtype, shape) in forms.items())


def _write(path: Path, chunks: Iterable[memoryview]) -> str:
    """Write a file atomically; returns its SHA-256.

    The data is flushed to disk before the rename, so after a power failure every file
    that an index names exists.
    """
    digest = hashlib.sha256()
    partial = refuse_link(path.with_name(path.name + ".partial"))
    with disk_errors(path):
        with partial.open("wb") as stream:
            for chunk in chunks:
                stream.write(chunk)
                digest.update(chunk)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    return digest.hexdigest()


# -- reading -----------------------------------------------------------------------------------------------------------


def read_index(path: Path) -> ShardIndex:
    """A shard's index, with every field checked.

    Raises InputError if it is damaged or another kind of file.
    """
    content = read_object(path)
    try:
        columns = {name: _column(about) for name, about in content["columns"].items()}
        index = ShardIndex(
            ids=content["ids"],
            lengths=content["lengths"],
            columns=columns,
            facts=content["facts"],
            skip_reasons=content["skip_reasons"],
            key=content["key"],
        )
        _check(index)
    except (KeyError, TypeError, ValueError, AttributeError, SyntaxError) as error:
        reason = f"no field {error}" if isinstance(error, KeyError) else first_line(error)
        raise InputError(
            f"{path}: not the index of a shard ({reason}); make the store again"
        ) from None
    return index


def _column(about: Mapping[str, Any]) -> ColumnInfo:
    dtype = np.dtype(about["dtype"])
    if dtype.kind not in "biuf":
        raise ValueError(f"dtype {dtype}")
    shape = tuple(_count(side) for side in about["shape"])
    return ColumnInfo(dtype.str, shape, _count(about["rows"]), str(about["sha256"]))


def _count(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _check(index: ShardIndex) -> None:
    """Raises ValueError or TypeError, with a reason, if fields of an index
    have wrong types or disagree.
    """
    for name in ("ids", "facts", "skip_reasons"):
        if not isinstance(getattr(index, name), list):
            raise TypeError(f"{name} is not a list")
    if not all(isinstance(text, str) for text in [*index.ids, *index.skip_reasons]):
        raise TypeError("an id or a reason is not a text")
    if not isinstance(index.key, dict) or not all(isinstance(one, dict) for one in index.facts):
        raise TypeError("key or facts are not objects")
    if index.facts and len(index.facts) != len(index.ids):
        raise ValueError(f"{len(index.facts)} facts for {len(index.ids)} ids")
    if index.lengths.keys() != index.columns.keys():
        raise ValueError("lengths are not those of the columns")
    for name, lengths in index.lengths.items():
        if not _ARRAY_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name of an array")
        if len(lengths) != len(index.ids):
            raise ValueError(f"{len(lengths)} lengths of {name} for {len(index.ids)} ids")
        rows = sum(_count(length) for length in lengths)
        if rows != index.columns[name].rows:
            raise ValueError(f"{name} has {index.columns[name].rows} rows, its records {rows}")


def total_rows(indices: Iterable[ShardIndex], folder: Path) -> dict[str, int]:
    """Rows of each array over all shards.

    Raises InputError if shards hold arrays of different types or shapes.
    """
    forms: dict[str, str] = {}
    first = 0
    rows: Counter[str] = Counter()
    for number, index in enumerate(indices):
        if not index.ids:  # all its records were skipped
            continue
        theirs = {name: column.form for name, column in index.columns.items()}
        if not forms:
            forms = theirs
            first = number
        differing = difference(forms, theirs, "arrays")
        if differing:
            path = shard_file(folder, "index", number)
            raise InputError(f"{path}: type or shape differs from shard {first} ({differing})")
        rows.update({name: column.rows for name, column in index.columns.items()})
    return {name: rows[name] for name in forms}


@contextmanager
def lock_folder(folder: Path, doing: str) -> Iterator[None]:
    """Context manager: only one run at a time writes shards into a folder.

    Two runs would overwrite each other's shards.

    Waits for another run, which a note says is `doing` something; the system releases
    the lock of a killed run.
    """
    lock = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(refuse_link(folder / LOCK), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note = f"note: {folder}: waiting for another run, which is {doing}"
            print(printable(note), file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:
        pass  # a read-only folder, or a disk without locks
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def open_file_limit() -> int:
    """How many files of a store may stay open, after the limit is raised as
    far as the system allows.

    The default is 1,024 for a process; a tokenised text of a gigabyte or more keeps
    several hundred files open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MOST_OPEN if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN)
    if soft != resource.RLIM_INFINITY and soft < target:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        except (OSError, ValueError):
            return OPEN_FILES
    return max(OPEN_FILES, target // 8)


def duplicate_ids(indices: Iterable[ShardIndex], folder: Path) -> list[str]:
    """One line for each id that occurs in two shards."""
    seen: dict[str, int] = {}
    faults = []
    for number, index in enumerate(indices):
        for name in index.ids:
            before = seen.setdefault(name, number)
            if before != number:
                faults.append(f"{folder}: {name!r} is in shard {before} and in shard {number}")
    return faults


class ShardStore:
    """`store[id]` gives a record; nothing is read before it is accessed.

    Worker processes map the files themselves.
    """

    def __init__(
        self,
        folder: str | Path,
        noun: str = "record",
        index_reader: Callable[[Path], ShardIndex] = read_index,
    ) -> None:
        """A folder that a `ShardWriter` has closed.

        `noun` is the word for a record in messages. `index_reader` reads an index (and may check more of
        it). Raises InputError if the store is incomplete, damaged or another kind of folder.
        """
        self.folder = Path(folder)
        self.noun = noun
        self._index_reader = index_reader
        path = self.folder / "manifest.json"
        if not path.is_file():
            raise InputError(
                f"{folder}: not a complete store; repeat the command that writes it, which then resumes"
            )
        self.manifest = read_object(path)
        shards = self.manifest.get("shards")
        if not isinstance(shards, int) or not isinstance(self.manifest.get("counts"), dict):
            raise InputError(f"{path}: not the manifest of a store (shards or counts are missing)")
        if self.manifest.get("format") != FORMAT:
            raise InputError(
                f"{path}: format {self.manifest.get('format')!r}, expected {FORMAT}; "
                "a newer version of groundling wrote it"
            )
        self.indices = [
            index_reader(shard_file(self.folder, "index", shard)) for shard in range(shards)
        ]
        self.rows = total_rows(self.indices, self.folder)
        self.columns: dict[str, ColumnInfo] = next((i.columns for i in self.indices if i.ids), {})
        self.ids = [name for index in self.indices for name in index.ids]
        starts = np.cumsum([0, *(len(index.ids) for index in self.indices)])
        self._starts = starts[:-1]
        self._ends = [_ends(index.lengths) for index in self.indices]
        self._arrays = lru_cache(max(1, open_file_limit() // max(1, len(self.columns))))(self._open)

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardStore, (self.folder, self.noun, self._index_reader)

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __contains__(self, record_id: object) -> bool:
        return isinstance(record_id, str) and normalize_unicode(record_id) in self._numbers

    def __getitem__(self, record_id: str) -> Record:
        """A record, with its arrays copied into memory; raises InputError if no record has this id."""
        return self.record_at(self.index_of(record_id))

    def record_at(self, number: int) -> Record:
        """The record at a position in `ids`."""
        arrays = {name: np.array(view) for name, view in self.array_views(number).items()}
        return Record(self.ids[number], arrays, self.facts(number))

    def index_of(self, record_id: str) -> int:
        """The position of an id in `ids`; raises InputError if it is not there."""
        number = self._numbers.get(normalize_unicode(record_id))
        if number is None:
            first = f"the first is {self.ids[0]!r}" if self.ids else "the store is empty"
            raise InputError(
                f"{self.folder}: no {self.noun} {record_id!r} among {len(self)}; {first}"
            )
        return number

    def array_views(self, number: int) -> dict[str, np.ndarray]:
        """A record's arrays as read-only views of the mapped files.

        Copy them soon, because they keep files open.
        """
        shard, place = self._locate(number)
        views = {}
        for name, array in self._arrays(shard).items():
            ends = self._ends[shard][name]
            views[name] = array[ends[place] : ends[place + 1]]
        return views

    def facts(self, number: int) -> dict[str, Any]:
        """A record's facts."""
        shard, place = self._locate(number)
        facts = self.indices[shard].facts
        return facts[place] if facts else {}

    def length(self, number: int, name: str) -> int:
        """The length of a record's array along the first axis, from the index alone."""
        shard, place = self._locate(number)
        return self.indices[shard].lengths[name][place]

    def close_files(self) -> None:
        """Unmap all files, whose pages count as this process's memory.

        The next access maps them again.
        """
        self._arrays.cache_clear()

    def shard_arrays(self, shard: int) -> dict[str, np.ndarray]:
        """All rows of a shard by array name, mapped.

        Raises InputError if a file is damaged or has another type or shape.
        """
        return self._arrays(shard)

    def record_of(self, shard: int, name: str, row: int) -> str:
        """The id of the record that a row of a shard's array belongs to."""
        place = int(np.searchsorted(self._ends[shard][name], row, side="right")) - 1
        return self.indices[shard].ids[place]

    def faults(self, verify: bool = False) -> list[str]:
        """One line for every fault of the files.

        Faults are shards that are damaged, lack rows or hold NaN or infinity, counts that differ
        from the manifest's, and ids that occur twice; with `verify`, also files whose SHA-256
        differs from the recorded one.
        """
        faults = []
        for shard in range(len(self.indices)):
            try:
                faults += self._not_finite(shard)
            except InputError as error:
                faults.append(str(error))
            if verify:
                told = {fault.partition(": ")[0] for fault in faults}
                unlike = changed_files(self.folder, shard, self.indices[shard], self.manifest)
                faults += [line for line in unlike if line.partition(": ")[0] not in told]
        counted: dict[str, object] = {"records": len(self), "rows": self.rows}
        for name, count in counted.items():
            recorded = self.manifest.get(name)
            if recorded != count:
                path = self.folder / "manifest.json"
                faults.append(f"{path}: counts {name} as {recorded}, but the indices count {count}")
        return faults + duplicate_ids(self.indices, self.folder)[:1]

    def verify_hashes(self) -> None:
        """Raises InputError if a file's SHA-256 differs from the recorded one."""
        expected: dict[Path, str] = {}
        for shard, index in enumerate(self.indices):
            expected |= _recorded(self.folder, shard, index, self.manifest)
        files = [file for file, sha256 in expected.items() if sha256]
        if len(files) < len(expected):
            unknown = next(file for file, sha256 in expected.items() if not sha256)
            raise InputError(
                f"{self.folder / 'manifest.json'}: lacks the SHA-256 of {unknown.name}; copy the store again"
            )
        name = f"comparing the files of {self.folder}"
        progress = Progress(name, len(files), "file", reads_inputs=True)
        for file, sha256 in zip(files, map(sha256_of, files), strict=True):
            if sha256 != expected[file]:
                raise InputError(
                    f"{file}: changed since it was written (SHA-256); copy the store again, or make it again"
                )
            progress.step()
        progress.close()

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {
            normalize_unicode(name): number for number, name in reversed(list(enumerate(self.ids)))
        }

    def _locate(self, number: int) -> tuple[int, int]:
        """The shard of a record, and the record's position in it."""
        if not 0 <= number < len(self.ids):
            raise IndexError(f"{self.folder}: no {self.noun} number {number} among {len(self)}")
        shard = int(self._starts.searchsorted(number, side="right")) - 1
        return shard, number - int(self._starts[shard])

    def _open(self, shard: int) -> dict[str, np.ndarray]:
        arrays = {}
        for name, column in self.indices[shard].columns.items():
            path = shard_file(self.folder, name, shard)
            # NumPy parses a header as Python code, so many exceptions are possible.
            with convert_errors(
                f"{path}: damaged or missing", advice="; make the store again", errors=Exception
            ):
                mapped = np.lib.format.open_memmap(path, mode="r")
            if len(mapped.shape) == 0 or len(mapped) != column.rows:
                raise InputError(
                    f"{path}: {mapped.shape} numbers, but the index counts {column.rows} rows"
                )
            if mapped.dtype.str != column.dtype or mapped.shape[1:] != column.shape:
                raise InputError(
                    f"{path}: {mapped.dtype.name} {mapped.shape[1:]}, but the index says {column.form}"
                )
            arrays[name] = np.asarray(mapped)  # slicing a plain array takes half the time
        return arrays

    def _not_finite(self, shard: int) -> list[str]:
        faults = []
        for name, array in self._arrays(shard).items():
            wrong = nonfinite_rows(array)
            if len(wrong):
                names = list(dict.fromkeys(self.record_of(shard, name, row) for row in wrong))
                path = shard_file(self.folder, name, shard)
                what = f"{self.noun} {names[0]!r}: a number is not finite"
                faults.append(f"{path}: {what}{count_suffix(names)}")
        return faults


def changed_files(folder: Path, shard: int, index: ShardIndex, manifest: Facts) -> list[str]:
    """One line for each file of a shard that is missing, or whose SHA-256
    differs from the recorded one.
    """
    faults = []
    for path, sha256 in _recorded(folder, shard, index, manifest).items():
        try:
            if sha256 and sha256_of(path) != sha256:
                faults.append(f"{path}: changed since it was written (SHA-256)")
        except InputError as error:
            faults.append(str(error))
    return faults


def _recorded(folder: Path, shard: int, index: ShardIndex, manifest: Facts) -> dict[Path, str]:
    """The recorded SHA-256 of every file of a shard; empty where none was recorded."""
    recorded = {
        shard_file(folder, name, shard): column.sha256 for name, column in index.columns.items()
    }
    path = shard_file(folder, "index", shard)
    hashes = manifest.get("sha256")
    recorded[path] = str(hashes.get(path.name, "")) if isinstance(hashes, dict) else ""
    return recorded


def nonfinite_rows(array: np.ndarray) -> np.ndarray:
    """The rows (K,) of an array (N, ...) that contain NaN or infinity."""
    if array.dtype.kind != "f" or not array.size:
        return np.zeros(0, np.int64)
    step = max(1, BLOCK * len(array) // array.size)
    axes = tuple(range(1, array.ndim))
    wrong = [
        start + np.flatnonzero(~np.isfinite(array[start : start + step]).all(axes))
        for start in range(0, len(array), step)
    ]
    return np.concatenate(wrong)


def _ends(lengths: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """By array name: the first row of each record, and the end, (records + 1,).

    Equal arrays are shared.
    """
    made: dict[tuple[int, ...], np.ndarray] = {}
    ends = {}
    for name, counts in lengths.items():
        same = tuple(counts)
        if same not in made:
            made[same] = np.cumsum([0, *counts])
        ends[name] = made[same]
    return ends
