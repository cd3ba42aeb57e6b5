"""Features of regions from any Hugging Face vision backbone, for folders of images of any size."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm
from transformers import AutoModel

from groundling.config import RegionsConfig
from groundling.data.pictures import PICTURES, read_picture
from groundling.data.regions import Found, RegionWriter
from groundling.errors import InputError
from groundling.models.loading import load_config, load_processor, load_weights
from groundling.models.roi_align import roi_align
from groundling.vision.detect import Boxes, Detector, Keep, annotated, grid

BINS, SAMPLES = 7, 2
"""RoIAlign: bins per side, averaged afterwards, and samples per bin and direction."""
SIDE = 608
"""Short side of images for backbones without a size of their own (bottom-up attention: 600), at most 5/3 long."""


class Backbone:
    """A ResNet, ViT or CLIP-like image encoder: the last feature map, or the last patch states as one."""

    def __init__(self, source: str | Path, side: int = 0, device: str = "cpu") -> None:
        """`side` in pixels: the image's short side; 0: the square the backbone was trained on, if it has one."""
        config, processor = load_config(source), load_processor(source)
        model = load_weights(AutoModel, source)
        own = config.vision_config if hasattr(config, "vision_config") else config
        self.model = (
            (model.vision_model if hasattr(config, "vision_config") else model).eval().to(device)
        )
        patch = int(own.patch_size) if hasattr(own, "patch_size") else 0
        self.device, self.stride = (
            device,
            patch if patch > 4 else 32,
        )  # patches of 4 (Swin, ConvNeXt) are merged by 8
        self.square = int(own.image_size) if patch and not side else 0
        self.side = side or SIDE
        self.resizes = (
            "interpolate_pos_encoding" in inspect.signature(self.model.forward).parameters
        )
        used = bool(processor.do_normalize)
        self.mean = np.array(processor.image_mean if used else [0, 0, 0], np.float32)
        self.std = np.array(processor.image_std if used else [1, 1, 1], np.float32)
        rule = f"short side {self.side}, long at most {self.side * 5 // 3}, to multiples of {self.stride}"
        self.facts = {
            "image": "RGB in 0..1, turned as EXIF says, never cropped or padded, scaled bicubically to "
            + (f"{self.square} x {self.square}" if self.square else rule),
            "mean": self.mean.tolist(),
            "std": self.std.tolist(),
            "regions": "RoIAlign (aligned) of the last feature map or patch states, "
            f"{BINS} x {BINS} bins of {SAMPLES} x {SAMPLES} samples, mean",
        }

    def target(self, size: tuple[int, int]) -> tuple[int, int]:
        """Width and height to which an image is scaled; boxes are shares, so they stay right."""
        if self.square:
            return self.square, self.square
        scale = min(self.side / min(size), self.side * 5 // 3 / max(size)) / self.stride
        wide, high = (max(1, round(side * scale)) * self.stride for side in size)
        return wide, high

    @torch.no_grad()
    def __call__(
        self, images: Sequence[Image.Image], boxes: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """(R_i, D) features of each image's boxes (R_i, 4); the RGB images are of one size."""
        wide, high = self.target(images[0].size)
        small = [
            np.asarray(image.resize((wide, high), Image.Resampling.BICUBIC), np.float32)
            for image in images
        ]
        pixels = torch.from_numpy((np.stack(small) / 255 - self.mean) / self.std).permute(
            0, 3, 1, 2
        )
        resized = {"interpolate_pos_encoding": True} if self.resizes and not self.square else {}
        states = self.model(
            pixel_values=pixels.to(self.device), **resized
        ).last_hidden_state.float()
        if states.ndim == 3:  # class and register tokens come before the patches
            rows, columns = high // self.stride, wide // self.stride
            states = states[:, -rows * columns :].transpose(1, 2).unflatten(2, (rows, columns))
        scale = torch.tensor([states.shape[3], states.shape[2]] * 2)
        found = roi_align(
            states, [torch.from_numpy(b) * scale for b in boxes], BINS, sampling=SAMPLES
        ).mean((2, 3))
        return [part.cpu().numpy() for part in found.split([len(b) for b in boxes])]


Given = dict[str, tuple[tuple[int, int], Boxes]]
"""Annotated boxes by image file, each with the image's size."""


def listing(
    config: RegionsConfig, given: Collection[str]
) -> tuple[list[tuple[str, Path]], list[str]]:
    """Images to read as (id, file), sorted, and what was left out; an id is the file's path without its ending.

    With annotated boxes, the images are the `given` ones.
    """
    folder = Path(config.images)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such image folder")
    if config.boxes:
        named = sorted(folder / file for file in given)
    else:
        named = sorted(p for p in folder.rglob("*") if p.suffix.lower() in PICTURES)
    gaps = [
        f"{path.relative_to(folder)}: no such image in {folder}"
        for path in named
        if not path.is_file()
    ]
    if gaps and not config.skip_missing:
        raise InputError(f"{gaps[0]} ({len(gaps)} such); add them or pass --skip-missing")
    kept: dict[str, Path] = {}
    for path in filter(Path.is_file, named):
        file = path.relative_to(folder)
        first = kept.setdefault(file.with_suffix("").as_posix(), path)
        if first != path:
            gaps.append(f"{file}: same id as {first.relative_to(folder)}; the first one counts")
    if not kept:
        raise InputError(f"{folder}: no images to read ({', '.join(sorted(PICTURES))})")
    return list(kept.items()), gaps


class Extractor:
    """Boxes and features as configured, image by image."""

    def __init__(
        self, config: RegionsConfig, device: str, given: Given, names: Sequence[str]
    ) -> None:
        """`given`: annotated boxes, of classes `names`; empty if there are none."""
        self.config, self.given = config, given
        self.backbone = Backbone(config.backbone, config.side, device)
        self.detector: Detector | None = None
        model, preprocessing = {"backbone": config.backbone}, {"backbone": self.backbone.facts}
        source = f"a grid of {config.grid} x {config.grid}"
        if config.boxes:
            source = config.boxes
        elif not config.grid:
            keep = Keep(config.threshold, config.least, config.most, config.overlap)
            self.detector, source = Detector(config.detector, keep, device), f"the detector, {keep}"
            model["detector"], names = config.detector, self.detector.names
            preprocessing["detector"] = self.detector.processor.to_dict()
        text = json.dumps(preprocessing, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.facts: dict[str, Any] = {
            "model": model,
            "preprocessing": json.loads(text),
            "preprocessing_sha256": digest,
        }
        self.facts |= {"boxes_from": source, "classes": len(names), "class_names": names}
        self.facts |= (
            {"background": "none: what is no object is left out, and the rest adds up to 1"}
            if names
            else {}
        )

    def __call__(self, images: Sequence[tuple[str, Path]]) -> tuple[list[Found], list[str]]:
        """Regions of images in their order, and what was skipped; images of one size go through together."""
        found: dict[str, Found] = {}
        skipped: list[str] = []
        for start in range(0, len(images), self.config.batch):
            sizes: dict[tuple[int, int], list[tuple[str, Image.Image, Boxes | None]]] = {}
            for name, path in images[start : start + self.config.batch]:
                try:
                    image = read_picture(path)
                    boxes = self._given(path, image.size) if self.given else None
                except InputError as error:
                    skipped.append(f"{name}: {error}")
                else:
                    sizes.setdefault(image.size, []).append((name, image, boxes))
            for same in sizes.values():
                found |= {one.id: one for one in self._together(same)}
        skipped += [f"{name}: no box in it" for name, one in found.items() if not len(one.boxes)]
        return [
            found[name] for name, _ in images if name in found and len(found[name].boxes)
        ], skipped

    def _given(self, path: Path, size: tuple[int, int]) -> Boxes:
        there, boxes = self.given[path.relative_to(self.config.images).as_posix()]
        if there != size:
            raise InputError(f"{size[0]}x{size[1]} pixels, but annotated as {there[0]}x{there[1]}")
        return boxes

    def _together(self, ready: Sequence[tuple[str, Image.Image, Boxes | None]]) -> list[Found]:
        images, given = (
            [image for _, image, _ in ready],
            [boxes for _, _, boxes in ready if boxes is not None],
        )
        boxes = given or (
            self.detector(images) if self.detector else [grid(self.config.grid)] * len(ready)
        )
        whole = np.array([[0, 0, 1, 1]], np.float32)  # goes through with the rest, as a last box
        features = self.backbone(images, [np.concatenate([b.boxes, whole]) for b in boxes])
        made = []
        for (name, image, _), b, f in zip(ready, boxes, features, strict=True):
            one = Found(
                name, image.size, b.boxes, b.confidence, f[:-1], b.classes, left_out=b.left_out
            )
            made.append(one.with_whole(f[-1:]) if self.config.whole and len(b.boxes) else one)
        return made


def extract(config: RegionsConfig, folder: str, rank: int) -> tuple[dict[str, Any], list[str]]:
    """Every shard of `rank` that is missing in `folder`.

    Returns what the manifest says of the models, and which images were left out before any was read.
    """
    device = "cpu"
    if torch.cuda.is_available() and not config.cpu:
        device = f"cuda:{rank % torch.cuda.device_count()}"
    given, names = annotated(config.boxes) if config.boxes else ({}, [])
    images, gaps = listing(config, given)
    writer, extractor = RegionWriter(folder, config.shard), Extractor(config, device, given, names)
    mine = range(rank * config.shard, len(images), config.shard * config.processes)
    for start in tqdm(mine, disable=None, unit="shard"):
        number = start // config.shard
        if not writer.done(number):
            writer.write(number, *extractor(images[start : start + config.shard]))
    return extractor.facts, gaps
