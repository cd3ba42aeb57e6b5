"""Regions of images on disk: memory-mapped shards, half precision, readable at random; no pickles.

A store is a folder. Shard K is `features-K.npy` (N, D) float16, `boxes-K.npy` (N, 4) float32, `confidence-K.npy` (N,)
float32, `classes-K.npy` if there are any ((N, C) float16, or (N,) int16 for a single class each), and `index-K.json`,
written last: [id, regions, width, height, whole] per image and what was skipped. `manifest.json` ends the work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from groundling.batch import RegionRow
from groundling.errors import InputError
from groundling.runs import disk_errors, read_json, write_json

SLACK = 0.01
"""Share of the image's side by which a box may leave it (rounding) and is cut; beyond, it is left out and counted."""
RULES = {
    "coordinates": "x1, y1, x2, y2 as shares of the image's width and height; origin at the top left, y downwards",
    "order": "by confidence, highest first, ties as they came; the whole image, where there is one, before all",
    "boxes": f"cut to the image; left out if empty then, or if outside by more than {SLACK:.0%} of a side",
    "images": "skipped and named: unreadable, no box left, features not finite, or an id that occurred before",
}
OPEN = 128
"""Shards kept open at once: each costs up to four of the process's file handles."""
BACKGROUND = "column 0"
"""What a manifest says of `background` where the first class is none."""


@dataclass(frozen=True)
class Found:
    """The regions of one image, in the store's order."""

    id: str
    size: tuple[int, int]
    """Width and height in pixels; 0 where the source does not say."""
    boxes: np.ndarray  # (R, 4) shares
    confidence: np.ndarray  # (R,)
    features: np.ndarray  # (R, D)
    classes: np.ndarray | None = None  # (R, C) a distribution, or (R,) one class each, -1 for none
    whole: bool = False
    """The first region is the whole image."""
    left_out: int = 0
    """Boxes that were empty or outside the image."""

    @property
    def form(self) -> str:
        """What all images of a store share."""
        classes = "no classes" if self.classes is None else f"classes {self.classes.shape[1:]}"
        return f"{self.features.shape[1]} numbers, {classes}"

    def with_whole(self, feature: np.ndarray) -> Found:
        """The same with the whole image (feature (1, D), confidence 1, no class) as first region."""
        kinds = self.classes
        return replace(
            self,
            boxes=np.insert(self.boxes, 0, [0, 0, 1, 1], 0),
            confidence=np.insert(self.confidence, 0, 1),
            features=np.concatenate([feature, self.features]),
            classes=None if kinds is None else np.insert(kinds, 0, -1 if kinds.ndim == 1 else 0, 0),
            whole=True,
        )


Item = tuple[str, Callable[[], Found]]
"""An image id and what reads its regions; an InputError of it is a reason to skip the image."""


