"""Boxes that others found: VCR's objects, COCO's annotations, and detections as MAttNet publishes them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from groundling.core.errors import TWICE, InputError, convert_errors, duplicates, raise_first
from groundling.data.regions.store import CELLS, MOST_PIXELS, clip_boxes
from groundling.runs.folder import read_json

FINE = 32
"""Masks are drawn with this many points per cell and side, of which the one in the middle counts."""
POINTS = 3
"""A polygon of fewer points has no area."""
_NAMES = """
person bicycle car motorcycle airplane bus train truck boat trafficlight firehydrant stopsign parkingmeter bench bird
cat dog horse sheep cow elephant bear zebra giraffe backpack umbrella handbag tie suitcase frisbee skis snowboard
sportsball kite baseballbat baseballglove skateboard surfboard tennisracket bottle wineglass cup fork knife spoon bowl
banana apple sandwich orange broccoli carrot hotdog pizza donut cake chair couch pottedplant bed diningtable toilet tv
laptop mouse remote keyboard cellphone microwave oven toaster sink refrigerator book clock vase scissors teddybear
hairdrier toothbrush
"""
CLASSES = tuple(_NAMES.split())
"""COCO's 80 things in COCO's order, as VCR spells them: without spaces."""


def class_names(found: Iterable[str]) -> list[str]:
    """The names by which objects are numbered: COCO's 80, whichever of them occur; of other things, those found."""
    names = set(found)
    return list(CLASSES) if names <= set(CLASSES) else sorted(names)


