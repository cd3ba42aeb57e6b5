"""Vectors of images and texts that were computed elsewhere: files of numbers, each with the ids of its rows.

A folder holds `images*` and `texts*` (`.npy` or `.safetensors`), each beside a file of its rows' ids with the same name
before the ending: `.txt` (an id per line), `.jsonl` or `.parquet`. Or it is clip-retrieval's: `img_emb/img_emb_0.npy`,
`text_emb/text_emb_0.npy` and `metadata/metadata_0.parquet`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from safetensors import safe_open

from groundling.core.errors import InputError, convert_read_errors, count_suffix, prefix_errors
from groundling.data.corpora import batched
from groundling.data.hashed_names import DIGEST, digests, find, mapped_arrays
from groundling.data.images import image_id
from groundling.data.tables import (
    PARQUET,
    iterate_lines,
    parquet_rows,
    read_header,
    read_rows,
    row_texts,
)
from groundling.runs.folder import RESULT, SETTINGS, file_state

Modality = Literal["image", "text"]


class Layout(NamedTuple):
    """Where the vectors of a modality lie in a folder."""

    files: str
    """How the names of their files begin."""
    folder: str
    """clip-retrieval's folder of them."""
    columns: tuple[str, ...]
    """Possible names of the column of ids, in a jsonl or parquet file."""


LAYOUTS: dict[Modality, Layout] = {
    "image": Layout("images", "img_emb", ("image", "image_path", "file_name", "id", "key")),
    "text": Layout("texts", "text_emb", ("text", "caption")),
}
ENDINGS = (".npy", ".safetensors")
"""Endings of files of vectors."""
FLOATS = ("float16", "float32", "float64", "F16", "F32", "F64")
"""Types of numbers, by the names of both formats."""
ID_ENDINGS = (".txt", ".jsonl", PARQUET)
"""Endings of files of ids."""
TOGETHER = 1 << 16
"""Ids that are hashed together."""
SAME_TEXT = 0.999
"""Cosine above which two vectors are of the same text."""
CHECKED = 1 << 12
"""Vectors that are checked together."""
INDEX = np.dtype([("id", DIGEST), ("row", "<i8")])
"""The hash of an id, and its row among those of all files."""


def text_key(text: str) -> str:
    """A text as an id: without superfluous spaces."""
    return " ".join(text.split())


def last_part(name: str) -> str:
    """The last part of an image's path."""
    return name.rpartition("/")[2]


def last_parts(name: str) -> str:
    """The last part of an image's path with its folder."""
    return "/".join(name.split("/")[-2:])


@dataclass(frozen=True)
class VectorFile:
    """A file of vectors, mapped into memory, and the file of their ids."""

    path: Path
    ids: Path
    values: Any
    """(n, E), read by slices: a mapped array, or a slice of safetensors."""
    rows: int
    width: int


