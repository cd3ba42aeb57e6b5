"""RefCOCO+, RefCOCO and RefCOCOg: which region does an expression mean? Readers, and what counts as the right box."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from groundling.batch import Example, Gold, RegionRow
from groundling.data.regions import inside
from groundling.errors import InputError, refuse
from groundling.forms import Pick
from groundling.metrics import PICKED, UPPER_BOUND
from groundling.runs import read_json
from groundling.tasks import Task
from groundling.tasks.vqa import COCO

SOURCE = "Yu et al. 2016, RefCOCO+ (UNC splits), github.com/lichengunc/refer"
SPLITS = ("train", "val", "testA", "testB", "test")
"""testA asks for people, testB for other things; test is whatever has test in its name, as in REFER."""


@dataclass(frozen=True)
class Overlap:
    """When a box counts as another one: by intersection over union, which the field computes in several ways."""

    at: float = 0.5
    strict: bool = False  # more than `at`, instead of at least
    inclusive: bool = False  # boxes end with a pixel of their own, so every side is longer by 1
    thinnest: float = 0  # of intersections that count, as a side in pixels they have to exceed

    def iou(self, boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
        """(R, G) of boxes (R, 4) and others (G, 4), corners in pixels; 0 for two that are empty."""
        one, two = (
            np.asarray(boxes, float).reshape(-1, 1, 4),
            np.asarray(others, float).reshape(1, -1, 4),
        )
        sides = (
            np.minimum(one[..., 2:], two[..., 2:])
            - np.maximum(one[..., :2], two[..., :2])
            + self.inclusive
        )
        both = np.where((sides > self.thinnest).all(-1), sides.prod(-1), 0.0)
        first, second = (
            (box[..., 2:] - box[..., :2] + self.inclusive).prod(-1) for box in (one, two)
        )
        every = first + second - both
        return np.divide(both, every, out=np.zeros_like(every), where=every > 0)

    def __call__(self, boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Which boxes (R, 4) count as which of the others (G, 4): (R, G) bool."""
        found = self.iou(boxes, others)
        return np.asarray(found > self.at if self.strict else found >= self.at)


VL_BERT = Overlap(inclusive=True)
VL_BERT_LABELS = Overlap(inclusive=True, strict=True)
"""Of regions in training; `VL_BERT` is for predictions."""
UNITER = Overlap(strict=True, thinnest=1)
"""MAttNet's, in both tracks."""


@dataclass(frozen=True)
class Expression:
    """What somebody wrote to tell one object from the others of an image."""

    id: int
    text: str
    image: str
    object: int  # number of its annotation
    box: np.ndarray  # (4,): x1, y1, x2, y2 in pixels


