"""Official files of VCR about nothing: persons and things, seven kinds of questions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tiny.homes import put
from tiny.tasks import json_lines

OBJECTS = ("person", "person", "person", "car", "dog")
QUESTIONS = (
    "Why is [0] with [1,2] ?",
    "What is [0] doing ?",
    "What happened before ?",
    "How does [0] feel ?",
    "What is the relation of [0,1] ?",
    "Where are [1,2] ?",
    "What would [0] do with the dog ?",
)
"""One of each category; some mention one person, some one group."""


def tokens(text: str) -> list[Any]:
    """`[0,1] walk .` as VCR has it."""
    return [
        json.loads(word) if word.startswith("[") and word != "[MASK]" else word
        for word in text.split()
    ]


def row(
    number: int,
    question: str = "Why is [0] there ?",
    answers: Sequence[str] = ("[0] is a dog .", "They sit .", "[1] walks .", "No ."),
    rationales: Sequence[str] = ("[0] talks .", "He has a hat .", "[3] stops .", "Yes ."),
    right: tuple[int, int] = (0, 0),
    objects: Sequence[str] = OBJECTS,
    split: str = "val",
) -> dict[str, Any]:
    """A line, with fields that nobody reads."""
    return {
        "movie": "a film",
        "objects": list(objects),
        "interesting_scores": [-1, 0],
        "img_fn": f"movie/{number % 3}.jpg",
        "metadata_fn": f"movie/{number % 3}.json",
        "answer_orig": "as they wrote it é",
        "question": tokens(question),
        "answer_choices": [tokens(answer) for answer in answers],
        "answer_label": right[0],
        "rationale_choices": [tokens(rationale) for rationale in rationales],
        "rationale_label": right[1],
        "annot_id": f"{split}-{number}",
        "match_index": number,
    }


def write(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    return put(path, json_lines(*rows))


def folder(place: Path, train: int = 21, val: int = 14) -> Path:
    """A folder of both splits with questions of all categories in turn."""
    for split, count in (("train", train), ("val", val)):
        rows = []
        for number in range(count):
            question = QUESTIONS[number % len(QUESTIONS)]
            right = (number % 4, (number + 1) % 4)
            rows.append(row(number, question, right=right, split=split))
        write(place / f"{split}.jsonl", rows)
    return place
