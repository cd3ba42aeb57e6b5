"""Region features from any Hugging Face vision backbone, for folders of
images and for single photos.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoModel

from groundling.core.errors import InputError, raise_first
from groundling.data.images import (
    IMAGE_ENDINGS,
    ImageInput,
    check_image_folder,
    image_id,
    is_image_file,
    is_outside_folder,
    read_image,
    unread_images,
)
from groundling.data.regions.annotations import read_vcr_objects
from groundling.data.regions.store import ImageRegions, InMemoryRegions, RegionWriter, to_stored
from groundling.data.shards import ProcessRank
from groundling.models.loading import load_config, load_processor, load_weights, weights_sha256
from groundling.runs.progress import Progress
from groundling.settings.input_settings import DetectionSettings, ExtractionSettings
from groundling.vision.boxes import (
    AnnotatedBoxes,
    DetectionFilter,
    Detector,
    ImageBoxes,
    grid_boxes,
    read_annotated_boxes,
)
from groundling.vision_language.end_to_end import roi_align

BINS = 7
"""RoIAlign: bins per side, which are averaged."""
SAMPLES = 2
"""RoIAlign: samples per bin and direction."""
SIDE = 608
"""Short side of images for backbones without an image size (bottom-up attention: 600).

The long side has at most 5/3.
"""
STRIDE = 32
"""Pixels per cell of the last feature map, for ResNets and for models that merge small patches."""
MERGED = 4
"""Patches of this side (Swin, ConvNeXt) are merged by a factor of 8.

