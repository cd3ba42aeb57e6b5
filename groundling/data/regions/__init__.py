"""Image regions on disk, in half precision: written by `groundling regions`, read by all single-stream models.

A store is a folder of shards (see `data/shards.py`). For each image: `features` (R, D) float16,
`boxes` (R, 4) float32, `confidence` (R,) float32, and optionally `classes`: (R, C) float16, or (R,)
int16 for a single class each. Where segmentations of objects are known (VCR), `cover`: (R, 25)
uint8, the bits of 14 x 14 cells row by row, highest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from groundling.core.batch import RegionRow
from groundling.core.errors import InputError
from groundling.data.images import images_below
from groundling.data.shards import MANIFEST, Facts, ProcessRank, Record, ShardStore, ShardWriter
from groundling.runs.progress import Progress

SLACK = 0.01
"""Share of the image's side by which a box may leave the image, as by rounding; others are left out and counted."""
ROUNDING = 1e-3
"""Tolerance of 0..1 for probabilities, because of half precision."""
MOST_TOGETHER = 1.05
"""Maximum sum of a region's class probabilities: thousands of halves, each rounded."""
FACTS = ("size", "has_whole_image", "left_out", "annotated_order", "appended_detections")
"""Fields of an image that are no arrays."""
CELLS = 14
"""Cells per side of the grid over a box that stores an object's segmentation."""
MOST_PIXELS = 2**31 - 1
"""Maximum side of an image in pixels; a larger value in a file is a mistake."""
BACKGROUND = "column 0"
"""Value of `background` in a manifest whose first class is background."""


@dataclass(frozen=True)
class ImageRegions:
    """The regions of one image, in the store's order."""

    id: str
    """The image's id, unique in a store."""
    size: tuple[int, int]
    """Width and height in pixels; 0 if unknown."""
    boxes: np.ndarray
    """(R, 4): x1, y1, x2, y2 as shares of the image's width and height."""
    confidence: np.ndarray
    """(R,), 0..1."""
    features: np.ndarray
    """(R, D)."""
    classes: np.ndarray | None = None
    """(R, C) probabilities, or (R,) one class each, -1 for none."""
    has_whole_image: bool = False
    """Whether the first region is the whole image."""
    segmentation: np.ndarray | None = None
    """(R, 14, 14) bool: the cells of the box that the object fills, for objects with a known segmentation."""
    left_out: int = 0
    """Number of boxes left out: empty or outside the image."""
    annotated_order: bool = False
    """Whether regions (except the whole image) are in annotation order, none left out: VCR's tags are such numbers."""
    appended_detections: int = 0
    """Number of detected regions, which follow the annotated objects."""
    has_confidence: bool = True
    """False if the source has no confidences; all of them are then 1."""

    def take(self, kept: np.ndarray | slice) -> ImageRegions:
        """A copy with some of the regions."""
        arrays = ("boxes", "confidence", "features", "classes", "segmentation")
        own = {name: getattr(self, name) for name in arrays}
        taken = {name: array[kept] for name, array in own.items() if array is not None}
        return replace(self, **taken)

    def with_whole(self, feature: np.ndarray) -> ImageRegions:
        """A copy with the whole image as first region, with this feature (1, D)."""
        return replace(self, **whole_image_first(self, feature), has_whole_image=True)


def whole_image_first(regions: ImageRegions | RegionRow, feature: np.ndarray) -> dict[str, Any]:
    """The arrays of regions after the whole image, which has this feature (1, D), confidence 1, and no class."""
    classes, cells = regions.classes, regions.segmentation
    none = -1 if classes is not None and classes.ndim == 1 else 0
    return {
        "boxes": np.insert(regions.boxes, 0, [0, 0, 1, 1], 0),
        "confidence": np.insert(regions.confidence, 0, 1),
        "features": np.concatenate([feature, regions.features]),
        "classes": None if classes is None else np.insert(classes, 0, none, 0),
        "segmentation": None if cells is None else np.insert(cells, 0, True, 0),
    }


