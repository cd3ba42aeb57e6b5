"""Captioned images, from whichever file or folder people keep captions in (see `files.py`), and where they are.

Their files lie in a folder, or their regions in a store, however names are spelt.
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
    NameLookup,
    check_image_folder,
    differs_in_ending,
    image_id,
    is_image_file,
    is_outside_folder,
    normalize_unicode,
    unread_images,
)
from groundling.data.tables import OWN, ROWS, lines_of
from groundling.runs.folder import read_json
from groundling.runs.hashing import sha256_of
from groundling.settings.input_settings import CaptionColumns

NUMBERED = re.compile(r"(\S+\.\w+) \d+")
"""A line of Karpathy's lists: the image's path and its number."""
GUESSED = CaptionColumns()
"""Columns that nobody has named."""


@dataclass(frozen=True)
class CaptionedImage:
    """An image file and what its annotators wrote."""

    id: str
    """What the captions' file calls the image: COCO's number, an address, or the file's name."""
    file: str
    """The image's path below the folder of images."""
    captions: tuple[str, ...]
    """All captions of the image, at least one, in the order of the file."""


class CaptionCollection:
    """A file or folder of captions as read: its images, what is wrong with it, and what is read past."""

    def __init__(
        self,
        path: str | Path,
        splits: Sequence[str] | None = (),
        columns: CaptionColumns = GUESSED,
        content: object = None,
    ) -> None:
        """Reads `path`; never raises InputError.

        `splits`: of Karpathy's json, those that are wanted, None for all. `content`: what a file of JSON holds, if it
        has been read.
        """
        self.reading: CaptionFile = read_file(Path(path), splits, columns, content)
        self.path = self.reading.path
        if not self.reading.rows and not self.reading.faults:
            self.reading.add_fault("none", f"{self.path}: no captions found")

    @cached_property
    def images(self) -> list[CaptionedImage]:
        """Images with their captions, in order of each one's first; images without any are left out."""
        grouped: dict[tuple[str, str], list[str]] = {}
        for row in self.reading.rows:
            grouped.setdefault((row.image, row.file), []).append(row.caption)
        return [
            CaptionedImage(image, file, tuple(captions))
            for (image, file), captions in grouped.items()
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
    def guess_note(self) -> list[str]:
        """What is to be said of how a table was read: what separates its columns, which were told by their values."""
        said = [self.reading.separators] if self.reading.separators else []
        if self.reading.guessed:
            said.append(
                f"{self.path}: {self.reading.about}, by what stands in them; --caption-column and --image-column say "
                "otherwise"
            )
        return said


@dataclass(frozen=True)
class CaptionFilter:
    """Which captions are read of files: of Karpathy's json those of some splits, of tables those of some columns."""

    splits: tuple[str, ...] = ()
    columns: CaptionColumns = GUESSED

    def for_files(self, files: Sequence[str | Path]) -> list[CaptionFilter]:
        """What is wanted of each of several files; what fits none is asked of all, so that reading them says so."""
        if len(files) == 1:
            return [self]
        has_columns = self.columns != GUESSED
        split = [file for file in files if self.splits and has_splits(file)]
        tables = [file for file in files if has_columns and is_table(file)]
        return [
            CaptionFilter(
                self.splits if file in split or not split else (),
                self.columns if file in tables or not tables else GUESSED,
            )
            for file in files
        ]


def _lines(sorts: Iterable[Sequence[str]]) -> list[str]:
    """The first message of every sort, and how many there are."""
    return [messages[0] + count_suffix(messages) for messages in sorts if messages]


def read_captions(
    path: str | Path, splits: Sequence[str] | None = (), columns: CaptionColumns = GUESSED
) -> CaptionCollection:
    """Captions whose images and texts can be used.

    `splits`: of Karpathy's json, which images to take. `columns`: of a table, what to read; without, it is told by
    their names.

    Raises:
        InputError: a line or entry is malformed, there is no caption at all, two images have the same file, or a file
            with splits is read without saying which, or one without them as if it had some.
    """
    told = CaptionCollection(path, splits, columns)
    for fault in told.faults:
        raise InputError(fault)
    return told


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
    captions = CaptionCollection(path, splits, columns)
    for fault in captions.text_faults:
        raise InputError(fault)
    return [
        (caption, image_id(image.file)) for image in captions.images for caption in image.captions
    ]


def is_captions(path: Path) -> bool:
    """Whether a file of text is one of captions: by its ending, or a table with a header that says so."""
    if path.is_dir() or path.suffix in OWN or path.name.endswith("token.txt"):
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
    return path.suffix in ROWS or path.is_dir()


def _shared_files(path: Path, rows: Sequence[CaptionRow]) -> list[str]:
    """A message for every image that has the file of another one: whose picture it holds cannot be known."""
    advice = "write each image's local file name in the second column"
    if path.suffix == ".json":
        advice = "give each image a file_name of its own, with its folder where there are several"
    first: dict[str, CaptionRow] = {}
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


def keep_listed(images: Sequence[CaptionedImage], listing: str | Path) -> list[CaptionedImage]:
    """The images named in a list of file names, one a line (e.g. `Flickr_8k.trainImages.txt`).

    A line of Karpathy's lists, `val2014/COCO_val2014_000000011169.jpg 11169`, names the file by its path or its name.

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
        raise InputError(f"{listing}: names none of the captioned images")
    return kept


def join_captions(captions: Sequence[str], count: int) -> tuple[str, ...]:
    """Every `count` captions of an image as one text, in their order; the last text has what is left.

    A caption that ends without a mark is given a full stop.
    """
    if count == 1:
        return tuple(captions)
    sentences = [one if one[-1] in ".!?" else f"{one}." for one in captions]
    starts = range(0, len(sentences), count)
    return tuple(" ".join(sentences[start : start + count]) for start in starts)


# -- where their images are --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageAvailability:
    """Which captioned images are there."""

    images: list[CaptionedImage]
    """Those that are, each with its file's own path, or with its id in a store."""
    missing: list[CaptionedImage]
    fault: str = ""
    """What is said where none may be missing; empty if none is."""
    notes: tuple[str, ...] = ()
    """What a reader must know of how they were found."""

    def select_images(self, skip: bool, folder: str | Path) -> list[CaptionedImage]:
        """The images; raises InputError if `folder` holds none, or, unless `skip` is set, any is missing."""
        if self.missing and not skip:
            raise InputError(self.fault)
        if not self.images:
            raise InputError(f"{folder}: holds none of the captioned images")
        return self.images


def find_images(
    images: Sequence[CaptionedImage], folder: str | Path, source: str | Path = ""
) -> ImageAvailability:
    """Looks for the files of images in a folder: by their path there, else by their name in the folders below it.

    Names are the same in either Unicode form, and whatever the capitals of their ending; one that differs in others is
    missing, but told. A path that leads out of the folder is not followed. `source`: the captions, for messages.
    Raises InputError if there is no such folder, or names and files do not go one to one.
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
    names = NameLookup(_pictures_below(folder) if elsewhere else ())
    found = _found(elsewhere, names, where, folder)
    place |= found
    _refuse_two_of_one(place, where)
    there = [replace(one, file=place[one.file]) for one in images if one.file in place]
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
    notes = _in_other_form(found, where) + _with_other_ending(found, where)
    return ImageAvailability(there, missing, fault, notes)


def _outside(files: Sequence[str], folder: Path) -> str:
    """What is said of paths that lead out of the folder; empty if none does."""
    leading = [file for file in files if is_outside_folder(file, folder)]
    if not leading:
        return ""
    return f"{len(leading)} lead out of that folder, such as {leading[0]}, and are not followed; "


def _in_one_spelling(file: str, folder: Path) -> str:
    """A path below a folder, without dots, however it leads there."""
    plain = os.path.normpath(file)
    is_roundabout = os.path.isabs(plain) or plain.startswith("..")
    return os.path.relpath(folder / plain, folder) if is_roundabout else plain


def _pictures_below(folder: Path) -> Iterator[str]:
    """The images below a folder by their paths from there."""
    # Not with rglob, which takes seconds for the many thousands of images that a folder may have.
    for place, folders, names in os.walk(folder):
        folders.sort()
        below = Path(place).relative_to(folder)
        for name in sorted(filter(is_image_file, names)):
            yield (below / name).as_posix()


def _found(
    wanted: Sequence[str], names: NameLookup, where: str, folder: Path | None = None
) -> dict[str, str]:
    """Of names that are nowhere as they are, those that mean one that is there.

    `folder`: where they are files; copies of one are the same. Raises InputError for several that may be meant.
    """
    found = {}
    faults = []
    for name in dict.fromkeys(wanted):
        fitting = names.find(name) if name else []
        if len(fitting) > 1 and folder and len({sha256_of(folder / one) for one in fitting}) == 1:
            found[name] = fitting[0]
        elif len(fitting) > 1:
            faults.append(
                f"{where}: {name} may be {fitting[0]} or {fitting[1]}; write its folder with it"
            )
        elif fitting:
            found[name] = fitting[0]
    raise_first(faults)
    return found


def _refuse_two_of_one(place: Mapping[str, str], where: str) -> None:
    """Raises InputError for two names that mean one file."""
    first: dict[str, str] = {}
    faults = []
    for name, file in place.items():
        earlier = first.setdefault(file, name)
        if earlier != name:
            faults.append(f"{where}: {earlier} and {name} both mean the image {file}; mend one")
    raise_first(faults)


def _in_other_form(found: Mapping[str, str], where: str) -> tuple[str, ...]:
    """A note if names were found in another Unicode form."""
    other = [name for name, file in found.items() if _differs(name, file)]
    if not other:
        return ()
    return (
        f"{where}: {len(other)} image names are in another Unicode form than their files' (macOS takes accents apart) "
        f"and are taken for the same, the first is {other[0]}",
    )


def _with_other_ending(found: Mapping[str, str], where: str) -> tuple[str, ...]:
    """A note if names were found with other capitals in their ending."""
    other = [name for name, file in found.items() if differs_in_ending(name, file)]
    if not other:
        return ()
    return (
        f"{where}: {len(other)} image names differ from their files' in the capitals of the ending, and are taken for "
        f"the same, the first is {other[0]}",
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
    """The images that exist in `folder`, each by its file's own path there, and how many do not (see `find_images`).

    Raises:
        InputError: no such folder, none of the images in it, or, unless `skip` is set, any of them missing.
    """
    found = find_images(images, folder, source)
    return found.select_images(skip, folder), len(found.missing)


def images_in_store(
    images: Sequence[CaptionedImage], ids: Collection[str], store: str, source: str | Path
) -> ImageAvailability:
    """The images that a region store knows, under their ids there: their files without the ending.

    An image may have more or fewer folders in front of its name than it has in the store. `ids`: the store's, `store`:
    what messages call it. Raises InputError if two images would share their regions.
    """
    place = {one.file: image_id(one.file) for one in images if image_id(one.file) in ids}
    elsewhere = [one.file for one in images if one.file not in place]
    if elsewhere:
        stems = {file: image_id(file) for file in elsewhere}
        found = _found(list(stems.values()), NameLookup(ids), str(source))
        place |= {
            file: normalize_unicode(found[name]) for file, name in stems.items() if name in found
        }
    there = [one for one in images if one.file in place]
    lacking = [one for one in images if one.file not in place]
    fault = ""
    if lacking:
        fault = (
            f"{source}: {len(lacking)} of {len(images)} captioned images are not in the store, "
            f"the first is {image_id(lacking[0].file)!r}; add them to {store} or pass --skip-missing"
        )
    with_store_ids(there)
    _refuse_two_of_one(place, str(source))
    return ImageAvailability([replace(one, id=place[one.file]) for one in there], lacking, fault)


def with_store_ids(images: Sequence[CaptionedImage]) -> list[CaptionedImage]:
    """The images under the ids that a region store knows them by: their files without the ending.

    Raises:
        InputError: two images differ in nothing but the ending, and would share their regions.
    """
    first: dict[str, str] = {}
    faults = []
    for image in images:
        name = image_id(image.file)
        earlier = first.setdefault(name, image.file)
        if earlier != image.file:
            faults.append(
                f"{image.file} and {earlier} would both be the image {name!r} of a region store; "
                "rename one of them"
            )
    raise_first(faults)
    return [replace(image, id=image_id(image.file)) for image in images]
