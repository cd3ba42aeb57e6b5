"""Flickr30k Entities: where in the image is what a phrase of a caption names? Reader and scores."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from groundling.batch import Example, Gold, RegionRow
from groundling.data.regions import inside
from groundling.data.tables import lines_of, read_text
from groundling.errors import InputError
from groundling.forms import Pick
from groundling.metrics import AMONG, PICKED, UPPER_BOUND
from groundling.tasks import Task
from groundling.tasks.refcoco import Overlap, right_regions

SOURCE = "Plummer et al. 2015, Flickr30k Entities, github.com/BryanPlummer/flickr30k_entities"
OPENING = "[/EN#"
PHRASE = re.compile(r"\[/EN#(\d+)/(\S+) ([^\[\]\s][^\[\]]*?) ?\]")
"""Chain, types and words."""
BAN = Overlap()
"""At least 0.5, no extra pixel: Kim et al. 2018, and VisualBERT after them."""
PROTOCOLS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "any-box": lambda boxes: boxes,
    "merged-box": lambda boxes: np.concatenate([boxes[:, :2].min(0), boxes[:, 2:].max(0)])[None],
}
"""The boxes (G, 4) of which a region has to match one: all of the phrase's (BAN, VisualBERT), or what encloses them."""
FORM = Pick("phrase", "kl")
"""A row is a phrase."""
AT = (1, 5, 10)


@dataclass(frozen=True)
class Phrase:
    """Words of a caption that name something."""

    chain: int  # what they name, the same in all captions of an image; 0: nothing visible
    types: tuple[str, ...]
    first: int  # number of its first word: the same words may stand there twice
    words: int
    start: int  # characters of the caption, `stop` not included
    stop: int
    boxes: (
        np.ndarray
    )  # (G, 4): corners in pixels; none of what is not visible, a scene, or not marked


@dataclass(frozen=True)
class Caption:
    """A caption and its phrases."""

    id: str  # image and number from 0, as in Flickr30k's own list
    text: str
    image: str
    size: tuple[int, int]  # width and height in pixels
    phrases: tuple[Phrase, ...]  # those with boxes: all that count
    skipped: tuple[Phrase, ...]  # those without

    def example(self) -> Example:
        """For a model; its tags are the phrases, by their place in `phrases`."""
        tags = tuple((phrase.start, phrase.stop, n) for n, phrase in enumerate(self.phrases))
        return Example(f"flickr-entities-{self.id}", self.text, images=(self.image,), tags=tags)


def captions(
    folder: Path, split: str, *, unrelated: bool = True, official: bool = False
) -> list[Caption]:
    """The captions of the images of `SPLIT.txt`, in its order; those without a phrase that counts stay.

    `unrelated` off leaves out those listed in `UNRELATED_CAPTIONS`; `official` has boxes begin at 0 as the data set's
    own reader does, not at 1 as BAN's.
    """
    folder = Path(folder)
    left_out = (
        set()
        if unrelated
        else {tuple(line.split()) for line in lines_of(folder / "UNRELATED_CAPTIONS")}
    )
    found = [
        caption
        for image in images(folder, split)
        for caption in captions_of(folder, image, official)
    ]
    return [c for c in found if (c.image, str(int(c.id.rpartition("#")[2]) + 1)) not in left_out]


def images(folder: Path, split: str) -> list[str]:
    """The ids that a split lists."""
    return list(filter(None, map(str.strip, lines_of(Path(folder) / f"{split}.txt"))))


def captions_of(folder: Path, image: str, official: bool = False) -> list[Caption]:
    """The captions of an image, with the boxes of their phrases; raises InputError for what is wrong with one."""
    size, boxes = chains(folder / "Annotations" / f"{image}.xml", official)
    path, found = folder / "Sentences" / f"{image}.txt", list[Caption]()
    for number, line in enumerate(filter(str.strip, lines_of(path))):
        text, phrases = read_caption(line, boxes, f"{path}, line {number + 1}")
        some, rest = (
            tuple(p for p in phrases if bool(len(p.boxes)) == want) for want in (True, False)
        )
        found.append(Caption(f"{image}#{number}", text, image, size, some, rest))
    return found


