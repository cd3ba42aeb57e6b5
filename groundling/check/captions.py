"""Layouts of captioned images: COCO, Flickr8k, Conceptual Captions, and the rendered world, which is COCO's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from groundling.check.examples import examples_of
from groundling.check.images import try_images
from groundling.check.places import Match, Place
from groundling.check.report import EMPTY, OUTSIDE, Report
from groundling.check.text import count_lines
from groundling.data.captions import file_of
from groundling.data.regions import PICTURES, inside
from groundling.data.tables import lines_of
from groundling.errors import InputError
from groundling.runs import read_json
from groundling.tasks.probes import CATEGORY, ODD, ORDER, TRUTH

CAPTIONS = "COCO captions"
BOXES = "COCO boxes"
FLICKR8K = "Flickr8k captions"
CONCEPTUAL = "Conceptual Captions"
UNREADABLE = "an entry lacks a field, or has it in another type than COCO's"
Record = dict[str, Any]
"""An object of a JSON file, of which nothing is certain."""
_Note = tuple[str, Record]
"""An annotation's place, for messages, and the annotation."""
WITHOUT_ANNOTATIONS = "image_info_*.json"
"""COCO's lists of test images, which rightly have no annotations."""


@dataclass
class _Contents:
    """What the files of a folder say of images."""

    names: list[str] = field(default_factory=list)
    """The layouts that were seen."""
    captioned: dict[Path, list[str]] = field(default_factory=dict)
    """By file of captions, the image file of every caption."""
    boxed: dict[Path, list[str]] = field(default_factory=dict)
    """By file of boxes, the image files that it lists."""

    def of(self, blind: bool) -> _Contents:
        """The part of it that belongs to a rendered world's control images, or to the others."""

        def part(files: dict[Path, list[str]]) -> dict[Path, list[str]]:
            return {p: images for p, images in files.items() if ("blind" in p.name) == blind}

        return _Contents(self.names, part(self.captioned), part(self.boxed))


def captions(place: Place, report: Report) -> Match | None:
    """Captions and boxes by image file, and the images they are of."""
    contents = _Contents()
    if (place.folder / "world.json").is_file():
        contents.names.append("rendered world")
        _world(place.folder, report)
    for path in _candidates(place):
        try:
            _file(path, contents, report)
        except InputError as error:
            report.error(error)
        except (AttributeError, KeyError, TypeError, ValueError):
            report.problems.append(f"{path}: {UNREADABLE}")
    if not contents.names:
        return None
    _images(place, contents, report)
    taken = [*place.files, *place.image_folders]
    return Match(dict.fromkeys(taken, ()), tuple(contents.names))


def _candidates(place: Place) -> list[Path]:
    """Files that may hold captions or boxes: those of the folder, and JSON in COCO's own `annotations` folder."""
    paths = [path for path in place.files if path not in place.taken]
    paths += sorted((place.folder / "annotations").glob("*.json"))
    return paths


def _world(folder: Path, report: Report) -> None:
    for task in (TRUTH, ODD, CATEGORY, ORDER):
        for split in ("train", "dev", "test"):  # a world has all, whichever its tasks report
            examples_of(task, folder, split, report)
    count_lines(folder / "corpus", report)


def _file(path: Path, contents: _Contents, report: Report) -> None:
    """Report on one file, if it is in one of the layouts."""
    if path.name.endswith("token.txt"):
        contents.names.append(FLICKR8K)
        _captioned(path, _flickr8k(path, report), contents, report)
    elif path.suffix == ".tsv":
        if _is_conceptual(path, report):
            contents.names.append(CONCEPTUAL)
            _captioned(path, _conceptual(path, report), contents, report)
    elif path.suffix == ".json":
        _json(path, contents, report)


def _captioned(path: Path, images: list[str], contents: _Contents, report: Report) -> None:
    contents.captioned[path] = images
    report.fact(f"{path}: {len(images):,} captions of {len(set(images)):,} images")


# -- lines -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    """A line of tab-separated fields."""

    at: str
    """Its place, for messages."""
    fields: list[str]
    """At least one."""


def _rows(path: Path) -> list[_Row]:
    rows = []
    for number, line in enumerate(lines_of(path), 1):
        rows.append(_Row(f"line {number}", line.split("\t")))
    return rows


def _empty(rows: Sequence[_Row], column: int) -> list[str]:
    """Places of the rows without text in a column."""
    return [row.at for row in rows if not row.fields[column].strip()]


def _flickr8k(path: Path, report: Report) -> list[str]:
    """The image file of every caption; lines are `file#number<TAB>caption`."""
    whole: list[_Row] = []
    broken: list[str] = []
    for row in _rows(path):
        if len(row.fields) > 1:
            whole.append(row)
        if len(row.fields) < 2 or "#" not in row.fields[0]:
            broken.append(row.at)
    report.problem(path, "expected image#number<TAB>caption", broken)
    report.problem(path, EMPTY, _empty(whole, column=1))
    report.repeated(path, [row.fields[0] for row in whole])
    return [row.fields[0].partition("#")[0] for row in whole]


def _is_conceptual(path: Path, report: Report) -> bool:
    """Whether the second column names images; a problem if the first one does instead."""
    first_lines = [line.split("\t") for line in lines_of(path)[:5]]
    rows = [fields for fields in first_lines if len(fields) > 1]
    if any(_names_image(fields[1]) for fields in rows):
        return True
    if any(_names_image(fields[0]) for fields in rows):
        what = "expected caption<TAB>image, found image<TAB>caption; exchange the columns"
        report.problem(path, what, ["line 1"])
    return False


