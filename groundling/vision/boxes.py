"""Boxes of regions: from a Hugging Face detector, from others' files, or from a grid."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForObjectDetection

from groundling.core.errors import InputError, convert_errors
from groundling.data.regions.annotations import (
    ImageBox,
    are_detections,
    class_names,
    read_detections,
    read_instances,
    read_vcr_objects,
)
from groundling.data.regions.store import clip_boxes
from groundling.models.loading import load_config, load_processor, load_weights
from groundling.runs.folder import read_json
from groundling.settings.input_settings import DetectionSettings


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


def select_boxes(
    boxes: np.ndarray, confidence: np.ndarray, detection: DetectionSettings
) -> np.ndarray:
    """Indices of the boxes (R, 4) to keep, by confidence, as for bottom-up attention.

    Fewer than `min_boxes` only if there are no more.
    """
    selected: list[int] = []
    for at in np.argsort(-confidence, kind="stable"):
        enough = (
            len(selected) >= detection.min_boxes and confidence[at] <= detection.score_threshold
        )
        if enough or len(selected) >= detection.max_boxes:
            break
        if not selected or box_iou(boxes[at], boxes[selected]).max() <= detection.iou_threshold:
            selected.append(int(at))
    return np.array(selected, np.int64)


def box_iou(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of a box (4,) with others (R, 4): (R,)."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    both = sides.clip(0).prod(1)
    area = (box[2:] - box[:2]).prod()
    areas = (others[:, 2:] - others[:, :2]).prod(1)
    return both / (area + areas - both)


class Detector:
    """A model of the DETR family: softmax with a last no-object column (DETR, YOLOS), or sigmoids (RT-DETR, D-FINE)."""

    def __init__(self, detection: DetectionSettings, device: str = "cpu") -> None:
        """`detection` names the model and says which boxes are kept; raises InputError if it cannot be loaded."""
        source = detection.detector
        config = load_config(source)
        self.detection = detection
        self.device = device
        self.processor = load_processor(source)
        # older DETR checkpoints have a backbone from timm
        with convert_errors(f"{source}: cannot be loaded", errors=ImportError):
            self.model = load_weights(AutoModelForObjectDetection, source).eval().to(device)
        self.names = [str(config.id2label[i]) for i in range(config.num_labels)]

    @torch.no_grad()
    def __call__(self, images: Sequence[Image.Image]) -> list[ImageBoxes]:
        """Boxes of RGB images of one size (so that none is padded)."""
        inputs = self.processor(images=list(images), return_tensors="pt").to(self.device)
        out = self.model(**inputs)
        logits = out.logits.float()  # (images, queries, classes, perhaps with "no object")
        # A column more than the classes is "no object", which no region has.
        has_none = logits.shape[-1] > len(self.names)
        scores = logits.softmax(-1)[..., :-1] if has_none else logits.sigmoid()
        centre, sides = out.pred_boxes.float().split(2, -1)
        corners = torch.cat([centre - sides / 2, centre + sides / 2], -1)
        return [
            self._best(of_image.cpu().numpy(), places.cpu().numpy())
            for of_image, places in zip(scores, corners, strict=True)
        ]

    def _best(self, scores: np.ndarray, corners: np.ndarray) -> ImageBoxes:
        # a detected box may extend beyond the image, and is clipped
        clipped, good = clip_boxes(corners.clip(0, 1))
        scores = scores[good]
        clipped = clipped[good]
        places = select_boxes(clipped, scores.max(1), self.detection)
        distribution = scores[places] / scores[places].sum(1, keepdims=True)
        return ImageBoxes(clipped[places], scores[places].max(1), distribution, int((~good).sum()))


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
    files = _CocoFiles()
    detections: list[tuple[str | Path, list[ImageBox]]] = []
    for source in sources:
        content = read_json(Path(source))
        if are_detections(content):
            detections.append((source, read_detections(source, content)))
        else:
            files.add_instances(source, content)
    has_annotations = bool(files.files)
    for source, file_detections in detections:
        files.add_detections(source, file_detections, has_annotations)
    order = sorted(files.names)
    place = {category: at for at, category in enumerate(order)}
    boxes = {file: files.boxes(image, place) for image, file in files.files.items()}
    return boxes, [files.names[category] for category in order]


class _CocoFiles:
    """Images, classes and boxes of COCO's files, while they are read."""

    def __init__(self) -> None:
        self.files: dict[Hashable, str] = {}
        self.sizes: dict[Hashable, tuple[int, int]] = {}
        self.annotations: dict[Hashable, list[ImageBox]] = {}
        self.names: dict[int, str] = {}
        self.detected: set[Hashable] = set()

    def add_instances(self, path: str | Path, content: Any) -> None:
        """Add the images and annotations of COCO's instances json."""
        instances = read_instances(Path(path), content)
        for category, name in instances.names.items():
            self._add_class(path, category, name)
        listed = set(self.files.values())
        for number, file in instances.files.items():
            if number in self.files or file in listed:
                raise InputError(f"{path}: {file} is listed twice")
        self.files |= instances.files
        self.sizes |= instances.sizes
        self.annotations |= instances.annotations

    def add_detections(
        self, path: str | Path, detections: Sequence[ImageBox], has_annotations: bool
    ) -> None:
        """Add detected boxes; with annotations, only of their images and classes."""
        for number, detection in enumerate(detections):
            image, category = detection.image, detection.category
            is_known = image in self.files and category in self.names
            if not category or (has_annotations and not is_known):
                raise InputError(
                    f"{path}, entry {number}: expected an image and a category_id, both of the annotations if there "
                    f"are some; found {image} and {category}"
                )
            known = self.names.get(category, str(category))
            self._add_class(path, category, detection.name or known)
            self.files.setdefault(image, f"COCO_train2014_{image:012d}.jpg")
            self.annotations.setdefault(image, []).append(detection)
            self.detected.add(image)

    def boxes(self, image: Hashable, place: Mapping[int, int]) -> ImageBoxes:
        """An image's boxes, the most confident first; `place`: number of a class by its id."""
        ordered = sorted(self.annotations[image], key=lambda box: -box.confidence)
        size = self.sizes.get(image)
        boxes = ImageBoxes(
            np.array([box.corners for box in ordered], float).reshape(-1, 4),
            np.array([box.confidence for box in ordered], np.float32),
            np.array([place[box.category] for box in ordered], np.int64),
            annotated_order=image not in self.detected,
            in_pixels=True,
        )
        return boxes if size is None else replace(_as_shares(boxes, size), image_size=size)

    def _add_class(self, path: str | Path, category: int, name: str) -> None:
        if self.names.setdefault(category, name) != name:
            raise InputError(
                f"{path}: class {category} is {name!r} here and {self.names[category]!r} elsewhere"
            )


def _as_shares(boxes: ImageBoxes, size: tuple[int, int]) -> ImageBoxes:
    """Boxes in pixels, as shares of an image of this width and height, without those that are empty or outside."""
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
