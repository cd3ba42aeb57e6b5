"""Where the regions are: a Hugging Face detector's boxes, annotated ones, or a grid."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForObjectDetection

from groundling.data.regions import inside
from groundling.data.vcr_objects import metadata
from groundling.errors import InputError, first_line
from groundling.models.loading import load_config, load_processor, load_weights
from groundling.runs import read_json


@dataclass(frozen=True)
class Boxes:
    """The boxes of one image: a detector's best first, annotated ones as they are numbered, a grid's row by row."""

    boxes: np.ndarray
    """(R, 4) float32: x1, y1, x2, y2 as shares of width and height."""
    confidence: np.ndarray
    """(R,) float32."""
    classes: np.ndarray | None = None
    """(R, C) a distribution without a no-object column, or (R,) one class each."""
    left_out: int = 0
    """Boxes that were empty or outside the image."""


class Annotated(NamedTuple):
    """What annotators drew in one image."""

    size: tuple[int, int]
    """Width and height in pixels of the image they saw."""
    boxes: Boxes
    """In the order of their file, of confidence 1."""


@dataclass(frozen=True)
class Keep:
    """Which of a detector's boxes stay, as for bottom-up attention: the confident ones, within bounds."""

    threshold: float = 0.2
    """Boxes above this confidence stay."""
    least: int = 10
    """But at least so many, where there are as many."""
    most: int = 100
    """And at most so many."""
    overlap: float = 0.7
    """A box that overlaps a better one by more than this (intersection over union) goes; 1: none does."""

    def __call__(self, boxes: np.ndarray, confidence: np.ndarray) -> np.ndarray:
        """Indices of (R, 4) boxes that stay, by confidence; fewer than `least` only where there are no more."""
        chosen: list[int] = []
        for at in np.argsort(-confidence, kind="stable"):
            enough = len(chosen) >= self.least and confidence[at] <= self.threshold
            if enough or len(chosen) >= self.most:
                break
            if not chosen or overlaps(boxes[at], boxes[chosen]).max() <= self.overlap:
                chosen.append(int(at))
        return np.array(chosen, np.int64)


def overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of a box (4,) with others (R, 4): (R,)."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    both = sides.clip(0).prod(1)
    area = (box[2:] - box[:2]).prod()
    areas = (others[:, 2:] - others[:, :2]).prod(1)
    return both / (area + areas - both)


class Detector:
    """A model of the DETR family: softmax with a last no-object column (DETR, YOLOS), or sigmoids (RT-DETR, D-FINE)."""

    def __init__(self, source: str | Path, keep: Keep, device: str = "cpu") -> None:
        """`source` is a hub id or a folder with model and image processor; raises InputError if it does not load."""
        config = load_config(source)
        self.keep = keep
        self.device = device
        self.processor = load_processor(source)
        try:
            self.model = load_weights(AutoModelForObjectDetection, source).eval().to(device)
        except ImportError as error:  # older DETR checkpoints take their backbone from timm
            raise InputError(
                f"{source}: {first_line(error)}; PekingU/rtdetr_r50vd needs none"
            ) from None
        self.names = [str(config.id2label[i]) for i in range(config.num_labels)]

    @torch.no_grad()
    def __call__(self, images: Sequence[Image.Image]) -> list[Boxes]:
        """Boxes of RGB images of one size (so that none is padded)."""
        inputs = self.processor(images=list(images), return_tensors="pt").to(self.device)
        out = self.model(**inputs)
        logits = out.logits.float()  # (images, queries, classes, and maybe "no object")
        # One column more than classes: that one is "no object", which no region is.
        has_none = logits.shape[-1] > len(self.names)
        scores = logits.softmax(-1)[..., :-1] if has_none else logits.sigmoid()
        centre, sides = out.pred_boxes.float().split(2, -1)
        corners = torch.cat([centre - sides / 2, centre + sides / 2], -1)
        return [
            self._best(of_image.cpu().numpy(), places.cpu().numpy())
            for of_image, places in zip(scores, corners, strict=True)
        ]

    def _best(self, scores: np.ndarray, corners: np.ndarray) -> Boxes:
        """The boxes to keep, of all scores (Q, C) and corners (Q, 4) of an image."""
        cut, good = inside(corners.clip(0, 1))  # a detector's box may reach out anyhow: it is cut
        scores = scores[good]
        cut = cut[good]
        kept = self.keep(cut, scores.max(1))
        distribution = scores[kept] / scores[kept].sum(1, keepdims=True)
        return Boxes(cut[kept], scores[kept].max(1), distribution, int((~good).sum()))


