"""A folder to check: its files, their first bytes, its image folders; and the report on it."""

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
    DUPLICATE,
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
"""Names of image folders."""
HEAD = 4096
"""First bytes of a file that identify its layout; region files of tens of gigabytes are too large \
to read."""
WITH_HEAD = frozenset({".json", ".jsonl", ".tsv"})
"""Endings of files whose first bytes are read; a number may follow, as in `.tsv.0`."""


@dataclass(frozen=True)
class ColumnFlags:
    """Columns of the user's own files, as given by flags."""

    columns: CaptionColumns = field(default_factory=CaptionColumns)
    """Caption files."""
    own: TableTaskSettings = field(default_factory=TableTaskSettings)
    """Task tables."""


class CheckedFolder:
    """The folder to check, or one of its sub-folders."""

    def __init__(
        self, folder: Path, root: CheckedFolder | None = None, flags: ColumnFlags | None = None
    ) -> None:
        """`root`: the folder to check; None if this is it. `flags`: columns of the user's own
        files.
        """
        self.folder = folder
        self.root = root or self
        self.flags: ColumnFlags = self.root.flags if root else flags or ColumnFlags()
        self.matched_paths: set[Path] = set()
        """Files and folders that belong to a recognised layout."""

    @cached_property
    def files(self) -> list[Path]:
        """Files directly in the folder, sorted, without hidden ones."""
        return [path for path in self._visible() if path.is_file()]

    @cached_property
    def folders(self) -> list[Path]:
        """Folders directly in the folder, sorted, without hidden ones."""
        return [path for path in self._visible() if path.is_dir()]

    def _visible(self) -> list[Path]:
        return [path for path in sorted(self.folder.iterdir()) if not path.name.startswith(".")]

    @cached_property
    def image_folders(self) -> list[Path]:
        """Its image folders."""
        return [folder for folder in self.folders if IMAGE_FOLDER.fullmatch(folder.name)]

    @cached_property
    def other_folders(self) -> list[Path]:
        """Its folders that may hold data sets of their own."""
        return [folder for folder in self.folders if folder not in self.image_folders]

    @property
    def imagefolders(self) -> list[Path]:
        """Its image folders with captions inside, unless other captions name their images."""
        free = [folder for folder in self.image_folders if folder not in self.matched_paths]
        return [folder for folder in free if any((folder / name).is_file() for name in METADATA)]

    @cached_property
    def image_names(self) -> set[str]:
        """Names, without folder and ending, of all images in the image folders."""
        names: set[str] = set()
        for folder in self.image_folders:
            names.update(path.stem for path in pictures_below(folder))
        return names

    @cached_property
    def heads(self) -> dict[Path, str]:
        """First bytes of its JSON and TSV files, as text."""
        heads = {}
        for path in self.files:
            if WITH_HEAD.isdisjoint(path.suffixes):
                continue
            with convert_read_errors(path), path.open("rb") as file:
                heads[path] = file.read(HEAD).decode("utf-8", "replace")
        return heads

    def fields_of_first(self, path: Path) -> list[str]:
        """Fields of the first object in a JSON list, if the first bytes contain all of it; else
        empty.
        """
        head = self.heads.get(path, "").lstrip("\ufeff \n\r\t")
        if not head.startswith("["):
            return []
        try:
            first, _ = json.JSONDecoder().raw_decode(head[1:].lstrip())
        except (ValueError, RecursionError):
            return []
        return list(first) if isinstance(first, dict) else []

    def with_fields(self, suffix: str, *names: str) -> list[Path]:
        """Files whose first bytes contain JSON with these fields."""
        matching = []
        for path, head in self.heads.items():
            if path.suffix == suffix and all(f'"{name}"' in head for name in names):
                matching.append(path)
        return matching


def pictures_below(folder: Path) -> list[Path]:
    """Image files in a folder and its sub-folders, sorted."""
    below = sorted(folder.rglob("*"))
    return [path for path in below if is_image_file(path.name) and not path.is_dir()]


@dataclass(frozen=True)
class LayoutMatch:
    """A layout found in a folder."""

    images: Mapping[Path, Sequence[str]] = field(default_factory=dict)
    """Files and folders of the layout, each with the ids of the images that it names."""
    names: tuple[str, ...] = ()
    """Names in the report; empty: the layout's own name."""


