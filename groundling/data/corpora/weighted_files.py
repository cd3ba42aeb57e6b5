"""Files and folders as command lines name them: FILE=WEIGHT, which says how often a step reads it, and NAME=FOLDER."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from groundling.core.errors import InputError

LEAST, MOST = 1e-9, 1e9
"""Weights: beyond them a file is hardly ever drawn, and their sums are no numbers any more."""


class Weighted(NamedTuple):
    """A file, and how often it is drawn relative to others."""

    file: str
    weight: float = 0.0
    """0: nobody says."""


def weighted(word: str | Path, flag: str) -> Weighted:
    """The file of one word of a command's `flag`; raises InputError for a weight that is none."""
    word = str(word)
    file, equals_sign, told = word.rpartition("=")
    if not equals_sign or Path(word).exists():
        return Weighted(word)
    try:
        weight = float(told)
    except ValueError:
        weight = 0.0
    if not (file and LEAST <= weight <= MOST):
        raise InputError(
            f"{flag} {word}: {told!r} is no weight of a file; expected FILE or FILE=WEIGHT with a number above 0 "
            f"({LEAST:g} to {MOST:g})"
        )
    return Weighted(file, weight)


def weighted_files(words: Sequence[str | Path], flag: str) -> list[Weighted]:
    """The same of all; raises InputError, too, if some files have a weight and others have not."""
    files = [weighted(word, flag) for word in words]
    without = [each.file for each in files if not each.weight]
    if without and len(without) < len(files):
        raise InputError(f"{flag}: {without[0]} has no weight; give one to all files or to none")
    return files


class Named(NamedTuple):
    """A folder, and what it is called."""

    name: str
    """Empty: nobody says."""
    folder: str


def named_folder(word: str | Path) -> Named:
    """The parts of FOLDER or NAME=FOLDER; either may have a `=` in it, so what is there decides which one is meant."""
    word = str(word)
    if Path(word).exists():
        return Named("", word)
    halves = [Named(word[:at], word[at + 1 :]) for at, letter in enumerate(word) if letter == "="]
    there = (half for half in halves if half.folder and Path(half.folder).exists())
    return next(there, halves[0] if halves else Named("", word))
