"""VCR: choose the right one of four answers to a question on a movie still, and of four rationales. Official files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scipy.special import softmax

from groundling.core.batch import Example, Tags
from groundling.core.errors import InputError, convert_read_errors, raise_first
from groundling.core.metrics import ACCURACY
from groundling.core.output_types import MultipleChoice
from groundling.data.tables import read_json_lines
from groundling.tasks import Task, check_labelled_alike

SOURCE = "Zellers et al. 2019, VCR, visualcommonsense.com; read as github.com/rowanz/r2c does"
CHOICES = 4
"""Number of answers per question, and of rationales."""
FORM = MultipleChoice(tuple(map(str, range(CHOICES))))
NAMES_IN_ORDER = """Casey Riley Jessie Jackie Avery Jaime Peyton Kerry Jody Kendall Peyton Skyler Frankie
Pat Quinn"""
NAMES = tuple(NAMES_IN_ORDER.split())
"""R2C's names (with one repeated), assigned by object number, so a person has one name in all texts of an item."""
PERSON = "person"
"""The class of persons, whom texts call by name; other objects are called by their class."""
EVERYONE = ("everyone", "everyones")
"""Words that refer to all persons."""
T = TypeVar("T")
VcrToken = str | list[int]
"""A word, or a tag: the numbers of one or several objects."""


@dataclass(frozen=True)
class VcrItem:
    """One question with its answers and rationales."""

    id: str
    """The data set's `annot_id`."""
    image: str
    """Path of the image in `vcr1images`, without .jpg."""
    objects: tuple[str, ...]
    """Classes of the image's annotated objects, by the number in tags."""
    question: list[VcrToken]
    """The question."""
    answers: list[list[VcrToken]]
    """Four answers."""
    rationales: list[list[VcrToken]]
    """Four rationales of the right answer."""
    answer: int | None
    """Number of the right answer; None if secret."""
    rationale: int | None
    """Number of the right rationale; None if secret."""


def _file(folder: Path, split: str) -> Path:
    return Path(folder) / f"{split}.jsonl"


def read_items(folder: Path, split: str) -> list[VcrItem]:
    """The items of a split in file order, with valid tags.

    Raises InputError for a line that lacks a field, does not have four answers and rationales, tags an unknown object,
    or repeats an annot_id, and if only some lines have labels.
    """
    path = _file(folder, split)
    by_id: dict[str, VcrItem] = {}
    for where, row in read_json_lines(path, ("annot_id", "img_fn")):
        with convert_read_errors(where):
            item = _item(where, row, split)
        if item.id in by_id:
            raise InputError(f"{where}: repeated annot_id {item.id}")
        by_id[item.id] = item
    check_labelled_alike(path, [item.answer is None for item in by_id.values()])
    return list(by_id.values())


def _item(where: str, row: Mapping[str, Any], split: str) -> VcrItem:
    answer = rationale = None
    if not split.startswith("test") or "answer_label" in row:
        answer = FORM.parse_label(str(row["answer_label"]), where)
        rationale = FORM.parse_label(str(row["rationale_label"]), where)
    item = VcrItem(
        row["annot_id"],
        row["img_fn"].removesuffix(".jpg"),
        tuple(row["objects"]),
        row["question"],
        row["answer_choices"],
        row["rationale_choices"],
        answer,
        rationale,
    )
    if len(item.answers) != CHOICES or len(item.rationales) != CHOICES:
        raise InputError(f"{where}: expected {CHOICES} answers and {CHOICES} rationales")
    if not all(isinstance(name, str) for name in item.objects):
        raise InputError(f"{where}: a name in objects is not a text")
    for text in (item.question, *item.answers, *item.rationales):
        tags = [number for token in text if not isinstance(token, str) for number in token]
        are_tags = all(type(tag) is int and 0 <= tag < len(item.objects) for tag in tags)
        if isinstance(text, str) or not text or not are_tags:
            raise InputError(f"{where}: expected lists of words and of tags of its objects")
    return item


