"""SHA-256 of files and folders; unchanged files are read only once."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from groundling.core.errors import convert_read_errors

NOT_LOCAL = "not a local path"
"""Stands for the hash of a hub id, or of anything else that is not a local file."""
CACHE = "GROUNDLING_CACHE"
"""Environment variable: cache folder of hashes and tokenised texts; empty: no cache."""
SMALL = 1 << 14
"""Size in bytes below which reading a file is as fast as looking up its hash in the cache folder."""
MIN_AGE = 2 * 10**9
"""Nanoseconds after a change within which a second change may get the same time stamp."""

_HASHES: dict[tuple[str, str], str] = {}
"""Hashes found by this process, by path and state."""
_TABLE = "CREATE TABLE IF NOT EXISTS hashes (path TEXT PRIMARY KEY, state TEXT, sha256 TEXT)"


def data_hash(path: str | Path) -> str:
    """SHA-256 of a file's content, or of the names, sizes and contents of all files in a folder.

    Anything else (a hub id, say) gives `not a local path`. Raises InputError if a file cannot be
    read.
    """
    path = Path(path)
    if path.is_file():
        with _HashCache() as hashes:
            return hashes.of(path)
    if not path.is_dir():
        return NOT_LOCAL
    digest = hashlib.sha256()
    files = [entry for entry in path.rglob("*") if entry.is_file()]
    with _HashCache() as hashes:
        for file in sorted(files, key=lambda file: file.parts):
            stat = _state_of(file)
            name = file.relative_to(path)
            digest.update(f"{name}\t{stat.size}\n".encode(errors="surrogateescape"))
            digest.update(hashes.of(file, stat).encode())
    return digest.hexdigest()


def hashes_of(files: Sequence[Path]) -> list[str]:
    """SHA-256 of several files; raises InputError if one is missing or cannot be read."""
    return list(each_hash(files))


def each_hash(files: Iterable[Path]) -> Iterator[str]:
    """SHA-256 of one file after the other; raises InputError at one that is missing or cannot be
    read.
    """
    with _HashCache() as hashes:
        for file in files:
            yield hashes.of(file)


def remember_hashes(written: Mapping[Path, str]) -> None:
    """Store the SHA-256 of files just written, so that they need not be read again."""
    with _HashCache() as hashes:
        for file, sha256 in written.items():
            hashes.store(file, _state_of(file), sha256)


def cache_folder() -> Path | None:
    """The shared cache folder; None if it is disabled or not writable."""
    setting = os.environ.get(CACHE, str(Path.home() / ".cache" / "groundling"))
    if not setting:
        return None
    folder = Path(setting)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder if os.access(folder, os.W_OK) else None


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content; raises InputError if it cannot be read."""
    with convert_read_errors(path), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class _HashCache:
    """Cache of file hashes, valid while path, size, times and inode are unchanged."""

    def __init__(self) -> None:
        self.folder = cache_folder()
        self.base: sqlite3.Connection | None = None

    def __enter__(self) -> _HashCache:
        if self.folder is not None:
            with suppress(sqlite3.Error):  # a hash that cannot be stored is computed again
                self.base = sqlite3.connect(self.folder / "hashes.sqlite")
                self.base.execute(_TABLE)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.base is not None:
            with suppress(sqlite3.Error):
                self.base.commit()
            self.base.close()

    def of(self, file: Path, stat: _FileStat | None = None) -> str:
        """SHA-256 of a file."""
        stat = stat or _state_of(file)
        cached = _HASHES.get((os.path.abspath(file), stat.text))
        if cached is not None:
            return cached
        if self.base is None or stat.size < SMALL:
            sha256 = sha256_of(file)
            self.store(file, stat, sha256)
            return sha256
        with suppress(sqlite3.Error, UnicodeEncodeError):
            query = "SELECT sha256 FROM hashes WHERE path = ? AND state = ?"
            row = self.base.execute(query, (os.path.abspath(file), stat.text)).fetchone()
            if row:
                _HASHES[os.path.abspath(file), stat.text] = str(row[0])
                return str(row[0])
        sha256 = sha256_of(file)
        self.store(file, stat, sha256)
        return sha256

    def store(self, file: Path, stat: _FileStat, sha256: str) -> None:
        """Store a hash, unless the file is so new that a further change could go unnoticed."""
        if time.time_ns() - stat.newest <= MIN_AGE:
            return
        _HASHES[os.path.abspath(file), stat.text] = sha256
        if self.base is None or stat.size < SMALL:
            return
        with suppress(sqlite3.Error, UnicodeEncodeError):
            change = "INSERT OR REPLACE INTO hashes VALUES (?, ?, ?)"
            self.base.execute(change, (os.path.abspath(file), stat.text, sha256))


class _FileStat(NamedTuple):
    """Properties that change when a file's content does."""

    size: int
    newest: int
    """Time of the last change in nanoseconds; ctime, unlike mtime, cannot be set back."""
    text: str
    """All properties as text."""


def _state_of(file: Path) -> _FileStat:
    with convert_read_errors(file):
        stat = file.stat()
    times = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
    newest = max(stat.st_mtime_ns, stat.st_ctime_ns)
    return _FileStat(stat.st_size, newest, " ".join(map(str, times)))
