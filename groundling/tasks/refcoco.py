"""RefCOCO+, RefCOCO and RefCOCOg: find the region of a referring expression. Readers and IoU criteria."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from groundling.core.batch import Example, GoldBoxes, RegionRow, require
from groundling.core.errors import InputError, convert_read_errors, raise_first, require_nonempty
from groundling.core.metrics import REGION_ACCURACY, UPPER_BOUND
from groundling.core.output_types import RegionSelection
from groundling.data.regions import clip_boxes
from groundling.data.regions.annotations import CocoInstances, read_instances
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


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles only lists, dicts, strings and numbers; refuses every pickle that imports a name."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"needs {module}.{name}")


def load_plain_pickle(path: Path) -> Any:
    """Load a pickle of Python 2 or 3 with plain data; refuses anything that could run code, before it is built."""
    with convert_read_errors(path), Path(path).open("rb") as stream:
        return _PlainUnpickler(stream, encoding="latin1").load()


def read(folder: Path, split: str, by: str = "unc", image: str = COCO) -> list[Example]:
    """The expressions of a split in file order, from `refs(BY).p` and `instances.json`.

    An official id is the data set's `sent_id`; `image` is the template of a region store's image ids, with `subset`
    (train2014) and `number`.

    Raises:
        InputError: A file is missing or invalid, the two files do not match, a box is empty or outside its image, or
            the split has no expressions.
    """
    instances = read_annotated_objects(folder)
    path = Path(folder) / f"refs({by}).p"
    refs = load_plain_pickle(path)
    examples = []
    with convert_read_errors(path):
        for ref in refs:
            if ref["split"] != split and not (split == "test" and "test" in ref["split"]):
                continue
            name = image.format(subset="train2014", number=ref["image_id"])
            gold = _gold_box(path, ref, instances)
            for one in ref["sentences"]:
                number = int(one["sent_id"])
                text = str(one["sent"])
                examples.append(
                    Example(
                        f"refcoco-{split}-{number}",
                        text,
                        images=(name,),
                        gold_boxes=gold,
                        official_id=str(number),
                    )
                )
    require_nonempty(examples, f"{path}: no expressions of {split!r}; splits: {', '.join(SPLITS)}")
    return examples


def _gold_box(path: Path, ref: Mapping[str, Any], instances: CocoInstances) -> GoldBoxes:
    annotated = instances.objects[ref["ann_id"]]
    if annotated.image != ref["image_id"]:
        raise InputError(
            f"{path}: annotation {ref['ann_id']} does not belong to image {ref['image_id']}"
        )
    size = instances.sizes[annotated.image]
    gold = GoldBoxes(np.array([annotated.corners]), size)
    if not clip_boxes(gold.boxes / (size * 2))[1].all():
        raise InputError(f"{path}: the box of annotation {ref['ann_id']} is empty or outside")
    return gold


def read_annotated_objects(folder: Path) -> CocoInstances:
    """Images and annotated objects of `instances.json`; raises InputError if the file is not in COCO's format."""
    path = Path(folder) / "instances.json"
    instances = read_instances(path, read_json(path), classless=True)
    odd = [number for number in instances.sizes if type(number) is not int]
    raise_first([f"{path}: image id {number!r} is not a whole number" for number in odd])
    return instances


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