def _names_image(text: str) -> bool:
    return text.startswith("http") or Path(text).suffix.lower() in PICTURES


def _conceptual(path: Path, report: Report) -> list[str]:
    """The image file of every caption; lines are `caption<TAB>image`."""
    whole: list[_Row] = []
    broken: list[str] = []
    for row in _rows(path):
        if len(row.fields) > 1:
            whole.append(row)
        else:
            broken.append(row.at)
    report.problem(path, "expected caption<TAB>image", broken)
    report.problem(path, EMPTY, _empty(whole, column=0))
    return [file_of(row.fields[1]) for row in whole]


# -- COCO ------------------------------------------------------------------------------------------------------------


def _json(path: Path, contents: _Contents, report: Report) -> None:
    content = read_json(path)
    if not isinstance(content, dict):
        return
    if "images" not in content or "annotations" not in content:
        _half(path, content, report)
    elif "categories" in content:
        contents.names.append(BOXES)
        contents.boxed[path] = _boxes(path, content, report)
    else:
        contents.names.append(CAPTIONS)
        _captioned(path, _coco_captions(path, content, report), contents, report)


def _half(path: Path, content: Record, report: Report) -> None:
    """A problem if this is COCO's json without its annotations or its images."""
    if path.match(WITHOUT_ANNOTATIONS):
        return
    if _has_entries(content, "images", "file_name"):
        report.problems.append(
            f"{path}: expected the key `annotations` beside `images`, found none"
        )
    if _has_entries(content, "annotations", "caption"):
        report.problems.append(
            f"{path}: expected the key `images` beside `annotations`, found none"
        )


def _has_entries(content: Record, key: str, field_name: str) -> bool:
    """Whether a list of objects with such a field stands under a key."""
    entries = content.get(key)
    if not isinstance(entries, list) or not entries:
        return False
    return isinstance(entries[0], dict) and field_name in entries[0]


def _notes(path: Path, content: Record, report: Report) -> list[_Note]:
    """Annotations with their places, after a look at what captions and boxes have in common."""
    notes = [(f"annotation {note['id']}", note) for note in content["annotations"]]
    images = {image["id"] for image in content["images"]}
    listed = [f"image {image['id']}" for image in content["images"]]
    report.repeated(path, listed + [at for at, _ in notes])
    lost = [at for at, note in notes if note["image_id"] not in images]
    report.problem(path, "image_id is not among the images", lost)
    return notes


def _coco_captions(path: Path, content: Record, report: Report) -> list[str]:
    """The image file of every caption."""
    notes = _notes(path, content, report)
    files = _files(content)
    images = []
    empty = []
    for at, note in notes:
        if not note["caption"].strip():
            empty.append(at)
        if note["image_id"] in files:
            images.append(files[note["image_id"]])
    report.problem(path, EMPTY, empty)
    return images


def _files(content: Record) -> dict[Any, str]:
    """The images' files by id."""
    return {image["id"]: str(image["file_name"]) for image in content["images"]}


def _boxes(path: Path, content: Record, report: Report) -> list[str]:
    """The image files that are listed."""
    notes = _notes(path, content, report)
    files = _files(content)
    categories = {category["id"] for category in content["categories"]}
    bad = []
    for at, note in notes:
        if note["category_id"] not in categories or len(note["bbox"]) != 4:
            bad.append(at)
    report.problem(path, "expected a listed category_id and bbox [x, y, width, height]", bad)
    report.problem(path, OUTSIDE, _outside(notes, content["images"]))
    about = f"{len(notes):,} boxes in {len(categories):,} categories"
    report.fact(f"{path}: {about}; {len(files):,} images listed")
    return list(files.values())


def _outside(notes: Sequence[_Note], images: Sequence[Record]) -> list[str]:
    """Places of boxes that are empty or outside their image, of images whose size is known."""
    size_of: dict[Any, tuple[float, float]] = {}
    for image in images:
        if "width" in image and "height" in image:
            size_of[image["id"]] = (image["width"], image["height"])
    places: list[str] = []
    boxes: list[tuple[float, ...]] = []
    sizes: list[tuple[float, ...]] = []
    for at, note in notes:
        if note["image_id"] in size_of and len(note["bbox"]) == 4:
            x, y, width, height = note["bbox"]
            places.append(at)
            boxes.append((x, y, x + width, y + height))
            sizes.append(size_of[note["image_id"]] * 2)
    if not places:
        return []
    with np.errstate(divide="ignore", invalid="ignore"):  # an image without width has no box inside
        shares = np.array(boxes, float) / np.array(sizes, float)
    _, good = inside(shares)
    return [at for at, fine in zip(places, good, strict=True) if not fine]


# -- their images ----------------------------------------------------------------------------------------------------


def _images(place: Place, contents: _Contents, report: Report) -> None:
    folders = place.image_folders
    if not folders:
        report.fact(f"{place.folder}: no images*/ folder, so no image was looked for")
        return
    # A rendered world's control captions belong to its control images, which have the same names.
    blind = [folder for folder in folders if folder.name == "images_blind"]
    if not blind:
        _try(folders, contents, report)
        return
    _try(blind, contents.of(blind=True), report)
    others = [folder for folder in folders if folder not in blind]
    if others:
        _try(others, contents.of(blind=False), report)


def _try(folders: list[Path], contents: _Contents, report: Report) -> None:
    captioned = None
    if contents.captioned:
        captioned = set[str]().union(*contents.captioned.values())
    try_images(folders, report, contents.captioned | contents.boxed, captioned)
