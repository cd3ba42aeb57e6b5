"""Captioned images, from whichever file or folder people keep captions in (see `caption_files.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from groundling.core.errors import InputError
from groundling.data.captions.files import (
    TABLE,
    TABLES,
    Reading,
    Row,
    is_karpathy,
    layout_of,
    read_file,
)
from groundling.data.tables.image_files import one_form, stem
from groundling.data.tables.tables import lines_of
from groundling.runs.folder import read_json
from groundling.settings.inputs import CaptionColumns

NUMBERED = re.compile(r"(\S+\.\w+) \d+")
"""A line of Karpathy's lists: the image's path and its number."""
GUESSED = CaptionColumns()
"""Columns that nobody has named."""


@dataclass(frozen=True)
class Captioned:
    """An image file and what its annotators wrote."""

    id: str
    """What the captions' file calls the image: COCO's number, an address, or the file's name."""
    file: str
    """The image's path below the folder of images."""
    captions: tuple[str, ...]
    """All captions of the image, at least one, in the order of the file."""


class Captions:
    """A file or folder of captions as read: its images, what is wrong with it, and what is read past."""

    def __init__(
        self,
        path: str | Path,
        splits: Sequence[str] | None = (),
        columns: CaptionColumns = GUESSED,
    ) -> None:
        """Reads `path`; `splits`: of Karpathy's json, those that are wanted, None for all. Never raises InputError."""
        self.reading: Reading = read_file(Path(path), splits, columns)
        self.path = self.reading.path
        if not self.reading.rows and not self.reading.faults:
            self.reading.fault("none", f"{self.path}: no captions found")

    @cached_property
    def images(self) -> list[Captioned]:
        """Images with their captions, in order of each one's first; images without any are left out."""
        grouped: dict[tuple[str, str], list[str]] = {}
        for row in self.reading.rows:
            grouped.setdefault((row.image, row.file), []).append(row.caption)
        return [
            Captioned(image, file, tuple(captions)) for (image, file), captions in grouped.items()
        ]

    @property
    def text_faults(self) -> list[str]:
        """Why its texts cannot be read: a line for each sort, with how many there are."""
        return _lines(self.reading.faults.values())

    @cached_property
    def faults(self) -> list[str]:
        """Why its images and texts cannot be read, as `text_faults`; each needs an image, no two the same file."""
        imageless = [self.reading.imageless] if self.reading.imageless else []
        return self.text_faults + _lines([imageless, _shared_files(self.path, self.reading.rows)])

    @property
    def notes(self) -> list[str]:
        """What is read past: captions without text, and names that occur twice."""
        return _lines(self.reading.remarks.values())

    @property
    def guess(self) -> list[str]:
        """What is to be said of how a table was read: what separates its columns, which were told by their values."""
        said = [self.reading.separators] if self.reading.separators else []
        if self.reading.guessed:
            said.append(
                f"{self.path}: {self.reading.about}, by what stands in them; --caption-column and --image-column say "
                "otherwise"
            )
        return said

    def sound(self) -> Captions:
        """Itself; raises InputError for the first of `faults`."""
        for fault in self.faults:
            raise InputError(fault)
        return self


@dataclass(frozen=True)
class Wanted:
    """Which captions are read of files: of Karpathy's json those of some splits, of tables those of some columns."""

    splits: tuple[str, ...] = ()
    columns: CaptionColumns = GUESSED

    def of(self, files: Sequence[str | Path]) -> list[Wanted]:
        """What is wanted of each of several files; what fits none is asked of all, so that reading them says so."""
        has_columns = self.columns != GUESSED
        split = [file for file in files if self.splits and has_splits(file)]
        tables = [file for file in files if has_columns and is_table(file)]
        return [
            Wanted(
                self.splits if file in split or not split else (),
                self.columns if file in tables or not tables else GUESSED,
            )
            for file in files
        ]


def _lines(sorts: Iterable[Sequence[str]]) -> list[str]:
    """The first message of every sort, and how many there are."""
    return [_with_count(messages) for messages in sorts if messages]


def _with_count(messages: Sequence[str]) -> str:
    return messages[0] + (f" ({len(messages):,} such)" if len(messages) > 1 else "")


