"""What a paper prints of a setting, and whether a value is the same. Imports nothing heavy."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groundling.core.errors import InputError

EXPECTED = (
    '["value as printed", "section or table"], and a third text, the reason, where ours differs'
)
YES_OR_NO = {"yes": True, "no": False}
REFERENCE = re.compile(r"\b(?:data|weights):[\w+-]+")
"""How settings refer to a file's own `[data.NAME]` and `[weights.NAME]`."""
NUMBER = re.compile(r"([-+]?[\d.]+(?:e[-+]?\d+)?)(%?)")
"""With a thousand's commas and spaces gone; `7.0e - 5` is one number."""


@dataclass(frozen=True)
class Note:
    """What a paper, or its authors' code, says of one setting."""

    printed: str
    """The value as it is printed."""
    source: str
    """Section or table, or the file of the authors' code."""
    reason: str = ""
    """Why ours differs; empty where it must not."""
    where: str = ""
    """The table of the sweep's file that says all this."""


def read_notes(table: object, where: str) -> dict[str, Note]:
    """The notes of a `paper` table by setting; raises InputError naming the one that is malformed."""
    if not isinstance(table, dict):
        raise InputError(f"{where}: paper = {table!r}, expected a table")
    notes = {}
    for key, value in table.items():
        texts = isinstance(value, list) and all(isinstance(one, str) and one for one in value)
        if not texts or len(value) not in (2, 3):
            raise InputError(f"{where}.paper: {key} = {value!r}, expected {EXPECTED}")
        printed, source, *reason = value
        notes[key] = Note(printed, source, "".join(reason), f"{where}.paper")
    return notes


def agrees(printed: str, value: object, titles: Mapping[str, str]) -> bool:
    """Whether a printed value is a setting's: equal as numbers (`8,000`, `10 %`), as yes or no, or as texts."""
    if isinstance(value, bool):
        return YES_OR_NO.get(printed.strip().lower()) is value
    if isinstance(value, int | float):
        return _equal(_numbers(printed), (value,))
    if isinstance(value, tuple) and value and not isinstance(value[0], str):
        return _equal(_numbers(printed), value)
    return _plain(printed) == _plain(spelt(value, titles))


def _equal(printed: Sequence[float] | None, values: Sequence[float]) -> bool:
    if printed is None or len(printed) != len(values):
        return False
    return all(math.isclose(one, other) for one, other in zip(printed, values, strict=True))


def _plain(text: str) -> str:
    return " ".join(text.replace(",", " ").lower().split())


def _numbers(printed: str) -> list[float] | None:
    """The numbers that a printed value consists of; None if there is anything else in it."""
    text = re.sub(r"(\d),(?=\d{3}\b)", r"\1", printed.lower())
    text = re.sub(r"e\s*([-+])\s*(\d)", r"e\1\2", text).replace(" %", "%")
    numbers = []
    for word in text.replace(",", " ").split():
        match = NUMBER.fullmatch(word)
        if match is None:
            return None
        try:
            number = float(match[1])
        except ValueError:
            return None
        numbers.append(number / 100 if match[2] else number)
    return numbers


def spelt(value: Any, titles: Mapping[str, str]) -> str:
    """A setting's value as a table shows it; `titles` is what references such as `weights:NAME` are called in print."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(spelt(one, titles) for one in value)
    if isinstance(value, float):
        return f"{value:g}".replace("e-0", "e-")
    return REFERENCE.sub(lambda match: titles.get(match[0], match[0]), str(value))


def mark(note: Note | None, value: object, titles: Mapping[str, str]) -> str:
    """How a setting stands to the paper: the same, different for a reason, ours where it says nothing, or an input."""
    if note is None:
        return "input" if REFERENCE.search(str(value)) else "ours"
    if agrees(note.printed, value, titles):
        return f"same; {note.reason}" if note.reason else "same"
    return f"differs: {note.reason or 'changed on the command line'}"
