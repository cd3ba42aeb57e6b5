"""Captioned images, from caption files and folders in common layouts (see `files.py`),
and where the images are.

Images are files in a folder, or have regions in a store; spelling variants
of their names are matched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from groundling.core.errors import InputError, count_suffix, raise_first
from groundling.data.captions.files import (
    TABLE,
    CaptionFile,
    CaptionRow,
    is_karpathy,
    layout_of,
    read_file,
)
from groundling.data.images import (
    FileNameMatcher,
    check_image_folder,
    differs_in_ending,
    image_id,
    is_image_file,
    is_outside_folder,
    normalize_unicode,
    unread_images,
)
from groundling.data.tables import DATA_FILES, ROWS, lines_of
from groundling.runs.folder import read_json
from groundling.runs.hashing import sha256_of
from groundling.settings.input_settings import CaptionColumns

NUMBERED = re.compile(r"(\S+\.\w+) \d+")
"""A line of Karpathy's lists: the image's path and its number."""
DETECTED_COLUMNS = CaptionColumns()
"""No column is named; columns are detected."""


@dataclass(frozen=True)
class CaptionedImage:
    """An image file and its captions."""

    id: str
    """The image's name in the caption file: COCO's id, a URL, or the file's name."""
    file: str
    """The image's path below the image folder."""
    captions: tuple[str, ...]
    """All captions of the image, at least one, in the order of the file."""


class CaptionCollection:
    """A file or folder of captions, with its images, its faults, and notes on ignored entries."""

    def __init__(
        self,
        path: str | Path,
        splits: Sequence[str] | None = (),
        columns: CaptionColumns = DETECTED_COLUMNS,
        content: object = None,
    ) -> None:
        """Reads `path`; never raises InputError.

        `splits`: the splits to read from Karpathy's json, None for all. `content`: the parsed JSON
        of the file, if it has been read.
        """
        self.caption_file: CaptionFile = read_file(Path(path), splits, columns, content)
        self.path = self.caption_file.path
        if not self.caption_file.rows and not self.caption_file.faults:
            self.caption_file.add_fault("none", f"{self.path}: no captions found")

    @cached_property
    def images(self) -> list[CaptionedImage]:
        """Images with their captions, in the order of their first captions.

        Images without captions are left out.
        """
        grouped: dict[tuple[str, str], list[str]] = {}
        for row in self.caption_file.rows:
            grouped.setdefault((row.image, row.file), []).append(row.caption)
        return [
            CaptionedImage(image, file, tuple(captions))
            for (image, file), captions in grouped.items()
        ]

    @property
    def text_faults(self) -> list[str]:
        """Faults of its texts: one line for each kind, with the number of such faults."""
        return _lines(self.caption_file.faults.values())

    @cached_property
    def faults(self) -> list[str]:
        """Faults of its images and texts, as in `text_faults`.

        Each caption needs an image, and each image its own file.
        """
        imageless = [self.caption_file.imageless] if self.caption_file.imageless else []
        return self.text_faults + _lines(
            [imageless, _shared_files(self.path, self.caption_file.rows)]
        )

    @property
    def notes(self) -> list[str]:
        """Notes on ignored entries: captions without text, and names that occur twice."""
        return _lines(self.caption_file.remarks.values())

    @property
    def column_notes(self) -> list[str]:
        """A note on how a table was read: its separator, if unusual, and columns that were
        detected from their values.
        """
        notes = [self.caption_file.separators] if self.caption_file.separators else []
        if self.caption_file.columns_detected:
            notes.append(
                f"{self.path}: {self.caption_file.summary}, detected from their values; to change "
                "them, pass --caption-column and --image-column"
            )
        return notes