def render_text(text: Sequence[VcrToken], objects: Sequence[str]) -> tuple[str, Tags]:
    """A text as a sentence, and the character spans of its tags.

    Words are joined by spaces, persons get a gender-neutral name, and other objects their class name, as in R2C
    (rowanz/r2c, dataloaders/vcr.py).
    """
    parts: list[str] = []
    tags: list[tuple[int, int, int]] = []
    length = 0  # of `parts` joined, including the space after them
    for token in text:
        if isinstance(token, str):
            parts.append(token)
            length += len(token) + 1
            continue
        for number in token:
            name = objects[number]
            if name == PERSON:
                name = NAMES[number % len(NAMES)]
            tags.append((length, length + len(name), number))
            parts.append(name)
            length += len(name) + 1
    return " ".join(parts), tuple(tags)


def _going_on(text: Sequence[VcrToken], tags: Tags) -> tuple[int, ...]:
    """Start positions of the tags in a rendered text that are not the first of their list."""
    lengths = [len(token) for token in text if not isinstance(token, str)]
    firsts = {sum(lengths[:number]) for number in range(len(lengths))}
    return tuple(start for number, (start, _, _) in enumerate(tags) if number not in firsts)


def conditioned_id(annot_id: str, answer: int) -> str:
    """The official id of a rationale example conditioned on one of the four answers, for secret labels."""
    return f"{annot_id}-a{answer}"


def _example(
    task: str,
    official: str,
    item: VcrItem,
    text: list[VcrToken],
    choices: list[list[VcrToken]],
    label: int | None,
) -> Example:
    rendered = [render_text(one, item.objects) for one in (text, *choices)]
    (words, *choice_words), (tags, *choice_tags) = zip(*rendered, strict=True)
    texts = zip((text, *choices), (tags, *choice_tags), strict=True)
    return Example(
        f"vcr-{task}-{official}",
        words,
        label=label,
        choices=tuple(choice_words),
        images=(item.image,),
        region_tags=tags,
        choice_region_tags=tuple(choice_tags),
        tag_lists=tuple(_going_on(one, its_tags) for one, its_tags in texts),
        official_id=official,
        object_count=len(item.objects),
        object_names=item.objects,
        mentioned_objects=mentioned_in(item),
    )


def mentioned_in(item: VcrItem) -> tuple[int, ...]:
    """Numbers of the objects that are mentioned in any of an item's nine texts.

    All persons are included if a text has "everyone", or if no text mentions an object (rowanz/r2c, dataloaders/vcr.py;
    all nine texts: uclanlp/visualbert, dataloaders/vcr.py with `add_all_features`).
    """
    persons = {number for number, name in enumerate(item.objects) if name == PERSON}
    named: set[int] = set()
    for text in (item.question, *item.answers, *item.rationales):
        for token in text:
            if not isinstance(token, str):
                named.update(token)
            elif token.lower() in EVERYONE:
                named |= persons
    return tuple(sorted(named or persons))


def _answers_to(item: VcrItem) -> Example:
    return _example("answer", item.id, item, item.question, item.answers, item.answer)


def _rationales_of(
    item: VcrItem, official: str, answer: list[VcrToken], label: int | None = None
) -> Example:
    """Rationales for the question and one of its answers, which is a separate part of the text."""
    text = item.question + answer
    example = _example("rationale", official, item, text, item.rationales, label)
    question, _ = render_text(item.question, item.objects)
    return replace(example, part_starts=(len(question) + 1,))


def _after_each(item: VcrItem) -> tuple[Example, ...]:
    return tuple(
        _rationales_of(item, conditioned_id(item.id, number), answer)
        for number, answer in enumerate(item.answers)
    )


def _after_right(item: VcrItem) -> tuple[Example, ...]:
    if item.answer is None:
        return _after_each(item)
    return (_rationales_of(item, item.id, item.answers[item.answer], item.rationale),)


def _answer(folder: Path, split: str) -> list[Example]:
    return [_answers_to(item) for item in read_items(folder, split)]


def _rationale(folder: Path, split: str) -> list[Example]:
    return [example for item in read_items(folder, split) for example in _after_right(item)]


