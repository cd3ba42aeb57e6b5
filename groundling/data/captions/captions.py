"""Captioned images, from caption files and folders in common layouts (see `files.py`),
and where the images are.

Images are files in a folder, or have regions in a store; spelling variants
of their names are matched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from groundling.core.errors import EMPTY, InputError, count_suffix, require_nonempty
from groundling.data.captions.files import (
    NO_COLUMNS,
    CaptionRow,
    caption_rows,
    is_kaggle,
    is_karpathy,
)
from groundling.data.images import (
    FileNameMatcher,
    check_image_folder,
    image_id,
    images_below,
    is_outside_folder,
    normalize_unicode,
)
from groundling.data.tables import DATA_FILES, lines_of, load_json
from groundling.settings.input_settings import CaptionColumns

NUMBERED = re.compile(r"(\S+\.\w+) \d+")
"""A line of Karpathy's lists: the image's path and its number."""


@dataclass(frozen=True)
class CaptionedImage:
    """An image file and its captions."""

    id: str
    """The image's name in the caption file: COCO's id, a URL, or the file's name."""
    file: str
    """The image's path below the image folder."""
    captions: tuple[str, ...]
    """All captions of the image, at least one, in the order of the file."""


@dataclass(frozen=True)
class CaptionCollection:
    """The captions of a file or folder."""

    path: Path
    rows: Sequence[CaptionRow]
    """The captions with text."""
    notes: tuple[str, ...] = ()
    """A note on captions without text, which are left out."""

    @cached_property
    def images(self) -> list[CaptionedImage]:
        """Images with their captions, in the order of their first captions."""
        grouped: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            grouped.setdefault((row.image, row.file), []).append(row.caption)
        return [
            CaptionedImage(image, file, tuple(captions))
            for (image, file), captions in grouped.items()
        ]


@dataclass(frozen=True)
class CaptionReadOptions:
    """Selects captions: by split in Karpathy's json, by column in tables."""

    splits: tuple[str, ...] = ()
    columns: CaptionColumns = NO_COLUMNS

    def for_files(self, files: Sequence[str | Path]) -> list[CaptionReadOptions]:
        """The selection for each file; splits that fit no file are kept for all, so that reading reports it."""
        is_split = [len(files) > 1 and bool(self.splits) and has_splits(file) for file in files]
        return [
            self if one or not any(is_split) else CaptionReadOptions((), self.columns)
            for one in is_split
        ]


def has_splits(path: str | Path) -> bool:
    """Whether a caption file is Karpathy's, in which every image has a split."""
    return Path(path).suffix == ".json" and is_karpathy(load_json(Path(path)))


def _collect(path: Path, splits: Sequence[str], columns: CaptionColumns) -> CaptionCollection:
    every = list(caption_rows(path, splits, columns))
    rows = [row for row in every if row.caption]
    empty = [row for row in every if not row.caption]
    require_nonempty(rows, f"{path}: no captions found")
    notes = [f"{row.place}: {EMPTY}{count_suffix(empty)}" for row in empty[:1]]
    return CaptionCollection(path, rows, tuple(notes))


def read_captions(
    path: str | Path, splits: Sequence[str] = (), columns: CaptionColumns = NO_COLUMNS
) -> CaptionCollection:
    """Captions, each with its image.

    `splits`: images to take from Karpathy's json. `columns`: columns to read from a table; without,
    they are recognised by name.
    """
    captions = _collect(Path(path), splits, columns)
    first: dict[str, CaptionRow] = {}
    for row in captions.rows:
        if not row.image:
            raise InputError(f"{path}: no column is recognised as image files; set image_column")
        earlier = first.setdefault(row.file, row)
        # A URL that ends in a slash names no file, so its image counts as missing.
        if row.file and row.image != earlier.image:
            raise InputError(
                f"{row.place}: {row.image} and {earlier.image} both refer to the image file {row.file}"
            )
    return captions


def caption_lines(
    path: str | Path, splits: Sequence[str] = (), columns: CaptionColumns = NO_COLUMNS
) -> list[str]:
    """All captions as plain text, image by image; images are not checked."""
    return [caption for caption, _ in captions_of_images(path, splits, columns)]


def captions_of_images(
    path: str | Path, splits: Sequence[str] = (), columns: CaptionColumns = NO_COLUMNS
) -> list[tuple[str, str]]:
    """All captions, each with its image's id in region stores; empty for none."""
    captions = _collect(Path(path), splits, columns)
    return [
        (caption, image_id(image.file)) for image in captions.images for caption in image.captions
    ]


def is_captions(path: Path) -> bool:
    """Whether a text file holds captions: by its ending, or by its first line."""
    if path.is_dir() or path.suffix in DATA_FILES or path.name.endswith(".token.txt"):
        return True
    return is_kaggle(path)