def to_stored(image: ImageRegions) -> ImageRegions:
    """The image with features in half precision; raises InputError if it has invalid values."""
    with np.errstate(over="ignore"):
        half = image.features.astype(np.float16)
    _require_all("features", np.isfinite(half), "are not finite in half precision")
    for name in ("boxes", "confidence", "classes"):
        values = getattr(image, name)
        if values is None:
            continue
        if values.dtype.kind in "iu":  # one class each
            _require_all(name, values >= -1, "are below -1")
            continue
        # Both comparisons are false for NaN.
        within = (values >= -ROUNDING) & (values <= 1 + ROUNDING)
        _require_all(name, within, "outside 0..1, or not finite")
    if image.classes is not None and image.classes.ndim == 2:
        sums = image.classes.sum(1, np.float32)
        _require_all("classes", sums <= MOST_TOGETHER, "add up to more than 1")
    return replace(image, features=half)


def _require_all(name: str, is_good: np.ndarray, fault: str) -> None:
    wrong = ~is_good.all(tuple(range(1, is_good.ndim)))
    if wrong.any():
        raise InputError(f"{name} of region {wrong.argmax()} {fault}")


Item = tuple[str, Callable[[], ImageRegions]]
"""An image id and a function that reads its regions; if it raises InputError, the image is skipped with this reason."""


