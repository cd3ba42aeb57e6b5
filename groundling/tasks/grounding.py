"""Grounding: find the region of a referring expression (RefCOCO, RefCOCO+, RefCOCOg) or phrase (Flickr30k Entities)."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree

import numpy as np

from groundling.core.batch import Example, GoldBoxes, RegionRow, require
from groundling.core.errors import (
    InputError,
    convert_errors,
    convert_read_errors,
    duplicates,
    raise_first,
    require_nonempty,
)
from groundling.core.metrics import RECALLS, REGION_ACCURACY, UPPER_BOUND
from groundling.core.output_types import RegionSelection
from groundling.data.regions import clip_boxes
from groundling.data.regions.annotations import CocoInstances, read_instances
from groundling.data.tables import lines_of, read_text
from groundling.runs.folder import read_json
from groundling.tasks import Task
from groundling.tasks.vqa import COCO

REFCOCO_SOURCE = "Yu et al. 2016, RefCOCO+ (UNC splits), github.com/lichengunc/refer"
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


def read_expressions(folder: Path, split: str, by: str = "unc") -> list[Example]:
    """The expressions of a split in file order, from `refs(BY).p` and `instances.json`.

    An official id is the data set's `sent_id`.

    Raises InputError: a file is missing or invalid, the two files do not match, a box is empty or outside its image, or
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
            name = COCO.format(subset="train2014", number=ref["image_id"])
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


def _refcoco(name: str, dev: tuple[str, ...], rule: IouCriterion, by: str = "unc") -> Task:
    """A task with `rule` as matching criterion, for any of the three data sets.

    VL-BERT's release trains with IoU above .5 and evaluates with at least .5.
    """
    to_learn = VL_BERT_LABELS if rule is VL_BERT else rule
    return Task(
        name,
        RegionSelection("regions", "bce"),
        partial(read_expressions, by=by),
        (REGION_ACCURACY, UPPER_BOUND),
        REFCOCO_SOURCE,
        dev=dev,
        label_regions=partial(label_regions, rule=rule),
        label_train_regions=partial(label_regions, rule=to_learn),
        head_task="refcoco+",
    )


TASKS = (
    _refcoco("refcoco+", PEOPLE_AND_THINGS, VL_BERT),
    _refcoco("refcoco+/mattnet", PEOPLE_AND_THINGS, UNITER),
    _refcoco("refcoco", PEOPLE_AND_THINGS, VL_BERT),
    _refcoco("refcoco/mattnet", PEOPLE_AND_THINGS, UNITER),
    _refcoco("refcocog", ("val", "test"), VL_BERT, by="umd"),
    _refcoco("refcocog/mattnet", ("val", "test"), UNITER, by="umd"),
    _refcoco("refcocog/google", ("val",), VL_BERT, by="google"),
)
"""Tasks over the store's regions: annotated boxes (`groundling regions --boxes instances.json`) or detected ones.

Tasks named `mattnet` match boxes as MAttNet, UNITER and VOLTA do, the others as VL-BERT does. RefCOCOg has UMD's split,
in which no image is in two splits, and an older one of Google without a public test split.
"""


FLICKR_SOURCE = (
    "Plummer et al. 2015, Flickr30k Entities, github.com/BryanPlummer/flickr30k_entities"
)
OPENING = "[/EN#"
"""Start of a marked phrase."""
PHRASE = re.compile(r"\[/EN#(\d+)/(\S+) ([^\[\]\s][^\[\]]*?) ?\]")
"""Chain, types and words."""
BAN = IouCriterion()
"""IoU of at least 0.5, without an extra pixel: Kim et al. 2018 (jnhwkim/ban-vqa), and VisualBERT."""


@dataclass(frozen=True)
class EntityPhrase:
    """A phrase of a caption that refers to an entity."""

    chain: int
    """Number of the entity's coreference chain, the same in all captions of an image; 0: not visible."""
    types: tuple[str, ...]
    """Types of the entity, such as people or clothing."""
    start: int
    """First character in the caption."""
    stop: int
    """Character after the last one."""
    boxes: np.ndarray
    """(G, 4): corners in pixels; empty for scenes and for entities that are not visible or not annotated."""


@dataclass(frozen=True)
class EntitiesCaption:
    """A caption and its phrases."""

    image: str
    """Id of the image."""
    number: int
    """Number of the caption among the image's, from 0."""
    text: str
    """The caption without marks."""
    size: tuple[int, int]
    """Width and height of the image in pixels."""
    phrases: tuple[EntityPhrase, ...]
    """Phrases with boxes, which are evaluated."""
    skipped: tuple[EntityPhrase, ...]
    """Phrases without boxes."""

    @property
    def id(self) -> str:
        """Image and number, as in Flickr30k's list."""
        return f"{self.image}#{self.number}"


