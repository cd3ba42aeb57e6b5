"""Layouts of captioned images, read as the commands read them, and COCO's boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groundling.check.images import try_images
from groundling.check.places import Match, Place, Report, pictures_below
from groundling.core.errors import InputError
from groundling.data.captions.captions import Captions, find_images
from groundling.data.captions.files import COCO, METADATA, layout_of
from groundling.data.images import is_picture
from groundling.data.regions.coco_boxes import read_instances
from groundling.data.tables import ROWS
from groundling.runs.folder import read_json

BOXES = "COCO boxes"
Record = dict[str, Any]
"""An object of a JSON file, of which nothing is certain."""
WITHOUT_ANNOTATIONS = "image_info_*.json"
"""COCO's lists of test images, which rightly have no annotations."""


@dataclass
class _Contents:
    """What the files of a folder say of images."""

    names: list[str] = field(default_factory=list)
    """The layouts that were seen."""
    captioned: dict[Path, Captions] = field(default_factory=dict)
    """By file of captions, what it says."""
    boxed: dict[Path, list[str]] = field(default_factory=dict)
    """By file of boxes, the image files that it lists."""

    def of(self, blind: bool) -> _Contents:
        """The part of it that belongs to a rendered world's control images, or to the others."""
        return _Contents(
            self.names,
            {p: told for p, told in self.captioned.items() if ("blind" in p.name) == blind},
            {p: images for p, images in self.boxed.items() if ("blind" in p.name) == blind},
        )


def captions(place: Place, report: Report) -> Match | None:
    """Captions and boxes by image file, and the images they are of."""
    contents = _Contents()
    for path in _candidates(place):
        try:
            _file(path, place, contents, report)
        except InputError as error:
            report.error(error)
    if not contents.names:
        return None
    _images(place, contents, report)
    taken = [*place.files, *place.image_folders, *contents.captioned]
    return Match(dict.fromkeys(taken, ()), tuple(contents.names))


def _candidates(place: Place) -> list[Path]:
    """Files that may hold captions or boxes: the folder's own, JSON in COCO's `annotations`, the folder itself."""
    taken = place.taken | place.root.taken
    paths = [path for path in place.files if path not in taken]
    if place is place.root:
        paths += sorted((place.folder / "annotations").glob("*.json"))
    if not any(path.name in METADATA for path in paths) and place.root.folder not in taken:
        paths.append(place.folder)  # captions may stand beside images
    return [path for path in paths if path not in taken]


def _file(path: Path, place: Place, contents: _Contents, report: Report) -> None:
    """Report on one file, or the folder, if it is in one of the layouts."""
    content = read_json(path) if path.suffix == ".json" else None
    if isinstance(content, dict) and {"images", "annotations", "categories"} <= set(content):
        if place is place.root:  # in other folders they belong to a data set
            contents.names.append(BOXES)
            contents.boxed[path] = _boxes(path, content, report)
        return
    columns = place.root.flags.columns
    layout = layout_of(path, columns, content) or _half(path, content)
    told: Captions | None = None
    if not layout:
        if path.suffix not in ROWS or not _has_images(place):
            return
        told = Captions(path, None, columns, content)
        if not _has_its_images(told, place):
            report.lines.extend(_not_taken(told, place))
            return
        layout = told.reading.layout  # as commands that are given it read it
    told = told or Captions(path, None, columns, content)
    contents.names.append(layout)
    contents.captioned[told.path] = told
    rows = told.reading.rows
    images = {row.file for row in rows}
    about = f"; {told.reading.about}" if told.reading.about else ""
    report.fact(told.path, f"{len(rows):,} captions of {len(images):,} images{about}")
    report.lines.extend(f"note: {guess}" for guess in told.guess)
    if path.is_dir():
        report.saw(*told.reading.sidecars)
    report.problems.extend([*told.faults, *told.notes])


def _boxes(path: Path, content: Record, report: Report) -> list[str]:
    """Report on COCO's boxes; gives the image files that are listed."""
    read = read_instances(path, content)
    for what, places in (*read.faults.items(), *read.remarks.items()):
        report.problem(path, what, places)
    about = f"{len(content['annotations']):,} boxes in {len(read.names):,} categories"
    report.fact(path, f"{about}; {len(read.files):,} images listed")
    return list(read.files.values())