def _rationale_hidden(folder: Path, split: str) -> list[tuple[Example, ...]]:
    return [_after_each(item) for item in read_items(folder, split)]


def _both(folder: Path, split: str) -> list[Example]:
    asked = read_items(folder, split)
    examples = [_of_both("answer", _answers_to(item)) for item in asked]
    for item in asked:
        examples += [_of_both("rationale", example) for example in _after_right(item)]
    return examples


def _both_hidden(folder: Path, split: str) -> list[tuple[Example, ...]]:
    asked = read_items(folder, split)
    return [*((_answers_to(item),) for item in asked), *(_after_each(item) for item in asked)]


def _of_both(part: str, example: Example) -> Example:
    return replace(example, official_id=f"{part}/{example.official_id}")


def select_part(part: str, by_official: Mapping[str, T]) -> dict[str, T]:
    """Values of the joint task's examples of part `answer` or `rationale`, by the part's own official ids."""
    pairs = [(official.partition("/"), value) for official, value in by_official.items()]
    return {own: value for (of_part, _, own), value in pairs if of_part == part}


def _joint(
    folder: Path, split: str, officials: Sequence[str], answers: Sequence[str]
) -> dict[str, float]:
    predictions = {name: int(answer) for name, answer in zip(officials, answers, strict=True)}
    items = read_items(folder, split)
    return q_to_ar(select_part("answer", predictions), select_part("rationale", predictions), items)


def q_to_ar(
    answers: Mapping[str, int], rationales: Mapping[str, int], items: Sequence[VcrItem]
) -> dict[str, float]:
    """Accuracy, 0..1, of answers (Q->A), of rationales (QA->R), and of items with both right (Q->AR).

    Predicted answers and rationales are by annot_id, rationales conditioned on the right answer. Raises InputError
    for an item without a prediction.
    """
    missing = [item.id for item in items if item.id not in answers or item.id not in rationales]
    raise_first([f"vcr: answer or rationale prediction missing for {item}" for item in missing])
    answer_right = np.array([answers[item.id] == item.answer for item in items])
    rationale_right = np.array([rationales[item.id] == item.rationale for item in items])
    return {
        "Q->A": float(answer_right.mean()),
        "QA->R": float(rationale_right.mean()),
        "Q->AR": float((answer_right & rationale_right).mean()),
    }


def leaderboard(answers: Mapping[str, np.ndarray], rationales: Mapping[str, np.ndarray]) -> str:
    """The server's csv of probabilities, one line per item, from scores (4,) of both tasks' test examples.

    Scores are by official id: the annot_id, and `conditioned_id`. Raises InputError if any of a rationale are missing.
    """
    groups = ["answer", *(f"rationale_conditioned_on_a{answer}" for answer in range(CHOICES))]
    columns = [f"{group}_{choice}" for group in groups for choice in range(CHOICES)]
    lines = [",".join(["annot_id", *columns])]
    for annot_id, answer_scores in answers.items():
        officials = [conditioned_id(annot_id, answer) for answer in range(CHOICES)]
        missing = [f"vcr: no scores for {name!r}" for name in officials if name not in rationales]
        raise_first(missing)
        scores = [answer_scores, *(rationales[name] for name in officials)]
        shares = softmax(np.array(scores, float), axis=1)
        lines.append(",".join([annot_id, *(f"{share:.6g}" for share in shares.flat)]))
    return "\n".join(lines) + "\n"


ANSWER = Task(
    "vcr/answer", FORM, _answer, (ACCURACY,), SOURCE, dev=("val",), test={"test": ""}, file=_file
)
"""Q->A."""
RATIONALE = replace(
    ANSWER, name="vcr/rationale", read=_rationale, read_unlabelled=_rationale_hidden
)
"""QA->R, given the right answer; `groundling vcr` computes Q->AR and the server's file from runs on both tasks."""
BOTH = replace(ANSWER, name="vcr", read=_both, official_scores=_joint, read_unlabelled=_both_hidden)
"""Q->A and QA->R in one model (UNITER's release, train_vcr.py).

The headline metric is accuracy over the examples of both parts, which a verdict can resample; the leaderboard's Q->AR
is an extra score."""
