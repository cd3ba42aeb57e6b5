"""What a check of a folder says: facts, and faults each in one line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from groundling.errors import InputError

EMPTY = "expected text, found none"
OUTSIDE = "expected a box inside its image, and not an empty one"

T = TypeVar("T")


@dataclass(frozen=True)
class Report:
    """The layout of a folder, and what was seen in it."""

    layout: str
    """The names of its layouts, joined by " + "; "unknown" if there is none."""
    lines: list[str] = field(default_factory=list)
    """Facts, one a line."""
    problems: list[str] = field(default_factory=list)
    """One line per fault, with file, place and what is expected."""

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    def fact(self, line: str) -> None:
        """Add a line."""
        self.lines.append(line)

    def problem(self, file: Path, what: str, places: Sequence[str]) -> None:
        """Add one line for all places with the same fault: the first of them, and how many there are; none for none."""
        if places:
            self.problems.append(f"{file}, {places[0]}: {what}{_such(places)}")

    def repeated(self, file: Path, places: Sequence[str]) -> None:
        """Add a problem if a place occurs more than once."""
        twice = [place for place, count in Counter(places).items() if count > 1]
        self.problem(file, "expected only once, found again", twice)

    def error(self, error: InputError) -> None:
        """Add what a reader says, unless another split of the same file has said it."""
        if str(error) not in self.problems:
            self.problems.append(str(error))

    def errors(self, messages: Iterable[str]) -> None:
        """Add one problem for messages that differ only in their place and in numbers: the first, and how many."""
        alike: dict[str, list[str]] = {}
        for message in messages:
            _, _, what = message.partition(": ")
            alike.setdefault(re.sub(r"[\d,]+", "", what), []).append(message)
        for group in alike.values():
            self.problems.append(group[0] + _such(group))

    def readable(self, reads: Iterable[Callable[[], T]]) -> list[T]:
        """What can be read; adds a problem for each sort of fault in the rest."""
        values: list[T] = []
        messages: list[str] = []
        for read in reads:
            try:
                values.append(read())
            except InputError as error:
                messages.append(str(error))
        self.errors(messages)
        return values


def _such(places: Sequence[str]) -> str:
    if len(places) < 2:
        return ""
    return f" ({len(places):,} such)"