def read_captions(
    path: str | Path, splits: Sequence[str] = (), columns: CaptionColumns = GUESSED
) -> list[Captioned]:
    """Images of a file or folder of captions with their captions in file order; those without any are left out.

    `splits`: of Karpathy's json, which images to take. `columns`: of a table, what to read; without, it is told by
    their names.

    Raises:
        InputError: a line or entry is malformed, there is no caption at all, two images have the same file, or a file
            with splits is read without saying which, or one without them as if it had some.
    """
    return Captions(path, splits, columns).sound().images


def caption_lines(
    path: str | Path, splits: Sequence[str] = (), columns: CaptionColumns = GUESSED
) -> list[str]:
    """All captions of a caption file as plain text, image by image; which files the images have does not matter.

    Raises:
        InputError: a line or entry is malformed, or there is no caption at all.
    """
    return [caption for caption, _ in captions_of_images(path, splits, columns)]


def captions_of_images(
    path: str | Path, splits: Sequence[str] = (), columns: CaptionColumns = GUESSED
) -> list[tuple[str, str]]:
    """The same captions, each with its image's path without the ending, as region stores call it; empty for none.

    Raises InputError as `caption_lines`.
    """
    captions = Captions(path, splits, columns)
    for fault in captions.text_faults:
        raise InputError(fault)
    return [(caption, stem(image.file)) for image in captions.images for caption in image.captions]


def is_captions(path: Path) -> bool:
    """Whether a file of text is one of captions: by its ending, or a table with a header that says so."""
    if path.is_dir() or path.suffix in TABLES | {".json"} or path.name.endswith("token.txt"):
        return True
    return path.suffix == ".txt" and layout_of(path, GUESSED) == TABLE


def has_splits(path: str | Path) -> bool:
    """Whether a caption file is Karpathy's, which says of every image in which split it is."""
    return Path(path).suffix == ".json" and is_karpathy(read_json(Path(path)))


def is_table(path: str | Path) -> bool:
    """Whether a caption file has columns to choose from."""
    path = Path(path)
    if path.suffix == ".json":
        return isinstance(read_json(path), list)
    return path.suffix in TABLES or path.is_dir()


def _shared_files(path: Path, rows: Sequence[Row]) -> list[str]:
    """A message for every image that has the file of another one: whose picture it holds cannot be known."""
    advice = "write each image's local file name in the second column"
    if path.suffix == ".json":
        advice = "give each image a file_name of its own, with its folder where there are several"
    first: dict[str, Row] = {}
    faults = []
    for row in rows:
        earlier = first.setdefault(row.file, row)
        # An address that ends in a slash names no file, so its image counts as missing.
        if row.file and row.image != earlier.image:
            faults.append(
                f"{path}, {row.place}: {row.image} and {earlier.image} ({earlier.place}) "
                f"both mean the image file {row.file}; {advice}"
            )
    return faults


def keep_listed(images: Sequence[Captioned], listing: str | Path) -> list[Captioned]:
    """The images named in a list of file names, one a line (e.g. `Flickr_8k.trainImages.txt`).

    A line of Karpathy's lists, `val2014/COCO_val2014_000000011169.jpg 11169`, names the file by its path or its name.

    Raises:
        InputError: the list cannot be read, or names none of the images.
    """
    names = set()
    for line in lines_of(listing):
        names.add(one_form(line.strip()))
        numbered = NUMBERED.fullmatch(one_form(line.strip()))
        if numbered is not None:
            names |= {numbered[1], numbered[1].rpartition("/")[2]}
    kept = [image for image in images if one_form(image.file) in names]
    if not kept:
        raise InputError(f"{listing}: names none of the captioned images")
    return kept


def joined(captions: Sequence[str], count: int) -> tuple[str, ...]:
    """Every `count` captions of an image as one text, in their order; the last text has what is left.

    A caption that ends without a mark is given a full stop.
    """
    if count == 1:
        return tuple(captions)
    sentences = [one if one[-1] in ".!?" else f"{one}." for one in captions]
    starts = range(0, len(sentences), count)
    return tuple(" ".join(sentences[start : start + count]) for start in starts)