def read_caption(
    line: str, boxes: Mapping[int, np.ndarray], where: str
) -> tuple[str, list[Phrase]]:
    """A line's caption without its marks, and its phrases with the boxes of their chains."""
    line, text, at, phrases = " ".join(line.split()), "", 0, list[Phrase]()
    for mark in PHRASE.finditer(line):
        text += line[at : mark.start()]
        chain, kinds, words, first, at = (
            int(mark[1]),
            mark[2].split("/"),
            mark[3],
            len(text.split()),
            mark.end(),
        )
        own, end = boxes.get(chain, np.zeros((0, 4))), len(text) + len(words)
        phrases.append(Phrase(chain, tuple(kinds), first, len(words.split()), len(text), end, own))
        text += words
    text += line[at:]
    if OPENING in text:
        raise InputError(
            f"{where}: {text[text.index(OPENING) :][:40]!r} is not closed or has no words; cut off?"
        )
    return text, phrases


def chains(path: Path, official: bool = False) -> tuple[tuple[int, int], dict[int, np.ndarray]]:
    """An image's size and the boxes (G, 4) of every chain that has some; an object may be that of several chains."""
    content, found = read_text(path), dict[int, list[list[int]]]()
    try:
        root = ElementTree.fromstring(content)
        width, height = (int(root.findtext(f"size/{side}", "")) for side in ("width", "height"))
        for entry in root.iter("object"):
            names = [int(name.text or "") for name in entry.findall("name")]
            marks = next(filter(len, entry.findall("bndbox")), None)
            if not names or (
                marks is None and "1" not in (entry.findtext("scene"), entry.findtext("nobndbox"))
            ):
                raise InputError(
                    f"{path}: the object of chains {names} has neither box nor scene nor nobndbox"
                )
            if marks is None:
                continue
            box = [int(marks.findtext(side, "")) for side in ("xmin", "ymin", "xmax", "ymax")]
            # They begin at 1 and end with a pixel of their own.
            if not inside((np.array([box]) - (1, 1, 0, 0)) / ((width, height) * 2))[1].all():
                raise InputError(
                    f"{path}: box {box} of chains {names} is empty or outside {width} x {height}"
                )
            for name in names:
                found.setdefault(name, []).append([side - official for side in box])
    except InputError:
        raise
    except (ElementTree.ParseError, ValueError) as error:
        raise InputError(
            f"{path}: not a whole annotation with size and objects ({error})"
        ) from None
    return (width, height), {name: np.array(own, float) for name, own in found.items()}


def positives(
    phrase: Phrase, regions: np.ndarray, protocol: str = "any-box", rule: Overlap = BAN
) -> np.ndarray:
    """Which regions (R, 4), corners in pixels, are right for a phrase (R,); raises InputError for other protocols."""
    if protocol not in PROTOCOLS:
        raise InputError(f"no protocol {protocol!r}; there are {', '.join(PROTOCOLS)}")
    return np.asarray(rule(regions, PROTOCOLS[protocol](phrase.boxes)).any(1))


def recall(scores: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> dict[str, float]:
    """R@1, R@5, R@10 and their upper bound, 0..1, from each phrase's scores (R,) and right regions (R,) bool.

    A phrase without a right region is a miss; equal scores rank in the regions' order.
    """
    if [len(own) for own in scores] != [len(good) for good in right] or not len(right):
        raise InputError(
            f"recall: {len(scores)} scored phrases, and regions that are not those of {len(right)}"
        )
    ranked = [
        good[np.argsort(-own, kind="stable")] for own, good in zip(scores, right, strict=True)
    ]
    found = {f"R@{k}": float(np.mean([good[:k].any() for good in ranked])) for k in AT}
    return found | {"upper bound": float(np.mean([good.any() for good in ranked]))}


def _read(folder: Path, split: str, protocol: str = "any-box") -> list[Example]:
    """An example per phrase that counts; its tag is the phrase."""
    return [
        Example(
            f"flickr30k-{split}-{caption.id}-{number}",
            caption.text,
            images=(caption.image,),
            tags=((phrase.start, phrase.stop, 0),),
            gold=Gold(PROTOCOLS[protocol](phrase.boxes), caption.size),
        )
        for caption in captions(folder, split)
        for number, phrase in enumerate(caption.phrases)
    ]


def _mark(example: Example, row: RegionRow) -> np.ndarray:
    return right_regions(example, row, BAN)


FLICKR30K = Task(
    "flickr30k", FORM, _read, (PICKED, *AMONG, UPPER_BOUND), SOURCE, dev=("val", "test"), mark=_mark
)
MERGED = replace(FLICKR30K, name="flickr30k/merged", read=partial(_read, protocol="merged-box"))
"""The same phrases, each to be found in the one box that encloses all of its own."""