@dataclass(frozen=True)
class CaptionReadOptions:
    """Selects captions: by split in Karpathy's json, by column in tables."""

    splits: tuple[str, ...] = ()
    columns: CaptionColumns = DETECTED_COLUMNS

    def for_files(self, files: Sequence[str | Path]) -> list[CaptionReadOptions]:
        """The selection for each of several files.

        A selection that fits no file is kept for all, so that reading one reports it.
        """
        if len(files) == 1:
            return [self]
        has_columns = self.columns != DETECTED_COLUMNS
        split = [file for file in files if self.splits and has_splits(file)]
        tables = [file for file in files if has_columns and is_table(file)]
        return [
            CaptionReadOptions(
                self.splits if file in split or not split else (),
                self.columns if file in tables or not tables else DETECTED_COLUMNS,
            )
            for file in files
        ]


def _lines(messages_by_kind: Iterable[Sequence[str]]) -> list[str]:
    """The first message of every kind, and their number."""
    return [messages[0] + count_suffix(messages) for messages in messages_by_kind if messages]


def read_captions(
    path: str | Path, splits: Sequence[str] | None = (), columns: CaptionColumns = DETECTED_COLUMNS
) -> CaptionCollection:
    """Captions whose images and texts can be used.

    `splits`: images to take from Karpathy's json. `columns`: columns to read from a table; without,
    they are recognised by name.

    Raises:
        InputError: a line or entry is malformed, there is no caption at all, two images
            have the same file, a file with splits is read without `splits`, or one without
            splits is read with them.
    """
    collection = CaptionCollection(path, splits, columns)
    for fault in collection.faults:
        raise InputError(fault)
    return collection


def caption_lines(
    path: str | Path, splits: Sequence[str] = (), columns: CaptionColumns = DETECTED_COLUMNS
) -> list[str]:
    """All captions of a caption file as plain text, image by image; image files are not checked.

    Raises:
        InputError: a line or entry is malformed, or there is no caption at all.
    """
    return [caption for caption, _ in captions_of_images(path, splits, columns)]


def captions_of_images(
    path: str | Path, splits: Sequence[str] = (), columns: CaptionColumns = DETECTED_COLUMNS
) -> list[tuple[str, str]]:
    """The same captions, each with its image's path without the ending, the image's id in
    region stores; empty for none.

    Raises InputError as `caption_lines`.
    """
    captions = CaptionCollection(path, splits, columns)
    for fault in captions.text_faults:
        raise InputError(fault)
    return [
        (caption, image_id(image.file)) for image in captions.images for caption in image.captions
    ]


def is_captions(path: Path) -> bool:
    """Whether a text file holds captions: by its ending, or as a table whose header names captions."""
    if path.is_dir() or path.suffix in DATA_FILES or path.name.endswith("token.txt"):
        return True
    return path.suffix == ".txt" and layout_of(path, DETECTED_COLUMNS) == TABLE


def has_splits(path: str | Path) -> bool:
    """Whether a caption file is Karpathy's, in which every image has a split."""
    return Path(path).suffix == ".json" and is_karpathy(read_json(Path(path)))


def is_table(path: str | Path) -> bool:
    """Whether a caption file has columns to choose from."""
    path = Path(path)
    if path.suffix == ".json":
        return isinstance(read_json(path), list)
    return path.suffix in ROWS or path.is_dir()


def _shared_files(path: Path, rows: Sequence[CaptionRow]) -> list[str]:
    """A message for each image that shares its file with another one: the
    captions cannot be assigned.
    """
    advice = "write each image's local file name in the second column"
    if path.suffix == ".json":
        advice = "give each image its own file_name, including its folder if there are several"
    first: dict[str, CaptionRow] = {}
    faults = []
    for row in rows:
        earlier = first.setdefault(row.file, row)
        # A URL that ends in a slash names no file, so its image counts as missing.
        if row.file and row.image != earlier.image:
            faults.append(
                f"{path}, {row.place}: {row.image} and {earlier.image} ({earlier.place}) "
                f"both refer to the image file {row.file}; {advice}"
            )
    return faults


