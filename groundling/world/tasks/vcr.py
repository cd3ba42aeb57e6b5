"""The world as VCR: four answers and four reasons, with tags that point at the things."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from groundling.world.language import ATTRIBUTES
from groundling.world.scenes import Scene, side
from groundling.world.tasks.claims import KINDS, Claim, draw_pair, spoken
from groundling.world.tasks.files import TAGS_AS_WORDS, Round, TaskFiles

FROM_1 = str.maketrans("01", "12")
"""Tags in a text as annotators saw them: counted from 1."""


@dataclass(frozen=True)
class Still(Claim[tuple[str, str]]):
    """A question of VCR's; an answer is the value that is asked for and the one that its reason tells."""

    thing: int
    """Number of the thing that is asked about, which is its tag."""


def draw_still(rng: np.random.Generator) -> Still:
    """Which colour a thing has, told by its shape, or the reverse; the thing is known by its tag or its place."""
    asked, told = (int(i) for i in rng.permutation(2))
    thing = int(rng.integers(2))
    where = draw_pair(rng)[2]
    answers = rng.permutation(ATTRIBUTES[KINDS[asked]])[:4].tolist()
    reasons = rng.permutation(ATTRIBUTES[KINDS[told]])[:4].tolist()

    def answer_of(scene: Scene) -> tuple[str, str] | None:
        if where and where != side(scene, thing):
            return None
        looks = scene.things[thing].looks
        return looks[asked], looks[told]

    subject = f"the thing {where} {1 - thing}" if where else str(thing)
    text = f"what {KINDS[asked]} is {subject} ?"
    return Still(text, tuple(zip(answers, reasons, strict=True)), answer_of, thing)


def write_vcr(files: TaskFiles) -> None:
    """Lines and metadata of both splits.

    The choices are those of the other three of a round, so that each is right once; tags are written as digits.
    """
    for split in ("train", "val"):
        rows: list[dict[str, Any]] = []
        for each in files.rounds("vcr", split, draw_still):
            rows += _rows(files, split, each, len(rows))
        files.put(f"vcr/{split}.jsonl", *rows)


def _rows(
    files: TaskFiles, split: str, each: Round[Still], first: int
) -> list[dict[str, Any]]:
    """The four lines of a round, numbered from `first`; writes the metadata of their images."""
    order = each.rng.permutation(4).tolist()  # of the reasons, the same for all four
    turn = each.rng.permutation(4).tolist()  # of the lines
    rows = []
    for number, right in enumerate(turn, first):
        scene = each.scenes[right]
        still = f"lsmdc_0001_WORLD/0001_WORLD_{scene.image_id:012d}@0"
        answers, rationales = _choices(each.claim, right, order)
        row = {
            **_choice_fields(files, "answer", answers, [0, 1, 2, 3], right, turn, first),
            **_choice_fields(files, "rationale", rationales, order, right, turn, first),
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
        files.put(f"vcr/vcr1images/{still}.json", _metadata(files, scene))
    return rows


def _choices(claim: Still, right: int, order: list[int]) -> tuple[list[str], list[str]]:
    """Texts of the four answers, and of the four reasons for the right one in their order."""
    answers = [f"{claim.thing} is {answer} ." for answer, _ in claim.answers]
    right_answer = claim.answers[right][0]
    rationales = []
    for place in order:
        reason = claim.answers[place][1]
        rationales.append(f"{claim.thing} is a {spoken(right_answer, reason)} .")
    return answers, rationales


def _choice_fields(
    files: TaskFiles,
    name: str,
    texts: list[str],
    places: list[int],
    right: int,
    turn: list[int],
    first: int,
) -> dict[str, Any]:
    """A line's fields on its answers or its rationales; `places` are the numbers in the round of those they are from."""
    label = places.index(right)
    files.texts.update(text.translate(TAGS_AS_WORDS) for text in texts)
    return {
        f"{name}_choices": [_tokens(text) for text in texts],
        f"{name}_label": label,
        f"{name}_sources": [first + turn.index(place) for place in places],
        f"{name}_match_iter": [(place - right) % 4 for place in places],
        f"{name}_orig": texts[label].translate(FROM_1),
    }


def _tokens(text: str) -> list[str | list[int]]:
    """A text as VCR's files have it: a tag is a list of objects' numbers."""
    return [[int(word)] if word.isdigit() else word for word in text.split()]


def _metadata(files: TaskFiles, scene: Scene) -> dict[str, Any]:
    boxes = []
    for thing in (0, 1):
        x, y, width, height = files.box(scene, thing)
        boxes.append([x, y, x + width, y + height, 1.0])
    segments = [_segments(files, scene, thing) for thing in (0, 1)]
    return {"boxes": boxes, "segms": segments, "names": ["thing", "thing"], **files.shape}


def _segments(files: TaskFiles, scene: Scene, number: int) -> list[list[list[int]]]:
    """A thing's pixels as polygons, one for each run in a row: some shapes have holes, which polygons do not."""
    thing = scene.things[number]
    covered = files.world.stamp(thing).cover[:, :, 0] >= 0.5
    polygons = []
    for y, line in enumerate(covered, thing.y):
        edges = np.flatnonzero(np.diff([0, *line, 0]))  # where runs start and end, in turn
        for start, stop in (edges.reshape(-1, 2) + thing.x).tolist():
            polygons.append([[start, y], [stop, y], [stop, y + 1], [start, y + 1]])
    return polygons
