"""Boxes that exist before any detector runs: VCR's objects, COCO's annotations, MAttNet's detections, a grid."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from groundling.core.errors import InputError, convert_errors, convert_read_errors
from groundling.data.regions import CELLS, MOST_PIXELS, clip_boxes
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

    def mask(self, number: int) -> np.ndarray:
        """The cells (14, 14) of a grid over the object's box whose centre is inside its segmentation.

        An object without a polygon fills its box. The release (jackroos/VL-BERT, common/utils/mask.py) tests the upper
        left corners of cells instead of their centres, and an object without a polygon fills nothing.
        """
        if not self.polygons[number]:
            return np.ones((CELLS, CELLS), bool)
        fine = CELLS * FINE
        corner = self.boxes[number, :2]
        extent = self.boxes[number, 2:] - corner
        canvas = Image.new("1", (fine, fine))
        for polygon in self.polygons[number]:
            # Pillow's coordinates are pixel centres.
            points = (polygon - corner) / extent * fine - 0.5
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
        shapes = [
            [np.array(points, float).reshape(-1, 2) / size for points in segment]
            for segment in content["segms"]
        ]
        polygons = tuple(tuple(one for one in own if len(one) >= POINTS) for own in shapes)
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


# Boxes of COCO's images: annotated ones, and detected ones in MAttNet's format for RefCOCO,
# RefCOCO+ and RefCOCOg.


def box_corners(box: Sequence[float]) -> list[float]:
    """Corners of a box given as x, y, width, height."""
    x, y, width, height = map(float, box)
    return [x, y, x + width, y + height]


def _require_pixels(path: str | Path, corners: Sequence[Any] | np.ndarray) -> None:
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


@dataclass(frozen=True)
class CocoInstances:
    """The contents of COCO's instances json."""

    names: dict[int, str] = field(default_factory=dict)
    """Class names by id."""
    files: dict[Hashable, str] = field(default_factory=dict)
    """File names by image id."""
    sizes: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    """Width and height in pixels, by image id."""
    annotations: dict[Hashable, list[ImageBox]] = field(default_factory=dict)
    """Boxes in the order of the file, by image id."""
    objects: dict[Hashable, ImageBox] = field(default_factory=dict)
    """Boxes by annotation id, also those of unlisted classes."""


def read_instances(
    path: str | Path, content: Any, classless: bool = False, every: CocoInstances | None = None
) -> CocoInstances:
    """The boxes of COCO's instances json, which is `content`, added to those of `every`, if given.

    With `classless`, boxes of unlisted classes are kept in `objects`. Raises InputError for another layout, and for an
    image file or id that is listed twice.
    """
    every = every or CocoInstances()
    listed = set(every.files.values())
    corners = []
    with convert_errors(f"{path}: not COCO's instances, nor a list of detections"):
        for one in content["categories"]:
            _add_class(every, path, one["id"], str(one.get("name", one["id"])))
        for one in content["images"]:
            number, file = one["id"], str(one["file_name"])
            if number in every.files or file in listed:
                raise InputError(f"{path}: {file} is listed twice")
            size = (int(one["width"]), int(one["height"]))
            if not all(0 < side <= MOST_PIXELS for side in size):
                raise ValueError("an image without a size in pixels")
            listed.add(file)
            every.files[number] = file
            every.sizes[number] = size
            every.annotations[number] = []
        for annotation in content["annotations"]:
            category, image = annotation["category_id"], annotation["image_id"]
            boxes = every.annotations[image]
            box = ImageBox(image, box_corners(annotation["bbox"]), category)
            corners.append(box.corners)
            if "id" in annotation:
                every.objects[annotation["id"]] = box
            if category in every.names:
                boxes.append(box)
            elif not classless:
                raise ValueError(f"category_id {category} is not among the categories")
    _require_pixels(path, corners)
    return every


def _add_class(every: CocoInstances, path: str | Path, category: int, name: str) -> None:
    known = every.names.setdefault(category, name)
    if known != name:
        raise InputError(f"{path}: class {category} is {name!r} here and {known!r} elsewhere")


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


# -- boxes by image ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageBoxes:
    """The boxes of one image: a detector's best first, annotated ones in annotation order, a grid's row by row."""

    boxes: np.ndarray
    """(R, 4) float32: x1, y1, x2, y2 as shares of width and height."""
    confidence: np.ndarray
    """(R,) float32."""
    classes: np.ndarray | None = None
    """(R, C) probabilities without a no-object column, or (R,) one class each."""
    left_out: int = 0
    """Number of boxes left out: empty or outside the image."""
    annotated_order: bool = False
    """Whether the boxes are the image's annotated objects alone, in the order of their file."""
    appended_detections: int = 0
    """Number of detected boxes, which follow the annotated ones."""
    segmentation_file: Path | None = None
    """VCR's json, which has the objects' segmentations; read with the image, because masks take time."""
    image_size: tuple[int, int] = (0, 0)
    """Width and height in pixels of the annotated image; 0 if unknown."""
    in_pixels: bool = False
    """Whether the boxes are in pixels, because a file of detections does not tell the size of the image."""

    def for_image_size(self, size: tuple[int, int]) -> ImageBoxes:
        """The boxes in shares of an image of this width and height.

        Raises InputError if the annotated image had another size.
        """
        if self.in_pixels:
            return _as_shares(self, size)
        if self.image_size not in ((0, 0), size):
            width, height = self.image_size
            raise InputError(f"{size[0]}x{size[1]} pixels, but annotated as {width}x{height}")
        return self