class _Plain(pickle.Unpickler):
    """Builds lists, dicts, texts and numbers, which need no name looked up; there is nothing else that it can call."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise InputError(
            f"this pickle asks for {f'{module}.{name}'[:80]!r}, not only lists, dicts, texts and numbers"
        )


def read_plain(path: Path) -> Any:
    """A pickle of Python 2 or 3 that holds plain data; anything that could run code is refused, before it is made."""
    try:
        with Path(path).open("rb") as stream:
            return _Plain(stream, encoding="latin1").load()
    except Exception as error:  # a damaged pickle raises anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        what = "not read" if isinstance(error, InputError | OSError) else "not a whole pickle"
        raise InputError(f"{path}: {what} ({reason})") from None


def expressions(folder: Path, split: str, by: str = "unc", image: str = COCO) -> list[Expression]:
    """The expressions of a split in file order, from `refs(BY).p` and `instances.json`."""
    path = where = Path(folder) / f"refs({by}).p"
    (sizes, notes), found, outside = instances(folder), list[Expression](), list[str]()
    try:
        for place, ref in enumerate(read_plain(path)):
            where = path.with_name(f"{path.name}, refs[{place}]")
            if ref["split"] != split and not (split == "test" and "test" in ref["split"]):
                continue
            owner, box = notes.get(ref["ann_id"], (None, np.zeros(4)))
            if owner != ref["image_id"]:
                raise InputError(
                    f"{where}: annotation {ref['ann_id']} of image {owner}, not {ref['image_id']}"
                )
            if not inside(box[None] / (sizes[owner] * 2))[1].all():
                outside.append(
                    f"{where}: box {box.tolist()} is empty or outside the image {sizes[owner]}"
                )
            name = image.format(subset="train2014", number=owner)
            for said in ref["sentences"]:
                found.append(
                    Expression(int(said["sent_id"]), str(said["sent"]), name, ref["ann_id"], box)
                )
    except InputError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{where}: not a list of refs with split, ann_id, image_id and sentences ({error})"
        ) from None
    refuse(outside)
    if not found:
        raise InputError(
            f"{path}: holds no expressions of {split!r}; splits are {', '.join(SPLITS)}"
        )
    return found


def instances(folder: Path) -> tuple[dict[Any, tuple[int, int]], dict[Any, tuple[Any, np.ndarray]]]:
    """Width and height by image, and image and corners (4,) in pixels by annotation, of `instances.json`."""
    path = Path(folder) / "instances.json"
    content = read_json(path)
    try:
        sizes = {
            image["id"]: (int(image["width"]), int(image["height"])) for image in content["images"]
        }
        return sizes, {
            note["id"]: (note["image_id"], _corners(note["bbox"]))
            for note in content["annotations"]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not COCO's images and annotations with bbox ({error})") from None


def _corners(box: Sequence[float]) -> np.ndarray:
    x, y, width, height = map(float, box)
    return np.array([x, y, x + width, y + height])


def annotated(folder: Path, image: str = COCO) -> dict[str, np.ndarray]:
    """All annotated boxes (R, 4) by image, in file order: the candidates of the track with true regions."""
    return _by_image(instances(folder)[1].values(), image)


def detected(path: Path, image: str = COCO) -> dict[str, np.ndarray]:
    """Detected boxes (R, 5) with their scores by image, in file order, e.g. MAttNet's `res101_..._dets.json`."""
    content = read_json(Path(path))
    try:
        rows = [
            (row["image_id"], np.array([*_corners(row["box"]), float(row["score"])]))
            for row in content
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: not a list of detections with image_id, box and score ({error})"
        ) from None
    return _by_image(rows, image)


def _by_image(rows: Iterable[tuple[Any, np.ndarray]], image: str) -> dict[str, np.ndarray]:
    found: dict[Any, list[np.ndarray]] = {}
    for number, box in rows:
        if (box[2:4] > box[:2]).all():  # COCO has a few that are empty
            found.setdefault(number, []).append(box)
    return {
        image.format(subset="train2014", number=number): np.stack(own)
        for number, own in found.items()
    }


def accuracy(
    said: Mapping[int, np.ndarray | None], asked: Sequence[Expression], rule: Overlap
) -> float:
    """Share of the expressions whose predicted box (corners in pixels; None: there was no region) counts as the right.

    Raises InputError for an expression without a prediction.
    """
    if absent := [e.id for e in asked if e.id not in said]:
        raise InputError(
            f"refcoco: no prediction for expression {absent[0]} ({len(absent):,} such)"
        )
    pairs = [(said[e.id], e.box) for e in asked]
    return sum(box is not None and bool(rule(box, gold).all()) for box, gold in pairs) / len(asked)


def _read(folder: Path, split: str) -> list[Example]:
    sizes = {
        COCO.format(subset="train2014", number=n): size for n, size in instances(folder)[0].items()
    }
    return [
        Example(
            f"refcoco-{split}-{e.id}",
            e.text,
            images=(e.image,),
            gold=Gold(e.box[None], sizes[e.image]),
        )
        for e in expressions(folder, split)
    ]


def right_regions(example: Example, row: RegionRow, rule: Overlap = VL_BERT) -> np.ndarray:
    """Which regions (R,) count as one of an example's gold boxes, 1 or 0."""
    assert example.gold is not None
    boxes = row.boxes * np.array(example.gold.size * 2, np.float32)
    return np.asarray(rule(boxes, example.gold.boxes).any(1), np.int64)


REFCOCO_PLUS = Task(
    "refcoco+",
    Pick("regions", "bce"),
    _read,
    (PICKED, UPPER_BOUND),
    SOURCE,
    dev=("val", "testA", "testB"),
    mark=right_regions,
)
"""Over the regions of the store: annotated boxes (`groundling regions --boxes instances.json`) or detected ones."""
