"""What a check of a folder says: facts, and faults each in one line."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from groundling.core.errors import InputError

NAMED = 5
"""Places of one fault that are named."""
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
    looked: set[Path] = field(default_factory=set)
    """Files that were looked at, and folders of which every file was."""
    files: list[str] = field(default_factory=list)
    """How many files of which kinds were looked at, and how many were not: two lines."""

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    def fact(self, file: Path | str, what: str) -> None:
        """Add a line on a file, which was looked at, or on several in words."""
        self.lines.append(f"{file}: {what}")
        if isinstance(file, Path) and not file.is_dir():
            self.saw(file)

    def saw(self, *places: Path) -> None:
        """Files, or folders with all that is in them, were looked at."""
        self.looked.update(places)

    def count_files(self, folder: Path) -> None:
        """Fill `files`; hidden ones are not counted."""
        seen: list[Path] = []
        unseen: list[Path] = []
        for place, folders, names in os.walk(folder):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            here = Path(place)
            within = not self.looked.isdisjoint((here, *here.parents))
            for name in sorted(names):
                path = here / name
                if not name.startswith("."):
                    (seen if within or path in self.looked else unseen).append(path)
        self.files.append(f"{folder}: looked at {kinds(seen)}")
        if unseen:
            first = unseen[0].relative_to(folder)
            self.files.append(f"{folder}: not looked at {kinds(unseen)}; the first is {first}")

    def problem(self, file: Path, what: str, places: Sequence[str]) -> None:
        """Add one line for all places with the same fault: the first few, and how many there are; none for none."""
        if places:
            named = ", ".join(list(dict.fromkeys(places))[:NAMED])
            self.problems.append(f"{file}, {named}: {what}{_such(places)}")

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


def kinds(paths: Sequence[Path]) -> str:
    """How many files there are, and of which endings."""
    counts = Counter(path.suffix.lower() or "without ending" for path in paths)
    told = ", ".join(f"{count:,} {ending}" for ending, count in counts.most_common())
    total = f"{len(paths):,} file{'' if len(paths) == 1 else 's'}"
    return f"{total} ({told})" if told else total


def _such(places: Sequence[str]) -> str:
    if len(places) < 2:
        return ""
    return f" ({len(places):,} such)"
