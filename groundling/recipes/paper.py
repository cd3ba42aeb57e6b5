"""Values of settings that a paper prints, and their comparison with the values that run. Imports nothing heavy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from groundling.core.errors import InputError

YES_OR_NO = {"yes": True, "no": False}
NUMBER = re.compile(r"([-+]?[\d.]+(?:e[-+]?\d+)?)(%?)")
"""A number without thousands separators and spaces; `7.0e - 5` is one number."""


@dataclass(frozen=True, eq=False)
class PaperValue:
    """Value of one setting in a paper or in its authors' code."""

    printed: Any
    """The value as printed, or the data or weights that it names."""
    source: str
    """Section or table, or the file of the authors' code."""
    ours: Any = None
    """The value that runs; None: the printed one."""
    reason: str = ""
    """Why `ours` differs, or what else a reader must know."""

    def value(self, name: str, default: object) -> Any:
        """The value that runs, of the type of the setting's default; raises InputError for an unreadable one."""
        if self.ours is not None:
            return self.ours
        try:
            return _read(self.printed, default)
        except (KeyError, ValueError):
            raise InputError(
                f"{name}: {self.printed!r} ({self.source}) is no value of this setting; give ours"
            ) from None


def paper(source: str, **values: Any) -> dict[str, PaperValue]:
    """Settings that a section, table or file prints: each as printed, or as a tuple of the printed value, ours where it
    differs, and the reason.
    """
    return {name: _paper_value(source, value) for name, value in values.items()}


def _paper_value(source: str, value: Any) -> PaperValue:
    if not isinstance(value, tuple):
        return PaperValue(value, source)
    printed, *ours, reason = value
    return PaperValue(printed, source, ours[0] if ours else None, reason)


def _read(printed: Any, default: object) -> Any:
    if not isinstance(printed, str):
        return printed
    if isinstance(default, bool):
        return YES_OR_NO[printed.lower()]
    numbers = _numbers(printed)
    if isinstance(default, tuple):
        return numbers or tuple(printed.lower().replace(",", " ").split())
    if isinstance(default, int | float):
        (number,) = numbers
        return number
    return printed.lower()


def _numbers(printed: str) -> tuple[float, ...]:
    """The numbers of a printed value; none if it contains anything else."""
    text = re.sub(r"(\d),(?=\d{3}\b)", r"\1", printed.lower())
    text = re.sub(r"e\s*([-+])\s*(\d)", r"e\1\2", text).replace(" %", "%")
    numbers: list[float] = []
    for word in text.replace(",", " ").split():
        match = NUMBER.fullmatch(word)
        if match is None:
            return ()
        try:
            number = int(word) if word.isdigit() else float(match[1])
        except ValueError:
            return ()
        numbers.append(number / 100 if match[2] else number)
    return tuple(numbers)


def agrees(printed: str, value: Any, format_text: Callable[[Any], str]) -> bool:
    """Whether a printed value equals a setting: as numbers (`8,000`, `10 %`), as yes or no, or as texts."""
    if isinstance(value, bool):
        return YES_OR_NO.get(printed.strip().lower()) is value
    if isinstance(value, int | float):
        return _equal(_numbers(printed), (value,))
    if isinstance(value, tuple) and value and isinstance(value[0], int | float):
        return _equal(_numbers(printed), value)
    return _plain(printed) == _plain(format_text(value))


def _equal(numbers: Sequence[float], values: Sequence[float]) -> bool:
    return len(numbers) == len(values) and all(map(math.isclose, numbers, values))


def _plain(text: str) -> str:
    return " ".join(text.replace(",", " ").lower().split())
