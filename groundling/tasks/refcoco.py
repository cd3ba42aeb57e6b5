"""RefCOCO+, RefCOCO and RefCOCOg: which region does an expression mean? Readers, and what counts as the right box."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from groundling.core.batch import Example, GoldBoxes, RegionRow, require
from groundling.core.errors import (
    EMPTY,
    TWICE,
    InputError,
    duplicates,
    fault_lines,
    first_line,
    raise_first,
    require_nonempty,
)
from groundling.core.metrics import PICKED, UPPER_BOUND
from groundling.core.output_types import RegionSelection
from groundling.data.regions.annotations import read_instances
from groundling.data.regions.store import clip_boxes
from groundling.runs.folder import read_json
from groundling.tasks import Task
from groundling.tasks.vqa import COCO

SOURCE = "Yu et al. 2016, RefCOCO+ (UNC splits), github.com/lichengunc/refer"
SPLITS = ("train", "val", "testA", "testB", "test")
"""testA asks for people, testB for other things; test is whatever has test in its name, as in REFER."""


@dataclass(frozen=True)
class IouRule:
    """When a box counts as another one: by intersection over union, which the field computes in several ways."""

    at: float = 0.5
    """The least intersection over union that counts."""
    strict: bool = False
    """More than `at` counts, instead of at least."""
    inclusive: bool = False
    """Boxes end with a pixel of their own, so every side is longer by 1."""
    thinnest: float = 0
    """Side in pixels that an intersection has to exceed both ways to count."""

    def iou(self, boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Intersection over union (R, G) of boxes (R, 4) and others (G, 4), corners in pixels; 0 for two empty ones."""
        boxes = np.asarray(boxes, float).reshape(-1, 1, 4)
        others = np.asarray(others, float).reshape(1, -1, 4)
        low = np.maximum(boxes[..., :2], others[..., :2])
        high = np.minimum(boxes[..., 2:], others[..., 2:])
        sides = high - low + self.inclusive
        counts = (sides > self.thinnest).all(-1)
        intersection = np.where(counts, sides.prod(-1), 0.0)
        union = self._areas(boxes) + self._areas(others) - intersection
        return np.divide(intersection, union, out=np.zeros_like(union), where=union > 0)

    def _areas(self, boxes: np.ndarray) -> np.ndarray:
        sides = boxes[..., 2:] - boxes[..., :2] + self.inclusive
        return sides.prod(-1)

    def __call__(self, boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Which boxes (R, 4) count as which of the others (G, 4), corners in pixels: (R, G) bool."""
        overlap = self.iou(boxes, others)
        return overlap > self.at if self.strict else overlap >= self.at


VL_BERT = IouRule(inclusive=True)
"""Of predictions: jackroos/VL-BERT, refcoco/function/test.py."""
VL_BERT_LABELS = IouRule(inclusive=True, strict=True)
"""Of regions in training: jackroos/VL-BERT, refcoco/modules/resnet_vlbert_for_refcoco.py."""
UNITER = IouRule(strict=True, thinnest=1)
"""MAttNet's, in both tracks."""


@dataclass(frozen=True)
class ReferringExpression:
    """What somebody wrote to tell one object from the others of an image."""

    id: int
    """The data set's `sent_id`."""
    text: str
    """The words."""
    image: str
    """Id of the image in a region store."""
    object: int
    """Number of the object's annotation, `ann_id`."""
    box: np.ndarray
    """(4,): x1, y1, x2, y2 of the object in pixels."""


class _PlainUnpickler(pickle.Unpickler):
    """Builds lists, dicts, texts and numbers, which need no name looked up; there is nothing else that it can call."""

    def find_class(self, module: str, name: str) -> NoReturn:
        asked = f"{module}.{name}"[:80]
        raise InputError(
            f"this pickle asks for {asked!r}, not only lists, dicts, texts and numbers"
        )


def load_plain_pickle(path: Path) -> Any:
    """A pickle of Python 2 or 3 that holds plain data; anything that could run code is refused, before it is made."""
    try:
        with Path(path).open("rb") as stream:
            return _PlainUnpickler(stream, encoding="latin1").load()
    except Exception as error:  # a damaged pickle raises anything
        what = "not read" if isinstance(error, InputError | OSError) else "not a whole pickle"
        raise InputError(f"{path}: {what} ({first_line(error)})") from None


class CocoInstance(NamedTuple):
    """An annotated object."""

    image: object
    """Number of its image; whatever the file has."""
    box: np.ndarray
    """(4,): x1, y1, x2, y2 in pixels."""


InstanceTables = tuple[dict[Any, tuple[int, int]], dict[Any, CocoInstance]]
"""Width and height by image number, and annotated objects by annotation number."""


def read_expressions(
    folder: Path, split: str, split_by: str = "unc", image: str = COCO
) -> list[ReferringExpression]:
    """The expressions of a split in file order, from `refs(BY).p` and `instances.json`.

    `image` is what a region store calls the images, by `subset` (train2014) and `number`.

    Raises:
        InputError: A file is missing or not as expected, the two do not belong together, a box is empty or outside its
            image, or the split has no expressions.
    """
    path = Path(folder) / f"refs({split_by}).p"
    objects = read_instance_tables(folder)
    return expressions_in(path, load_plain_pickle(path), objects, split, image)


def expressions_in(
    path: Path, refs: Any, objects: InstanceTables, split: str, image: str = COCO
) -> list[ReferringExpression]:
    """The same, of what the files `path` and `instances.json` hold."""
    sizes, notes = objects
    asked: list[ReferringExpression] = []
    outside = []
    where = path
    try:
        for place, ref in enumerate(refs):
            where = path.with_name(f"{path.name}, refs[{place}]")
            if not _is_of(ref["split"], split):
                continue
            number = ref["image_id"]
            box = _box_of(where, ref, notes)
            size = sizes[number]
            if not _is_inside(box, size):
                outside.append(f"{where}: box {box.tolist()} is empty or outside the image {size}")
            name = image.format(subset="train2014", number=number)
            for sentence in ref["sentences"]:
                sentence_id = int(sentence["sent_id"])
                text = str(sentence["sent"])
                asked.append(ReferringExpression(sentence_id, text, name, ref["ann_id"], box))
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{where}: not a list of refs with split, ann_id, image_id and sentences ({error})"
        ) from None
    raise_first(outside)
    require_nonempty(
        asked, f"{path}: holds no expressions of {split!r}; splits are {', '.join(SPLITS)}"
    )
    return asked


