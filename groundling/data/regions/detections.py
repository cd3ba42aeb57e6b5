"""Detected boxes of COCO's images as MAttNet publishes them for RefCOCO, RefCOCO+ and RefCOCOg."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from groundling.core.errors import InputError
from groundling.runs.folder import read_json


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


def corners_of(box: Sequence[float]) -> np.ndarray:
    """Corners (4,) of a box x, y, width, height."""
    x, y, width, height = map(float, box)
    return np.array([x, y, x + width, y + height])


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
            box = corners_of(row["box"])
            score = float(row["score"])
            found.append(Detection(image, box, score, category, str(row.get("category_name", ""))))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"{path}: not a list of detections with image_id, box and score (entry {number}: {error})"
            ) from None
    return found
