"""VCR's tags name one object or a list of several: VL-BERT reads "and" inside a list and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from groundling.core.batch import Example, OutputSizes
from groundling.core.output_types import MultipleChoice
from groundling.models.task_heads import HeadContext
from groundling.tasks.vcr import ANSWER, RATIONALE
from groundling.vision_language.vlbert import NAMES, VLBertChoiceHead

OBJECTS = ["person", "person", "person", "car"]
ROW = {
    "annot_id": "val-0",
    "img_fn": "movie/still.jpg",
    "metadata_fn": "movie/still.json",
    "objects": OBJECTS,
    "question": ["Do", [0, 1, 3], [2], "see", [1]],
    "answer_choices": [[[0], [1], "do", "."], [[0, 1], "do", "."], ["No", "."], [[2], [0, 3], "."]],
    "answer_label": 3,
    "rationale_choices": [[[1], [2]], [[2, 1]], ["So", "."], [[3], "."]],
    "rationale_label": 0,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "val.jsonl").write_text(json.dumps(ROW) + "\n")
    return tmp_path


def asked(example: Example) -> tuple[str, ...]:
    """Its texts as VL-BERT reads them, persons by their numbers."""
    head = VLBertChoiceHead(
        HeadContext(OutputSizes(text=8, pooler_output=8), MultipleChoice(tuple("0123")))
    )
    turned = head.prepare_example(example)
    names = {turned.text[start:stop]: number for start, stop, number in turned.region_tags}
    for choice, tags in zip(turned.choices, turned.choice_region_tags, strict=True):
        names |= {choice[start:stop]: number for start, stop, number in tags}
    called = {name: f"p{number}" for name, number in names.items() if name in NAMES}
    texts = (turned.text, *turned.choices)
    return tuple(" ".join(called.get(word, word) for word in text.split()) for text in texts)


def test_and_stands_inside_a_list_alone(folder: Path) -> None:
    (example,) = ANSWER.read(folder, "val")
    assert asked(example) == (
        "Do p0 and p1 and car p2 see p1",
        *("p0 p1 do .", "p0 and p1 do .", "No .", "p2 p0 and car ."),
    )


def test_none_stands_between_a_question_and_its_answer(folder: Path) -> None:
    """Which follow each other before a rationale."""
    (example,) = RATIONALE.read(folder, "val")
    text, *reasons = asked(example)
    assert text == "Do p0 and p1 and car p2 see p1 p2 p0 and car ."
    assert reasons == ["p1 p2", "p2 and p1", "So .", "car ."]


def test_every_reader_but_vlbert_reads_the_words_as_they_are(folder: Path) -> None:
    (example,) = ANSWER.read(folder, "val")
    assert " and " not in "".join((example.text, *example.choices))
    assert [len(one) for one in example.tag_lists] == [2, 0, 1, 0, 1]
    assert all(example.text[place - 1] == " " for place in example.tag_lists[0])
