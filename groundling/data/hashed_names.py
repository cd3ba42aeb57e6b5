"""Names by their hash, in sorted arrays that are made once and mapped: memory does not grow with their number."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from groundling.core.errors import convert_errors
from groundling.runs.folder import cache_folder, wait_for_folder, whole_folder

DIGEST = "S16"
"""The type of a name's hash."""


FORMAT = 1
"""Raise it when other arrays are made of the same data, such as the list of a tar: those in the cache are then left."""


def digests(names: Sequence[str]) -> np.ndarray:
    """A hash (n,) of each name."""
    every = [hashlib.blake2b(name.encode(), digest_size=16).digest() for name in names]
    return np.array(every, DIGEST)


def find(ordered: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """The place (n,) of each name in hashes (m,) in ascending order; -1 for a name that is not there."""
    wanted = digests(names)
    places = np.searchsorted(ordered, wanted).clip(max=len(ordered) - 1)
    found: np.ndarray = np.where(ordered[places] == wanted, places, -1)
    return found


def mapped_arrays(
    kind: str, identity: str, names: Sequence[str], make: Callable[[], Sequence[np.ndarray]]
) -> list[np.ndarray]:
    """Arrays that depend on `identity` alone: made by the first process that needs them, and then read from the cache.

    `kind` and `names` are those of their folder and files. Without a cache they are made, and in memory.
    """
    cache = cache_folder()
    if cache is None:
        return list(make())
    folder = cache / kind / hashlib.sha256(f"{FORMAT}|{identity}".encode()).hexdigest()[:32]
    files = [folder / f"{name}.npy" for name in names]
    if not all(file.is_file() for file in files):
        with wait_for_folder(folder, "listing ids"):
            if not all(file.is_file() for file in files):
                with whole_folder(folder) as partial:
                    for file, array in zip(files, make(), strict=True):
                        np.save(partial / file.name, array)
    with convert_errors(f"{folder}: damaged; delete it"):
        # Without numpy's class of mapped arrays, whose items are slow.
        return [np.asarray(np.load(file, "r", allow_pickle=False)) for file in files]
