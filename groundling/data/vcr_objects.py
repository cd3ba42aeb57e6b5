"""What VCR's detector found in a film still: boxes, names and segments, in the order of the tags' numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from groundling.data.regions import inside
from groundling.errors import InputError
from groundling.runs import read_json

FINE = 32
"""Masks are drawn with this many points per cell and side, of which the one in the middle counts."""


@dataclass(frozen=True)
class Objects:
    """What a detector found in an image and annotators could tag, in the order of the tags' numbers."""

    size: tuple[int, int]  # width and height in pixels
    names: tuple[str, ...]
    boxes: np.ndarray  # (n, 4) float32: x1, y1, x2, y2 as shares of width and height
    confidence: np.ndarray  # (n,) float32
    polygons: tuple[
        tuple[np.ndarray, ...], ...
    ]  # of each object, those (K, 2) of its segment, in the same shares

    def mask(self, number: int, side: int = 14) -> np.ndarray:
        """Which cells of a grid over the object's box (side, side) have their middle in its segment."""
        fine, corner, far = side * FINE, self.boxes[number, :2], self.boxes[number, 2:]
        canvas = Image.new("1", (fine, fine))
        for polygon in self.polygons[number]:
            points = (polygon - corner) / (
                far - corner
            ) * fine - 0.5  # Pillow's points are middles of pixels
            ImageDraw.Draw(canvas).polygon(points.reshape(-1).tolist(), fill=1)
        return np.asarray(canvas)[FINE // 2 :: FINE, FINE // 2 :: FINE]


def metadata(path: Path) -> Objects:
    """The objects of an image, from the json beside it; all are kept, since tags are their numbers."""
    content = read_json(path)
    try:
        size, names = (int(content["width"]), int(content["height"])), tuple(content["names"])
        boxes = np.array(content["boxes"], np.float32).reshape(-1, 5)
        segments = [
            [np.array(p, float).reshape(-1, 2) / size for p in own] for own in content["segms"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: not VCR's boxes with scores, segms, names, width and height ({error})"
        ) from None
    if not len(names) == len(boxes) == len(segments):
        raise InputError(
            f"{path}: {len(names)} names, {len(boxes)} boxes and {len(segments)} segments"
        )
    cut, good = inside(boxes[:, :4] / np.array(size * 2, np.float32))
    if not good.all():
        raise InputError(
            f"{path}: box {int(good.argmin())} is empty or outside the image of {size[0]} x {size[1]}"
        )
    return Objects(
        size,
        names,
        cut,
        boxes[:, 4],
        tuple(tuple(p for p in own if len(p) > 2) for own in segments),
    )