def keep_listed(images: Sequence[CaptionedImage], listing: str | Path) -> list[CaptionedImage]:
    """The images named in a list of file names, one per line (e.g. `Flickr_8k.trainImages.txt`).

    A line of Karpathy's lists, `val2014/COCO_val2014_000000011169.jpg 11169`, names the
    file by its path or its name.

    Raises:
        InputError: the list cannot be read, or names none of the images.
    """
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
    """Every `count` captions of an image joined to one text, in order; the last text has the rest.

    A caption without final punctuation gets a full stop.
    """
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
    fault: str = ""
    """Message for the case that no image may be missing; empty if none is."""
    notes: tuple[str, ...] = ()
    """Notes on how the images were found."""

    def select_images(self, skip: bool, folder: str | Path) -> list[CaptionedImage]:
        """The images found.

        Raises InputError if `folder` has none or, unless `skip` is set, if any is missing.
        """
        if self.missing and not skip:
            raise InputError(self.fault)
        if not self.images:
            raise InputError(f"{folder}: none of the captioned images is in it")
        return self.images


def find_images(
    images: Sequence[CaptionedImage], folder: str | Path, source: str | Path = ""
) -> ImageAvailability:
    """Finds the files of images in a folder: by their path there, or else by
    their name in its subfolders.

    Unicode forms and capitals of the ending do not matter; a name with other differences in
    capitals counts as missing, and a message says so. A path that leads out of the folder is not
    followed. `source`: the captions, for messages.

    Raises InputError if there is no such folder, or if names and files do not match one to one.
    """
    folder = Path(folder)
    check_image_folder(folder)
    where = str(source or folder)
    place: dict[str, str] = {}
    for image in images:
        # Not with Path.is_file, which raises an error for a name that is too long.
        if not image.file or is_outside_folder(image.file, folder):
            continue
        if os.path.isfile(folder / image.file):
            place[image.file] = _in_one_spelling(image.file, folder)
    elsewhere = [image.file for image in images if image.file not in place]
    names = FileNameMatcher(_images_below(folder) if elsewhere else ())
    matches = _match_names(elsewhere, names, where, folder)
    place |= matches
    _refuse_shared_files(place, where)
    available = [replace(one, file=place[one.file]) for one in images if one.file in place]
    missing = [one for one in images if one.file not in place]
    fault = ""
    if missing:
        files = [one.file for one in missing]
        unread = "".join(f"{line}; " for line in unread_images(folder, files))
        fault = (
            f"{where}: {len(missing)} of {len(images)} captioned images are missing, the first is {missing[0].file}; "
            f"{_outside(files, folder)}{names.case_note(files)}{unread}add them to {folder} or pass "
            "--skip-missing"
        )
    notes = _in_other_form(matches, where) + _with_other_ending(matches, where)
    return ImageAvailability(available, missing, fault, notes)


def _outside(files: Sequence[str], folder: Path) -> str:
    """A note on paths that lead out of the folder; empty if none does."""
    leading = [file for file in files if is_outside_folder(file, folder)]
    if not leading:
        return ""
    return (
        f"{len(leading)} of them, such as {leading[0]}, are outside that folder and are not read; "
    )


def _in_one_spelling(file: str, folder: Path) -> str:
    """A path below a folder, without dots."""
    plain = os.path.normpath(file)
    is_roundabout = os.path.isabs(plain) or plain.startswith("..")
    return os.path.relpath(folder / plain, folder) if is_roundabout else plain


def _images_below(folder: Path) -> Iterator[str]:
    """The images below a folder, by their paths from there."""
    # rglob takes seconds for the many thousands of images that a folder may have.
    for place, folders, names in os.walk(folder):
        folders.sort()
        below = Path(place).relative_to(folder)
        for name in sorted(filter(is_image_file, names)):
            yield (below / name).as_posix()