def clip_boxes(boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Boxes (R, 4) in shares, clipped to the image, and which of them (R,) are neither empty nor outside (`SLACK`)."""
    clipped = boxes.clip(0, 1).astype(np.float32)
    is_near = ((boxes >= -SLACK) & (boxes <= 1 + SLACK)).all(1)
    return clipped, np.asarray(is_near & (clipped[:, 2:] > clipped[:, :2]).all(1))


# -- writing -----------------------------------------------------------------------------------------------------------


class RegionWriter:
    """Writes a store shard by shard; a killed run loses at most one."""

    def __init__(
        self,
        folder: str | Path,
        shard: int = 256,
        key: Facts | None = None,
        process: ProcessRank | None = None,
    ) -> None:
        """Start or resume a store; `shard`: images per shard, `key`: all that the regions depend on."""
        self.shard = shard
        self._shards = ShardWriter(folder, key, process)
        self.folder = self._shards.folder

    def pending(self, images: int) -> Iterator[int]:
        """The numbers of this process's incomplete shards, for this many images."""
        return self._shards.pending(-(-images // self.shard))

    def write(
        self, number: int, images: Sequence[ImageRegions], skipped: Iterable[str] = ()
    ) -> None:
        """Write one shard atomically; images with invalid values are skipped and named."""
        valid_images: list[ImageRegions] = []
        reasons = list(skipped)
        for image in images:
            try:
                valid_images.append(to_stored(image))
            except InputError as error:
                reasons.append(f"{image.id}: {error}")
        self._shards.write(number, [_record(image) for image in valid_images], reasons)

    def fill(self, items: Iterable[Item]) -> None:
        """Write all images of a source, in its order; complete shards are not read again."""
        names_seen: set[str] = set()
        progress = Progress("regions", 0, "image")
        # Items are read at once: the source may close after its last one.
        for number, shard in groupby(enumerate(items), lambda item: item[0] // self.shard):
            images: list[ImageRegions] = []
            skipped: list[str] = []
            is_complete = self._shards.is_complete(number)
            for _, (name, read) in shard:
                if name in names_seen:
                    skipped.append(f"{name}: repeated; the first one is used")
                elif not is_complete:
                    try:
                        images.append(read())
                    except InputError as error:
                        skipped.append(f"{name}: {error}")
                names_seen.add(name)
                progress.update()
            if not is_complete:
                self.write(number, images, skipped)
        progress.close()

    def close(
        self,
        facts: Mapping[str, Any],
        skipped: Sequence[str] = (),
        barrier: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        """As `ShardWriter.close`, with counts of images and regions; raises InputError if there is none."""
        if barrier is not None:
            barrier()
        indices = self._shards.complete_shards().values()
        reasons = [*skipped, *(reason for index in indices for reason in index.skip_reasons)]
        if not any(index.ids for index in indices):
            first = reasons[0] if reasons else "the source contains none"
            raise InputError(f"{self.folder}: no image can be stored ({first})")
        counts = {
            "images": sum(len(index.ids) for index in indices),
            "regions": sum(index.rows("boxes") for index in indices),
            "skipped": len(reasons),
            "boxes_left_out": sum(one["left_out"] for index in indices for one in index.facts),
        }
        return self._shards.close({**facts, "counts": counts}, skipped, barrier)


def _record(image: ImageRegions) -> Record:
    arrays = {
        "features": image.features,
        "boxes": image.boxes.astype(np.float32),
        "confidence": image.confidence.astype(np.float32),
    }
    if image.classes is not None:
        single = image.classes.ndim == 1
        arrays["classes"] = image.classes.astype(np.int16 if single else np.float16)
    if image.segmentation is not None:
        arrays["cover"] = np.packbits(image.segmentation.reshape(-1, CELLS * CELLS), axis=1)
    return Record(image.id, arrays, {name: getattr(image, name) for name in FACTS})


# -- reading -----------------------------------------------------------------------------------------------------------


def _single(stored: np.ndarray) -> np.ndarray:
    # torch converts halves to float32 thirty times as fast as NumPy.
    return torch.from_numpy(stored).float().numpy()


def _unpacked(stored: np.ndarray | None) -> np.ndarray | None:
    """Cells (R, 14, 14) bool that objects fill, from their bits (R, 25) uint8."""
    if stored is None:
        return None
    bits = np.unpackbits(stored, axis=1, count=CELLS * CELLS)
    return bits.astype(bool).reshape(-1, CELLS, CELLS)


class RegionSource:
    """Regions by image id: a `RegionStore`, or regions that were just found. Abstract."""

    def __getitem__(self, image_id: str) -> RegionRow:
        """The regions of an image, in float32; `image_index` is 0 for all of them."""
        raise NotImplementedError

    def __contains__(self, image_id: object) -> bool:
        raise NotImplementedError

    def count(self, image_id: str) -> int:
        """Number of an image's regions."""
        raise NotImplementedError

    def facts_of(self, image_id: str) -> Mapping[str, Any]:
        """Fields of an image's `ImageRegions` that are no arrays; empty if unknown."""
        return {}

    def size(self, image_id: str) -> tuple[int, int]:
        """Width and height of an image in pixels; 0 if unknown."""
        width, height = self.facts_of(image_id).get("size", (0, 0))
        return width, height

    def in_annotated_order(self, image_id: str) -> bool:
        """Whether an image's regions, but the whole image, are all annotated objects in order; others may follow."""
        return bool(self.facts_of(image_id).get("annotated_order", False))

    def appended_detections(self, image_id: str) -> int:
        """Number of detected regions that follow an image's annotated objects."""
        return int(self.facts_of(image_id).get("appended_detections", 0))


class RegionStore(ShardStore, RegionSource):
    """`store[image_id]` gives an image's regions, which are read when they are accessed."""

    def __init__(self, folder: str | Path, features: bool = True) -> None:
        """A folder that `groundling regions` wrote, with features of width D and C classes, 0 for none.

        With `features` off, features are not read and D is 0, for models that read pixels.
        """
        if not Path(folder, MANIFEST).exists() and next(images_below(Path(folder)), ""):
            raise InputError(
                f"{folder}: images, not a region store; `groundling regions` makes one of them"
            )
        super().__init__(folder, "image")
        self.features = features
        shapes = self.shapes
        if not {"features", "boxes", "confidence"} <= shapes.keys():
            raise InputError(f"{folder}: not a region store; it has no regions of images")
        self.width = shapes["features"][0] if features else 0
        classes = shapes.get("classes")
        self.classes = 0 if classes is None else classes[0] if classes else self.manifest["classes"]
        self.background = self.manifest.get("background") == BACKGROUND
        self.has_segmentations = "cover" in shapes

    def __reduce__(self) -> tuple[Any, ...]:
        return RegionStore, (self.folder, self.features)  # a worker process maps the files itself

    @property
    def identity(self) -> str:
        """A hash of the origin of the features, not of the boxes: weights and preprocessing, or an import's layout."""
        return str(self.manifest.get("identity", ""))

    @property
    def origin(self) -> str:
        """The origin of the features, in a few words; empty if unknown."""
        return str(self.manifest.get("made_by", ""))

    @property
    def provenance(self) -> dict[str, Any]:
        """Facts that are saved with a model trained with this store."""
        return {"identity": self.identity, "made_by": self.origin}

    def count(self, image_id: str) -> int:
        """Number of an image's regions."""
        return self.length(self.index_of(image_id), "boxes")

    def __getitem__(self, image_id: str) -> RegionRow:
        image = self.stored(image_id, without="cover" if self.features else "features")
        return _row(image, _distribution(image.classes, self.classes))

    def stored(self, image_id: str, without: str = "") -> ImageRegions:
        """An image as it was written, but for one array."""
        number = self.index_of(image_id)
        arrays = self.arrays(number, without)
        facts = self.facts(number)
        boxes = arrays["boxes"]
        return ImageRegions(
            id=self.ids[number],
            boxes=boxes,
            confidence=arrays["confidence"],
            features=arrays.get("features", np.zeros((len(boxes), 0), np.float32)),
            classes=arrays.get("classes"),
            segmentation=_unpacked(arrays.get("cover")),
            **{**facts, "size": tuple(facts["size"])},
        )

    def facts_of(self, image_id: str) -> Mapping[str, Any]:
        """Fields of an image's `ImageRegions` that are no arrays."""
        return self.facts(self.index_of(image_id))


def _row(image: ImageRegions, classes: np.ndarray | None) -> RegionRow:
    count = len(image.boxes)
    whole = np.zeros(count, bool)
    whole[:1] = image.has_whole_image
    return RegionRow(
        features=_single(image.features),
        boxes=image.boxes.astype(np.float32, copy=False),
        confidence=image.confidence.astype(np.float32, copy=False),
        image_index=np.zeros(count, np.int64),
        is_whole_image=whole,
        classes=classes,
        segmentation=image.segmentation,
    )


def _distribution(stored: np.ndarray | None, count: int) -> np.ndarray | None:
    """Classes as (R, C) float32: a region with a single class has 1 there, one without a class zeros."""
    if stored is None or stored.ndim == 2:
        return None if stored is None else _single(stored)
    classes = np.zeros((len(stored), count), np.float32)
    named = np.flatnonzero(stored >= 0)
    classes[named, stored[named]] = 1
    return classes


def box_source(facts: Mapping[str, Any]) -> str:
    """The origin of a store's boxes, as far as it matters to a model: a grid, a detector, or files; else empty."""
    boxes = facts.get("boxes_from")
    if not isinstance(boxes, str):
        return ""
    if boxes.startswith("a grid of "):
        return boxes
    return "a detector" if boxes.startswith("the detector") else "files of boxes"


def describe_mismatch(model_facts: Mapping[str, Any], store_facts: Mapping[str, Any]) -> str:
    """The difference between a store's regions and those that a model was trained with, in words; empty for none."""
    trained = "but the model was trained with"
    identities = {
        facts["identity"] for facts in (model_facts, store_facts) if facts.get("identity")
    }
    if len(identities) > 1:
        return f"made by {store_facts.get('made_by')}, {trained} {model_facts.get('made_by')}"
    model_boxes = box_source(model_facts)
    store_boxes = box_source(store_facts)
    if model_boxes and store_boxes and model_boxes != store_boxes:
        return f"boxes are from {store_boxes}, {trained} boxes from {model_boxes}"
    return ""


class InMemoryRegions(RegionSource):
    """Regions of images that were just found; nothing is written."""

    def __init__(self, regions: Sequence[ImageRegions], features: bool = True) -> None:
        """Images from `to_stored`; with `features` off their width is 0, as in a `RegionStore`."""
        self.features = features
        self.regions = {image.id: image for image in regions}

    def __contains__(self, image_id: object) -> bool:
        return image_id in self.regions

    def __getitem__(self, image_id: str) -> RegionRow:
        image = self.regions[image_id]
        features = image.features if self.features else image.features[:, :0]
        return _row(replace(image, features=features, segmentation=None), None)

    def count(self, image_id: str) -> int:
        """Number of an image's regions."""
        return len(self.regions[image_id].boxes)

    def facts_of(self, image_id: str) -> Mapping[str, Any]:
        """Fields of an image's `ImageRegions`."""
        return vars(self.regions[image_id])