def read_captions(folder: Path, split: str) -> list[EntitiesCaption]:
    """Captions of the images in `SPLIT.txt`, in its order, including those without boxes.

    Args:
        folder: Folder with the image lists, `Sentences` and `Annotations`.
        split: Name of an image list.

    Raises InputError: a file is missing, or an image list, caption or annotation is invalid.
    """
    folder = Path(folder)
    listed = [line.strip() for line in lines_of(folder / f"{split}.txt") if line.strip()]
    again = [f"{folder / split}.txt: repeated image {image}" for image in duplicates(listed)]
    raise_first(again, "; remove the duplicates")
    captions = []
    for image in listed:
        size, boxes = _read_boxes(folder / "Annotations" / f"{image}.xml")
        path = folder / "Sentences" / f"{image}.txt"
        for number, line in enumerate(line for line in lines_of(path) if line.strip()):
            text, phrases = read_caption(line, boxes, f"{path}, line {number + 1}")
            with_boxes = tuple(phrase for phrase in phrases if len(phrase.boxes))
            without = tuple(phrase for phrase in phrases if not len(phrase.boxes))
            captions.append(EntitiesCaption(image, number, text, size, with_boxes, without))
    return captions


def read_caption(
    line: str, boxes: Mapping[int, np.ndarray], where: str
) -> tuple[str, list[EntityPhrase]]:
    """A line's caption without marks, and its phrases with the boxes (G, 4) of their chains.

    Raises InputError, beginning with `where`, for a mark that is not closed or has no words.
    """
    line = " ".join(line.split())
    text = ""
    phrases = []
    read_to = 0  # position in the line
    for mark in PHRASE.finditer(line):
        text += line[read_to : mark.start()]
        chain = int(mark[1])
        words = mark[3]
        phrases.append(
            EntityPhrase(
                chain=chain,
                types=tuple(mark[2].split("/")),
                start=len(text),
                stop=len(text) + len(words),
                boxes=boxes.get(chain, np.zeros((0, 4))),
            )
        )
        text += words
        read_to = mark.end()
    text += line[read_to:]
    if OPENING in text:
        raise InputError(f"{where}: a phrase is not closed or has no words")
    return text, phrases


def _read_boxes(path: Path) -> tuple[tuple[int, int], dict[int, np.ndarray]]:
    """An image's width and height, and the boxes (G, 4) of every chain with boxes; an object may be in several.

    Pixels are numbered from 1 as in the file and in BAN, not from 0 as by the data set's own reader.
    """
    content = read_text(path)
    boxes: dict[int, list[list[int]]] = {}
    with convert_errors(f"{path}: not a complete annotation; expected size and objects"):
        root = ElementTree.fromstring(content)
        size = (int(root.findtext("size/width", "")), int(root.findtext("size/height", "")))
        for entry in root.iter("object"):
            names = [int(name.text or "") for name in entry.findall("name")]
            box = _annotated_box(path, entry, names, size)
            if box is None:
                continue
            for name in names:
                boxes.setdefault(name, []).append(box)
    return size, {name: np.array(rows, float) for name, rows in boxes.items()}


def _annotated_box(
    path: Path, entry: ElementTree.Element, names: list[int], size: tuple[int, int]
) -> list[int] | None:
    """An object's corners, from 1 as in the file; None for a scene, or where the file states that there is no box."""
    marked = [marks for marks in entry.findall("bndbox") if len(marks)]
    has_excuse = "1" in (entry.findtext("scene"), entry.findtext("nobndbox"))
    if not names or not (marked or has_excuse):
        raise InputError(f"{path}: the object of chains {names} has no bndbox, scene or nobndbox")
    if not marked:
        return None
    box = [int(marked[0].findtext(side, "")) for side in ("xmin", "ymin", "xmax", "ymax")]
    # Coordinates start at 1 and include the last pixel.
    from_0 = np.array([box], float) - (1, 1, 0, 0)
    _, good = clip_boxes(from_0 / (size * 2))
    if not good.all():
        raise InputError(f"{path}: box {box} of chains {names} is empty or outside {size}")
    return box


def union_box(boxes: np.ndarray) -> np.ndarray:
    """The smallest box (1, 4) around boxes (G, 4)."""
    upper_left = boxes[:, :2].min(0)
    lower_right = boxes[:, 2:].max(0)
    return np.concatenate([upper_left, lower_right])[None]


def _read_phrases(folder: Path, split: str, merged: bool = False) -> list[Example]:
    """One example per phrase with boxes (G, 4); its tag is the phrase.

    A region must match one of the phrase's boxes (BAN, VisualBERT) or, if `merged`, their union box.
    """
    examples = []
    for caption in read_captions(folder, split):
        for number, phrase in enumerate(caption.phrases):
            boxes = union_box(phrase.boxes) if merged else phrase.boxes
            examples.append(
                Example(
                    f"flickr30k-{split}-{caption.id}-{number}",
                    caption.text,
                    images=(caption.image,),
                    region_tags=((phrase.start, phrase.stop, 0),),
                    gold_boxes=GoldBoxes(boxes, caption.size),
                    official_id=f"{caption.id}/{number}",
                )
            )
    return examples


FLICKR30K = Task(
    "flickr30k",
    RegionSelection("phrase", "kl"),
    _read_phrases,
    (REGION_ACCURACY, *RECALLS, UPPER_BOUND),
    FLICKR_SOURCE,
    dev=("val", "test"),
    label_regions=partial(label_regions, rule=BAN),
)
"""R@1 under two names, R@5, R@10 and their upper bound: ties rank in the regions' order, and a phrase without a right
region is a miss."""
MERGED = replace(FLICKR30K, name="flickr30k/merged", read=partial(_read_phrases, merged=True))
"""The same phrases, with the union box of all their boxes as gold box."""
