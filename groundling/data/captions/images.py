"""Where captioned images are: their files in a folder, or their ids in a region store, however names are spelt."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from groundling.core.errors import InputError, refuse
from groundling.data.captions.captions import Captioned
from groundling.data.tables.image_files import (
    Names,
    differs_in_ending,
    is_picture,
    leads_out,
    one_form,
    stem,
    unread_images,
)


@dataclass(frozen=True)
class Present:
    """Which captioned images are there."""

    images: list[Captioned]
    """Those that are, each with its file's own path, or with its id in a store."""
    missing: list[Captioned]
    fault: str = ""
    """What is said where none may be missing; empty if none is."""
    notes: tuple[str, ...] = ()
    """What a reader must know of how they were found."""

    def kept(self, skip: bool, folder: str | Path) -> list[Captioned]:
        """The images; raises InputError if `folder` holds none, or, unless `skip` is set, any is missing."""
        if self.missing and not skip:
            raise InputError(self.fault)
        if not self.images:
            raise InputError(f"{folder}: holds none of the captioned images")
        return self.images


def find_images(
    images: Sequence[Captioned], folder: str | Path, source: str | Path = ""
) -> Present:
    """Looks for the files of images in a folder: by their path there, else by their name in the folders below it.

    Names are the same in either Unicode form, and whatever the capitals of their ending; one that differs in others is
    missing, but told. A path that leads out of the folder is not followed. `source`: the captions, for messages.
    Raises InputError if there is no such folder, or names and files do not go one to one.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such image folder")
    where = str(source or folder)
    place: dict[str, str] = {}
    for image in images:
        # Not with Path.is_file, which raises an error for a name that is too long.
        if not image.file or leads_out(image.file, folder):
            continue
        if os.path.isfile(folder / image.file):
            place[image.file] = _in_one_spelling(image.file, folder)
    elsewhere = [image.file for image in images if image.file not in place]
    names = Names(_pictures_below(folder) if elsewhere else ())
    found = _found(elsewhere, names, where)
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
            f"{_outside(files, folder)}{names.but_for_capitals(files)}{unread}add them to {folder} or pass "
            "--skip-missing"
        )
    notes = _in_other_form(found, where) + _with_other_ending(found, where)
    return Present(there, missing, fault, notes)


def _outside(files: Sequence[str], folder: Path) -> str:
    """What is said of paths that lead out of the folder; empty if none does."""
    leading = [file for file in files if leads_out(file, folder)]
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
        for name in sorted(filter(is_picture, names)):
            yield (below / name).as_posix()


def _found(wanted: Sequence[str], names: Names, where: str) -> dict[str, str]:
    """Of names that are nowhere as they are, those that mean one that is there; raises InputError for several."""
    found = {}
    faults = []
    for name in dict.fromkeys(wanted):
        fitting = names.find(name) if name else []
        if len(fitting) > 1:
            faults.append(
                f"{where}: {name} may be {fitting[0]} or {fitting[1]}; write its folder with it"
            )
        elif fitting:
            found[name] = fitting[0]
    refuse(faults)
    return found


def _refuse_two_of_one(place: Mapping[str, str], where: str) -> None:
    """Raises InputError for two names that mean one file."""
    first: dict[str, str] = {}
    faults = []
    for name, file in place.items():
        earlier = first.setdefault(file, name)
        if earlier != name:
            faults.append(f"{where}: {earlier} and {name} both mean the image {file}; mend one")
    refuse(faults)


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
        not last.isascii() and not file.endswith(last) and one_form(file).endswith(one_form(last))
    )


def present(
    images: Sequence[Captioned], folder: str | Path, skip: bool = False, source: str | Path = ""
) -> tuple[list[Captioned], int]:
    """The images that exist in `folder`, each by its file's own path there, and how many do not (see `find_images`).

    Raises:
        InputError: no such folder, none of the images in it, or, unless `skip` is set, any of them missing.
    """
    found = find_images(images, folder, source)
    return found.kept(skip, folder), len(found.missing)


def in_store(
    images: Sequence[Captioned], ids: Collection[str], store: str, source: str | Path
) -> Present:
    """The images that a region store knows, under their ids there: their files without the ending.

    An image may have more or fewer folders in front of its name than it has in the store. `ids`: the store's, `store`:
    what messages call it. Raises InputError if two images would share their regions.
    """
    place = {one.file: stem(one.file) for one in images if stem(one.file) in ids}
    elsewhere = [one.file for one in images if one.file not in place]
    if elsewhere:
        stems = {file: stem(file) for file in elsewhere}
        found = _found(list(stems.values()), Names(ids), str(source))
        place |= {file: one_form(found[name]) for file, name in stems.items() if name in found}
    there = [one for one in images if one.file in place]
    lacking = [one for one in images if one.file not in place]
    fault = ""
    if lacking:
        fault = (
            f"{source}: {len(lacking)} of {len(images)} captioned images are not in the store, "
            f"the first is {stem(lacking[0].file)!r}; add them to {store} or pass --skip-missing"
        )
    with_store_ids(there)
    _refuse_two_of_one(place, str(source))
    return Present([replace(one, id=place[one.file]) for one in there], lacking, fault)


def with_store_ids(images: Sequence[Captioned]) -> list[Captioned]:
    """The images under the ids that a region store knows them by: their files without the ending.

    Raises:
        InputError: two images differ in nothing but the ending, and would share their regions.
    """
    first: dict[str, str] = {}
    faults = []
    for image in images:
        name = stem(image.file)
        earlier = first.setdefault(name, image.file)
        if earlier != image.file:
            faults.append(
                f"{image.file} and {earlier} would both be the image {name!r} of a region store; "
                "rename one of them"
            )
    refuse(faults)
    return [replace(image, id=stem(image.file)) for image in images]
