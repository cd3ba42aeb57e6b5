"""A folder as the layouts see it: its files, what they begin with, its folders of images; and what is said of it."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from groundling.core.errors import (
    TWICE,
    InputError,
    convert_read_errors,
    count_suffix,
    duplicates,
    fault_lines,
)
from groundling.data.captions.files import METADATA
from groundling.data.images import is_image_file
from groundling.settings.input_settings import CaptionColumns, TableTaskSettings

IMAGE_FOLDER = re.compile(r"images.*|.*images|(train|val|test)20\d\d", re.IGNORECASE)
"""Names of folders of images."""
HEAD = 4096
"""Bytes of a file by which its layout is told: region files have tens of gigabytes, too many to read them whole."""
WITH_HEAD = frozenset({".json", ".jsonl", ".tsv"})
"""Endings of files whose heads are read; the ending may be followed by a number, as in `.tsv.0`."""


@dataclass(frozen=True)
class ColumnFlags:
    """What a user says of files whose columns nobody can know."""

    columns: CaptionColumns = field(default_factory=CaptionColumns)
    """Of captions."""
    own: TableTaskSettings = field(default_factory=TableTaskSettings)
    """Of a task's examples."""


class CheckedFolder:
    """A folder that is looked through: the one to check, or a folder in it."""

    def __init__(
        self, folder: Path, root: CheckedFolder | None = None, flags: ColumnFlags | None = None
    ) -> None:
        """`root`: the place of the folder to check; None if this is it. `flags`: what is told of one's own files."""
        self.folder = folder
        self.root = root or self
        self.flags: ColumnFlags = self.root.flags if root else flags or ColumnFlags()
        self.explained: set[Path] = set()
        """Files and folders that a layout has explained."""

    @cached_property
    def files(self) -> list[Path]:
        """The files directly in the folder, sorted, without hidden ones."""
        return [path for path in self._visible() if path.is_file()]

    @cached_property
    def folders(self) -> list[Path]:
        """The folders directly in the folder, sorted, without hidden ones."""
        return [path for path in self._visible() if path.is_dir()]

    def _visible(self) -> list[Path]:
        return [path for path in sorted(self.folder.iterdir()) if not path.name.startswith(".")]

    @cached_property
    def image_folders(self) -> list[Path]:
        """Its folders of images."""
        return [folder for folder in self.folders if IMAGE_FOLDER.fullmatch(folder.name)]

    @cached_property
    def other_folders(self) -> list[Path]:
        """Its folders that may hold data sets of their own."""
        return [folder for folder in self.folders if folder not in self.image_folders]

    @property
    def imagefolders(self) -> list[Path]:
        """Its folders of images that hold captions themselves, unless other captions speak of them."""
        free = [folder for folder in self.image_folders if folder not in self.explained]
        return [folder for folder in free if any((folder / name).is_file() for name in METADATA)]

    @cached_property
    def image_names(self) -> set[str]:
        """Names, without folder and ending, of all images in the folders of images."""
        names: set[str] = set()
        for folder in self.image_folders:
            names.update(path.stem for path in pictures_below(folder))
        return names

    @cached_property
    def heads(self) -> dict[Path, str]:
        """What its JSON and TSV files begin with."""
        heads = {}
        for path in self.files:
            if WITH_HEAD.isdisjoint(path.suffixes):
                continue
            with convert_read_errors(path), path.open("rb") as file:
                heads[path] = file.read(HEAD).decode("utf-8", "replace")
        return heads

    def fields_of_first(self, path: Path) -> list[str]:
        """The fields of the first object in a list of JSON, if the file begins with the whole of it; else none."""
        head = self.heads.get(path, "").lstrip("\ufeff \n\r\t")
        if not head.startswith("["):
            return []
        try:
            first, _ = json.JSONDecoder().raw_decode(head[1:].lstrip())
        except (ValueError, RecursionError):
            return []
        return list(first) if isinstance(first, dict) else []

    def with_fields(self, suffix: str, *names: str) -> list[Path]:
        """Files that begin with JSON of these fields."""
        matching = []
        for path, head in self.heads.items():
            if path.suffix == suffix and all(f'"{name}"' in head for name in names):
                matching.append(path)
        return matching


