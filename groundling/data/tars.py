"""Tar shards as img2dataset and webdataset write them: KEY.jpg, KEY.txt, KEY.json; a member is read where it lies.

A member's path continues that of its tar: `shards/00000.tar/000000012.jpg`. The members of a tar are listed once, and
kept in the cache.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

from groundling.core.errors import InputError, convert_read_errors
from groundling.runs.folder import cache_folder, disk_errors, sha256_of, whole_folder

TAR = ".tar"
OPEN_TARS = 64
"""Maximum number of tars whose members are in memory."""


class Member(NamedTuple):
    """Where a member lies in its tar."""

    start: int
    """First byte."""
    size: int
    """Number of bytes."""


def tar_of(path: Path) -> Path | None:
    """The tar that a path leads into; None for other paths."""
    for place in path.parents:
        if place.suffix == TAR:
            return place if place.is_file() else None
    return None


@lru_cache(OPEN_TARS)
def members(tar: Path) -> Mapping[str, Member]:
    """The files in a tar by name, in their order; raises InputError if it is damaged."""
    with convert_read_errors(tar):
        stat = tar.stat()
    folder = cache_folder()
    if folder is None:
        return _listed(tar)
    identity = f"{tar.absolute()}|{stat.st_size}|{stat.st_mtime_ns}"
    name = f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.safetensors"
    file = folder / "tars" / name
    if not file.is_file():
        _keep(_listed(tar), file)
    with convert_read_errors(file):
        kept = load_file(file)
    names = kept["names"].tobytes().decode().split("\n")
    parts = map(Member, *kept["parts"].T.tolist())
    return dict(zip(names, parts, strict=True))


def _listed(tar: Path) -> dict[str, Member]:
    listed: dict[str, Member] = {}
    with convert_read_errors(tar), tarfile.open(tar, "r:") as opened:
        for member in opened:
            if not member.isfile():
                continue
            if member.name in listed or "\n" in member.name:
                raise InputError(f"{tar}: two members are called {member.name!r}")
            listed[member.name] = Member(member.offset_data, member.size)
    end = max((part.start + part.size for part in listed.values()), default=0)
    if not listed or end > tar.stat().st_size:
        raise InputError(f"{tar}: the tar is empty or was cut")
    return listed


def _keep(listed: Mapping[str, Member], file: Path) -> None:
    names = np.frombuffer("\n".join(listed).encode(), np.uint8)
    with disk_errors(file), whole_folder(file.parent / file.stem) as partial:
        save_file({"names": names, "parts": np.array(list(listed.values()))}, partial / file.name)
    (file.parent / file.stem / file.name).replace(file)


def readable(path: Path) -> Path | io.BytesIO:
    """A file as it is, or the bytes of a member of a tar; raises InputError for a tar without it."""
    tar = tar_of(path)
    return path if tar is None else io.BytesIO(read_member(path, tar))


def read_member(path: Path, tar: Path) -> bytes:
    """The bytes of a member of a tar; raises InputError if there is none."""
    name = path.relative_to(tar).as_posix()
    part = members(tar).get(name)
    if part is None:
        raise InputError(f"{tar}: no member {name}")
    with convert_read_errors(tar), tar.open("rb") as stream:
        stream.seek(part.start)
        return stream.read(part.size)


def is_file(path: Path) -> bool:
    """Whether a path is a file or a member of a tar."""
    tar = tar_of(path)
    return os.path.isfile(path) if tar is None else path.relative_to(tar).as_posix() in members(tar)


def digest_of(path: Path) -> str:
    """SHA-256 of a file or of a member of a tar."""
    tar = tar_of(path)
    if tar is None:
        return sha256_of(path)
    return hashlib.sha256(read_member(path, tar)).hexdigest()


def identity_of(tars: Sequence[Path]) -> str:
    """A hash of the names, sizes and times of some tars, whose bytes are too many to read."""
    facts = [(tar.name, tar.stat().st_size, tar.stat().st_mtime_ns) for tar in tars]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def tars_in(path: Path) -> list[Path]:
    """A tar itself, or the tars directly in a folder, in the order of their names."""
    if path.suffix == TAR:
        return [path]
    return sorted(path.glob(f"*{TAR}")) if path.is_dir() else []


def samples_of(tar: Path) -> Iterator[tuple[str, dict[str, Member]]]:
    """The samples of a tar: each key, and its members by ending (`.jpg`); neighbours of one key are a sample."""
    key = ""
    parts: dict[str, Member] = {}
    for name, part in members(tar).items():
        folder, slash, last = name.rpartition("/")
        stem, dot, ending = last.partition(".")
        own = f"{folder}{slash}{stem}"
        if own != key and parts:
            yield key, parts
            parts = {}
        key = own
        parts[f"{dot}{ending.lower()}"] = part
    if parts:
        yield key, parts
