"""The world as VCR: four answers and four rationales, with tags that refer to objects."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from groundling.studies.worlds.data_sets.writer import (
    KINDS,
    TAGS_AS_WORDS,
    BalancedText,
    ComplementaryScenes,
    DataSetWriter,
    JsonObject,
    describe_object,
    draw_topic,
    relation_of,
)
from groundling.studies.worlds.families.objects import ATTRIBUTES
from groundling.studies.worlds.world import Scene

FROM_1 = str.maketrans("01", "12")
"""Converts tags to the annotators' numbering, from 1."""

Polygon = list[list[int]]
"""x, y of the corners, pixels."""


def draw_vcr_question(rng: Generator) -> BalancedText:
    """Draw a question on an object's colour with its shape as rationale, or the reverse.

    The question names the object by its tag or its place. An answer is the object's tag, the requested value, and the
    rationale's value.
    """
    answer_attribute, reason_attribute = rng.permutation(2).tolist()
    thing = int(rng.integers(2))
    _, _, relation = draw_topic(rng)
    answers = _four_values(rng, answer_attribute)
    reasons = _four_values(rng, reason_attribute)

    def answer_of(scene: Scene) -> tuple[int, str, str] | None:
        if relation and relation != relation_of(scene, thing):
            return None
        values = scene.things[thing].attributes
        return thing, values[answer_attribute], values[reason_attribute]

    subject = f"the thing {relation} {1 - thing}" if relation else str(thing)
    text = f"what {KINDS[answer_attribute]} is {subject} ?"
    return BalancedText(text, tuple(zip([thing] * 4, answers, reasons, strict=True)), answer_of)


def _four_values(rng: Generator, attribute: int) -> list[str]:
    values = rng.permutation(ATTRIBUTES[KINDS[attribute]])
    return values[:4].tolist()


def write_vcr(files: DataSetWriter) -> None:
    """Write lines and metadata of both splits.

    The four lines of a round share their choices, each of which is right once; tags are written as digits.
    """
    for split in ("train", "val"):
        rows: list[JsonObject] = []
        for each in files.balanced_texts("vcr", split, draw_vcr_question):
            rows += _rows(files, split, each, len(rows))
        files.write_rows(f"vcr/{split}.jsonl", *rows)


def _rows(
    files: DataSetWriter, split: str, each: ComplementaryScenes, first_line: int
) -> list[JsonObject]:
    """The four lines of a round, numbered from `first_line`; writes the metadata of their images."""
    order = each.rng.permutation(4).tolist()  # order of the rationales, the same for all four lines
    line_order = each.rng.permutation(4).tolist()  # order of the lines
    has_shortcut = each.rng.random(4) < files.shortcut
    rows = []
    for number, right in enumerate(line_order, first_line):
        scene = each.scenes[right]
        still = f"lsmdc_0001_WORLD/0001_WORLD_{scene.image_id:012d}@0"
        answers = _answers(each.claim, right, bool(has_shortcut[right]))
        rationales = _rationales(each.claim, right, order)
        files.texts.update(answers.words())
        files.texts.update(rationales.words())
        row = {
            **answers.fields("answer", line_order, first_line),
            **rationales.fields("rationale", line_order, first_line),
            "question": _tokens(each.claim.text),
            "question_orig": each.claim.text.translate(FROM_1),
            "movie": "0001_WORLD",
            "img_fn": f"{still}.jpg",
            "metadata_fn": f"{still}.json",
            "img_id": f"{split}-{scene.image_id}",
            "annot_id": f"{split}-{number}",
            "question_number": 0,
            "objects": ["thing", "thing"],
            "interesting_scores": [1],
            "answer_likelihood": "likely",
            "match_fold": f"{split}-0",
            "match_index": number,
        }
        rows.append(row)
        files.images[f"{still}.jpg"] = scene
        files.write_rows(f"vcr/vcr1images/{still}.json", _metadata(files, scene))
    return rows


@dataclass(frozen=True)
class _Choices:
    """Four answers or four rationales of a line."""

    texts: list[str]
    """The choices."""
    places: list[int]
    """Scene number, of the round's four, of each choice."""
    right: int
    """Scene number of the line."""

    def words(self) -> list[str]:
        """The choices as models read them."""
        return [text.translate(TAGS_AS_WORDS) for text in self.texts]

    def fields(self, name: str, line_order: list[int], first_line: int) -> JsonObject:
        """The line's fields for these choices; `line_order` has the scenes by line, from line `first_line` on."""
        label = self.places.index(self.right)
        return {
            f"{name}_choices": [_tokens(text) for text in self.texts],
            f"{name}_label": label,
            f"{name}_sources": [first_line + line_order.index(place) for place in self.places],
            f"{name}_match_iter": [(place - self.right) % 4 for place in self.places],
            f"{name}_orig": self.texts[label].translate(FROM_1),
        }


def _answers(claim: BalancedText, right: int, has_shortcut: bool) -> _Choices:
    """The round's four answers; if `has_shortcut`, wrong ones have another attribute, which reveals the right one."""
    texts = []
    for place, (thing, answer, reason) in enumerate(claim.answers):
        texts.append(f"{thing} is {reason if has_shortcut and place != right else answer} .")
    return _Choices(texts, [0, 1, 2, 3], right)


def _rationales(claim: BalancedText, right: int, order: list[int]) -> _Choices:
    """The right answer with each of the rationales, in `order`."""
    thing, answer, _ = claim.answers[right]
    reasons = [claim.answers[place][2] for place in order]
    texts = [f"{thing} is a {describe_object(answer, reason)} ." for reason in reasons]
    return _Choices(texts, order, right)


def _tokens(text: str) -> list[str | list[int]]:
    """A text in VCR's format: a tag is a list of object numbers."""
    return [[int(word)] if word.isdigit() else word for word in text.split()]


def _metadata(files: DataSetWriter, scene: Scene) -> JsonObject:
    boxes = []
    for thing in (0, 1):
        x, y, width, height = files.box(scene, thing)
        boxes.append([x, y, x + width, y + height, 1.0])
    segments = [_segments(files, scene, thing) for thing in (0, 1)]
    return {"boxes": boxes, "segms": segments, "names": ["thing", "thing"], **files.shape}


def _segments(files: DataSetWriter, scene: Scene, number: int) -> list[Polygon]:
    """An object's pixels as polygons, one for each run in a row: polygons cannot have holes, but some shapes do."""
    thing = scene.things[number]
    covered = files.world.render_object(thing).cover[:, :, 0] >= 0.5
    polygons = []
    for y, line in enumerate(covered, thing.y):
        edges = np.flatnonzero(np.diff([0, *line, 0]))  # starts and ends of runs, alternating
        runs = edges.reshape(-1, 2) + thing.x
        below = y + 1
        for left, right in runs.tolist():
            polygons.append([[left, y], [right, y], [right, below], [left, below]])
    return polygons
