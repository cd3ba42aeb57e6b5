"""Flickr30k Entities, phrase localisation: find the region of a caption's phrase. Reader and scores."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from groundling.core.batch import Example, GoldBoxes
from groundling.core.errors import InputError, convert_errors, duplicates, raise_first
from groundling.core.metrics import RECALLS, REGION_ACCURACY, UPPER_BOUND
from groundling.core.output_types import RegionSelection
from groundling.data.regions import clip_boxes
from groundling.data.tables import lines_of, read_text
from groundling.tasks import Task
from groundling.tasks.refcoco import IouCriterion, label_regions

SOURCE = "Plummer et al. 2015, Flickr30k Entities, github.com/BryanPlummer/flickr30k_entities"
OPENING = "[/EN#"
"""Start of a marked phrase."""
PHRASE = re.compile(r"\[/EN#(\d+)/(\S+) ([^\[\]\s][^\[\]]*?) ?\]")
"""Chain, types and words."""
BAN = IouCriterion()
"""IoU of at least 0.5, without an extra pixel: Kim et al. 2018 (jnhwkim/ban-vqa), and VisualBERT."""


def _merged_box(boxes: np.ndarray) -> np.ndarray:
    upper_left = boxes[:, :2].min(0)
    lower_right = boxes[:, 2:].max(0)
    return np.concatenate([upper_left, lower_right])[None]


PROTOCOLS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "any-box": lambda boxes: boxes,
    "merged-box": _merged_box,
}
"""Gold boxes (G, 4), one of which a region must match: all of the phrase's (BAN, VisualBERT), or their union box."""
FORM = RegionSelection("phrase", "kl")
"""One row per phrase."""


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


def read_captions(folder: Path, split: str, *, unrelated: bool = True) -> list[EntitiesCaption]:
    """Captions of the images in `SPLIT.txt`, in its order, including those without boxes.

    Args:
        folder: Folder with the image lists, `Sentences` and `Annotations`.
        split: Name of an image list.
        unrelated: If False, omits the captions in `UNRELATED_CAPTIONS`.

    Raises:
        InputError: A file is missing, or an image list, caption or annotation is invalid.
    """
    folder = Path(folder)
    left_out = set()
    if not unrelated:
        left_out = {tuple(line.split()) for line in lines_of(folder / "UNRELATED_CAPTIONS")}
    listed = [line.strip() for line in lines_of(folder / f"{split}.txt") if line.strip()]
    again = [f"{folder / split}.txt: repeated image {image}" for image in duplicates(listed)]
    raise_first(again, "; remove the duplicates")
    captions = [caption for image in listed for caption in _captions_of(folder, image)]
    return [one for one in captions if (one.image, str(one.number + 1)) not in left_out]


def _captions_of(folder: Path, image: str) -> list[EntitiesCaption]:
    size, boxes = _read_boxes(folder / "Annotations" / f"{image}.xml")
    path = folder / "Sentences" / f"{image}.txt"
    lines = [line for line in lines_of(path) if line.strip()]
    read = []
    for number, line in enumerate(lines):
        text, phrases = read_caption(line, boxes, f"{path}, line {number + 1}")
        with_boxes = tuple(phrase for phrase in phrases if len(phrase.boxes))
        without = tuple(phrase for phrase in phrases if not len(phrase.boxes))
        read.append(EntitiesCaption(image, number, text, size, with_boxes, without))
    return read


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
            box = _box(path, entry, names, size)
            if box is None:
                continue
            for name in names:
                boxes.setdefault(name, []).append(box)
    return size, {name: np.array(rows, float) for name, rows in boxes.items()}


def _box(
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


def _read(folder: Path, split: str, protocol: str = "any-box") -> list[Example]:
    """One example per phrase with boxes; its tag is the phrase."""
    examples = []
    for caption in read_captions(folder, split):
        for number, phrase in enumerate(caption.phrases):
            boxes = PROTOCOLS[protocol](phrase.boxes)
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
    FORM,
    _read,
    (REGION_ACCURACY, *RECALLS, UPPER_BOUND),
    SOURCE,
    dev=("val", "test"),
    label_regions=partial(label_regions, rule=BAN),
)
"""R@1 under two names, R@5, R@10 and their upper bound: ties rank in the regions' order, and a phrase without a right
region is a miss."""
MERGED = replace(FLICKR30K, name="flickr30k/merged", read=partial(_read, protocol="merged-box"))
"""The same phrases, with the union box of all their boxes as gold box."""