def _as_shares(boxes: ImageBoxes, size: tuple[int, int]) -> ImageBoxes:
    shares = boxes.boxes.astype(np.float32) / np.array(size * 2, np.float32)
    clipped, valid = clip_boxes(shares)
    return replace(
        boxes,
        boxes=clipped[valid],
        confidence=boxes.confidence[valid],
        classes=None if boxes.classes is None else boxes.classes[valid],
        left_out=int((~valid).sum()),
        in_pixels=False,
    )


def grid_boxes(side: int) -> ImageBoxes:
    """`side` x `side` equal boxes, row by row, with confidence 1."""
    edge = np.arange(side)
    rows, columns = np.meshgrid(edge, edge, indexing="ij")
    y = rows.reshape(-1)
    x = columns.reshape(-1)
    boxes = np.stack([x, y, x + 1, y + 1], 1) / side
    return ImageBoxes(boxes.astype(np.float32), np.ones(side * side, np.float32))


def read_annotated_boxes(*sources: str | Path) -> tuple[dict[str, ImageBoxes], list[str]]:
    """Boxes from files, by image file: annotated ones, detected ones, or both for every image.

    Sources are COCO's instances json and MAttNet's detections; or one folder, VCR's `vcr1images`,
    with a json beside each image. Also returns the names of the classes, in order of their ids.
    Crowds are kept. Annotated boxes stay in the file's order, detections follow, the most confident first.
    Detections without annotations are assumed to be of train2014's images, as RefCOCO's are. Raises InputError for
    another layout, a file that is listed twice, and detections of an image or class that the annotations lack.
    """
    if len(sources) == 1 and Path(sources[0]).is_dir():
        return _of_vcr(Path(sources[0]))
    every = CocoInstances()
    detections: list[tuple[str | Path, list[ImageBox]]] = []
    for source in sources:
        content = read_json(Path(source))
        if are_detections(content):
            detections.append((source, read_detections(source, content)))
        else:
            read_instances(source, content, every=every)
    has_annotations = bool(every.files)
    detected: set[Hashable] = set()
    for source, boxes in detections:
        _add_detections(every, source, boxes, has_annotations)
        detected.update(box.image for box in boxes)
    order = sorted(every.names)
    place = {category: at for at, category in enumerate(order)}
    found = {}
    for image, file in every.files.items():
        ordered = sorted(every.annotations[image], key=lambda box: -box.confidence)
        own = ImageBoxes(
            np.array([box.corners for box in ordered], float).reshape(-1, 4),
            np.array([box.confidence for box in ordered], np.float32),
            np.array([place[box.category] for box in ordered], np.int64),
            annotated_order=image not in detected,
            in_pixels=True,
        )
        size = every.sizes.get(image)
        found[file] = own if size is None else replace(_as_shares(own, size), image_size=size)
    return found, [every.names[category] for category in order]


def _add_detections(
    every: CocoInstances, path: str | Path, boxes: Sequence[ImageBox], has_annotations: bool
) -> None:
    for number, box in enumerate(boxes):
        image, category = box.image, box.category
        is_known = image in every.files and category in every.names
        if not category or (has_annotations and not is_known):
            raise InputError(
                f"{path}, entry {number}: expected an image and a category_id, both of the annotations if there "
                f"are some; found {image} and {category}"
            )
        known = every.names.get(category, str(category))
        _add_class(every, path, category, box.name or known)
        every.files.setdefault(image, f"COCO_train2014_{image:012d}.jpg")
        every.annotations.setdefault(image, []).append(box)


def _of_vcr(folder: Path) -> tuple[dict[str, ImageBoxes], list[str]]:
    """As `read_annotated_boxes`, for VCR's folder.

    Confidence is 1 for all boxes, which keeps the order of the tags' numbers.
    """
    objects_by_file = {path: read_vcr_objects(path) for path in sorted(folder.rglob("*.json"))}
    if not objects_by_file:
        raise InputError(
            f"{folder}: no json in this folder; expected VCR's vcr1images, or a COCO instances json"
        )
    names = class_names(name for objects in objects_by_file.values() for name in objects.names)
    number = {name: place for place, name in enumerate(names)}
    boxes = {}
    for path, objects in objects_by_file.items():
        file = path.relative_to(folder).with_suffix(".jpg").as_posix()
        confidence = np.ones_like(objects.confidence)
        classes = np.array([number[name] for name in objects.names], np.int64)
        boxes[file] = ImageBoxes(
            objects.boxes,
            confidence,
            classes,
            annotated_order=True,
            segmentation_file=path,
            image_size=objects.size,
        )
    return boxes, names
