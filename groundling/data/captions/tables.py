"""Which columns of a table of one's own hold captions and image files: told, by name, or by what they hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groundling.core.errors import InputError
from groundling.data.tables.image_files import HEIF, PICTURES
from groundling.data.tables.own_rows import Where, whole_rows
from groundling.data.tables.tables import columns_in, read_csv, usual_columns
from groundling.settings.inputs import CaptionColumns

IMAGES: tuple[str, ...] = (
    *("file_name", "image", "filename", "image_file", "image_name", "image_path", "photo"),
    *("picture", "img", "file", "path", "filepath", "img_path", "url", "image_url"),
)
"""What people call a column of image files, the likeliest first."""
CAPTIONS = ("caption", "captions", "text", "sentence", "sentences", "description", "comment")
"""What people call a column of captions."""
HEAD = 65_536
"""Most bytes of a first line."""
LOOKED_AT = 100
"""Rows by which columns are told that nobody has named."""


@dataclass(frozen=True)
class Columns:
    """The columns that are read."""

    captions: Sequence[str]
    image: str
    """Empty where texts alone are read."""

    @property
    def about(self) -> str:
        """The columns in words."""
        told = f"captions from column {', '.join(map(repr, self.captions))}"
        return f"{told}, images from {self.image!r}" if self.image else told


def names_image(text: str) -> bool:
    """Whether a text is an address, or a file name with the ending of a picture."""
    text = text.strip()
    return text.startswith(("http://", "https://")) or text.lower().endswith((*PICTURES, *HEIF))


def columns_for(
    path: Path, header: Sequence[str], rows: Sequence[Mapping[str, Any]], told: CaptionColumns
) -> Columns:
    """The columns of captions and of image files; without a column of images, captions alone are read.

    Raises InputError if a column that was named is missing, or none is recognised as captions.
    """
    captions = check_told(path, header, told)
    image = told.image_column or _named(IMAGES, header, captions)
    image = image or _only(header, captions, lambda name: _all(names_image, rows, name))
    if image and not told.image_column and names_image(image):
        raise InputError(
            f"{path}, line 1: {image!r} is an image, not the name of a column; write a first line that names the "
            "columns, such as image and caption"
        )
    if not captions:
        found = _named(CAPTIONS, header, [image])
        found = found or _only(header, [image], lambda name: _all(_is_sentence, rows, name))
        captions = [found] if found else []
    if not captions:
        raise InputError(
            f"{path}: no column is recognised as captions; there are: {', '.join(header)}; "
            "pass --caption-column"
        )
    return Columns(captions, image)


def check_told(path: Path, header: Sequence[str], told: CaptionColumns) -> list[str]:
    """The columns of captions that were named; raises InputError if one, or that of the images, is missing."""
    captions = [name.strip() for name in told.caption_column.split(",") if name.strip()]
    for flag, name in [("caption", one) for one in captions] + [("image", told.image_column)]:
        if name and name not in header:
            raise InputError(
                f"{path}: no column {name!r}; there are: {', '.join(header)}; mend --{flag}-column"
            )
    return captions


def _named(names: Sequence[str], header: Sequence[str], taken: Sequence[str]) -> str:
    """The first of some names that a header has, whatever its capitals; empty if it has none."""
    # Of two that differ in capitals alone the first one counts.
    there = {name.strip().lower(): name for name in reversed(header) if name not in taken}
    return next((there[name] for name in names if name in there), "")


def _only(header: Sequence[str], taken: Sequence[str], fits: Callable[[str], bool]) -> str:
    """The only column that fits; empty if there are several or none."""
    fitting = [name for name in header if name not in taken and fits(name)]
    return fitting[0] if len(fitting) == 1 else ""


def _all(fits: Callable[[str], bool], rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether every value of a column fits, of the first rows, as far as there is one."""
    values = [row.get(name) for row in rows[:LOOKED_AT]]
    texts = [one for value in values for one in (value if isinstance(value, list) else [value])]
    full = [text for text in texts if isinstance(text, str) and text.strip()]
    return bool(full) and all(map(fits, full))


def _is_sentence(text: str) -> bool:
    return len(text.split()) > 1 and not names_image(text)


def is_headed(header: Sequence[str], told: CaptionColumns) -> bool:
    """Whether a table names columns of images and of captions, or has those that were told."""
    if told.caption_column or told.image_column:
        asked = [*told.caption_column.split(","), told.image_column]
        return all(name.strip() in header for name in asked if name)
    image = _named(IMAGES, header, ())
    return bool(image) and bool(_named(CAPTIONS, header, [image]))


def header_of(path: Path) -> list[str]:
    """The names in the first line of a table, or of its first object; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            line = file.readline(HEAD).decode("utf-8-sig", "replace").rstrip("\r\n")
    except OSError:
        return []
    line, _, _ = line.partition("\r")  # an old Mac's file is one line
    if path.suffix != ".jsonl":
        return columns_in(line, usual_columns(path)).names(line)
    try:
        return names_in(json.loads(line))
    except (ValueError, RecursionError):
        return []


def names_in(row: object) -> list[str]:
    """The names of an object's fields; none of anything else."""
    return list(row) if isinstance(row, dict) else []


def rows_with_header(path: Path) -> tuple[list[str], list[tuple[Where, Mapping[str, Any]]]]:
    """All columns and rows of a table, see `whole_rows`; a .txt file is read as a csv, such as Flickr8k's of Kaggle.

    Raises InputError as `whole_rows` does.
    """
    if path.suffix != ".txt":
        return whole_rows(path, ())
    header = header_of(path)
    return header, [(Where(path, "line", line), row) for line, row in read_csv(path, header)]