def list_ref_oddities(path: Path, refs: Any, asked: Sequence[ReferringExpression]) -> list[str]:
    """A line for each oddity of `refs(BY).p`, which holds `refs`, that is read past, as `list_oddities` has them."""
    splits = {str(ref["split"]) for ref in refs}
    strange = sorted(splits - set(SPLITS))
    empty = [f"expression {one.id}" for one in asked if not one.text.strip()]
    return [
        *fault_lines(path, EMPTY, empty),
        *fault_lines(path, f"splits beside {', '.join(SPLITS)}", strange),
        *fault_lines(path, TWICE, duplicates(f"expression {one.id}" for one in asked)),
    ]


def _is_of(name: str, split: str) -> bool:
    """Whether a ref's own split is the one asked for, or one of those that `test` stands for."""
    return name == split or (split == "test" and "test" in name)


def _box_of(where: Path, ref: Mapping[str, Any], notes: Mapping[Any, CocoInstance]) -> np.ndarray:
    """The box (4,) of a ref's annotation; raises InputError if that is of another image."""
    note = notes.get(ref["ann_id"])
    if note is not None and note.image == ref["image_id"]:
        return note.box
    owner = None if note is None else note.image
    raise InputError(f"{where}: annotation {ref['ann_id']} of image {owner}, not {ref['image_id']}")


def _is_inside(box: np.ndarray, size: tuple[int, int]) -> bool:
    """Whether a box (4,) in pixels is neither empty nor outside an image of this width and height."""
    _, good = clip_boxes(box[None] / (size * 2))
    return bool(good.all())


def read_instance_tables(folder: Path) -> InstanceTables:
    """Width and height by image number, and annotated objects by annotation number, of `instances.json`.

    Raises InputError if the file is not COCO's.
    """
    path = Path(folder) / "instances.json"
    read = read_instances(path, read_json(path)).require_valid(classless=True)
    odd = [number for number in read.sizes if type(number) is not int]
    raise_first([f"{path}: image id {number!r} is no whole number" for number in odd])
    objects = read.objects.items()
    boxes = {name: CocoInstance(image, np.array(box.corners)) for name, (image, box) in objects}
    return dict(read.sizes), dict(boxes)


def read(folder: Path, split: str, by: str = "unc") -> list[Example]:
    """Examples in file order; arguments and errors as for `expressions`."""
    sizes, _ = read_instance_tables(folder)
    size_of = {
        COCO.format(subset="train2014", number=number): size for number, size in sizes.items()
    }
    examples = []
    for expression in read_expressions(folder, split, by):
        examples.append(
            Example(
                f"refcoco-{split}-{expression.id}",
                expression.text,
                images=(expression.image,),
                gold_boxes=GoldBoxes(expression.box[None], size_of[expression.image]),
                official_id=str(expression.id),
            )
        )
    return examples


def label_regions(example: Example, row: RegionRow, rule: IouRule = VL_BERT) -> np.ndarray:
    """Which regions (R,) count as one of an example's gold boxes, 1 or 0."""
    gold = require(example.gold_boxes, "gold_boxes", "a task whose answer is a region")
    boxes = row.boxes * np.array(gold.image_size * 2, np.float32)
    return np.asarray(rule(boxes, gold.boxes).any(1), np.int64)


PEOPLE_AND_THINGS = ("val", "testA", "testB")
"""Held-out splits of RefCOCO and RefCOCO+."""


def _task(name: str, dev: tuple[str, ...], rule: IouRule, by: str = "unc") -> Task:
    """A task whose boxes count by `rule`, whichever of the three data sets the folder holds.

    VL-BERT's release learns from more than .5 and is scored by at least .5.
    """
    to_learn = VL_BERT_LABELS if rule is VL_BERT else rule
    return Task(
        name,
        RegionSelection("regions", "bce"),
        partial(read, by=by),
        (PICKED, UPPER_BOUND),
        SOURCE,
        dev=dev,
        label_regions=partial(label_regions, rule=rule),
        label_train_regions=partial(label_regions, rule=to_learn),
        head_task="refcoco+",
    )


TASKS = (
    _task("refcoco+", PEOPLE_AND_THINGS, VL_BERT),
    _task("refcoco+/mattnet", PEOPLE_AND_THINGS, UNITER),
    _task("refcoco", PEOPLE_AND_THINGS, VL_BERT),
    _task("refcoco/mattnet", PEOPLE_AND_THINGS, UNITER),
    _task("refcocog", ("val", "test"), VL_BERT, by="umd"),
    _task("refcocog/mattnet", ("val", "test"), UNITER, by="umd"),
    _task("refcocog/google", ("val",), VL_BERT, by="google"),
)
"""Over the regions of the store: annotated boxes (`groundling regions --boxes instances.json`) or detected ones.

What is called `mattnet` counts boxes as MAttNet, UNITER and VOLTA do, the rest as VL-BERT does. RefCOCOg has a split of
UMD's, in which no image is in two splits, and an older one of Google's without a public test split.
"""
REFCOCO_PLUS = TASKS[0]
