"""Captioned images, from caption files and folders in common layouts (see `files.py`), and where the images are.

Images are files in a folder, or have regions in a store; spelling variants of their names are matched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

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
    image_id,
    images_below,
    is_outside_folder,
    normalize_unicode,
)
from groundling.data.tables import DATA_FILES, lines_of, load_json
from groundling.settings.input_settings import CaptionColumns, CaptionSettings

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


class CaptionCollection(NamedTuple):
    """The captions of a file or folder."""

    images: list[CaptionedImage]
    """Images with their captions, in the order of their first captions."""
    notes: list[str]
    """A note on captions without text, which are left out."""


def settings_by_file(
    files: Sequence[str | Path], settings: CaptionSettings
) -> list[CaptionSettings]:
    """The settings for each file: splits are of the files that have some, or of all if none has, which is refused."""
    splits = bool(settings.caption_splits) and len(files) > 1
    are_split = [splits and has_splits(file) for file in files]
    whole = replace(settings, caption_splits=())
    return [settings if one or not any(are_split) else whole for one in are_split]


def has_splits(path: str | Path) -> bool:
    """Whether a caption file is Karpathy's, in which every image has a split."""
    return Path(path).suffix == ".json" and is_karpathy(load_json(Path(path)))


def _rows_with_text(
    path: Path, splits: Sequence[str], columns: CaptionColumns
) -> tuple[list[CaptionRow], list[str]]:
    every = list(caption_rows(path, splits, columns))
    rows = [row for row in every if row.caption]
    require_nonempty(rows, f"{path}: no captions found")
    empty = [row for row in every if not row.caption]
    return rows, [f"{row.place}: {EMPTY}{count_suffix(empty)}" for row in empty[:1]]


def _by_image(rows: Iterable[CaptionRow]) -> list[CaptionedImage]:
    captions: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        captions.setdefault((row.image, row.file), []).append(row.caption)
    return [CaptionedImage(image, file, tuple(own)) for (image, file), own in captions.items()]


def read_captions(
    path: str | Path, splits: Sequence[str] = (), columns: CaptionColumns = NO_COLUMNS
) -> CaptionCollection:
    """Captions, each with its image.

    `splits`: images to take from Karpathy's json. `columns`: columns to read from a table; without,
    they are recognised by name.
    """
    rows, notes = _rows_with_text(Path(path), splits, columns)
    first: dict[str, CaptionRow] = {}
    for row in rows:
        if not row.image:
            raise InputError(f"{path}: no column is recognised as image files; set image_column")
        earlier = first.setdefault(row.file, row)
        # A URL that ends in a slash names no file, so its image counts as missing.
        if row.file and row.image != earlier.image:
            raise InputError(
                f"{row.place}: {row.image} and {earlier.image} both refer to the image file {row.file}"
            )
    return CaptionCollection(_by_image(rows), notes)


def captions_of_images(
    path: str | Path, splits: Sequence[str] = (), columns: CaptionColumns = NO_COLUMNS
) -> list[tuple[str, str]]:
    """All captions, image by image, each with its image's id in region stores, or empty; images are not checked."""
    rows, _ = _rows_with_text(Path(path), splits, columns)
    return [
        (caption, image_id(image.file)) for image in _by_image(rows) for caption in image.captions
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


def find_images(
    images: Sequence[CaptionedImage], folder: str | Path, skip: bool = False
) -> tuple[list[CaptionedImage], int]:
    """The images whose files are in a folder, by their path there or else by their name in its subfolders, with it.

    Also returns the number of missing images; raises InputError for one of them unless `skip` is set.
    """
    folder = Path(folder)

    def is_here(name: str) -> bool:
        # Not with Path.is_file, which raises an error for a name that is too long.
        return not is_outside_folder(name, folder) and os.path.isfile(folder / name)

    names = {image.file: os.path.normpath(image.file) for image in images if image.file}
    place = _match(names, is_here, lambda: images_below(folder), folder)
    found = _require_images(images, place, skip, folder)
    return [replace(one, file=place[one.file]) for one in found], len(images) - len(found)


def images_in_store(
    images: Sequence[CaptionedImage], ids: Collection[str], folder: str | Path, skip: bool = False
) -> tuple[list[CaptionedImage], int]:
    """The images that the region store in `folder` with these `ids` has, with their ids there, and as `find_images`."""
    names = {image.file: image_id(image.file) for image in images}
    place = _match(names, ids.__contains__, lambda: ids, folder)
    found = _require_images(images, place, skip, folder)
    own = [replace(one, id=normalize_unicode(place[one.file])) for one in found]
    return own, len(images) - len(found)


def _require_images(
    images: Sequence[CaptionedImage], found: Collection[str], skip: bool, where: str | Path
) -> list[CaptionedImage]:
    missing = [image.file for image in images if image.file not in found]
    if len(missing) == len(images) or (missing and not skip):
        raise InputError(
            f"{where}: {len(missing)} of {len(images)} captioned images are missing, the first is {missing[0]} "
            "(skip_missing)"
        )
    return [image for image in images if image.file in found]


def _match(
    names: Mapping[str, str],
    exists: Callable[[str], bool],
    existing: Callable[[], Iterable[str]],
    where: str | Path,
) -> dict[str, str]:
    place = {file: name for file, name in names.items() if exists(name)}
    matcher = FileNameMatcher(existing() if len(place) < len(names) else ())
    for file, name in names.items():
        fitting = [] if file in place else matcher.find(name)
        if len(fitting) > 1:
            raise InputError(f"{where}: {name} is ambiguous: {fitting[0]} or {fitting[1]}")
        if fitting:
            place[file] = fitting[0]
    _refuse_shared(place, where)
    return place


def _refuse_shared(place: Mapping[str, str], where: str | Path) -> None:
    first: dict[str, str] = {}
    for file, name in place.items():
        earlier = first.setdefault(normalize_unicode(name), file)
        if earlier != file:
            raise InputError(f"{where}: {earlier} and {file} both refer to the image {name}")


def with_store_ids(images: Sequence[CaptionedImage]) -> list[CaptionedImage]:
    """The images with their ids in a region store: their files without the ending."""
    _refuse_shared({image.file: image_id(image.file) for image in images}, "region store")
    return [replace(image, id=image_id(image.file)) for image in images]
