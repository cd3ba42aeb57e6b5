"""RefCOCO+, RefCOCO and RefCOCOg: find the region of a referring expression. Readers and IoU criteria."""

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
    DUPLICATE,
    EMPTY,
    InputError,
    duplicates,
    fault_lines,
    flatten_message,
    raise_first,
    require_nonempty,
)
from groundling.core.metrics import REGION_ACCURACY, UPPER_BOUND
from groundling.core.output_types import RegionSelection
from groundling.data.regions.annotations import read_instances
from groundling.data.regions.store import clip_boxes
from groundling.runs.folder import read_json
from groundling.tasks import Task
from groundling.tasks.vqa import COCO

SOURCE = "Yu et al. 2016, RefCOCO+ (UNC splits), github.com/lichengunc/refer"
SPLITS = ("train", "val", "testA", "testB", "test")
"""testA has people, testB other objects; test has every split with "test" in its name, as in REFER."""


@dataclass(frozen=True)
class IouCriterion:
    """Criterion for two boxes to match, by intersection over union, which papers compute in different ways."""

    threshold: float = 0.5
    """Minimum intersection over union."""
    strict: bool = False
    """Whether the IoU must exceed `threshold`, instead of being at least `threshold`."""
    inclusive: bool = False
    """Whether boxes include their last pixel, which adds 1 to every side."""
    min_side: float = 0
    """Pixels that both sides of the intersection must exceed, otherwise the IoU is 0."""

    def iou(self, boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Intersection over union (R, G) of boxes (R, 4) and others (G, 4), corners in pixels; 0 for two empty."""
        boxes = np.asarray(boxes, float).reshape(-1, 1, 4)
        others = np.asarray(others, float).reshape(1, -1, 4)
        low = np.maximum(boxes[..., :2], others[..., :2])
        high = np.minimum(boxes[..., 2:], others[..., 2:])
        sides = high - low + self.inclusive
        counts = (sides > self.min_side).all(-1)
        intersection = np.where(counts, sides.prod(-1), 0.0)
        union = self._areas(boxes) + self._areas(others) - intersection
        return np.divide(intersection, union, out=np.zeros_like(union), where=union > 0)

    def _areas(self, boxes: np.ndarray) -> np.ndarray:
        sides = boxes[..., 2:] - boxes[..., :2] + self.inclusive
        return sides.prod(-1)

    def __call__(self, boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Whether boxes (R, 4) match others (G, 4), corners in pixels: (R, G) bool."""
        overlap = self.iou(boxes, others)
        return overlap > self.threshold if self.strict else overlap >= self.threshold


VL_BERT = IouCriterion(inclusive=True)
"""VL-BERT's evaluation criterion: jackroos/VL-BERT, refcoco/function/test.py."""
VL_BERT_LABELS = IouCriterion(inclusive=True, strict=True)
"""VL-BERT's training criterion: jackroos/VL-BERT, refcoco/modules/resnet_vlbert_for_refcoco.py."""
UNITER = IouCriterion(strict=True, min_side=1)
"""MAttNet's criterion, in both tracks."""


@dataclass(frozen=True)
class ReferringExpression:
    """A referring expression for one object of an image."""

    id: int
    """The data set's `sent_id`."""
    text: str
    """The expression."""
    image: str
    """Id of the image in a region store."""
    object: int
    """Number of the object's annotation, `ann_id`."""
    box: np.ndarray
    """(4,): x1, y1, x2, y2 of the object in pixels."""


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles only lists, dicts, strings and numbers; refuses every pickle that imports a name."""

    def find_class(self, module: str, name: str) -> NoReturn:
        needed = f"{module}.{name}"[:80]
        raise InputError(
            f"this pickle needs {needed!r}; expected only lists, dicts, strings and numbers"
        )


def load_plain_pickle(path: Path) -> Any:
    """Load a pickle of Python 2 or 3 with plain data; refuses anything that could run code, before it is built."""
    try:
        with Path(path).open("rb") as stream:
            return _PlainUnpickler(stream, encoding="latin1").load()
    except Exception as error:  # a damaged pickle may raise any exception
        what = "not read" if isinstance(error, InputError | OSError) else "not a complete pickle"
        raise InputError(f"{path}: {what} ({flatten_message(error)})") from None


class CocoInstance(NamedTuple):
    """An annotated object."""

    image: object
    """Number of its image, unchecked."""
    box: np.ndarray
    """(4,): x1, y1, x2, y2 in pixels."""


InstanceTables = tuple[dict[Any, tuple[int, int]], dict[Any, CocoInstance]]
"""Image width and height by image number, and annotated objects by annotation number."""


def read_expressions(
    folder: Path, split: str, split_by: str = "unc", image: str = COCO
) -> list[ReferringExpression]:
    """The expressions of a split in file order, from `refs(BY).p` and `instances.json`.

    `image` is the template of a region store's image ids, with `subset` (train2014) and `number`.

    Raises:
        InputError: A file is missing or invalid, the two files do not match, a box is empty or outside its image, or
            the split has no expressions.
    """
    path = Path(folder) / f"refs({split_by}).p"
    objects = read_instance_tables(folder)
    return expressions_in(path, load_plain_pickle(path), objects, split, image)


def expressions_in(
    path: Path, refs: Any, objects: InstanceTables, split: str, image: str = COCO
) -> list[ReferringExpression]:
    """The same, from the contents of the files `path` and `instances.json`."""
    sizes, annotations = objects
    expressions: list[ReferringExpression] = []
    outside = []
    where = path
    try:
        for place, ref in enumerate(refs):
            where = path.with_name(f"{path.name}, refs[{place}]")
            if not _is_of(ref["split"], split):
                continue
            number = ref["image_id"]
            box = _box_of(where, ref, annotations)
            size = sizes[number]
            if not _is_inside(box, size):
                outside.append(f"{where}: box {box.tolist()} is empty or outside the image {size}")
            name = image.format(subset="train2014", number=number)
            for sentence in ref["sentences"]:
                sentence_id = int(sentence["sent_id"])
                text = str(sentence["sent"])
                expressions.append(ReferringExpression(sentence_id, text, name, ref["ann_id"], box))
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{where}: not a list of refs with split, ann_id, image_id and sentences ({error})"
        ) from None
    raise_first(outside)
    require_nonempty(
        expressions, f"{path}: contains no expressions of {split!r}; splits are {', '.join(SPLITS)}"
    )
    return expressions


def list_ref_oddities(
    path: Path, refs: Any, expressions: Sequence[ReferringExpression]
) -> list[str]:
    """Notes on accepted oddities of `refs`, the content of `refs(BY).p`, as `list_oddities`; also unknown splits."""
    splits = {str(ref["split"]) for ref in refs}
    unknown_splits = sorted(splits - set(SPLITS))
    empty = [f"expression {one.id}" for one in expressions if not one.text.strip()]
    return [
        *fault_lines(path, EMPTY, empty),
        *fault_lines(path, f"splits other than {', '.join(SPLITS)}", unknown_splits),
        *fault_lines(path, DUPLICATE, duplicates(f"expression {one.id}" for one in expressions)),
    ]


def _is_of(name: str, split: str) -> bool:
    """Whether a ref belongs to `split`; `test` includes all splits with "test" in their name."""
    return name == split or (split == "test" and "test" in name)


def _box_of(
    where: Path, ref: Mapping[str, Any], annotations: Mapping[Any, CocoInstance]
) -> np.ndarray:
    """The box (4,) of a ref's annotation; raises InputError if the annotation has another image."""
    annotation = annotations.get(ref["ann_id"])
    if annotation is not None and annotation.image == ref["image_id"]:
        return annotation.box
    owner = None if annotation is None else annotation.image
    raise InputError(
        f"{where}: annotation {ref['ann_id']} belongs to image {owner}, not {ref['image_id']}"
    )


def _is_inside(box: np.ndarray, size: tuple[int, int]) -> bool:
    """Whether a box (4,) in pixels is nonempty and inside an image of this width and height."""
    _, good = clip_boxes(box[None] / (size * 2))
    return bool(good.all())


def read_instance_tables(folder: Path) -> InstanceTables:
    """Image sizes by image number and annotated objects by annotation number, from `instances.json`.

    Raises InputError if the file is not in COCO's format.
    """
    path = Path(folder) / "instances.json"
    instances = read_instances(path, read_json(path), classless=True)
    odd = [number for number in instances.sizes if type(number) is not int]
    raise_first([f"{path}: image id {number!r} is not a whole number" for number in odd])
    objects = instances.objects.items()
    boxes = {name: CocoInstance(image, np.array(box.corners)) for name, (image, box) in objects}
    return dict(instances.sizes), dict(boxes)


def read(folder: Path, split: str, by: str = "unc") -> list[Example]:
    """Examples in file order; arguments and errors as for `read_expressions`."""
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


def label_regions(example: Example, row: RegionRow, rule: IouCriterion = VL_BERT) -> np.ndarray:
    """Whether each region matches one of an example's gold boxes, (R,) of 1 or 0."""
    gold = require(example.gold_boxes, "gold_boxes", "a task whose answer is a region")
    boxes = row.boxes * np.array(gold.image_size * 2, np.float32)
    return np.asarray(rule(boxes, gold.boxes).any(1), np.int64)


PEOPLE_AND_THINGS = ("val", "testA", "testB")
"""Held-out splits of RefCOCO and RefCOCO+."""


def _task(name: str, dev: tuple[str, ...], rule: IouCriterion, by: str = "unc") -> Task:
    """A task with `rule` as matching criterion, for any of the three data sets.

    VL-BERT's release trains with IoU above .5 and evaluates with at least .5.
    """
    to_learn = VL_BERT_LABELS if rule is VL_BERT else rule
    return Task(
        name,
        RegionSelection("regions", "bce"),
        partial(read, by=by),
        (REGION_ACCURACY, UPPER_BOUND),
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
"""Tasks over the store's regions: annotated boxes (`groundling regions --boxes instances.json`) or detected ones.

Tasks named `mattnet` match boxes as MAttNet, UNITER and VOLTA do, the others as VL-BERT does. RefCOCOg has UMD's split,
in which no image is in two splits, and an older one of Google without a public test split.
"""
REFCOCO_PLUS = TASKS[0]
