"""From pixels to regions: boxes of a Hugging Face detector, and features of any Hugging Face vision backbone."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoModel, AutoModelForObjectDetection

from groundling.core.errors import InputError, convert_errors, prefix_errors, raise_first
from groundling.data.images import (
    IMAGE_ENDINGS,
    ImageInput,
    image_id,
    images_below,
    is_outside_folder,
    read_image,
)
from groundling.data.regions import (
    ImageRegions,
    InMemoryRegions,
    RegionWriter,
    clip_boxes,
    to_stored,
)
from groundling.data.regions.annotations import (
    ImageBoxes,
    grid_boxes,
    read_annotated_boxes,
    read_vcr_objects,
)
from groundling.data.shards import ProcessRank
from groundling.models.loading import load_config, load_processor, load_weights, weights_sha256
from groundling.runs.progress import Progress
from groundling.settings.input_settings import DetectionSettings, ExtractionSettings
from groundling.vision_language.end_to_end import roi_align

BINS = 7
"""RoIAlign: bins per side, which are averaged."""
SAMPLES = 2
"""RoIAlign: samples per bin and direction."""
SIDE = 608
"""Short side of images for backbones without an image size (bottom-up attention: 600); the long one at most 5/3."""
STRIDE = 32
"""Pixels per cell of the last feature map, for ResNets and for models that merge small patches."""
MERGED = 4
"""Patches of this side (Swin, ConvNeXt) are merged by a factor of 8; larger ones (ViT) are not merged."""


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


class Backbone:
    """A ResNet, ViT or CLIP-like image encoder: its last feature map, or the last patch states as a map."""

    def __init__(self, source: str | Path, side: int = 0, device: str = "cpu") -> None:
        """`source` is a hub id or a folder with model and image processor.

        `side` in pixels: the image's short side; 0: the backbone's own square input size, if it has one. Raises
        InputError if it cannot be loaded.
        """
        config = load_config(source)
        processor = load_processor(source)
        model = load_weights(AutoModel, source)
        if hasattr(config, "vision_config"):  # CLIP-like models: the image tower
            config = config.vision_config
            model = model.vision_model
        self.source = str(source)
        self.model = model.eval().to(device)
        self.device = device
        patch = int(config.patch_size) if hasattr(config, "patch_size") else 0
        self.stride = patch if patch > MERGED else STRIDE
        self.square = int(config.image_size) if patch and not side else 0
        self.side = side or SIDE
        parameters = inspect.signature(self.model.forward).parameters
        self.resizes = "interpolate_pos_encoding" in parameters
        normalizes = bool(processor.do_normalize)
        self.mean = np.array(processor.image_mean if normalizes else [0, 0, 0], np.float32)
        self.std = np.array(processor.image_std if normalizes else [1, 1, 1], np.float32)
        self.sha256 = weights_sha256(self.model)
        self.scaled = f"{self.square} x {self.square}" if self.square else f"short side {self.side}"
        self.facts: dict[str, Any] = {
            "scaled": self.scaled,
            "mean": self.mean.tolist(),
            "std": self.std.tolist(),
            "roi_align": [BINS, SAMPLES],
        }

    @property
    def identity(self) -> str:
        """A hash of everything that features depend on, except the image and its boxes."""
        text = json.dumps({"weights": self.sha256, "preprocessing": self.facts}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def origin(self) -> str:
        """Model, image size and weights, in a few words."""
        name = Path(self.source).name if Path(self.source).exists() else self.source
        return f"{name} at {self.scaled} pixels (weights {self.sha256[:8]})"

    def target(self, size: tuple[int, int]) -> tuple[int, int]:
        """Width and height to which an image is scaled; boxes are shares, so they stay valid."""
        if self.square:
            return self.square, self.square
        shrink = min(self.side / min(size), self.side * 5 // 3 / max(size))
        cells = shrink / self.stride
        wide, high = (max(1, round(side * cells)) * self.stride for side in size)
        return wide, high

    @torch.no_grad()
    def __call__(
        self, images: Sequence[Image.Image], boxes: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """(R_i, D) features of each image's boxes (R_i, 4); the RGB images are of one size."""
        states = self._map(images)
        scale = torch.tensor([states.shape[3], states.shape[2]] * 2)
        places = [torch.from_numpy(of_image) * scale for of_image in boxes]
        features = roi_align(states, places, BINS, 1.0, SAMPLES).mean((2, 3))
        parts = features.split([len(of_image) for of_image in boxes])
        return [part.cpu().numpy() for part in parts]

    def _map(self, images: Sequence[Image.Image]) -> Tensor:
        """The last feature maps (N, D, H, W) of images of one size."""
        wide, high = self.target(images[0].size)
        scaled = [image.resize((wide, high), Image.Resampling.BICUBIC) for image in images]
        values = np.stack([np.asarray(image, np.float32) for image in scaled]) / 255
        pixels = torch.from_numpy((values - self.mean) / self.std).permute(0, 3, 1, 2)
        options = {}
        if self.resizes and not self.square:
            options["interpolate_pos_encoding"] = True
        out = self.model(pixel_values=pixels.to(self.device), **options)
        states = out.last_hidden_state.float()
        if states.ndim == 3:  # class and register tokens precede the patches
            rows = high // self.stride
            columns = wide // self.stride
            states = states[:, -rows * columns :].transpose(1, 2).unflatten(2, (rows, columns))
        return states


