"""Regions of images on disk, in half precision: what `groundling regions` writes and all single-stream models read.

A store is a folder of shards (see `data/shards.py`). Of each image: `features` (R, D) float16, `boxes` (R, 4) float32,
`confidence` (R,) float32, and, if there are any, `classes`: (R, C) float16, or (R,) int16 for a single class each.
Where segments of objects are known (VCR), `cover`: (R, 25) uint8, the bits of 14 x 14 cells row by row, highest first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from groundling.core.batch import RegionRow
from groundling.core.errors import InputError, raise_first
from groundling.core.field_docs import with_field_docs
from groundling.data.shards import (
    ColumnInfo,
    Facts,
    ProcessRank,
    Record,
    ShardIndex,
    ShardStore,
    ShardWriter,
    read_index,
    shard_file,
)
from groundling.runs.progress import Progress

SLACK = 0.01
"""Share of the image's side by which a box may leave it (rounding) and is cut; beyond, it is left out and counted."""
ROUNDING = 1e-3
"""By how much a share may leave 0..1, as half precision rounds."""
MOST_TOGETHER = 1.05
"""What a region's shares of all classes may add up to: thousands of halves, each rounded."""
RULES = {
    "coordinates": "x1, y1, x2, y2 as shares of the image's width and height; origin at the top left, y downwards",
    "order": "by confidence, highest first, ties as they came; the whole image, where there is one, before all",
    "boxes": f"cut to the image; left out if empty then, or if outside by more than {SLACK:.0%} of a side",
    "images": "skipped and named: unreadable, no box left, an id that occurred before, features that are not finite, "
    "or a confidence or a share of a class outside 0..1",
}
CELLS = 14
"""Cells a side of the grid over a box in which an object's segment is kept."""
PACKED = -(-CELLS * CELLS // 8)
"""Bytes that hold their bits."""
MOST_PIXELS = 2**31 - 1
"""Of a side of an image; what a file says beyond is a mistake."""
BACKGROUND = "column 0"
"""What a manifest says of `background` where the first class is none."""


@with_field_docs
@dataclass(frozen=True)
class ImageRegions:
    """The regions of one image, in the store's order."""

    id: str
    """The image's, unique in a store."""
    size: tuple[int, int]
    """Width and height in pixels; 0 where the source does not say."""
    boxes: np.ndarray
    """(R, 4): x1, y1, x2, y2 as shares of the image's width and height."""
    confidence: np.ndarray
    """(R,), 0..1."""
    features: np.ndarray
    """(R, D)."""
    classes: np.ndarray | None = None
    """(R, C) a distribution, or (R,) one class each, -1 for none."""
    has_whole_image: bool = False
    """The first region is the whole image."""
    cover: np.ndarray | None = None
    """(R, 14, 14) bool: the cells of its box that an object fills, of objects whose segments are known."""
    left_out: int = 0
    """Boxes that were empty or outside the image."""
    annotated_order: bool = False
    """Regions (but the whole image) stand as annotators numbered them, none left out: VCR's tags are such numbers."""
    appended_detections: int = 0
    """How many regions, the last ones, a detector found beside the annotated objects."""

    @property
    def form(self) -> str:
        """What all images of a store share."""
        classes = "no classes" if self.classes is None else f"classes {self.classes.shape[1:]}"
        segments = "" if self.cover is None else ", segments"
        return f"{self.features.shape[1]} numbers, {classes}{segments}"

    @property
    def fault(self) -> str:
        """The first value that no store may hold, in words; empty if there is none."""
        arrays = {"boxes": self.boxes, "confidence": self.confidence, "features": self.features}
        if self.classes is not None:
            arrays["classes"] = self.classes
        return first_fault(arrays)

    def with_whole(self, feature: np.ndarray) -> ImageRegions:
        """The same with the whole image (feature (1, D), confidence 1, no class) as first region."""
        classes = self.classes
        if classes is not None:
            none = -1 if classes.ndim == 1 else 0
            classes = np.insert(classes, 0, none, 0)
        cover = None if self.cover is None else np.insert(self.cover, 0, True, 0)
        return replace(
            self,
            boxes=np.insert(self.boxes, 0, [0, 0, 1, 1], 0),
            confidence=np.insert(self.confidence, 0, 1),
            features=np.concatenate([feature, self.features]),
            classes=classes,
            cover=cover,
            has_whole_image=True,
        )


_EXPECTED = {
    "boxes": "are not finite or outside 0..1",
    "confidence": "is not finite or outside 0..1",
    "features": "are not finite",
    "classes": "are not finite or outside 0..1",
}
"""What is wrong with a region, by array."""


def _wrong(name: str, values: np.ndarray) -> np.ndarray:
    """Which regions (R,) have a value in the array `name` (R, ...) that no store may hold."""
    axes = tuple(range(1, values.ndim))
    if name == "features":
        return np.asarray(~np.isfinite(values).all(axes))
    if values.dtype.kind in "iu":  # one class each
        return np.asarray(values < -1)
    good = (values >= -ROUNDING) & (values <= 1 + ROUNDING)  # neither is true of NaN
    return np.asarray(~good.all(axes))


def first_fault(arrays: Mapping[str, np.ndarray], kept: np.ndarray | None = None) -> str:
    """The first value that no store may hold, in words; empty if there is none.

    `arrays`: by name, those (R, ...) of an image; `kept` (R,) bool: the regions that count.
    """
    for name, values in arrays.items():
        wrong = _wrong(name, values)
        if kept is not None:
            wrong = wrong & kept
        if wrong.any():
            return f"{name} of region {wrong.argmax()} {_EXPECTED[name]}"
        if name == "classes" and values.ndim == 2:
            over = values.sum(1, np.float32) > MOST_TOGETHER
            over &= True if kept is None else kept
            if over.any():
                return f"{name} of region {over.argmax()} add up to more than 1"
    return ""


def to_stored(image: ImageRegions) -> ImageRegions:
    """The image with features in half precision; raises InputError if it has values that no store may hold."""
    with np.errstate(over="ignore"):
        half = image.features.astype(np.float16)
    if not np.isfinite(half).all():
        raise InputError("features are not finite in half precision")
    if image.fault:
        raise InputError(image.fault)
    return replace(image, features=half)


Item = tuple[str, Callable[[], ImageRegions]]
"""An image id and what reads its regions; an InputError of it is a reason to skip the image."""


def clip_boxes(boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Boxes (R, 4) in shares, cut to the image, and which of them (R,) are not empty and not outside (see `SLACK`)."""
    cut = boxes.clip(0, 1).astype(np.float32)
    near = ((boxes >= -SLACK) & (boxes <= 1 + SLACK)).all(1)
    return cut, np.asarray(near & (cut[:, 2:] > cut[:, :2]).all(1))


# -- writing -----------------------------------------------------------------------------------------------------------


class RegionWriter:
    """Writes a store shard by shard; a shard counts once its index is there, so a killed run loses one at most."""

    def __init__(
        self,
        folder: str | Path,
        shard: int = 256,
        key: Facts | None = None,
        part: ProcessRank | None = None,
    ) -> None:
        """Start a store in `folder`, or resume one.

        `shard`: images per shard, skipped ones included. `key`: what the regions depend on. `part`: which of several
        processes this is. Raises InputError if shards of another key are there already.
        """
        self.shard = shard
        self._shards = ShardWriter(folder, key, part)
        self.folder = self._shards.folder

    def done(self, number: int) -> bool:
        """Whether a shard is complete."""
        return self._shards.is_complete(number)

    def pending(self, images: int) -> Iterator[int]:
        """The numbers of this process's shards, of so many images, that are not complete."""
        return self._shards.pending(-(-images // self.shard))

    def write(
        self, number: int, images: Sequence[ImageRegions], skipped: Iterable[str] = ()
    ) -> None:
        """One shard, all or nothing; images with values that no store may hold are skipped and named.

        Raises InputError if images differ in the width of their features or in their kind of classes.
        """
        kept: list[ImageRegions] = []
        reasons = list(skipped)
        for image in images:
            try:
                kept.append(to_stored(image))
            except InputError as error:
                reasons.append(f"{image.id}: {error}")
        self._one_form({image.form for image in kept})
        self._shards.write(number, [_record(image) for image in kept], reasons)

    def fill(self, items: Iterable[Item]) -> None:
        """Write all of a source, in its order; shards that are there already are not read again."""
        images: list[ImageRegions] = []
        skipped: list[str] = []
        seen: set[str] = set()
        number = -1
        progress = Progress("regions", 0, "image")
        # An item is read at once: the source may close behind its last one.
        for place, (name, read) in enumerate(items):
            if place % self.shard == 0:
                self._flush(number, images, skipped)
                number = place // self.shard
                images = []
                skipped = []
            if name in seen:
                skipped.append(f"{name}: occurs again; the first one counts")
            elif not self.done(number):
                try:
                    images.append(read())
                except InputError as error:
                    skipped.append(f"{name}: {error}")
            seen.add(name)
            progress.step()
        self._flush(number, images, skipped)
        progress.close()

    def close(
        self,
        facts: Mapping[str, Any],
        skipped: Sequence[str] = (),
        barrier: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        """Write the manifest, and return what it says.

        It holds counts, rules, every image left out, and `facts` on how the regions were made; of these `identity` and
        `made_by` say what made the features (see `RegionStore`). `barrier` waits for all processes, each of which
        calls this. Raises InputError if no image was left, or images differ in form.
        """

        def summary(indices: Sequence[ShardIndex]) -> Facts:
            return self._summary(indices, skipped)

        return self._shards.close({**facts, **RULES}, skipped, summary, barrier)

    def _summary(self, indices: Sequence[ShardIndex], skipped: Sequence[str]) -> Facts:
        reasons = [*skipped, *(reason for index in indices for reason in index.skip_reasons)]
        forms = {_form(index) for index in indices if index.ids}
        if not forms:
            first = reasons[0] if reasons else "there were none"
            raise InputError(f"{self.folder}: no image was left ({first})")
        self._one_form(forms)
        left_out: dict[str, int] = {}
        for index in indices:
            for name, facts in zip(index.ids, index.facts, strict=True):
                if facts.get("left_out"):
                    left_out[name] = facts["left_out"]
        counts = {
            "images": sum(len(index.ids) for index in indices),
            "regions": sum(sum(index.lengths.get("boxes", ())) for index in indices),
            "skipped": len(reasons),
            "boxes_left_out": sum(left_out.values()),
        }
        return {"counts": counts, "form": min(forms), "boxes_left_out": left_out}

    def _flush(self, number: int, images: list[ImageRegions], skipped: list[str]) -> None:
        if number >= 0 and not self.done(number):
            self.write(number, images, skipped)

    def _one_form(self, forms: Iterable[str]) -> None:
        different = sorted(forms)
        if len(different) > 1:
            raise InputError(
                f"{self.folder}: images differ: {different[0]} and {different[1]}; a store holds one kind"
            )


def _record(image: ImageRegions) -> Record:
    arrays = {
        "features": image.features,
        "boxes": image.boxes.astype(np.float32),
        "confidence": image.confidence.astype(np.float32),
    }
    if image.classes is not None:
        single = image.classes.ndim == 1
        arrays["classes"] = image.classes.astype(np.int16 if single else np.float16)
    if image.cover is not None:
        arrays["cover"] = np.packbits(image.cover.reshape(-1, CELLS * CELLS), axis=1)
    width, height = image.size
    facts: dict[str, Any] = {"width": width, "height": height}
    if image.has_whole_image:
        facts["whole"] = True
    if image.left_out:
        facts["left_out"] = image.left_out
    if image.annotated_order:
        facts["annotated_order"] = True
    if image.appended_detections:
        facts["behind"] = image.appended_detections
    return Record(image.id, arrays, facts)


def _form(index: ShardIndex) -> str:
    """As `ImageRegions.form`, of a shard."""
    classes = index.columns.get("classes")
    kind = "no classes" if classes is None else f"classes {classes.shape}"
    segments = ", segments" if "cover" in index.columns else ""
    return f"{index.columns['features'].shape[0]} numbers, {kind}{segments}"


# -- reading -----------------------------------------------------------------------------------------------------------


def read_region_index(path: Path) -> ShardIndex:
    """The index of a shard of regions; raises InputError if it is none."""
    index = read_index(path)
    raise_first(
        [f"{path}: not the index of a region store ({what})" for what in _odd_regions(index)]
    )
    return index


def _odd_regions(index: ShardIndex) -> Iterator[str]:
    """Why an index is not one of regions."""
    if not index.ids:
        return
    expected = {"features": (1, "f"), "boxes": (1, "f"), "confidence": (0, "f")}
    for name, (sides, kind) in expected.items():
        column = index.columns.get(name)
        fits = column is not None and len(column.shape) == sides and column.dtype[1] == kind
        if not fits or (name == "boxes" and index.columns[name].shape != (4,)):
            yield f"no fitting {name}"
            return
    cover = index.columns.get("cover")
    if cover is not None and (cover.dtype[1:], cover.shape) != ("u1", (PACKED,)):
        yield "no fitting cover"
    if len(index.facts) != len(index.ids):
        yield "images without their sizes"
    lengths = index.lengths["boxes"]
    if any(other != lengths for other in index.lengths.values()):
        yield "arrays differ in length"
    for facts in index.facts:
        if not all(isinstance(facts.get(side), int) for side in ("width", "height")):
            yield "an image without its size"


def _single(stored: np.ndarray) -> np.ndarray:
    """A copy in float32; through torch, whose conversion of halves is thirty times as fast as numpy's."""
    return torch.from_numpy(np.array(stored)).float().numpy()


def _unpacked(stored: np.ndarray | None) -> np.ndarray | None:
    """Cells (R, 14, 14) bool that objects fill, of their bits (R, 25) uint8."""
    if stored is None:
        return None
    bits = np.unpackbits(stored, axis=1, count=CELLS * CELLS)
    return bits.astype(bool).reshape(-1, CELLS, CELLS)


class RegionStore:
    """`store[image_id]` gives an image's regions; nothing is read before it is asked for."""

    def __init__(self, folder: str | Path, features: bool = True) -> None:
        """A folder that `groundling regions` wrote; has `ids`, `width` D, `classes` C (0: none), `manifest`.

        `background` says whether class 0 is none, `covers` whether segments of objects are known. With `features` off
        they are not read, and D is 0, but segments are: for models that look for themselves. Raises InputError if the
        store is not finished, damaged or something else.
        """
        self.folder = Path(folder)
        self.features = features
        path = self.folder / "manifest.json"
        if not path.is_file():
            raise InputError(
                f"{folder}: no region store, or one not finished; `groundling regions` again resumes it"
            )
        self._shards = ShardStore(folder, "image", read_region_index)
        self.manifest = self._shards.manifest
        self.ids = self._shards.ids
        columns = self._shards.columns
        if not columns:
            raise InputError(f"{path}: not the manifest of a region store: there is no image in it")
        self.width = columns["features"].shape[0] if features else 0
        self.classes = self._count_classes(columns.get("classes"))
        self.background = self.manifest.get("background") == BACKGROUND
        self.covers = "cover" in columns

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._shards

    def __reduce__(self) -> tuple[Any, ...]:
        return RegionStore, (self.folder, self.features)  # a worker process maps the files itself

    def compare(self) -> None:
        """As `ShardStore.verify_hashes`."""
        self._shards.verify_hashes()

    @property
    def identity(self) -> str:
        """A hash of what made the features: weights and preprocessing, or an import's layout; empty if not known.

        Where the boxes are from does not count: detected, annotated and grid boxes of one backbone are alike.
        """
        return str(self.manifest.get("identity", ""))

    @property
    def made_by(self) -> str:
        """What made the features, in a few words; empty if not known."""
        return str(self.manifest.get("made_by", ""))

    @property
    def annotated_order(self) -> bool:
        """Whether all images are `in_annotated_order`."""
        return all(self.in_annotated_order(image_id) for image_id in self.ids)

    def in_annotated_order(self, image_id: str) -> bool:
        """Whether an image's regions (but the whole image) stand as annotators numbered them, none left out.

        VCR's tags name regions by these numbers; detected regions may stand behind. False for boxes of detectors, for
        grids and for imported files, which are sorted by confidence. Raises InputError if there is no such image.
        """
        return self._facts(image_id).get("annotated_order") is True

    def appended_detections(self, image_id: str) -> int:
        """How many detected regions stand behind an image's annotated objects."""
        return int(self._facts(image_id).get("behind", 0))

    def size(self, image_id: str) -> tuple[int, int]:
        """Width and height of an image in pixels; 0 where the source did not say."""
        facts = self._facts(image_id)
        return facts["width"], facts["height"]

    def count(self, image_id: str) -> int:
        """How many regions an image has."""
        return self._shards.length(self._shards.index_of(image_id), "boxes")

    def require(self, width: int) -> None:
        """Raise InputError if features are not of the `width` that a model reads."""
        if self.width != width:
            raise InputError(
                f"{self.folder}: features are {self.width} wide, the model reads {width}"
            )

    def faults(self, verify: bool = False) -> list[str]:
        """A line for everything that is wrong: see `ShardStore.faults`; also for shares outside 0..1 and counts.

        With `verify` the recorded SHA-256 of every file is compared, too.
        """
        faults = self._shards.faults(verify)
        for shard in range(len(self._shards.indices)):
            faults += self._outside(shard)
        told = self.manifest["counts"]
        counts = {"images": len(self), "regions": self._shards.rows["boxes"]}
        if any(told.get(name) != count for name, count in counts.items()):
            path = self.folder / "manifest.json"
            faults.append(f"{path}: counts {told}, but the shards' indices {counts}")
        return faults

    def __getitem__(self, image_id: str) -> RegionRow:
        """The regions of an image, in float32; `image` is 0 for all of them.

        Raises InputError if there is no such image, its shard is damaged, or a value is one that no store may hold.
        """
        number = self._shards.index_of(image_id)
        views = self._shards.array_views(number)
        features = views["features"] if self.features else views["features"][:, :0]
        whole = np.zeros(len(features), bool)
        if self._shards.facts(number).get("whole"):
            whole[:1] = True
        read = {"boxes": np.array(views["boxes"]), "confidence": np.array(views["confidence"])}
        read["features"] = _single(features)
        classes = self._distribution(views.get("classes"), image_id)
        fault = first_fault(read if classes is None else {**read, "classes": classes})
        if fault:  # of a store from before imports were checked, or damaged since
            raise InputError(f"{self.folder}: image {image_id!r}: {fault}; `groundling data check`")
        return RegionRow(
            **read,
            image_index=np.zeros(len(features), np.int64),
            is_whole_image=whole,
            classes=classes,
            segmentation=None if self.features else _unpacked(views.get("cover")),
        )

    def _facts(self, image_id: str) -> dict[str, Any]:
        return self._shards.facts(self._shards.index_of(image_id))

    def _count_classes(self, column: ColumnInfo | None) -> int:
        if column is None:
            return 0
        if column.shape:
            return column.shape[0]
        count = self.manifest.get("classes")  # regions have one class each
        if not isinstance(count, int) or count < 1:
            raise InputError(
                f"{self.folder / 'manifest.json'}: classes is {count!r}, expected how many there are"
            )
        return count

    def _distribution(self, stored: np.ndarray | None, image_id: str) -> np.ndarray | None:
        """Classes as (R, C) float32; a region of one class has a 1 there, one of no class zeros."""
        if stored is None or stored.ndim == 2:
            return None if stored is None else _single(stored)
        classes = np.zeros((len(stored), self.classes), np.float32)
        named = np.flatnonzero(stored >= 0)
        if len(named) and stored.max() >= self.classes:
            raise InputError(
                f"{self.folder}: image {image_id!r} has class {stored.max()} of {self.classes}"
            )
        classes[named, stored[named]] = 1
        return classes

    def _outside(self, shard: int) -> list[str]:
        """A line for each array of a shard with values outside their range; `ShardStore` tells of those not finite."""
        try:
            arrays = self._shards.shard_arrays(shard)
        except InputError:  # told already
            return []
        faults = []
        for name, values in arrays.items():
            if name in {"features", "cover"}:
                continue
            wrong = _wrong(name, values)
            if values.dtype.kind == "f":
                wrong &= np.isfinite(values).all(tuple(range(1, values.ndim)))
            else:
                wrong |= values >= self.classes
            rows = np.flatnonzero(wrong)
            if len(rows):
                image = self._shards.record_of(shard, name, rows[0])
                path = shard_file(self.folder, name, shard)
                such = f" ({len(rows):,} such regions)" if len(rows) > 1 else ""
                limit = "0..1" if values.dtype.kind == "f" else f"-1..{self.classes - 1}"
                faults.append(f"{path}: image {image!r}: a value is outside {limit}{such}")
        return faults


def open_checked_store(folder: str | Path, features: bool = True) -> RegionStore:
    """A region store to be learned from or asked, whose files are what was written; arguments as of `RegionStore`.

    Of several processes on a machine the first one compares. Raises InputError as `RegionStore` and its `compare`.
    """
    store = RegionStore(folder, features)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        store.compare()
    return store


class InMemoryRegions:
    """Regions of images that were just found, as a store would give them back; nothing is written."""

    def __init__(self, found: Sequence[ImageRegions], features: bool = True) -> None:
        """Images as `storable` gives them; with `features` off their width is 0, as of a `RegionStore`."""
        self.features = features
        self.found = {image.id: image for image in found}

    def __contains__(self, image_id: object) -> bool:
        return image_id in self.found

    def __getitem__(self, image_id: str) -> RegionRow:
        """The regions of an image, in float32; `image` is 0 for all of them."""
        image = self.found[image_id]
        features = image.features if self.features else image.features[:, :0]
        whole = np.zeros(len(features), bool)
        whole[:1] = image.has_whole_image
        return RegionRow(
            features=_single(features),
            boxes=image.boxes.astype(np.float32),
            confidence=image.confidence.astype(np.float32),
            image_index=np.zeros(len(features), np.int64),
            is_whole_image=whole,
        )

    def count(self, image_id: str) -> int:
        """How many regions an image has."""
        return len(self.found[image_id].boxes)

    def size(self, image_id: str) -> tuple[int, int]:
        """Width and height of an image in pixels."""
        return self.found[image_id].size

    def in_annotated_order(self, image_id: str) -> bool:
        """Whether an image's regions are its annotated objects, all of them and in their order, and others behind."""
        return self.found[image_id].annotated_order

    def appended_detections(self, image_id: str) -> int:
        """How many detected regions stand behind an image's annotated objects."""
        return self.found[image_id].appended_detections
