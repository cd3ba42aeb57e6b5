"""What VCR's detector found in a film still: boxes, names and segments, in the order of the tags' numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from groundling.core.errors import InputError
from groundling.data.regions.store import CELLS, inside
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
class Objects:
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


def metadata(path: Path) -> Objects:
    """The objects of an image, from the json beside it in `vcr1images`; all are kept, for tags are their numbers.

    Raises InputError if a field is missing, mistyped or of another length, or a box is empty or outside the image.
    """
    try:
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
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{path}: not VCR's boxes with scores, segms, names, width and height ({error})"
        ) from None
    if not len(names) == len(boxes) == len(polygons):
        raise InputError(
            f"{path}: {len(names)} names, {len(boxes)} boxes and {len(polygons)} segments"
        )
    cut, good = inside(boxes[:, :4] / sides)
    if not good.all():
        raise InputError(
            f"{path}: box {int(good.argmin())} is empty or outside the image of {size[0]} x {size[1]}"
        )
    confidence = boxes[:, 4]
    if not np.isfinite(confidence).all():
        raise InputError(f"{path}: the score of a box is not a finite number")
    return Objects(size, names, cut, confidence, polygons)


def _polygons(
    segment: Sequence[Sequence[Sequence[float]]], size: tuple[int, int]
) -> tuple[np.ndarray, ...]:
    """An object's polygons (K, 2) as shares of the image's `size`, of those that have an area."""
    polygons = [np.array(points, float).reshape(-1, 2) / size for points in segment]
    return tuple(polygon for polygon in polygons if len(polygon) >= POINTS)
