"""Where the regions are: a Hugging Face detector's boxes, annotated ones, or a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForObjectDetection

from groundling.data.regions import inside
from groundling.data.vcr_objects import metadata
from groundling.errors import InputError
from groundling.models.loading import load_config, load_processor, load_weights
from groundling.runs import read_json


@dataclass(frozen=True)
class Boxes:
    """The boxes of one image, best first."""

    boxes: np.ndarray  # (R, 4) float32: x1, y1, x2, y2 as shares of width and height
    confidence: np.ndarray  # (R,) float32
    classes: np.ndarray | None = (
        None  # (R, C) a distribution without a no-object column, or (R,) one class each
    )
    left_out: int = 0
    """Boxes that were empty or outside the image."""


@dataclass(frozen=True)
class Keep:
    """Which of a detector's boxes stay, as for bottom-up attention: the confident ones, within bounds."""

    threshold: float = 0.2
    least: int = 10
    most: int = 100
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
    return both / ((box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(1) - both)


class Detector:
    """A model of the DETR family: softmax with a last no-object column (DETR, YOLOS), or sigmoids (RT-DETR, D-FINE)."""

    def __init__(self, source: str | Path, keep: Keep, device: str = "cpu") -> None:
        """`source` is a hub id or a folder with model and image processor."""
        config = load_config(source)
        self.keep, self.device, self.processor = keep, device, load_processor(source)
        try:
            self.model = load_weights(AutoModelForObjectDetection, source).eval().to(device)
        except ImportError as error:  # older DETR checkpoints take their backbone from timm
            raise InputError(
                f"{source}: {str(error).strip().splitlines()[0]}; PekingU/rtdetr_r50vd needs none"
            ) from None
        self.names = [str(config.id2label[i]) for i in range(config.num_labels)]

    @torch.no_grad()
    def __call__(self, images: Sequence[Image.Image]) -> list[Boxes]:
        """Boxes of RGB images of one size (so that none is padded)."""
        inputs = self.processor(images=list(images), return_tensors="pt").to(self.device)
        out = self.model(**inputs)
        logits = out.logits.float()
        # The number of columns tells the kind: one more than classes is "no object", which no region is.
        scores = (
            logits.softmax(-1)[..., :-1] if logits.shape[-1] > len(self.names) else logits.sigmoid()
        )
        centre, half = out.pred_boxes.float().split(2, -1)
        corners = torch.cat([centre - half / 2, centre + half / 2], -1)
        return [
            self._best(s.cpu().numpy(), c.cpu().numpy())
            for s, c in zip(scores, corners, strict=True)
        ]

    def _best(self, scores: np.ndarray, corners: np.ndarray) -> Boxes:
        cut, good = inside(corners.clip(0, 1))  # a detector's box may reach out anyhow: it is cut
        scores, cut = scores[good], cut[good]
        kept = self.keep(cut, scores.max(1))
        distribution = scores[kept] / scores[kept].sum(1, keepdims=True)
        return Boxes(cut[kept], scores[kept].max(1), distribution, int((~good).sum()))


def grid(side: int) -> Boxes:
    """`side` x `side` equal boxes, row by row, of confidence 1."""
    edge = np.arange(side)
    y, x = (at.reshape(-1) for at in np.meshgrid(edge, edge, indexing="ij"))
    return Boxes(
        (np.stack([x, y, x + 1, y + 1], 1) / side).astype(np.float32),
        np.ones(side * side, np.float32),
    )


def annotated(path: str | Path) -> tuple[dict[str, tuple[tuple[int, int], Boxes]], list[str]]:
    """Boxes of COCO's instances json by image file, each with the size (width, height) it was annotated in.

    Also the names of the classes, in the order of their ids. Crowds are kept; boxes stay in the file's order. A folder
    is VCR's `vcr1images`, with a json beside each image.
    """
    if Path(path).is_dir():
        return _of_vcr(Path(path))
    content = read_json(Path(path))
    try:
        kinds = sorted(content["categories"], key=lambda kind: kind["id"])
        place = {kind["id"]: at for at, kind in enumerate(kinds)}
        notes: dict[Any, list[tuple[list[float], int]]] = {
            image["id"]: [] for image in content["images"]
        }
        for note in content["annotations"]:
            x, y, w, h = note["bbox"]
            notes[note["image_id"]].append(([x, y, x + w, y + h], place[note["category_id"]]))
        out: dict[str, tuple[tuple[int, int], Boxes]] = {}
        for image in content["images"]:
            file, size, own = (
                str(image["file_name"]),
                (int(image["width"]), int(image["height"])),
                notes[image["id"]],
            )
            if file in out:
                raise InputError(f"{path}: {file} is listed twice")
            boxes = np.array([box for box, _ in own], np.float32).reshape(-1, 4) / np.array(
                size * 2, np.float32
            )
            cut, kept = inside(boxes)
            classes = np.array([kind for _, kind in own], np.int64)[kept]
            confidence = np.ones(int(kept.sum()), np.float32)
            out[file] = size, Boxes(cut[kept], confidence, classes, int((~kept).sum()))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: not COCO instances, images, annotations with bbox and categories ({error})"
        ) from None
    return out, [str(kind.get("name", kind["id"])) for kind in kinds]


def _of_vcr(folder: Path) -> tuple[dict[str, tuple[tuple[int, int], Boxes]], list[str]]:
    """As `annotated`; confidence is 1 for all, which keeps them in the order of the tags' numbers."""
    found = {path: metadata(path) for path in sorted(folder.rglob("*.json"))}
    if not found:
        raise InputError(
            f"{folder}: holds no json; expected VCR's vcr1images, or a COCO instances json"
        )
    kinds = sorted({name for own in found.values() for name in own.names})
    return {
        path.relative_to(folder).with_suffix(".jpg").as_posix(): (
            own.size,
            Boxes(
                own.boxes,
                np.ones_like(own.confidence),
                np.array([kinds.index(name) for name in own.names]),
            ),
        )
        for path, own in found.items()
    }, kinds