def grid(side: int) -> Boxes:
    """`side` x `side` equal boxes, row by row, of confidence 1."""
    edge = np.arange(side)
    rows, columns = np.meshgrid(edge, edge, indexing="ij")
    y = rows.reshape(-1)
    x = columns.reshape(-1)
    boxes = np.stack([x, y, x + 1, y + 1], 1) / side
    return Boxes(boxes.astype(np.float32), np.ones(side * side, np.float32))


def annotated(path: str | Path) -> tuple[dict[str, Annotated], list[str]]:
    """Annotated boxes by image file, from COCO's instances json.

    Also the names of the classes, in the order of their ids. Crowds are kept; boxes stay in the file's order. A folder
    is VCR's `vcr1images`, with a json beside each image. Raises InputError on another layout, or a file listed twice.
    """
    if Path(path).is_dir():
        return _of_vcr(Path(path))
    try:
        content = read_json(Path(path))
        categories = sorted(content["categories"], key=lambda category: category["id"])
        notes = _notes(content, [category["id"] for category in categories])
        boxes: dict[str, Annotated] = {}
        for image in content["images"]:
            file = str(image["file_name"])
            if file in boxes:
                raise InputError(f"{path}: {file} is listed twice")
            size = int(image["width"]), int(image["height"])
            if min(size) < 1:
                raise InputError(f"{path}: {file} is {size[0]} x {size[1]} pixels")
            boxes[file] = Annotated(size, _of_coco(notes[image["id"]], size))
        names = [str(category.get("name", category["id"])) for category in categories]
    except InputError:
        raise
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise InputError(
            f"{path}: not COCO instances, images, annotations with bbox and categories ({error})"
        ) from None
    return boxes, names


Note = tuple[list[float], int]
"""Corners of a box in pixels, and its class."""


def _notes(
    content: Mapping[str, Any], categories: Sequence[Hashable]
) -> dict[Hashable, list[Note]]:
    """COCO's annotations by image id, in the file's order."""
    place = {category: at for at, category in enumerate(categories)}
    notes: dict[Hashable, list[Note]] = {image["id"]: [] for image in content["images"]}
    for note in content["annotations"]:
        x, y, width, height = note["bbox"]
        corners = [x, y, x + width, y + height]
        notes[note["image_id"]].append((corners, place[note["category_id"]]))
    return notes


def _of_coco(notes: Sequence[Note], size: tuple[int, int]) -> Boxes:
    """An image's annotations as boxes, without those that are empty or outside."""
    pixels = np.array([corners for corners, _ in notes], np.float32).reshape(-1, 4)
    cut, kept = inside(pixels / np.array(size * 2, np.float32))
    classes = np.array([category for _, category in notes], np.int64)
    confidence = np.ones(int(kept.sum()), np.float32)
    return Boxes(cut[kept], confidence, classes[kept], int((~kept).sum()))


def _of_vcr(folder: Path) -> tuple[dict[str, Annotated], list[str]]:
    """As `annotated`; confidence is 1 for all, which keeps them in the order of the tags' numbers."""
    stills = {path: metadata(path) for path in sorted(folder.rglob("*.json"))}
    if not stills:
        raise InputError(
            f"{folder}: holds no json; expected VCR's vcr1images, or a COCO instances json"
        )
    names = sorted({name for objects in stills.values() for name in objects.names})
    number = {name: at for at, name in enumerate(names)}
    boxes = {}
    for path, objects in stills.items():
        file = path.relative_to(folder).with_suffix(".jpg").as_posix()
        confidence = np.ones_like(objects.confidence)
        classes = np.array([number[name] for name in objects.names], np.int64)
        boxes[file] = Annotated(objects.size, Boxes(objects.boxes, confidence, classes))
    return boxes, names