def _match_names(
    names_to_match: Sequence[str], matcher: FileNameMatcher, where: str, folder: Path | None = None
) -> dict[str, str]:
    """Matches for names that do not occur exactly: each with the existing name that it means.

    `folder`: the folder, if the names are files; copies of one file are the same. Raises InputError
    if a name has several matches.
    """
    match_of = {}
    faults = []
    for name in dict.fromkeys(names_to_match):
        fitting = matcher.find(name) if name else []
        if len(fitting) > 1 and folder and len({sha256_of(folder / one) for one in fitting}) == 1:
            match_of[name] = fitting[0]
        elif len(fitting) > 1:
            faults.append(
                f"{where}: {name} is ambiguous: {fitting[0]} or {fitting[1]}; add the folder to the name"
            )
        elif fitting:
            match_of[name] = fitting[0]
    raise_first(faults)
    return match_of


def _refuse_shared_files(place: Mapping[str, str], where: str) -> None:
    """Raises InputError if two names match one file."""
    first: dict[str, str] = {}
    faults = []
    for name, file in place.items():
        earlier = first.setdefault(file, name)
        if earlier != name:
            faults.append(
                f"{where}: {earlier} and {name} both refer to the image {file}; correct one of them"
            )
    raise_first(faults)


def _in_other_form(matches: Mapping[str, str], where: str) -> tuple[str, ...]:
    """A note if names were found in another Unicode form."""
    other = [name for name, file in matches.items() if _differs(name, file)]
    if not other:
        return ()
    return (
        f"{where}: {len(other)} image names differ from their files only in Unicode form (macOS decomposes "
        f"accents) and are accepted; the first is {other[0]}",
    )


def _with_other_ending(matches: Mapping[str, str], where: str) -> tuple[str, ...]:
    """A note if names were found with other capitals in their ending."""
    other = [name for name, file in matches.items() if differs_in_ending(name, file)]
    if not other:
        return ()
    return (
        f"{where}: {len(other)} image names differ from their files only in the case of the ending and are accepted; "
        f"the first is {other[0]}",
    )


def _differs(name: str, file: str) -> bool:
    """Whether two names have the same last part in different Unicode forms."""
    last = name.rpartition("/")[2]
    return (
        not last.isascii()
        and not file.endswith(last)
        and normalize_unicode(file).endswith(normalize_unicode(last))
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
    images: Sequence[CaptionedImage], ids: Collection[str], store: str, source: str | Path
) -> ImageAvailability:
    """The images that a region store has, with their ids there: their files without the ending.

    An image's name may have more or fewer leading folders than in the store. `ids`: the store's,
    `store`: its name in messages. Raises InputError if two images would share their regions.
    """
    place = {one.file: image_id(one.file) for one in images if image_id(one.file) in ids}
    elsewhere = [one.file for one in images if one.file not in place]
    if elsewhere:
        stems = {file: image_id(file) for file in elsewhere}
        match_of = _match_names(list(stems.values()), FileNameMatcher(ids), str(source))
        place |= {
            file: normalize_unicode(match_of[name])
            for file, name in stems.items()
            if name in match_of
        }
    available = [one for one in images if one.file in place]
    missing = [one for one in images if one.file not in place]
    fault = ""
    if missing:
        fault = (
            f"{source}: {len(missing)} of {len(images)} captioned images are not in the store, "
            f"the first is {image_id(missing[0].file)!r}; add them to {store} or pass --skip-missing"
        )
    with_store_ids(available)
    _refuse_shared_files(place, str(source))
    return ImageAvailability(
        [replace(one, id=place[one.file]) for one in available], missing, fault
    )


def with_store_ids(images: Sequence[CaptionedImage]) -> list[CaptionedImage]:
    """The images with their ids in a region store: their files without the ending.

    Raises:
        InputError: two images differ only in the ending, and would share their regions.
    """
    first: dict[str, str] = {}
    faults = []
    for image in images:
        name = image_id(image.file)
        earlier = first.setdefault(name, image.file)
        if earlier != image.file:
            faults.append(
                f"{image.file} and {earlier} would both have the id {name!r} in a region store; "
                "rename one of them"
            )
    raise_first(faults)
    return [replace(image, id=image_id(image.file)) for image in images]
