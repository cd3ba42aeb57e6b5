"""Values of settings that a paper prints, beside those that run. Imports nothing heavy."""

from __future__ import annotations

import re
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
        """The value that runs; raises InputError for a difference without a reason, and for an unreadable value."""
        value = read_printed(self.printed, default) if self.ours is None else self.ours
        if value is None:
            raise InputError(f"{name}: the paper's {self.printed!r} is no value of this setting")
        if not self.reason and not self.agrees(default):
            raise InputError(
                f"{name} = {value}, but the paper has {self.printed} ({self.source}); use the paper's value, or "
                "give the reason"
            )
        return value

    def agrees(self, default: object) -> bool:
        """Whether the printed value runs."""
        return self.ours is None or self.ours == read_printed(self.printed, default)


def paper(source: str, **values: Any) -> dict[str, PaperValue]:
    """Settings that a section, table or file prints: each as printed, or as a tuple of the printed value, ours where it
    differs, and the reason.
    """
    notes = {}
    for name, value in values.items():
        printed, *ours, reason = value if isinstance(value, tuple) else (value, "")
        notes[name] = PaperValue(printed, source, ours[0] if ours else None, reason)
    return notes


def read_printed(printed: Any, default: object) -> Any:
    """A printed value in the type of the setting's default: `8,000`, `10 %`, `yes`, `SGD`; None if it is of another
    type.
    """
    if not isinstance(printed, str):
        return printed
    if isinstance(default, bool):
        return YES_OR_NO.get(printed.lower())
    numbers = _numbers(printed)
    if isinstance(default, tuple):
        return numbers or tuple(printed.lower().replace(",", " ").split())
    if isinstance(default, int | float):
        return numbers[0] if len(numbers) == 1 else None
    return printed.lower()


def _numbers(printed: str) -> tuple[float, ...]:
    text = re.sub(r"(\d),(?=\d{3}\b)", r"\1", printed.lower())
    text = re.sub(r"e\s*([-+])\s*(\d)", r"e\1\2", text).replace(" %", "%")
    numbers: list[float] = []
    for word in text.replace(",", " ").split():
        match = NUMBER.fullmatch(word)
        if match is None or match[1].count(".") > 1:
            return ()
        number = int(word) if word.isdigit() else float(match[1])
        numbers.append(number / 100 if match[2] else number)
    return tuple(numbers)