def list_images(
    extraction: ExtractionSettings, files: Collection[str]
) -> tuple[list[tuple[str, Path]], list[str]]:
    """Images to read as (id, file), sorted, and those left out; an id is the file's path without its ending.

    With `extraction.boxes`, the images are these `files`. Raises InputError if there are none, or if one is missing
    without `extraction.skip_missing`.
    """
    folder = Path(extraction.images)
    names = files if extraction.boxes else images_below(folder)
    present = []
    left_out = []
    for path in sorted(map(Path, names)):
        if (folder / path).is_file() and not is_outside_folder(str(path), folder):
            present.append(path)
        else:
            left_out.append(f"{path}: no such image in {folder}")
    if not extraction.skip_missing:
        raise_first(left_out, "; add them or pass skip_missing")
    file_of: dict[str, Path] = {}
    for path in present:
        first = file_of.setdefault(image_id(path.as_posix()), path)
        if first != path:
            left_out.append(f"{path}: same id as {first}; the first one counts")
    if not file_of:
        raise InputError(f"{folder}: no images to read ({', '.join(sorted(IMAGE_ENDINGS))})")
    return [(name, folder / path) for name, path in file_of.items()], left_out


LoadedImage = tuple[str, Image.Image, ImageBoxes | None]
"""Id and pixels of an image, and its boxes from a file."""