class VectorTable:
    """The vectors of a folder's images or texts, found by id, in an index of 24 bytes for each."""

    def __init__(self, folder: str | Path, modality: Modality) -> None:
        """Raises InputError for a folder without vectors of this modality, with files that do not fit each other, or
        whose `embed` was refused or killed.
        """
        self.folder = Path(folder)
        self.modality = modality
        if (self.folder / SETTINGS).exists() and not (self.folder / RESULT).exists():
            raise InputError(
                f"{folder}: `embed` has not finished there; run the same command again"
            )
        layout = LAYOUTS[modality]
        places = [*self.folder.glob(f"{layout.files}*"), *self.folder.glob(f"{layout.folder}/*")]
        paths = sorted(path for path in places if path.suffix in ENDINGS)
        if not paths:
            raise InputError(f"{folder}: no vectors of {modality}s ({layout.files}*.npy)")
        self.files = [_open(path) for path in paths]
        self.width = self.files[0].width
        for file in self.files:
            if file.width != self.width:
                raise InputError(
                    f"{file.path}: {file.width} numbers a row, but {self.files[0].path} has {self.width}"
                )
        self.starts = [0, *accumulate(file.rows for file in self.files)]
        self._indexes: dict[Callable[[str], str], np.ndarray] = {}
        self._readers = np.zeros(0, DIGEST)
        """By row, the hash of an image with a folder that is found without it or by its last one."""

    def __len__(self) -> int:
        return self.starts[-1]

    def _index(self, shorten: Callable[[str], str]) -> np.ndarray:
        """Hashes of all ids, shortened, in order, and the row of each; raises InputError for two vectors of an id.

        The first run makes the index; that of the ids as they are also reads all vectors, and refuses one that is not
        finite, or zero.
        """
        if shorten not in self._indexes:
            identity = f"{self.folder.absolute()}|{self.modality}|{shorten.__name__}|{self.state()}"
            (self._indexes[shorten],) = mapped_arrays(
                "vectors", identity, ["index"], lambda: [self._indexed(shorten)]
            )
        return self._indexes[shorten]

    def _find(self, shorten: Callable[[str], str], keys: Sequence[str]) -> np.ndarray:
        """The row of each key; -1 without one."""
        index = self._index(shorten)
        places = find(index["id"], keys)
        rows: np.ndarray = np.where(places < 0, -1, index["row"][places])
        return rows

    def _indexed(self, shorten: Callable[[str], str]) -> np.ndarray:
        index = np.empty(len(self), INDEX)
        for file, start in zip(self.files, self.starts, strict=False):
            names = (shorten(self._key(name)) for name in _read_ids(file, self.modality))
            if shorten is str:  # the other indexes are of the same vectors
                self._check_values(file, start)
            count = 0
            for some in batched(names, TOGETHER):
                kept = digests(some[: file.rows - count])
                index["id"][start + count :][: len(kept)] = kept
                count += len(some)
            if count != file.rows:
                raise InputError(
                    f"{file.ids}: {count:,} ids, but {file.path} has {file.rows:,} rows"
                )
        index["row"] = np.arange(len(self))
        index = index[np.argsort(index["id"], kind="stable")]
        for place in np.flatnonzero(index["id"][1:] == index["id"][:-1]).tolist():
            one, other = index["row"][place : place + 2].tolist()
            if not self._are_of_one(one, other):
                raise InputError(
                    f"{self._place(other)} has the id of {self._place(one)}, but not its vector"
                )
        return index

    def _are_of_one(self, one: int, other: int) -> bool:
        """Whether two vectors may be those of one image or text; a text's differ by rounding between batches."""
        (left,), (right,) = self.read([one]), self.read([other])
        if self.modality == "image":
            return np.array_equal(left, right, equal_nan=True)
        sizes = np.linalg.norm(left) * np.linalg.norm(right)
        return bool(left @ right > SAME_TEXT * sizes) or np.array_equal(left, right, equal_nan=True)

    def ids(self) -> list[str]:
        """The ids of all vectors, each once, in order."""
        names = (self._key(name) for file in self.files for name in _read_ids(file, self.modality))
        return sorted(set(names))

    def _check_values(self, file: VectorFile, start: int) -> None:
        for first in range(0, file.rows, CHECKED):
            last = min(first + CHECKED, file.rows)
            with convert_read_errors(file.path), np.errstate(over="ignore"):
                values = file.values[first:last].astype(np.float32)
                lengths = np.square(values).sum(1)
            # A file that was made at its full size, and never filled, holds zeros.
            is_sound = np.isfinite(lengths) & (lengths > 0)
            if not is_sound.all():
                place = self._place(start + first + int(is_sound.argmin()))
                raise InputError(f"{place} has no finite length, or is zero throughout")

    def _key(self, name: str) -> str:
        return image_id(name) if self.modality == "image" else text_key(name)

    def rows_of(self, names: Sequence[str]) -> np.ndarray:
        """The row of each image or text; raises InputError if one has no vector.

        An image is found by its path, or else by its name and folder, or by its name if one of the two has no folder.
        """
        keys = [self._key(name) for name in names]
        rows = self._find(str, keys)
        elsewhere = np.flatnonzero(rows < 0) if self.modality == "image" else np.zeros(0, int)
        if len(elsewhere):
            rows[elsewhere] = self._rows_elsewhere([keys[place] for place in elsewhere.tolist()])
        missing = np.flatnonzero(rows < 0).tolist()
        if missing:
            first = f"{names[missing[0]]!r}{count_suffix(missing)}"
            advice = "; parts of a text that max_length cuts have none" * (self.modality == "text")
            raise InputError(f"{self.folder}: no vector of the {self.modality} {first}{advice}")
        return rows

    def _rows_elsewhere(self, keys: Sequence[str]) -> np.ndarray:
        rows = np.empty(len(keys), np.int64)
        has_folder = np.array(["/" in key for key in keys])
        if not has_folder.all():
            bare = [key for key in keys if "/" not in key]
            rows[~has_folder] = self._find(last_part, bare)
        if has_folder.any():
            # Not the name alone: train/1 is another image than val/1.
            placed = [key for key in keys if "/" in key]
            found = self._find(last_parts, [last_parts(key) for key in placed])
            without = self._find(str, [last_part(key) for key in placed])
            rows[has_folder] = np.where(found < 0, without, found)
            self._check_one_each(placed, rows[has_folder])
        return rows

    def _check_one_each(self, keys: Sequence[str], rows: np.ndarray) -> None:
        """Raises InputError for images in two folders that share a vector, because it has their name alone."""
        if not len(self._readers):
            self._readers = np.zeros(len(self), DIGEST)
        found = rows >= 0
        own, places = digests(keys)[found], rows[found]
        first = self._readers[places] == b""
        self._readers[places[first]] = own[first]
        shared = np.flatnonzero(self._readers[places] != own).tolist()
        if shared:
            name = [key for key, is_found in zip(keys, found, strict=True) if is_found][shared[0]]
            raise InputError(
                f"{self._place(int(places[shared[0]]))} would be the vector of {name!r} and of an image in another "
                "folder; its id needs the whole path"
            )

    def read(self, rows: Sequence[int]) -> np.ndarray:
        """Vectors (n, E) float32."""
        values = np.empty((len(rows), self.width), np.float32)
        for place, row in enumerate(rows):
            number = bisect_right(self.starts, row) - 1
            inside = row - self.starts[number]
            values[place] = self.files[number].values[inside : inside + 1][0]
        return values

    def _place(self, row: int) -> str:
        number = bisect_right(self.starts, row) - 1
        return f"{self.files[number].path}: row {row - self.starts[number]}"

    def key(self) -> list[Any]:
        """Name, size and time of each file, which identify the vectors and their ids, wherever they are."""
        return [[name, size, changed] for name, size, changed, _ in self.state()]

    def state(self) -> list[Any]:
        """What else identifies the files in this place, too: when they were put there."""
        paths = [path for file in self.files for path in (file.path, file.ids)]
        return [[path.name, *file_state(path)] for path in paths]