@dataclass(frozen=True)
class DetectedObjects:
    """What a detector found in an image and annotators could tag, in the order of the tags' numbers."""

    size: tuple[int, int]
    """Width and height in pixels."""
    names: tuple[str, ...]
    """n: what each object is."""
    boxes: np.ndarray
    """(n, 4) float32: x1, y1, x2, y2 as shares of width and height."""
    confidence: np.ndarray
    """(n,) float32: the detector's."""
    polygons: tuple[tuple[np.ndarray, ...], ...]
    """Of each object, the polygons (K, 2) of its segment, in the same shares."""

    def mask(self, number: int, side: int = CELLS) -> np.ndarray:
        """Which cells of a grid over the object's box (side, side) have their middle in its segment."""
        fine = side * FINE
        corner = self.boxes[number, :2]
        extent = self.boxes[number, 2:] - corner
        canvas = Image.new("1", (fine, fine))
        for polygon in self.polygons[number]:
            points = (
                polygon - corner
            ) / extent * fine - 0.5  # Pillow's points are middles of pixels
            ImageDraw.Draw(canvas).polygon(points.reshape(-1).tolist(), fill=1)
        return np.asarray(canvas)[FINE // 2 :: FINE, FINE // 2 :: FINE]

    def cover(self) -> np.ndarray:
        """The masks of all objects (n, 14, 14) bool; one without any polygon keeps its whole box.

        The release (jackroos/VL-BERT, common/utils/mask.py) asks for the upper left corners of cells, not their
        middles, and leaves an object without a polygon blank.
        """
        masks = np.ones((len(self.names), CELLS, CELLS), bool)
        for number, polygons in enumerate(self.polygons):
            if polygons:
                masks[number] = self.mask(number)
        return masks


def read_vcr_objects(path: Path) -> DetectedObjects:
    """The objects of an image, from the json beside it in `vcr1images`; all are kept, for tags are their numbers.

    Raises InputError if a field is missing, mistyped or of another length, or a box is empty or outside the image.
    """
    with convert_errors(f"{path}: not VCR's boxes with scores, segms, names, width and height"):
        content = read_json(path)
        size = int(content["width"]), int(content["height"])
        if min(size) < 1:
            raise ValueError(f"image of {size[0]} x {size[1]} pixels")
        names = tuple(content["names"])
        if not all(isinstance(name, str) for name in names):
            raise ValueError("a name is no text")
        sides = np.array(size * 2, np.float32)
        boxes = np.array(content["boxes"], np.float32).reshape(-1, 5)
        polygons = tuple(_polygons(segment, size) for segment in content["segms"])
    if not len(names) == len(boxes) == len(polygons):
        raise InputError(
            f"{path}: {len(names)} names, {len(boxes)} boxes and {len(polygons)} segments"
        )
    cut, good = clip_boxes(boxes[:, :4] / sides)
    if not good.all():
        raise InputError(
            f"{path}: box {int(good.argmin())} is empty or outside the image of {size[0]} x {size[1]}"
        )
    confidence = boxes[:, 4]
    if not np.isfinite(confidence).all():
        raise InputError(f"{path}: the score of a box is not a finite number")
    return DetectedObjects(size, names, cut, confidence, polygons)


def _polygons(
    segment: Sequence[Sequence[Sequence[float]]], size: tuple[int, int]
) -> tuple[np.ndarray, ...]:
    """An object's polygons (K, 2) as shares of the image's `size`, of those that have an area."""
    polygons = [np.array(points, float).reshape(-1, 2) / size for points in segment]
    return tuple(polygon for polygon in polygons if len(polygon) >= POINTS)


# Boxes of COCO's images: annotated ones, and detected ones as MAttNet publishes them for RefCOCO, + and g.

SIZE = "width and height are missing, or no whole numbers of pixels"
ALONE = "image_id is not among the images"
UNLISTED = "expected a listed category_id"
NO_BOX = "expected bbox [x, y, width, height]"
OUTSIDE = "expected a box inside its image, and not an empty one"


def box_corners(box: Sequence[float]) -> np.ndarray:
    """Corners (4,) of a box x, y, width, height."""
    x, y, width, height = map(float, box)
    return np.array([x, y, x + width, y + height])


# -- annotated ---------------------------------------------------------------------------------------------------------


class BoxAnnotation(NamedTuple):
    """One box of an image."""

    corners: Sequence[float]
    """x1, y1, x2, y2 in pixels."""
    category: int
    """Id of its class."""
    confidence: float = 1.0
    """1 for annotators'."""


@dataclass
class CocoInstances:
    """What COCO's instances json says, and what is wrong with it: places by what is expected there."""

    path: Path
    names: dict[int, str] = field(default_factory=dict)
    """Of classes, by id."""
    files: dict[Hashable, str] = field(default_factory=dict)
    """Of images, by id."""
    listed: set[str] = field(default_factory=set)
    """The same, without ids."""
    sizes: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    """Width and height in pixels, by id of the image."""
    notes: dict[Hashable, list[BoxAnnotation]] = field(default_factory=dict)
    """Boxes in the order of the file, by id of the image."""
    objects: dict[Hashable, tuple[Hashable, BoxAnnotation]] = field(default_factory=dict)
    """Boxes with their image, by id of the annotation, if it has one; of classes that are not listed, too."""
    faults: dict[str, list[str]] = field(default_factory=dict)
    """Why no command reads the file."""
    remarks: dict[str, list[str]] = field(default_factory=dict)
    """What commands read past, or leave out."""

    def add_fault(self, what: str, place: str) -> None:
        """Add a place."""
        self.faults.setdefault(what, []).append(place)

    def add_remark(self, what: str, *places: str) -> None:
        """Add places that commands read past."""
        if places:
            self.remarks.setdefault(what, []).extend(places)

    def require_valid(self, classless: bool = False) -> CocoInstances:
        """Itself; raises InputError for the first sort of `faults`, but for those of classes if they are not read."""
        for what, places in self.faults.items():
            if not (classless and what == UNLISTED):
                raise_first([f"{self.path}, {place}: {what}" for place in places])
        return self


def read_instances(path: Path, content: Any) -> CocoInstances:
    """The boxes of COCO's instances json, which holds `content`; raises InputError for anything else."""
    read = CocoInstances(path)
    with convert_errors(
        f"{path}: not COCO instances, images, annotations with bbox and categories, nor a list of detections"
    ):
        for category in content["categories"]:
            number = category["id"]
            name = str(category.get("name", number))
            if type(number) is not int or read.names.setdefault(number, name) != name:
                read.add_fault("expected a whole number of its own as id", f"class {name}")
        for image in content["images"]:
            _add_image(read, image)
        places = [(_add_note(read, note), note) for note in content["annotations"]]
    read.add_remark(TWICE, *duplicates(place for place, _ in places))
    read.add_remark(OUTSIDE, *_outside(read, places))
    return read


def _add_image(read: CocoInstances, image: Any) -> None:
    number, file = image["id"], str(image["file_name"])
    place = f"image {number}"
    if number in read.files:
        read.add_fault(TWICE, place)
        return
    if file in read.listed:
        read.add_fault(TWICE, f"file {file}")
    read.listed.add(file)
    sides = [image.get("width"), image.get("height")]
    try:
        width, height = map(int, sides)
    except (TypeError, ValueError, OverflowError):
        width = height = 0
    if not 1 <= min(width, height) <= max(width, height) <= MOST_PIXELS:
        read.add_fault(SIZE, place)
    elif any(type(side) is not int for side in sides):
        read.add_remark(SIZE, place)
    read.files[number] = file
    read.sizes[number] = (width, height)
    read.notes[number] = []


def _add_note(read: CocoInstances, note: Any) -> str:
    """Add an annotation; gives its place."""
    place = f"annotation {note['id']}" if "id" in note else "annotation without id"
    category = note["category_id"]
    try:
        corners = box_corners(note["bbox"]).tolist()
    except (TypeError, ValueError, OverflowError):
        corners = []
    if note["image_id"] not in read.files:
        read.add_fault(ALONE, place)
        return place
    if not corners:
        read.add_fault(NO_BOX, place)
        return place
    box = BoxAnnotation(corners, category)
    if "id" in note:
        read.objects[note["id"]] = (note["image_id"], box)
    if category in read.names:
        read.notes[note["image_id"]].append(box)
    else:
        read.add_fault(UNLISTED, place)
    return place


def _outside(read: CocoInstances, places: Sequence[tuple[str, Any]]) -> list[str]:
    """The places of boxes that are empty or outside, of images whose size is known."""
    if read.faults:
        return []
    sizes = [read.sizes[note["image_id"]] * 2 for _, note in places]
    corners = [box_corners(note["bbox"]) for _, note in places]
    shares = np.array(corners, np.float32).reshape(-1, 4) / np.array(sizes, np.float32).reshape(
        -1, 4
    )
    _, good = clip_boxes(shares)
    return [place for (place, _), fits in zip(places, good, strict=True) if not fits]


# -- detected ----------------------------------------------------------------------------------------------------------


class Detection(NamedTuple):
    """One detected box."""

    image: int
    """COCO's number of the image."""
    corners: np.ndarray
    """(4,) float64: x1, y1, x2, y2 in pixels."""
    score: float
    """The detector's confidence."""
    category: int
    """COCO's number of its class; 0 where the file does not say."""
    name: str
    """The class in words; empty where the file does not say."""


def are_detections(content: object) -> bool:
    """Whether JSON looks like a list of detections."""
    return isinstance(content, list) and all(
        isinstance(row, dict) and {"image_id", "box"} <= row.keys() for row in content[:1]
    )


def read_detections(path: str | Path, content: object = None) -> list[Detection]:
    """The detections of a file such as `res101_coco_minus_refer_notime_dets.json`, in its order.

    A list of objects with `image_id`, `box` (x, y, width, height), `score`, and mostly `category_id` and
    `category_name`; `content` is what the file holds, if it has been read. Raises InputError naming the entry that is
    not one.
    """
    rows = read_json(Path(path)) if content is None else content
    if not isinstance(rows, list):
        raise InputError(f"{path}: not a list of detections with image_id, box and score")
    found = []
    for number, row in enumerate(rows):
        try:
            image = row["image_id"]
            category = row.get("category_id", 0)
            if type(image) is not int or type(category) is not int:
                raise ValueError("image_id and category_id are whole numbers")
            if not isinstance(row["box"], list):
                raise ValueError("box is no list of x, y, width and height")
            box = box_corners(row["box"])
            score = float(row["score"])
            found.append(Detection(image, box, score, category, str(row.get("category_name", ""))))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"{path}: not a list of detections with image_id, box and score (entry {number}: {error})"
            ) from None
    return found