def _has_its_images(told: Captions, place: Place) -> bool:
    """Whether a table whose columns were told by their values holds captions of images beside it."""
    folders = place.image_folders or _holder(place, inside_out=False)
    if told.faults or not folders:
        return False
    try:
        return bool(find_images(told.images, _base(place, folders), told.path).images)
    except InputError:
        return False


def _not_taken(told: Captions, place: Place) -> list[str]:
    """Why a table beside images is not taken for captions, and what the commands that would read it say of it."""
    if not told.reading.about:
        return [f"note: not taken for captions: {fault}" for fault in told.faults[:1]]
    how = "--caption-column and --image-column say so"
    lines = [f"{told.path}; if it holds {told.reading.about}, {how}", *told.faults, *told.notes]
    folders = place.image_folders or _holder(place, inside_out=False)
    if folders and not told.faults:
        try:
            found = find_images(told.images, _base(place, folders), told.path)
        except InputError as error:
            lines.append(str(error))
        else:
            lines += [found.fault] if found.fault else []
    return [f"note: not taken for captions: {line}" for line in lines]


def _has_images(place: Place) -> bool:
    """Whether a place holds images that a table beside them may be about."""
    beside = any(is_picture(path.name) for path in place.files)
    return beside or any(pictures_below(folder) for folder in place.folders)


def _half(path: Path, content: object) -> str:
    """COCO's captions, if this is their json without its annotations or its images; else empty."""
    if not isinstance(content, dict) or path.match(WITHOUT_ANNOTATIONS):
        return ""
    whole = _has_entries(content, "images", "file_name")
    return COCO if whole or _has_entries(content, "annotations", "caption") else ""


def _has_entries(content: Record, key: str, field_name: str) -> bool:
    """Whether a list of objects with such a field stands under a key."""
    entries = content.get(key)
    if not isinstance(entries, list) or not entries:
        return False
    return isinstance(entries[0], dict) and field_name in entries[0]


# -- their images ----------------------------------------------------------------------------------------------------


def _images(place: Place, contents: _Contents, report: Report) -> None:
    inside_out = any(path.is_dir() or path.name in METADATA for path in contents.captioned)
    folders = [] if inside_out else place.image_folders
    folders = folders or _holder(place, inside_out)
    if not folders:
        report.fact(place.folder, "no images*/ folder, so no image was looked for")
        return
    # A rendered world's control captions belong to its control images, which have the same names.
    blind = [folder for folder in folders if folder.name == "images_blind"]
    if not blind:
        _try(place, folders, contents, report)
        return
    _try(place, blind, contents.of(blind=True), report)
    others = [folder for folder in folders if folder not in blind]
    if others:
        _try(place, others, contents.of(blind=False), report)


def _holder(place: Place, inside_out: bool) -> list[Path]:
    """The folder with all images below a place, if there are any: the place's own, or the only one in it with some.

    `inside_out`: captions call their images by paths from the place.
    """
    holders = [folder for folder in place.folders if pictures_below(folder)]
    if inside_out or any(is_picture(path.name) for path in place.files):
        holders.append(place.folder)
    return holders if len(holders) < 2 else [place.folder]


def _base(place: Place, folders: Sequence[Path]) -> Path:
    """From where captions call their images: their folder, or of several the place."""
    return folders[0] if len(folders) == 1 else place.folder


def _try(place: Place, folders: list[Path], contents: _Contents, report: Report) -> None:
    """Look for the images in one folder, or in all of several, such as COCO's train2014 and val2014."""
    base = _base(place, folders)
    there: set[Path] = set()
    for path, told in contents.captioned.items():
        try:
            found = find_images(told.images, base, path)
        except InputError as error:
            report.error(error)
            continue
        there.update(base / image.file for image in found.images)
        if found.fault:
            report.problems.append(found.fault)
        for note in found.notes:
            report.lines.append(note)
    try_images(folders, report, contents.boxed, there if contents.captioned else None)
