"""Tar shards as img2dataset and webdataset write them: KEY.jpg, KEY.txt, KEY.json; a member is read where it lies.

A member's path continues that of its tar: `shards/00000.tar/000000012.jpg`. The members of a tar are listed once, in
the cache.
"""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import tarfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from groundling.core.errors import InputError, convert_read_errors
from groundling.data.hashed_names import DIGEST, digests, find, mapped_arrays
from groundling.runs.folder import file_state, sha256_of

TAR = ".tar"
MOST_ZEROS = 1 << 17
"""Maximum number of bytes of zeros that end a tar: GNU tar's largest usual record (`-b 256`)."""
OPEN_TARS = 64
"""Maximum number of tars whose lists are mapped."""
PLACES = np.dtype([("name", DIGEST), ("start", "<i8"), ("size", "<i8"), ("number", "<i8")])
"""A member in the list of a tar, in the order of names' hashes: its bytes, and its number in the tar."""


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


def members(tar: Path) -> Iterator[tuple[str, Member]]:
    """The files in a tar, by name, in their order; raises InputError if it is damaged."""
    places, names = _list_of(tar)
    ordered = places[np.argsort(places["number"])]
    parts = zip(ordered["start"].tolist(), ordered["size"].tolist(), strict=True)
    lines = names.tobytes().decode().split("\n") if len(ordered) else []
    yield from zip(lines, map(Member._make, parts), strict=True)


def find_member(path: Path, tar: Path) -> Member | None:
    """A member of a tar, by its path; None if there is none."""
    places, _ = _list_of(tar)
    (place,) = find(places["name"], [path.relative_to(tar).as_posix()]).tolist()
    return None if place < 0 else Member(int(places["start"][place]), int(places["size"][place]))


def _list_of(tar: Path) -> tuple[np.ndarray, np.ndarray]:
    with convert_read_errors(tar):
        return _list_at(tar, tuple(file_state(tar)))


@lru_cache(OPEN_TARS)
def _list_at(tar: Path, state: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    identity = f"{tar.absolute()}|{state}"
    places, names = mapped_arrays("tars", identity, ("places", "names"), lambda: _listed(tar))
    return places, names


def _listed(tar: Path) -> tuple[np.ndarray, np.ndarray]:
    listed: dict[str, Member] = {}
    with convert_read_errors(tar), tarfile.open(tar, "r:") as opened:
        for member in opened:
            if member.issparse() or not (member.isfile() or member.isdir()):
                raise InputError(
                    f"{tar}: the member {member.name!r} is no plain file; write it as one"
                )
            if member.isfile():
                name = posixpath.normpath(member.name)
                if name in listed or name.startswith(("/", "../")) or "\n" in name:
                    raise InputError(f"{tar}: the member {name!r} is no path below it, or is twice")
                listed[name] = Member(member.offset_data, member.size)
    with convert_read_errors(tar):
        # tarfile takes a damaged header, and a cut between members, for the end.
        left = tar.stat().st_size - opened.offset
        end = read_part(tar, Member(opened.offset, min(left, MOST_ZEROS)))
        text = "\n".join(listed).encode()
    # A shard none of whose downloads succeeded is empty. More zeros are room that was reserved and never filled.
    is_unfilled = left > (MOST_ZEROS if listed else tarfile.RECORDSIZE)
    if is_unfilled and not end.strip(b"\0"):
        raise InputError(
            f"{tar}: ends in {left:,} zeros after {len(listed):,} members, so it was not written to its end"
        )
    if is_unfilled or len(end) < tarfile.BLOCKSIZE or end.strip(b"\0"):
        raise InputError(f"{tar}: the tar is damaged or was cut (byte {opened.offset:,})")
    places = np.empty(len(listed), PLACES)
    places["name"] = digests(list(listed))
    places["start"], places["size"] = np.array(list(listed.values()), int).reshape(-1, 2).T
    places["number"] = np.arange(len(listed))
    return places[np.argsort(places["name"])], np.frombuffer(text, np.uint8)


def readable(path: Path) -> Path | io.BytesIO:
    """A file as it is, or the bytes of a member of a tar; raises InputError for a tar without it."""
    tar = tar_of(path)
    return path if tar is None else io.BytesIO(read_member(path, tar))


def read_member(path: Path, tar: Path) -> bytes:
    """The bytes of a member of a tar; raises InputError if there is none."""
    part = find_member(path, tar)
    if part is None:
        raise InputError(f"{tar}: no member {path.relative_to(tar).as_posix()}")
    return read_part(tar, part)


def read_part(tar: Path, part: Member) -> bytes:
    """The bytes of a part of a tar; raises InputError for a tar that has become shorter."""
    with convert_read_errors(tar), tar.open("rb") as stream:
        stream.seek(part.start)
        content = stream.read(part.size)
    if len(content) < part.size:
        raise InputError(f"{tar}: was changed while it was read")
    return content


def is_file(path: Path) -> bool:
    """Whether a path is a file or a member of a tar."""
    tar = tar_of(path)
    return os.path.isfile(path) if tar is None else find_member(path, tar) is not None


def digest_of(path: Path) -> str:
    """SHA-256 of a file or of a member of a tar."""
    tar = tar_of(path)
    if tar is None:
        return sha256_of(path)
    return hashlib.sha256(read_member(path, tar)).hexdigest()


def identity_of(tars: Sequence[Path]) -> str:
    """A hash of the paths, sizes and times of some tars and of the tables beside them, too many bytes to read."""
    files = [file for tar in tars for file in (tar, tar.with_suffix(".parquet")) if file.exists()]
    facts = [(str(file.absolute()), *file_state(file)) for file in files]
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
    for name, part in members(tar):
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
