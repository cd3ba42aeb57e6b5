"""A folder as the layouts see it: its files, what they begin with, its folders of images."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from groundling.check.report import Report
from groundling.core.errors import reading
from groundling.data.captions.files import METADATA
from groundling.data.tables.image_files import is_picture
from groundling.settings.inputs import CaptionColumns, OwnFile

IMAGE_FOLDER = re.compile(r"images.*|.*images|(train|val|test)20\d\d", re.IGNORECASE)
"""Names of folders of images."""
HEAD = 4096
"""Bytes of a file by which its layout is told: region files have tens of gigabytes, too many to read them whole."""
WITH_HEAD = frozenset({".json", ".jsonl", ".tsv"})
"""Endings of files whose heads are read; the ending may be followed by a number, as in `.tsv.0`."""


@dataclass(frozen=True)
class Flags:
    """What a user says of files whose columns nobody can know."""

    columns: CaptionColumns = field(default_factory=CaptionColumns)
    """Of captions."""
    own: OwnFile = field(default_factory=OwnFile)
    """Of a task's examples."""


class Place:
    """A folder that is looked through: the one to check, or a folder in it."""

    def __init__(self, folder: Path, root: Place | None = None, flags: Flags | None = None) -> None:
        """`root`: the place of the folder to check; None if this is it. `flags`: what is told of one's own files."""
        self.folder = folder
        self.root = root or self
        self.flags: Flags = self.root.flags if root else flags or Flags()
        self.taken: set[Path] = set()
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
        free = [folder for folder in self.image_folders if folder not in self.taken]
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
            with reading(path), path.open("rb") as file:
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
    return [path for path in below if is_picture(path.name) and not path.is_dir()]


@dataclass(frozen=True)
class Match:
    """That a place is in some layout."""

    images: Mapping[Path, Sequence[str]] = field(default_factory=dict)
    """Files and folders that belong to the layout, each with the ids of the images that it asks for."""
    names: tuple[str, ...] = ()
    """What the report calls it; empty: the layout's own name."""


@dataclass(frozen=True)
class Layout:
    """A way to lay out data, which `groundling data check` knows."""

    name: str
    """What the report calls it."""
    files: str
    """What a user sees of it, for the list of all layouts."""
    look: Callable[[Place, Report], Match | None]
    """Reports on a place, or gives None if that is in another layout; may raise InputError, KeyError and the like."""
    below: bool = False
    """Whether it is also looked for in the sub-folders."""
    last: bool = False
    """Whether it is only looked for where no other layout was seen."""