@dataclass(frozen=True)
class DataLayout:
    """A data layout that `groundling data check` recognises."""

    name: str
    """Name in the report."""
    files: str
    """Its files in words, for the list of all layouts."""
    check: Callable[[CheckedFolder, CheckReport], LayoutMatch | None]
    """Reports on a folder, or returns None if it is in another layout; may raise InputError, \
KeyError and the like."""
    in_subfolders: bool = False
    """Whether sub-folders are searched too."""
    is_fallback: bool = False
    """Whether it is tried only if no other layout was found."""


# -- the report --------------------------------------------------------------------------------------------------------


T = TypeVar("T")


@dataclass(frozen=True)
class CheckReport:
    """Layout and content of a folder."""

    layout: str
    """Names of its layouts, joined by " + "; "unknown" if none was found."""
    lines: list[str] = field(default_factory=list)
    """Facts, one per line."""
    problems: list[str] = field(default_factory=list)
    """Problems, one per line, with file, place and what is expected."""
    checked: set[Path] = field(default_factory=set)
    """Files that were checked, and folders of which every file was."""
    files: list[str] = field(default_factory=list)
    """Numbers of checked and unchecked files by ending, in two lines."""

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    def add_fact(self, file: Path | str, text: str) -> None:
        """Add a line on a file, which counts as checked, or on several in words."""
        self.lines.append(f"{file}: {text}")
        if isinstance(file, Path) and not file.is_dir():
            self.mark_checked(file)

    def mark_checked(self, *places: Path) -> None:
        """Count files, or folders with all their files, as checked."""
        self.checked.update(places)

    def count_files(self, folder: Path) -> None:
        """Fill `files`, without hidden files."""
        checked: list[Path] = []
        unchecked: list[Path] = []
        for place, folders, names in os.walk(folder):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            here = Path(place)
            within = not self.checked.isdisjoint((here, *here.parents))
            for name in sorted(names):
                path = here / name
                if not name.startswith("."):
                    (checked if within or path in self.checked else unchecked).append(path)
        self.files.append(f"{folder}: checked: {describe_files(checked)}")
        if unchecked:
            first = unchecked[0].relative_to(folder)
            self.files.append(
                f"{folder}: not checked: {describe_files(unchecked)}; the first is {first}"
            )

    def add_problem(self, file: Path, fault: str, places: Sequence[str]) -> None:
        """Add one line for all places with the same fault: the first few, and their number; nothing
        for no places.
        """
        self.problems.extend(fault_lines(file, fault, places))

    def add_duplicates(self, file: Path, places: Sequence[str]) -> None:
        """Add a problem if a place occurs more than once."""
        self.add_problem(file, DUPLICATE, duplicates(places))

    def add_error(self, error: InputError) -> None:
        """Add a reader's error, unless another split of the same file has raised it."""
        if str(error) not in self.problems:
            self.problems.append(str(error))

    def add(self, other: CheckReport) -> None:
        """Add the content of another report."""
        self.lines.extend(other.lines)
        self.problems.extend(other.problems)
        self.mark_checked(*other.checked)

    def add_errors(self, messages: Iterable[str]) -> None:
        """Add one problem per group of messages that differ only in place and numbers: the first,
        and their number.
        """
        groups: dict[str, list[str]] = {}
        for message in messages:
            _, _, fault = message.partition(": ")
            groups.setdefault(re.sub(r"[\d,]+", "", fault), []).append(message)
        for group in groups.values():
            self.problems.append(group[0] + count_suffix(group))

    def read_all(self, reads: Iterable[Callable[[], T]]) -> list[T]:
        """The values that can be read; adds a problem for each kind of fault."""
        values: list[T] = []
        messages: list[str] = []
        for read in reads:
            try:
                values.append(read())
            except InputError as error:
                messages.append(str(error))
        self.add_errors(messages)
        return values


def describe_files(paths: Sequence[Path]) -> str:
    """Number of files, and number by ending, in words."""
    counts = Counter(path.suffix.lower() or "without ending" for path in paths)
    endings = ", ".join(f"{count:,} {ending}" for ending, count in counts.most_common())
    total = f"{len(paths):,} file{'' if len(paths) == 1 else 's'}"
    return f"{total} ({endings})" if endings else total
