"""What files hold: a run knows its inputs by size and time, whatever must be known by content is hashed."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from groundling.core.errors import convert_read_errors

CACHE = "GROUNDLING_CACHE"
"""Environment variable: cache folder of tokenised texts; empty: no cache."""


def input_state(path: str | Path) -> dict[str, object]:
    """What a run remembers of an input: its path, and the sizes and times of its files that are not hidden (locks)."""
    path = Path(path)
    state: dict[str, object] = {"path": str(path)}
    with convert_read_errors(path):
        if not path.exists():
            return state
        lines = []
        for file in [path] if path.is_file() else _files(path):
            name = file.relative_to(path)
            if not any(part.startswith(".") for part in name.parts):
                stat = file.stat()
                lines.append(f"{name}\t{stat.st_size}\t{stat.st_mtime_ns}\n")
    digest = hashlib.sha256("".join(lines).encode(errors="surrogateescape"))
    return state | {"files": len(lines), "sizes_and_times": digest.hexdigest()[:16]}


def _files(folder: Path) -> list[Path]:
    return sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda one: one.parts)


def data_hash(path: str | Path) -> str:
    """SHA-256 of a file's content, or of names, sizes and contents of a folder's files; of a hub id a constant."""
    path = Path(path)
    if path.is_file():
        return sha256_of(path)
    if not path.is_dir():
        return "not a local path"
    digest = hashlib.sha256()
    for file in _files(path):
        name = f"{file.relative_to(path)}\t{file.stat().st_size}\n"
        digest.update(name.encode(errors="surrogateescape"))
        digest.update(sha256_of(file).encode())
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content; raises InputError if it cannot be read."""
    with convert_read_errors(path), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def cache_folder() -> Path | None:
    """The shared cache folder; None if it is disabled or not writable."""
    setting = os.environ.get(CACHE, str(Path.home() / ".cache" / "groundling"))
    if not setting:
        return None
    folder = Path(setting)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder if os.access(folder, os.W_OK) else None
