"""Readers of boxes from others: VCR's objects, COCO's annotations, and detections in MAttNet's format."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from groundling.core.errors import InputError, convert_errors, convert_read_errors
from groundling.data.regions.store import CELLS, MOST_PIXELS, clip_boxes
from groundling.runs.folder import read_json

FINE = 32
"""Supersampling factor per side when masks are drawn; the centre point of each cell counts."""
POINTS = 3
"""Minimum number of points of a polygon with an area."""
_NAMES = """
person bicycle car motorcycle airplane bus train truck boat trafficlight firehydrant stopsign parkingmeter bench bird
cat dog horse sheep cow elephant bear zebra giraffe backpack umbrella handbag tie suitcase frisbee skis snowboard
sportsball kite baseballbat baseballglove skateboard surfboard tennisracket bottle wineglass cup fork knife spoon bowl
banana apple sandwich orange broccoli carrot hotdog pizza donut cake chair couch pottedplant bed diningtable toilet tv
laptop mouse remote keyboard cellphone microwave oven toaster sink refrigerator book clock vase scissors teddybear
hairdrier toothbrush
"""
CLASSES = tuple(_NAMES.split())
"""COCO's 80 classes in COCO's order, spelt as in VCR: without spaces."""


def class_names(names: Iterable[str]) -> list[str]:
    """The class names that number the objects: COCO's 80 if all names are among them, else the names found."""
    names = set(names)
    return list(CLASSES) if names <= set(CLASSES) else sorted(names)