Larger ones (ViT) are not merged.
"""


class Backbone:
    """A ResNet, ViT or CLIP-like image encoder.

    Gives the last feature map, or the last patch states as a map.
    """

    def __init__(self, source: str | Path, side: int = 0, device: str = "cpu") -> None:
        """`source` is a hub id or a folder with model and image processor.

        Raises InputError if it cannot be loaded.

        `side` in pixels: the image's short side; 0: the backbone's own square
        input size, if it has one.
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
        self.facts = self._facts()

    def _facts(self) -> dict[str, str | list[float]]:
        """The preprocessing of images, for a manifest."""
        if self.square:
            scaled = f"{self.square} x {self.square}"
        else:
            longest = self.side * 5 // 3
            scaled = (
                f"short side {self.side}, long at most {longest}, to multiples of {self.stride}"
            )
        return {
            "image": "RGB in 0..1, turned as EXIF says, never cropped or padded, scaled bicubically to "
            + scaled,
            "mean": self.mean.tolist(),
            "std": self.std.tolist(),
            "regions": "RoIAlign (aligned) of the last feature map or patch states, "
            f"{BINS} x {BINS} bins of {SAMPLES} x {SAMPLES} samples, mean",
        }

    @property
    def identity(self) -> str:
        """A hash of everything that features depend on, except the image and its boxes:
        weights and preprocessing.
        """
        text = json.dumps({"weights": self.sha256, "preprocessing": self.facts}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def origin(self) -> str:
        """Model, image size and weights, in a few words."""
        scaled = f"{self.square} x {self.square}" if self.square else f"short side {self.side}"
        return f"{self.source} at {scaled} pixels (weights {self.sha256[:8]})"

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
        features = roi_align(states, places, BINS, sampling=SAMPLES).mean((2, 3))
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
    """Images to read as (id, file), sorted, and those left out.

    An id is the file's path without its ending.

    With `extraction.boxes`, the images are these `files`. Raises InputError if there are none, or
    if one is missing without `extraction.skip_missing`.
    """
    folder = Path(extraction.images)
    check_image_folder(folder)
    if extraction.boxes:
        outside = sorted(file for file in files if is_outside_folder(file, folder))
        paths = sorted(folder / file for file in set(files).difference(outside))
    else:
        outside = []
        paths = sorted(path for path in folder.rglob("*") if is_image_file(path.name))
    there = []
    gaps = [f"{file}: leads out of {folder}; not followed" for file in outside]
    for path in paths:
        if path.is_file():
            there.append(path)
        else:
            gaps.append(f"{path.relative_to(folder)}: no such image in {folder}")
    if not extraction.skip_missing:
        raise_first(gaps, "; add them or pass --skip-missing")
    kept: dict[str, Path] = {}
    for path in there:
        file = path.relative_to(folder)
        first = kept.setdefault(image_id(file.as_posix()), path)
        if first != path:
            gaps.append(f"{file}: same id as {first.relative_to(folder)}; the first one counts")
    if not kept:
        unread = "".join(f"; {line}" for line in unread_images(folder))
        raise InputError(
            f"{folder}: no images to read ({', '.join(sorted(IMAGE_ENDINGS))}){unread}"
        )
    return list(kept.items()), gaps


class LoadedImage(NamedTuple):
    """An image, decoded."""

    id: str
    image: Image.Image
    boxes: ImageBoxes | None = None
    """Its boxes from a file."""


class Extractor:
    """Finds boxes and features, image by image, as `extraction` specifies."""

    def __init__(
        self,
        extraction: ExtractionSettings,
        device: str,
        annotations: Mapping[str, AnnotatedBoxes],
        names: Sequence[str],
    ) -> None:
        """`annotations`: boxes from files by image file, with classes `names`.

        Empty if there are none.
        """
        self.extraction = extraction
        self.finding = finding = extraction.detection
        self.annotations = annotations
        self.backbone = Backbone(finding.backbone, finding.shortest_edge, device)
        self.detector: Detector | None = None
        models = {"backbone": finding.backbone}
        weights = {"backbone": self.backbone.sha256}
        preprocessing: dict[str, Any] = {"backbone": self.backbone.facts}
        sources = list(extraction.boxes)
        if finding.grid:
            sources = [f"a grid of {finding.grid} x {finding.grid}"]
        if not sources or extraction.add_detected_boxes:
            keep = DetectionFilter(
                finding.score_threshold, finding.min_boxes, finding.max_boxes, finding.iou_threshold
            )
            sources.append(f"the detector, {keep}")
            self.detector = Detector(finding.detector, keep, device)
            models["detector"] = finding.detector
            weights["detector"] = weights_sha256(self.detector.model)
            preprocessing["detector"] = self.detector.processor.to_dict()
            names = names if extraction.boxes else self.detector.names
        source = " + ".join(sources)
        self.names = list(names)
        text = json.dumps(preprocessing, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.key: dict[str, Any] = {"weights": weights, "preprocessing": digest, "boxes": source}
        if any(one.boxes.segments for one in annotations.values()):
            self.key["cover"] = (
                "14 x 14"  # shards of an unfinished store of an older version have none
            )
        self.facts: dict[str, Any] = {
            "model": models,
            "identity": self.backbone.identity,
            "made_by": self.backbone.origin,
            "weights": weights,
            "preprocessing": json.loads(text),
            "preprocessing_sha256": digest,
            "boxes_from": source,
            **({} if extraction.boxes else {"made_with": finding.manifest_entry()}),
            "classes": len(names),
            "class_names": names,
        }
        if names:
            self.facts["background"] = (
                "none: what is no object is left out, and the rest adds up to 1"
            )

    def __call__(
        self, images: Sequence[tuple[str, ImageInput]], progress: Progress | None = None
    ) -> tuple[list[ImageRegions], list[str]]:
        """Regions of images in order, and reasons for skipped images.

        Images of one size form a batch.

        `progress` counts images.
        """
        regions: dict[str, ImageRegions] = {}
        skipped: list[str] = []
        for start in range(0, len(images), self.extraction.batch):
            sizes: dict[tuple[int, int], list[LoadedImage]] = {}
            batch = images[start : start + self.extraction.batch]
            for name, path in batch:
                try:
                    ready = self._read(name, path)
                except InputError as error:
                    skipped.append(f"{name}: {error}")
                else:
                    sizes.setdefault(ready.image.size, []).append(ready)
            for of_one_size in sizes.values():
                for image in self._together(of_one_size):
                    regions[image.id] = image
            if progress is not None:
                progress.step(len(batch))
        kept = []
        for name, _ in images:
            if name in regions and len(regions[name].boxes):
                kept.append(regions[name])
            elif name in regions:
                skipped.append(f"{name}: no box in this image")
        return kept, skipped

    def _read(self, name: str, picture: ImageInput) -> LoadedImage:
        image = read_image(picture)
        if not self.annotations or not isinstance(picture, Path):
            return LoadedImage(name, image)
        known = self.annotations[picture.relative_to(self.extraction.images).as_posix()]
        return LoadedImage(name, image, known.for_image_size(image.size))

    def _together(self, ready: Sequence[LoadedImage]) -> list[ImageRegions]:
        """The regions of images of one size."""
        images = [one.image for one in ready]
        boxes = [one.boxes for one in ready if one.boxes is not None]
        if self.detector is not None:
            detected = self.detector(images)
            if boxes:
                pairs = zip(boxes, detected, strict=True)
                detected = [self._behind(*pair) for pair in pairs]
            boxes = detected
        elif not boxes:
            boxes = [grid_boxes(self.finding.grid)] * len(ready)
        whole = np.array(
            [[0, 0, 1, 1]], np.float32
        )  # the whole image is a last box in the same batch
        features = self.backbone(images, [np.concatenate([one.boxes, whole]) for one in boxes])
        regions = []
        for one, of_image, numbers in zip(ready, boxes, features, strict=True):
            found = ImageRegions(
                id=one.id,
                size=one.image.size,
                boxes=of_image.boxes,
                confidence=of_image.confidence,
                features=numbers[:-1],
                classes=of_image.classes,
                segmentation=_segmentation(of_image),
                left_out=of_image.left_out,
                annotated_order=of_image.annotated_order and not of_image.left_out,
                appended_detections=of_image.appended_detections,
            )
            if self.finding.add_whole_image and len(found.boxes):
                found = found.with_whole(numbers[-1:])
            regions.append(found)
        return regions

    def _behind(self, known: ImageBoxes, found: ImageBoxes) -> ImageBoxes:
        """An image's boxes from files, followed by the detector's, each with its best
        class among the files' names.
        """
        assert self.detector is not None and known.classes is not None and found.classes is not None
        numbers = {_plain(name): number for number, name in enumerate(self.names)}
        names = [_plain(self.detector.names[best]) for best in found.classes.argmax(1)]
        classes = np.array([numbers.get(name, -1) for name in names], known.classes.dtype)
        return replace(
            known,
            boxes=np.concatenate([known.boxes, found.boxes]),
            confidence=np.concatenate([known.confidence, found.confidence]),
            classes=np.concatenate([known.classes, classes]),
            appended_detections=len(found.boxes),
        )


def _plain(name: str) -> str:
    """A class's name without spaces, as in VCR."""
    return name.replace(" ", "").lower()


def _segmentation(boxes: ImageBoxes) -> np.ndarray | None:
    """The cells of its box that each object fills, (R, 14, 14); a detected object fills all."""
    if boxes.segments is None:
        return None
    return np.pad(
        read_vcr_objects(boxes.segments).masks(),
        ((0, boxes.appended_detections), (0, 0), (0, 0)),
        constant_values=True,
    )


class ExtractionResult(NamedTuple):
    """Data to complete a store of extracted regions; the same in every process."""

    facts: dict[str, Any]
    """The manifest's facts about models and preprocessing."""
    key: dict[str, Any]
    """Everything that the regions depend on; see `ShardWriter`."""
    gaps: list[str]
    """Images that were left out before reading, with reasons."""


def extract(
    extraction: ExtractionSettings, folder: str | Path, part: ProcessRank
) -> ExtractionResult:
    """Write the missing shards of a store in `folder` that belong to `part`."""
    device = "cpu"
    if torch.cuda.is_available() and not extraction.cpu:
        device = f"cuda:{part.rank % torch.cuda.device_count()}"
    annotations: dict[str, AnnotatedBoxes] = {}
    names: list[str] = []
    if extraction.boxes:
        annotations, names = read_annotated_boxes(*extraction.boxes)
    images, gaps = list_images(extraction, annotations)
    extractor = Extractor(extraction, device, annotations, names)
    writer = RegionWriter(folder, extraction.shard_size, extractor.key, part)
    numbers = list(writer.pending(len(images)))
    starts = {number: number * extraction.shard_size for number in numbers}
    shards = {
        number: images[start : start + extraction.shard_size] for number, start in starts.items()
    }
    progress = Progress("regions", sum(map(len, shards.values())), "image")
    for number, shard in shards.items():
        writer.write(number, *extractor(shard, progress))
    progress.close()
    return ExtractionResult(extractor.facts, extractor.key, gaps)


# Regions of photos that no store has: found as by `groundling regions`, on request.


class RegionFinder:
    """Finds the regions of photos with a store's own detector or grid, and its backbone."""

    def __init__(
        self,
        finding: DetectionSettings,
        facts: Mapping[str, Any],
        device: str = "cpu",
        features: bool = True,
    ) -> None:
        """`finding`: the settings with which the store was made.

        `facts`: its manifest's models and preprocessing.

        With `features` off, only boxes are returned. Raises InputError if a model is missing, or is
        not the one that the store was made with.
        """
        self.features = features
        try:
            self.extractor = Extractor(ExtractionSettings(detection=finding), device, {}, ())
        except InputError as error:
            raise InputError(
                f"{error}; new photos need the models of the training regions: --backbone and "
                "--detector name their present folders"
            ) from None
        found = self.extractor.facts
        sources = {"backbone": finding.backbone, "detector": finding.detector}
        for name, weights in dict(facts.get("weights", {})).items():
            if found["weights"].get(name) != weights and (features or name == "detector"):
                raise InputError(
                    f"{sources[name]}: its weights differ from those of the {name} that made this model's regions"
                )
        if features and facts.get("identity") not in ("", None, found["identity"]):
            raise InputError(
                f"{finding.backbone}: its preprocessing differs from that of this model's training images"
            )

    def __call__(self, photos: Mapping[str, ImageInput]) -> tuple[InMemoryRegions, dict[str, str]]:
        """Regions of photos, by id; and the faults of photos without regions, by id."""
        found, skipped = self.extractor(list(photos.items()))
        kept: list[ImageRegions] = []
        for image in found:
            try:
                kept.append(to_stored(image))
            except InputError as error:
                skipped.append(f"{image.id}: {error}")
        there = {image.id for image in kept}
        return InMemoryRegions(kept, self.features), {
            name: _reason(name, skipped) for name in photos if name not in there
        }


def _reason(name: str, skipped: Sequence[str]) -> str:
    """The reason why a photo was skipped, from the lines about skipped photos."""
    told = (line.removeprefix(f"{name}: ") for line in skipped if line.startswith(f"{name}: "))
    return next(told, "no regions were found")