def inside(boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Boxes (R, 4) in shares, cut to the image, and which of them (R,) are not empty and not outside (see `SLACK`)."""
    cut = boxes.clip(0, 1).astype(np.float32)
    near = ((boxes >= -SLACK) & (boxes <= 1 + SLACK)).all(1)
    return cut, np.asarray(near & (cut[:, 2:] > cut[:, :2]).all(1))


class RegionWriter:
    """Writes a store shard by shard; a shard counts once its index is there, so a killed run loses one at most."""

    def __init__(self, folder: str | Path, shard: int = 256) -> None:
        """`shard`: images per shard, skipped ones included."""
        self.folder, self.shard = Path(folder), shard
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)

    def done(self, number: int) -> bool:
        """Whether a shard is complete."""
        return _file(self.folder, "index", number).exists()

    def write(self, number: int, images: Sequence[Found], skipped: Iterable[str] = ()) -> None:
        """One shard, all or nothing; images whose features do not fit half precision are skipped."""
        kept: list[Found] = []
        lost = list(skipped)
        for image in images:
            with np.errstate(over="ignore"):
                half = image.features.astype(np.float16)
            if np.isfinite(half).all():
                kept.append(replace(image, features=half))
            else:
                lost.append(f"{image.id}: features are not finite in half precision")
        forms = sorted({image.form for image in kept})
        if len(forms) > 1:
            raise InputError(
                f"{self.folder}: images differ: {forms[0]} and {forms[1]}; a store holds one kind"
            )
        if kept:
            self._save("features", number, [i.features for i in kept], np.float16)
            self._save("boxes", number, [i.boxes for i in kept], np.float32)
            self._save("confidence", number, [i.confidence for i in kept], np.float32)
            if classes := [i.classes for i in kept if i.classes is not None]:
                self._save(
                    "classes", number, classes, np.int16 if classes[0].ndim == 1 else np.float16
                )
        index = {
            "images": [[i.id, len(i.boxes), *i.size, int(i.whole)] for i in kept],
            "skipped": lost,
            "boxes_left_out": {i.id: i.left_out for i in kept if i.left_out},
            "form": forms[0] if forms else "",
        }
        write_json(_file(self.folder, "index", number), index)

    def fill(self, items: Iterable[Item]) -> None:
        """All of a source, in its order; shards that are there already are not read again."""
        images: list[Found] = []
        skipped: list[str] = []
        seen: set[str] = set()
        number = -1
        for place, (name, read) in enumerate(
            items
        ):  # read at once: the source may close behind its last item
            if place % self.shard == 0:
                self._flush(number, images, skipped)
                number, images, skipped = place // self.shard, [], []
            if name in seen:
                skipped.append(f"{name}: occurs again; the first one counts")
            elif not self.done(number):
                try:
                    images.append(read())
                except InputError as error:
                    skipped.append(f"{name}: {error}")
            seen.add(name)
        self._flush(number, images, skipped)

    def _flush(self, number: int, images: list[Found], skipped: list[str]) -> None:
        if number >= 0 and not self.done(number):
            self.write(number, images, skipped)

    def close(self, facts: Mapping[str, Any], skipped: Sequence[str] = ()) -> dict[str, Any]:
        """Write the manifest: `facts` on how the regions were made, counts, rules, and every image left out."""
        indices = [read_json(path) for path in sorted(self.folder.glob("index-*.json"))]
        lost = [*skipped, *(reason for index in indices for reason in index["skipped"])]
        forms = sorted({index["form"] for index in indices if index["form"]})
        if not forms:
            raise InputError(
                f"{self.folder}: no image was left ({lost[0] if lost else 'there were none'})"
            )
        if len(forms) > 1:
            raise InputError(
                f"{self.folder}: images differ: {forms[0]} and {forms[1]}; a store holds one kind"
            )
        images = [image for index in indices for image in index["images"]]
        left_out = {
            name: count for index in indices for name, count in index["boxes_left_out"].items()
        }
        counts = {
            "images": len(images),
            "regions": sum(image[1] for image in images),
            "skipped": len(lost),
        }
        counts["boxes_left_out"] = sum(left_out.values())
        manifest = {
            "format": 1,
            "counts": counts,
            "form": forms[0],
            "shards": len(indices),
            **facts,
            **RULES,
        }
        manifest |= {"skipped": lost, "boxes_left_out": left_out}
        write_json(self.folder / "manifest.json", manifest)
        return manifest

    def _save(
        self, name: str, number: int, arrays: Sequence[np.ndarray], kind: type[np.generic]
    ) -> None:
        path = _file(self.folder, name, number)
        partial = path.with_name(path.name + ".partial")
        with disk_errors(path):
            with partial.open("wb") as stream:
                np.save(stream, np.concatenate(arrays).astype(kind), allow_pickle=False)
            os.replace(partial, path)


def _file(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}-{number:05}.{'json' if name == 'index' else 'npy'}"


def stem(file: str) -> str:
    """An image's id in a region store: its file without the ending."""
    return file.rpartition(".")[0] or file


def _single(stored: np.ndarray) -> np.ndarray:
    """A copy in float32; through torch, whose conversion of halves is thirty times as fast as numpy's."""
    return torch.from_numpy(np.array(stored)).float().numpy()


class RegionStore:
    """`store[image_id]` gives an image's regions; nothing is read before it is asked for."""

    def __init__(self, folder: str | Path, features: bool = True) -> None:
        """A folder that `groundling regions` wrote; has `ids`, `width` D, `classes` C (0: none), `manifest`.

        `background` says whether class 0 is none. With `features` off they are not read, and D is 0: for models that
        look for themselves.
        """
        self.folder, self.features = Path(folder), features
        if not (self.folder / "manifest.json").is_file():
            raise InputError(
                f"{folder}: no region store, or one not finished; `groundling regions` again goes on with it"
            )
        self.manifest: dict[str, Any] = read_json(self.folder / "manifest.json")
        self._place: dict[str, tuple[int, int, int, bool, tuple[int, int]]] = {}
        self._rows: list[int] = []
        for number in range(self.manifest["shards"]):
            start = 0
            for name, count, width, height, whole in read_json(_file(self.folder, "index", number))[
                "images"
            ]:
                self._place[name] = number, start, start + count, bool(whole), (width, height)
                start += count
            self._rows.append(start)
        self._shard = lru_cache(OPEN)(self._open)
        self.ids = list(self._place)
        first = self[self.ids[0]]
        self.width, self.classes = (
            first.features.shape[1],
            0 if first.classes is None else first.classes.shape[1],
        )
        self.background = self.manifest.get("background") == BACKGROUND

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._place

    def __reduce__(self) -> tuple[Any, ...]:
        return RegionStore, (self.folder, self.features)  # a worker process maps the files itself

    def size(self, image_id: str) -> tuple[int, int]:
        """Width and height of an image in pixels; 0 where the source did not say."""
        return self._known(image_id)[-1]

    def count(self, image_id: str) -> int:
        """How many regions an image has."""
        _, start, stop, *_ = self._known(image_id)
        return stop - start

    def require(self, width: int) -> None:
        """Raise InputError if features are not of the `width` that a model reads."""
        if self.width != width:
            raise InputError(
                f"{self.folder}: features are {self.width} wide, the model reads {width}"
            )

    def faults(self) -> list[str]:
        """A line for every shard that is damaged or lacks rows, and one if the manifest counts differently."""
        found = list[str]()
        for number in np.flatnonzero(
            self._rows
        ).tolist():  # of one whose images were all skipped there are no arrays
            try:
                self._shard(number)
            except InputError as error:
                found.append(str(error))
        counts, told = {"images": len(self), "regions": sum(self._rows)}, self.manifest["counts"]
        if any(told.get(name) != count for name, count in counts.items()):
            found.append(
                f"{self.folder / 'manifest.json'}: counts {told}, but the shards' indices {counts}"
            )
        return found

    def __getitem__(self, image_id: str) -> RegionRow:
        """The regions of an image, in float32; `image` is 0 for all of them."""
        number, start, stop, whole, _ = self._known(image_id)
        shard = self._shard(number)
        classes = _single(shard["classes"][start:stop]) if "classes" in shard else None
        if classes is not None and classes.ndim == 1:  # one class each, or none
            kinds, classes = classes, np.zeros((len(classes), self.manifest["classes"]), np.float32)
            classes[np.flatnonzero(kinds >= 0), kinds[kinds >= 0].astype(int)] = 1
        return RegionRow(
            features=_single(shard["features"][start:stop, : None if self.features else 0]),
            boxes=np.array(shard["boxes"][start:stop]),
            confidence=np.array(shard["confidence"][start:stop]),
            image=np.zeros(stop - start, np.int64),
            whole=np.arange(stop - start) < int(whole),
            classes=classes,
        )

    def _known(self, image_id: str) -> tuple[int, int, int, bool, tuple[int, int]]:
        if image_id not in self._place:
            raise InputError(
                f"{self.folder}: no image {image_id!r} among {len(self)}; the first is {self.ids[0]!r}"
            )
        return self._place[image_id]

    def _open(self, number: int) -> dict[str, np.ndarray]:
        arrays = {}
        for name in ("features", "boxes", "confidence", "classes"):
            path = _file(self.folder, name, number)
            if name == "classes" and not path.exists():
                continue
            try:
                arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError) as error:
                raise InputError(
                    f"{path}: damaged or missing ({error}); make the store again"
                ) from None
            if len(arrays[name]) != self._rows[number]:
                raise InputError(
                    f"{path}: {len(arrays[name])} rows, but the index counts {self._rows[number]}"
                )
        return arrays