@dataclass(frozen=True)
class VcrObjects:
    """Detected objects of an image in VCR, in the order of the tags' numbers."""

    size: tuple[int, int]
    """Width and height in pixels."""
    names: tuple[str, ...]
    """n: the class name of each object."""
    boxes: np.ndarray
    """(n, 4) float32: x1, y1, x2, y2 as shares of width and height."""
    confidence: np.ndarray
    """(n,) float32: the detector's confidence."""
    polygons: tuple[tuple[np.ndarray, ...], ...]
    """The polygons (K, 2) of each object's segmentation, in shares of width and height."""

    def mask(self, number: int, side: int = CELLS) -> np.ndarray:
        """The cells (side, side) of a grid over the object's box whose centre is inside its segmentation.

        An object without a polygon fills its box. The release (jackroos/VL-BERT, common/utils/mask.py) tests the upper
        left corners of cells instead of their centres, and an object without a polygon fills nothing.
        """
        if not self.polygons[number]:
            return np.ones((side, side), bool)
        fine = side * FINE
        corner = self.boxes[number, :2]
        extent = self.boxes[number, 2:] - corner
        canvas = Image.new("1", (fine, fine))
        for polygon in self.polygons[number]:
            points = (
                polygon - corner
            ) / extent * fine - 0.5  # Pillow's coordinates are pixel centres
            ImageDraw.Draw(canvas).polygon(points.reshape(-1).tolist(), fill=1)
        return np.asarray(canvas)[FINE // 2 :: FINE, FINE // 2 :: FINE]

    def masks(self) -> np.ndarray:
        """The masks of all objects (n, 14, 14) bool."""
        masks = [self.mask(number) for number in range(len(self.names))]
        return np.array(masks, bool).reshape(-1, CELLS, CELLS)


def read_vcr_objects(path: Path) -> VcrObjects:
    """The objects of an image, from its json file in `vcr1images`; none is left out, as tags refer to their numbers."""
    with convert_read_errors(path):
        content = read_json(path)
        size = int(content["width"]), int(content["height"])
        names = tuple(content["names"])
        boxes = np.array(content["boxes"], np.float32).reshape(-1, 5)
        polygons = tuple(_polygons(segment, size) for segment in content["segms"])
        clipped, good = clip_boxes(boxes[:, :4] / np.array(size * 2, np.float32))
        are_sound = (
            min(size) > 0
            and good.all()
            and np.isfinite(boxes).all()
            and set(map(type, names)) <= {str}
        )
        if not are_sound or not len(names) == len(boxes) == len(polygons):
            raise ValueError(
                "expected a name, a box inside of the image, and segments for every object"
            )
    if min(size) > 1:
        _require_pixels(path, boxes[:, :4])
    return VcrObjects(size, names, clipped, boxes[:, 4], polygons)


def _polygons(
    segment: Sequence[Sequence[Sequence[float]]], size: tuple[int, int]
) -> tuple[np.ndarray, ...]:
    polygons = [np.array(points, float).reshape(-1, 2) / size for points in segment]
    return tuple(polygon for polygon in polygons if len(polygon) >= POINTS)


# Boxes of COCO's images: annotated ones, and detected ones in MAttNet's format for RefCOCO,
# RefCOCO+ and RefCOCOg.


def box_corners(box: Sequence[float]) -> list[float]:
    """Corners of a box given as x, y, width, height."""
    x, y, width, height = map(float, box)
    return [x, y, x + width, y + height]


def _require_pixels(path: str | Path, corners: Sequence[Any] | np.ndarray) -> None:
    """Raises InputError if no box (x1, y1, x2, y2) reaches beyond the first pixel."""
    if len(corners) and float(np.max(np.asarray(corners))) <= 1:
        raise InputError(f"{path}: expected boxes in pixels, not shares of the image")


# -- annotated ---------------------------------------------------------------------------------------------------------


class ImageBox(NamedTuple):
    """One annotated or detected box of an image."""

    image: Any
    """COCO's id of the image."""
    corners: Sequence[float]
    """x1, y1, x2, y2 in pixels."""
    category: int
    """COCO's id of the class; 0 if a detection has none."""
    name: str = ""
    """Name of a detection's class; empty if it is not given with the box."""
    confidence: float = 1.0
    """Detector's confidence; 1 for annotated boxes."""


class CocoInstances(NamedTuple):
    """The contents of COCO's instances json."""

    names: dict[int, str]
    """Class names by id."""
    files: dict[Hashable, str]
    """File names by image id."""
    sizes: dict[Hashable, tuple[int, int]]
    """Width and height in pixels, by image id."""
    annotations: dict[Hashable, list[ImageBox]]
    """Boxes in the order of the file, by image id."""
    objects: dict[Hashable, ImageBox]
    """Boxes by annotation id, also those of unlisted classes."""


def read_instances(path: Path, content: Any, classless: bool = False) -> CocoInstances:
    """The boxes of COCO's instances json, which is `content`; with `classless`, also those of unlisted classes."""
    with convert_errors(f"{path}: not COCO's instances, nor a list of detections"):
        classes, images = content["categories"], content["images"]
        names = _by_id((one["id"], str(one.get("name", one["id"]))) for one in classes)
        files = _by_id((one["id"], str(one["file_name"])) for one in images)
        sizes = {one["id"]: (int(one["width"]), int(one["height"])) for one in images}
        sides = [side for size in sizes.values() for side in size]
        if len(set(files.values())) < len(files) or not all(
            0 < side <= MOST_PIXELS for side in sides
        ):
            raise ValueError("a file_name twice, or an image without a size in pixels")
        instances = CocoInstances(names, files, sizes, {number: [] for number in files}, {})
        for annotation in content["annotations"]:
            _add_annotation(instances, annotation, classless)
    _require_pixels(
        path, [box.corners for boxes in instances.annotations.values() for box in boxes]
    )
    return instances


def _by_id(pairs: Iterable[tuple[Any, str]]) -> dict[Any, str]:
    named: dict[Any, str] = {}
    for number, name in pairs:
        if named.setdefault(number, name) != name:
            raise ValueError(f"{named[number]} and {name} have the id {number}")
    return named


def _add_annotation(instances: CocoInstances, annotation: Any, classless: bool) -> None:
    image, category = annotation["image_id"], annotation["category_id"]
    boxes = instances.annotations[image]
    is_listed = category in instances.names
    if not is_listed and not classless:
        raise ValueError(f"category_id {category} is not among the categories")
    box = ImageBox(image, box_corners(annotation["bbox"]), category)
    if "id" in annotation:
        instances.objects[annotation["id"]] = box
    if is_listed:
        boxes.append(box)


# -- detected ----------------------------------------------------------------------------------------------------------


def are_detections(content: object) -> bool:
    """Whether parsed JSON looks like a list of detections."""
    return isinstance(content, list) and all(
        isinstance(row, dict) and {"image_id", "box"} <= row.keys() for row in content[:1]
    )


def read_detections(path: str | Path, content: Any) -> list[ImageBox]:
    """The detections of a file such as `res101_coco_minus_refer_notime_dets.json`, in its order.

    `content`, its parsed JSON, is a list of objects with `image_id`, `box` (x, y, width, height), `score`, and usually
    `category_id` and `category_name`.
    """
    detections = []
    for number, row in enumerate(content):
        with convert_read_errors(f"{path}, entry {number}"):
            detection = ImageBox(
                index(row["image_id"]),
                box_corners(row["box"]),
                index(row.get("category_id", 0)),
                str(row.get("category_name", "")),
                float(row["score"]),
            )
        detections.append(detection)
    _require_pixels(path, [detection.corners for detection in detections])
    return detections