def pictures_below(folder: Path) -> list[Path]:
    """The image files in a folder and in the folders below it, sorted."""
    below = sorted(folder.rglob("*"))
    return [path for path in below if is_image_file(path.name) and not path.is_dir()]


@dataclass(frozen=True)
class LayoutMatch:
    """That a place is in some layout."""

    images: Mapping[Path, Sequence[str]] = field(default_factory=dict)
    """Files and folders that belong to the layout, each with the ids of the images that it asks for."""
    names: tuple[str, ...] = ()
    """What the report calls it; empty: the layout's own name."""


@dataclass(frozen=True)
class DataLayout:
    """A way to lay out data, which `groundling data check` knows."""

    name: str
    """What the report calls it."""
    files: str
    """What a user sees of it, for the list of all layouts."""
    look: Callable[[CheckedFolder, CheckReport], LayoutMatch | None]
    """Reports on a place, or gives None if that is in another layout; may raise InputError, KeyError and the like."""
    below: bool = False
    """Whether it is also looked for in the sub-folders."""
    last: bool = False
    """Whether it is only looked for where no other layout was seen."""


# -- what is said of it ------------------------------------------------------------------------------------------------


T = TypeVar("T")


@dataclass(frozen=True)
class CheckReport:
    """The layout of a folder, and what was seen in it."""

    layout: str
    """The names of its layouts, joined by " + "; "unknown" if there is none."""
    lines: list[str] = field(default_factory=list)
    """Facts, one a line."""
    problems: list[str] = field(default_factory=list)
    """One line per fault, with file, place and what is expected."""
    seen: set[Path] = field(default_factory=set)
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
            self.mark_seen(file)

    def mark_seen(self, *places: Path) -> None:
        """Files, or folders with all that is in them, were looked at."""
        self.seen.update(places)

    def count_files(self, folder: Path) -> None:
        """Fill `files`; hidden ones are not counted."""
        seen: list[Path] = []
        unseen: list[Path] = []
        for place, folders, names in os.walk(folder):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            here = Path(place)
            within = not self.seen.isdisjoint((here, *here.parents))
            for name in sorted(names):
                path = here / name
                if not name.startswith("."):
                    (seen if within or path in self.seen else unseen).append(path)
        self.files.append(f"{folder}: looked at {kinds(seen)}")
        if unseen:
            first = unseen[0].relative_to(folder)
            self.files.append(f"{folder}: not looked at {kinds(unseen)}; the first is {first}")

    def problem(self, file: Path, what: str, places: Sequence[str]) -> None:
        """Add one line for all places with the same fault: the first few, and how many there are; none for none."""
        self.problems.extend(fault_lines(file, what, places))

    def repeated(self, file: Path, places: Sequence[str]) -> None:
        """Add a problem if a place occurs more than once."""
        self.problem(file, TWICE, duplicates(places))

    def error(self, error: InputError) -> None:
        """Add what a reader says, unless another split of the same file has said it."""
        if str(error) not in self.problems:
            self.problems.append(str(error))

    def add(self, other: CheckReport) -> None:
        """Add what another report says of files."""
        self.lines.extend(other.lines)
        self.problems.extend(other.problems)
        self.mark_seen(*other.seen)

    def errors(self, messages: Iterable[str]) -> None:
        """Add one problem for messages that differ only in their place and in numbers: the first, and how many."""
        alike: dict[str, list[str]] = {}
        for message in messages:
            _, _, what = message.partition(": ")
            alike.setdefault(re.sub(r"[\d,]+", "", what), []).append(message)
        for group in alike.values():
            self.problems.append(group[0] + count_suffix(group))

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