def _open(path: Path) -> VectorFile:
    with convert_read_errors(path):
        if path.suffix == ".npy":
            values: Any = np.load(path, mmap_mode="r", allow_pickle=False)
            shape = list(values.shape)
            kind = values.dtype.name
        else:
            file = safe_open(path, "numpy")
            names = sorted(file.keys())
            if len(names) != 1:
                raise InputError(f"{path}: expected one array, found {', '.join(names) or 'none'}")
            values = file.get_slice(names[0])
            shape = list(values.get_shape())
            kind = values.get_dtype()
    if len(shape) != 2 or not shape[1] or kind not in FLOATS:
        expected = "rows of numbers of 16, 32 or 64 bits (not bfloat16)"
        raise InputError(f"{path}: expected {expected}, found an array {shape} of {kind}")
    return VectorFile(path, _ids_beside(path), values, *shape)


def _ids_beside(path: Path) -> Path:
    number = re.search(r"\d+$", path.stem)
    metadata = path.parent.parent / "metadata" / f"metadata_{number[0] if number else ''}{PARQUET}"
    candidates = [*(path.with_suffix(ending) for ending in ID_ENDINGS), metadata]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise InputError(f"{path}: no file of ids beside it ({path.stem}{' or '.join(ID_ENDINGS)})")


def _read_ids(file: VectorFile, modality: Modality) -> Iterator[str]:
    if not file.rows:  # a shard none of whose downloads succeeded
        return
    if file.ids.suffix == ".txt":
        yield from iterate_lines(file.ids)
        return
    names = read_header(file.ids)
    known = [name for name in LAYOUTS[modality].columns if name in names]
    if not known:
        expected = ", ".join(LAYOUTS[modality].columns)
        raise InputError(f"{file.ids}: no column of {modality}s; expected one of {expected}")
    is_parquet = file.ids.suffix == PARQUET
    rows = parquet_rows(file.ids, known[:1]) if is_parquet else read_rows(file.ids, known[:1])
    for where, row in rows:
        with prefix_errors(where):
            (name,) = row_texts(row, known[:1])
        yield name