class Extractor:
    """Finds boxes and features, image by image, as `extraction` specifies."""

    def __init__(
        self,
        extraction: ExtractionSettings,
        device: str,
        annotations: Mapping[str, ImageBoxes],
        names: Sequence[str],
    ) -> None:
        """`annotations`: boxes from files by image file, with classes `names`; empty if there are none."""
        self.extraction = extraction
        self.detection = detection = extraction.detection
        self.annotations = {
            Path(extraction.images) / file: annotations[file] for file in annotations
        }
        self.backbone = Backbone(detection.backbone, detection.shortest_edge, device)
        self.detector: Detector | None = None
        models = {"backbone": detection.backbone}
        weights = {"backbone": self.backbone.sha256}
        preprocessing: dict[str, Any] = {"backbone": self.backbone.facts}
        sources = [Path(path).name for path in extraction.boxes]
        if detection.grid:
            sources = [f"a grid of {detection.grid} x {detection.grid}"]
        if not sources or extraction.add_detected_boxes:
            sources.append(f"the detector, {detection.manifest_entry()}")
            self.detector = Detector(detection, device)
            models["detector"] = detection.detector
            weights["detector"] = weights_sha256(self.detector.model)
            preprocessing["detector"] = self.detector.processor.to_dict()
            names = names if extraction.boxes else self.detector.names
        source = " + ".join(sources)
        self.names = list(names)
        text = json.dumps(preprocessing, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.key: dict[str, Any] = {"weights": weights, "preprocessing": digest, "boxes": source}
        self.facts: dict[str, Any] = {
            "model": models,
            "identity": self.backbone.identity,
            "made_by": self.backbone.origin,
            "weights": weights,
            "preprocessing": json.loads(text),
            "boxes_from": source,
            **({} if extraction.boxes else {"made_with": detection.manifest_entry()}),
            "classes": len(names),
            "class_names": names,
        }

    def __call__(
        self, images: Sequence[tuple[str, ImageInput]], progress: Progress | None = None
    ) -> tuple[list[ImageRegions], dict[str, str]]:
        """Regions of images in order, and by id the reasons for skipped images; `progress` counts images."""
        regions: dict[str, ImageRegions] = {}
        skipped: dict[str, str] = {}
        # A processor convolves large maps fastest one image at a time: more would leave its caches.
        is_slower = self.backbone.device == "cpu" and not self.backbone.square
        size = 1 if is_slower else self.extraction.batch
        for start in range(0, len(images), size):
            sizes: dict[tuple[int, int], list[LoadedImage]] = {}
            batch = images[start : start + size]
            for name, path in batch:
                try:
                    ready = self._read(name, path)
                    sizes.setdefault(ready[1].size, []).append(ready)
                except InputError as error:
                    skipped[name] = str(error)
            for of_one_size in sizes.values():
                for image in self._same_size_regions(of_one_size):
                    regions[image.id] = image
            if progress is not None:
                progress.update(len(batch))
        in_order = [regions[name] for name, _ in images if name in regions]
        skipped |= {one.id: "no box in this image" for one in in_order if not len(one.boxes)}
        return [one for one in in_order if len(one.boxes)], skipped

    def _read(self, name: str, source: ImageInput) -> LoadedImage:
        image = read_image(source)
        if not self.annotations or not isinstance(source, Path):
            return name, image, None
        return name, image, self.annotations[source].for_image_size(image.size)

    def _same_size_regions(self, ready: Sequence[LoadedImage]) -> list[ImageRegions]:
        images = [image for _, image, _ in ready]
        boxes = [of_image for _, _, of_image in ready if of_image is not None]
        if self.detector is not None:
            detected = self.detector(images)
            if boxes:
                pairs = zip(boxes, detected, strict=True)
                detected = [self._append_detections(*pair) for pair in pairs]
            boxes = detected
        elif not boxes:
            boxes = [grid_boxes(self.detection.grid)] * len(ready)
        # the whole image is a last box in the same batch
        whole = np.array([[0, 0, 1, 1]], np.float32)
        features = self.backbone(
            images, [np.concatenate([of_image.boxes, whole]) for of_image in boxes]
        )
        regions = []
        for (name, image, _), of_image, numbers in zip(ready, boxes, features, strict=True):
            cells = None
            if of_image.segmentation_file is not None:
                cells = read_vcr_objects(of_image.segmentation_file).masks()
                detected_objects = ((0, of_image.appended_detections), (0, 0), (0, 0))
                cells = np.pad(cells, detected_objects, constant_values=True)  # fill their boxes
            image_regions = ImageRegions(
                id=name,
                size=image.size,
                boxes=of_image.boxes,
                confidence=of_image.confidence,
                features=numbers[:-1],
                classes=of_image.classes,
                segmentation=cells,
                left_out=of_image.left_out,
                annotated_order=of_image.annotated_order and not of_image.left_out,
                appended_detections=of_image.appended_detections,
            )
            if self.detection.add_whole_image and len(image_regions.boxes):
                image_regions = image_regions.with_whole(numbers[-1:])
            regions.append(image_regions)
        return regions

    def _append_detections(self, annotated: ImageBoxes, detected: ImageBoxes) -> ImageBoxes:
        assert self.detector and annotated.classes is not None and detected.classes is not None
        numbers = {_plain(name): number for number, name in enumerate(self.names)}
        names = [_plain(self.detector.names[best]) for best in detected.classes.argmax(1)]
        classes = np.array([numbers.get(name, -1) for name in names], annotated.classes.dtype)
        return replace(
            annotated,
            boxes=np.concatenate([annotated.boxes, detected.boxes]),
            confidence=np.concatenate([annotated.confidence, detected.confidence]),
            classes=np.concatenate([annotated.classes, classes]),
            appended_detections=len(detected.boxes),
        )


def _plain(name: str) -> str:
    """A class's name without spaces, as in VCR."""
    return name.replace(" ", "").lower()


def extract(
    extraction: ExtractionSettings, folder: str | Path, process: ProcessRank
) -> dict[str, Any]:
    """Write the missing shards of a store in `folder` that belong to `process`.

    Returns what completes the store, the same in every process: the manifest's `facts`, the `key` on which regions
    depend, and the `gaps`, images that were left out before reading, with reasons.
    """
    device = "cpu"
    if torch.cuda.is_available() and not extraction.cpu:
        device = f"cuda:{process.rank % torch.cuda.device_count()}"
    annotations, names = read_annotated_boxes(*extraction.boxes)
    images, gaps = list_images(extraction, annotations)
    extractor = Extractor(extraction, device, annotations, names)
    writer = RegionWriter(folder, extraction.shard_size, extractor.key, process)
    size = extraction.shard_size
    pending = writer.pending(len(images))
    shards = {number: images[number * size :][:size] for number in pending}
    progress = Progress("regions", sum(map(len, shards.values())), "image")
    for number, shard in shards.items():
        regions, skipped = extractor(shard, progress)
        writer.write(number, regions, [f"{name}: {reason}" for name, reason in skipped.items()])
    progress.close()
    return {"facts": extractor.facts, "key": extractor.key, "gaps": gaps}


# Regions of images that no store has: found as by `groundling regions`, on request.


class StoreRegionExtractor:
    """Finds the regions of images with a store's own detector or grid, and its backbone."""

    def __init__(
        self,
        detection: DetectionSettings,
        facts: Mapping[str, Any],
        device: str = "cpu",
        features: bool = True,
    ) -> None:
        """`detection`: the settings with which the store was made; `facts`: its manifest's models and preprocessing.

        With `features` off, only boxes are returned. Raises InputError if a model is missing, or is not the one that
        the store was made with.
        """
        self.features = features
        with prefix_errors(
            "new images need the models of the training regions (backbone, detector)"
        ):
            self.extractor = Extractor(ExtractionSettings(detection=detection), device, {}, ())
        now = self.extractor.facts
        weights = facts.get("weights", {})
        differing = [
            f"weights of the {role}"
            for role, own in weights.items()
            if now["weights"].get(role) != own and (features or role == "detector")
        ]
        if features and facts.get("identity") not in ("", None, now["identity"]):
            differing.append("weights or preprocessing of the backbone")
        if differing:
            raise InputError(
                f"new images: the {differing[0]} differ from those that made this model's regions"
            )

    def __call__(self, images: Mapping[str, ImageInput]) -> tuple[InMemoryRegions, dict[str, str]]:
        """Regions of images, by id; and the faults of images without regions, by id."""
        stored: list[ImageRegions] = []
        found, faults = self.extractor(list(images.items()))
        for image in found:
            try:
                stored.append(to_stored(image))
            except InputError as error:
                faults[image.id] = str(error)
        return InMemoryRegions(stored, self.features), faults