def keep_listed(images: list[CaptionedImage], listing: str | Path) -> list[CaptionedImage]:
    """The images named in a list of file names, one per line, or in one of Karpathy's; all without a list."""
    if not listing:
        return images
    names = set()
    for line in lines_of(listing):
        names.add(normalize_unicode(line.strip()))
        numbered = NUMBERED.fullmatch(normalize_unicode(line.strip()))
        if numbered is not None:
            names |= {numbered[1], numbered[1].rpartition("/")[2]}
    kept = [image for image in images if normalize_unicode(image.file) in names]
    if not kept:
        raise InputError(f"{listing}: lists none of the captioned images")
    return kept


def join_captions(captions: Sequence[str], count: int) -> tuple[str, ...]:
    """Every `count` captions of an image joined to one text of sentences, in order; the last text has the rest."""
    if count == 1:
        return tuple(captions)
    sentences = [one if one[-1] in ".!?" else f"{one}." for one in captions]
    starts = range(0, len(sentences), count)
    return tuple(" ".join(sentences[start : start + count]) for start in starts)


# -- the image files ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageAvailability:
    """Captioned images that were found, and those that are missing."""

    images: list[CaptionedImage]
    """The images found, each with its file's path, or with its id in a store."""
    missing: list[CaptionedImage]
    where: str = ""
    """The captions, for messages."""

    def select_images(self, skip: bool, place: str | Path) -> list[CaptionedImage]:
        """The images found."""
        count = len(self.images) + len(self.missing)
        if self.missing and not skip:
            raise InputError(
                f"{self.where}: {len(self.missing)} of {count} captioned images are missing, the first is "
                f"{self.missing[0].file}; add them to {place}, or set skip_missing"
            )
        require_nonempty(self.images, f"{place}: none of the captioned images is in it")
        return self.images


def find_images(
    images: Sequence[CaptionedImage], folder: str | Path, source: str | Path = ""
) -> ImageAvailability:
    """Finds the files of images in a folder: by their path there, or else by their name in its subfolders.

    `source`: the captions, for messages.
    """
    folder = Path(folder)
    check_image_folder(folder)

    def is_here(name: str) -> bool:
        # Not with Path.is_file, which raises an error for a name that is too long.
        return not is_outside_folder(name, folder) and os.path.isfile(folder / name)

    places = {image.file: os.path.normpath(image.file) for image in images if image.file}
    place = _match(places, is_here, lambda: images_below(folder), str(source or folder))
    found = [replace(one, file=place[one.file]) for one in images if one.file in place]
    return ImageAvailability(
        found, [one for one in images if one.file not in place], str(source or folder)
    )


def images_in_folder(
    images: Sequence[CaptionedImage],
    folder: str | Path,
    skip: bool = False,
    source: str | Path = "",
) -> tuple[list[CaptionedImage], int]:
    """The images that exist in `folder`, each with its file's path there, and the number of missing
    ones (see `find_images`).

    Raises:
        InputError: no such folder, none of the images in it, or, unless `skip` is
            set, any of them missing.
    """
    found = find_images(images, folder, source)
    return found.select_images(skip, folder), len(found.missing)


def images_in_store(
    images: Sequence[CaptionedImage], ids: Collection[str], source: str | Path
) -> ImageAvailability:
    """The images that a region store with these `ids` has, with their ids there, perhaps with other leading folders."""
    names = {image.file: image_id(image.file) for image in images}
    place = _match(names, ids.__contains__, lambda: ids, str(source))
    found = [
        replace(one, id=normalize_unicode(place[one.file])) for one in images if one.file in place
    ]
    return ImageAvailability(found, [one for one in images if one.file not in place], str(source))


def _match(
    names: Mapping[str, str],
    exists: Callable[[str], bool],
    existing: Callable[[], Iterable[str]],
    where: str,
) -> dict[str, str]:
    place = {file: name for file, name in names.items() if exists(name)}
    matcher = FileNameMatcher(existing() if len(place) < len(names) else ())
    for file, name in names.items():
        fitting = [] if file in place else matcher.find(name)
        if len(fitting) > 1:
            raise InputError(
                f"{where}: {name} is ambiguous: {fitting[0]} or {fitting[1]}; add the folder to the name"
            )
        if fitting:
            place[file] = fitting[0]
    _refuse_shared(place, where)
    return place


def _refuse_shared(place: Mapping[str, str], where: str) -> None:
    first: dict[str, str] = {}
    for file, name in place.items():
        earlier = first.setdefault(normalize_unicode(name), file)
        if earlier != file:
            raise InputError(f"{where}: {earlier} and {file} both refer to the image {name}")


def with_store_ids(images: Sequence[CaptionedImage]) -> list[CaptionedImage]:
    """The images with their ids in a region store: their files without the ending."""
    _refuse_shared({image.file: image_id(image.file) for image in images}, "region store")
    return [replace(image, id=image_id(image.file)) for image in images]
