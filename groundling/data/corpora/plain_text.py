"""Lines of plain text, read as they are asked for: files of any size, packed by gzip or Zstandard, and parquet."""

from __future__ import annotations

import gzip
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, Any, cast

from groundling.core.errors import InputError, first_line, reading

READ = 1 << 23
"""Bytes read at a time."""
LONGEST = 1 << 26
"""Bytes of a line from which on it is read as several, cut at blanks."""
ROWS = 4096
"""Rows of a parquet file read at a time."""
COLUMN = "text"
"""The column of a parquet file that is read; of a file with one column, that one."""
PACKED = (".gz", ".zst")
"""Endings of packed text."""
STRUCTURED = (".json", ".jsonl", ".csv", ".tsv", ".xml", ".tar", ".parquet")
"""Endings of files whose lines are no texts, before that of the packing."""
PARQUET = ".parquet"


def plain_lines(path: str | Path) -> Iterator[str]:
    """Non-empty lines of a text file, without the space around them; of a parquet file those of its texts.

    Lines end at newlines only (other separators occur inside real sentences). A byte-order mark is dropped.

    Raises:
        InputError: the file is missing, empty, damaged or not UTF-8; its lines end in carriage returns alone, which
            would make it one line; what it is packed with cannot be read here; or a parquet file has no texts.
    """
    path = Path(path)
    if path.suffix == PARQUET:
        texts = _texts_of(path)
        yield from (line.strip() for text in texts for line in text.split("\n") if line.strip())
        return
    if path.suffix in PACKED and Path(path.stem).suffix in STRUCTURED:
        raise InputError(f"{path}: of packed files those of plain text are read; unpack this one")
    empty = True
    for text in _decoded(path):
        for line in text.split("\n"):
            stripped = line.strip()
            if stripped:
                empty = False
                yield stripped
    if empty:
        raise InputError(f"{path}: the file is empty")


def _decoded(path: Path) -> Iterator[str]:
    """A file's text in parts, each of whole lines."""
    rest = b""
    before = 0
    first = True
    with _opened(path) as stream:
        while True:
            with _unpacking(path):
                read = stream.read(READ)
            end = read.rfind(b"\n") + 1
            if read and not end:
                rest += read
                if len(rest) < LONGEST:
                    continue
                # A file that is one line must not fill the memory; what is not cut at a blank goes on growing.
                read = rest
                rest = b""
                end = read.rfind(b" ") + 1
            raw, rest = rest + read[:end], read[end:]
            text = _utf8(raw.removeprefix(b"\xef\xbb\xbf") if first else raw, path, before)
            if before == 0 and not read and "\r" in text.rstrip("\r"):
                raise InputError(
                    f"{path}: lines end in carriage returns alone (old Mac); convert the file to newlines"
                )
            yield text
            if not read:
                return
            before += raw.count(b"\n")
            first = first and not raw


def _utf8(raw: bytes, path: Path, before: int) -> str:
    """Raises InputError naming the line, `before` of which stand before `raw`."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = before + raw.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: not UTF-8 (byte 0x{raw[error.start]:02x}); convert the file"
        ) from None


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with reading(path):
        stream = path.open("rb")
    with stream:
        if path.suffix == ".gz":
            yield cast(IO[bytes], gzip.GzipFile(fileobj=stream))
        elif path.suffix == ".zst":
            yield cast(IO[bytes], _Zstandard(stream, _optional("zstandard", path)))
        else:
            yield stream


@contextmanager
def _unpacking(path: Path) -> Iterator[None]:
    """Raises InputError for a file that is damaged, or not packed as its name says."""
    try:
        yield
    except Exception as error:  # gzip, zlib and zstandard each have their own
        advice = "copy it again, or give it the ending of what it is"
        raise InputError(f"{path}: cannot be read ({first_line(error)}); {advice}") from None


class _Zstandard:
    """What a file of Zstandard frames holds; the library's own reader takes a frame that is cut off for its end."""

    def __init__(self, stream: IO[bytes], library: ModuleType) -> None:
        self.stream = stream
        self.library = library
        self.frame: Any = None

    def read(self, size: int) -> bytes:
        """About as much as `size` packed bytes hold, nothing at the end; raises EOFError if it comes too early."""
        while packed := self.stream.read(size):
            if read := self._unpacked(packed):
                return read
        if self.frame is not None:
            raise EOFError("the file is cut off")
        return b""

    def _unpacked(self, packed: bytes) -> bytes:
        read = []
        while packed:
            if self.frame is None:
                self.frame = self.library.ZstdDecompressor().decompressobj()
            read.append(self.frame.decompress(packed))
            packed = b""
            if self.frame.eof:
                packed = self.frame.unused_data
                self.frame = None
        return b"".join(read)


def _optional(name: str, path: Path) -> ModuleType:
    """A library that only some files need; raises InputError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(
            f"{path}: reading {path.suffix} needs {name.partition('.')[0]}; pip install 'groundling[corpora]'"
        ) from None


def _texts_of(path: Path) -> Iterator[str]:
    """The texts of a parquet file's column, row group by row group; nulls are passed over."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    parquet: Any = _optional("pyarrow.parquet", path)
    arrow: Any = _optional("pyarrow", path)
    empty = True
    try:
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        column = names[0] if len(names) == 1 else COLUMN
        if column not in names:
            raise InputError(f"{path}: no column {COLUMN!r}; it has {', '.join(names)}")
        if not arrow.types.is_string(file.schema_arrow.field(column).type) and not (
            arrow.types.is_large_string(file.schema_arrow.field(column).type)
        ):
            raise InputError(f"{path}: column {column!r} holds no texts")
        for batch in file.iter_batches(ROWS, columns=[column]):
            for text in batch.column(0).to_pylist():
                empty = empty and not (text and text.strip())
                if text:
                    yield text
    except (OSError, UnicodeDecodeError, arrow.ArrowException) as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)}); copy it again") from None
    if empty:
        raise InputError(f"{path}: the file is empty")
