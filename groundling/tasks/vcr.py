"""VCR: which of four answers to a question about a film still, and which of four reasons? From the official files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from groundling.batch import Example, Tags
from groundling.data.vcr_objects import Objects, metadata
from groundling.errors import InputError, refuse
from groundling.forms import Choose
from groundling.metrics import ACCURACY
from groundling.tasks import Task
from groundling.tasks.nlvr2 import records

SOURCE = "Zellers et al. 2019, VCR, visualcommonsense.com; read as github.com/rowanz/r2c does"
FORM = Choose(("0", "1", "2", "3"))
NAMES = (
    "Casey",
    "Riley",
    "Jessie",
    "Jackie",
    "Avery",
    "Jaime",
    "Peyton",
    "Kerry",
    "Jody",
    "Kendall",
    "Peyton",
    "Skyler",
    "Frankie",
    "Pat",
    "Quinn",
)
"""R2C's (one of them twice), given out by object number, so that a person has one name in all texts of an item."""
EVERYONE = {"everyone", "everyones"}
Token = str | list[int]
"""A word, or the numbers of one or several objects."""


@dataclass(frozen=True)
class Item:
    """One question with its answers and rationales; the labels are None where they are secret."""

    id: str
    image: str  # path in `vcr1images`, without .jpg
    objects: tuple[str, ...]  # classes, by object number
    question: list[Token]
    answers: list[list[Token]]
    rationales: list[list[Token]]
    answer: int | None
    rationale: int | None


def _file(folder: Path, split: str) -> Path:
    return Path(folder) / f"{split}.jsonl"


def items(folder: Path, split: str) -> list[Item]:
    """The items of a split in file order; every tag is a number of one of the item's objects."""
    path, found, twice = _file(folder, split), dict[str, Item](), list[str]()
    for where, row in records(path, ("annot_id", "img_fn")):
        name, image = row["annot_id"], row["img_fn"].removesuffix(".jpg")
        if name in found:
            twice.append(f"{where}: annot_id {name} stands there before")
        try:
            objects, question = tuple(row["objects"]), row["question"]
            answers, rationales = row["answer_choices"], row["rationale_choices"]
            secret = split.startswith("test") and "answer_label" not in row
            said = [
                None if secret else FORM.label(str(row[f"{of}_label"]), where)
                for of in ("answer", "rationale")
            ]
        except (KeyError, TypeError) as error:
            raise InputError(f"{where}: not a line of VCR ({error} is missing)") from None
        if [len(answers), len(rationales)] != [4, 4]:
            raise InputError(
                f"{where}: {len(answers)} answers and {len(rationales)} rationales, expected 4 and 4"
            )
        for text in (question, *answers, *rationales):
            _check(where, text, len(objects))
        found[name] = Item(name, image, objects, question, answers, rationales, said[0], said[1])
    if len({item.answer is None for item in found.values()}) > 1:
        raise InputError(f"{path}: some lines have a label and some have none")
    refuse(twice)
    return list(found.values())


def _check(where: str, text: Any, objects: int) -> None:
    for tag in (
        [word for word in text if not isinstance(word, str)]
        if isinstance(text, list) and text
        else [text]
    ):
        if (
            not isinstance(tag, list)
            or not tag
            or not all(type(n) is int and 0 <= n < objects for n in tag)
        ):
            raise InputError(
                f"{where}: {str(tag)[:40]!r}; expected words, and lists of objects from 0 to {objects - 1}"
            )


def render(text: Sequence[Token], objects: Sequence[str]) -> tuple[str, Tags]:
    """Words with spaces between, persons by a gender-neutral name and things by their class; where the tags stand."""
    parts: list[str] = []
    tags: list[tuple[int, int, int]] = []
    for one in (one for word in text for one in ([word] if isinstance(word, str) else word)):
        if isinstance(one, int):
            start, kind = len(" ".join([*parts, ""])), objects[one]
            parts.append(NAMES[one % len(NAMES)] if kind == "person" else kind)
            tags.append((start, start + len(parts[-1]), one))
        else:
            parts.append(one)
    return " ".join(parts), tuple(tags)


def mentioned(texts: Sequence[Sequence[Token]], objects: Sequence[str]) -> list[int]:
    """The objects of some texts: those tagged, with "everyone" all persons, and these too if there are none (R2C).

    Where there is no person either, all objects.
    """
    words = [word for text in texts for word in text]
    people = {n for n, kind in enumerate(objects) if kind == "person"}
    tagged = {n for word in words if isinstance(word, list) for n in word}
    if any(isinstance(word, str) and word.lower() in EVERYONE for word in words):
        tagged |= people
    return sorted(tagged or people or range(len(objects)))


def objects_of(folder: Path, item: Item) -> Objects:
    """The objects of an item's image; raises InputError if they are not the item's."""
    path = Path(folder) / "vcr1images" / f"{item.image}.json"
    found = metadata(path)
    if found.names != item.objects:
        raise InputError(
            f"{path}: {len(found.names)} names are not those of the {len(item.objects)} objects of {item.id}"
        )
    return found


def _example(
    name: str, item: Item, text: list[Token], choices: list[list[Token]], label: int | None
) -> Example:
    (words, tags), rendered = (
        render(text, item.objects),
        [render(choice, item.objects) for choice in choices],
    )
    texts, places = tuple(one for one, _ in rendered), tuple(own for _, own in rendered)
    return Example(
        name, words, label=label, choices=texts, images=(item.image,), tags=tags, choice_tags=places
    )


def _answer(folder: Path, split: str) -> list[Example]:
    return [
        _example(f"vcr-answer-{i.id}", i, i.question, i.answers, i.answer)
        for i in items(folder, split)
    ]


def _rationale(folder: Path, split: str) -> list[Example]:
    """Rationales after question and right answer; where that is secret, after each of the four (ids end in -a0...)."""
    return [
        _example(
            f"vcr-rationale-{i.id}{'' if i.answer == n else f'-a{n}'}",
            i,
            text,
            i.rationales,
            i.rationale,
        )
        for i in items(folder, split)
        for n, text in enumerate(i.question + answer for answer in i.answers)
        if i.answer in (None, n)
    ]


def q_to_ar(
    answers: Mapping[str, int], rationales: Mapping[str, int], asked: Sequence[Item]
) -> dict[str, float]:
    """Accuracy, 0..1, of predicted answers, of rationales, and of items with both right; predictions by annot_id."""
    if absent := [i.id for i in asked if i.id not in answers or i.id not in rationales]:
        raise InputError(
            f"vcr: no answer or no rationale predicted for {absent[0]} ({len(absent):,} such)"
        )
    right = np.array([(answers[i.id] == i.answer, rationales[i.id] == i.rationale) for i in asked])
    return {"Q->A": right[:, 0].mean(), "QA->R": right[:, 1].mean(), "Q->AR": right.all(1).mean()}


def leaderboard(answers: Mapping[str, np.ndarray], rationales: Mapping[str, np.ndarray]) -> str:
    """The server's csv of probabilities, from scores (4,) by the example ids of both tasks on the test split."""
    groups = ["answer", *(f"rationale_conditioned_on_a{n}" for n in range(4))]
    lines = [",".join(["annot_id", *(f"{group}_{n}" for group in groups for n in range(4))])]
    for name, scores in (
        (example.removeprefix("vcr-answer-"), own) for example, own in answers.items()
    ):
        try:
            rows = [scores, *(rationales[f"vcr-rationale-{name}-a{n}"] for n in range(4))]
        except KeyError as error:
            raise InputError(
                f"vcr: no scores of {error}; rationales are wanted for each of the four answers"
            ) from None
        lines.append(
            ",".join([name, *(f"{share:.6g}" for share in softmax(np.array(rows, float), 1).flat)])
        )
    return "\n".join(lines) + "\n"


ANSWER = Task(
    "vcr/answer", FORM, _answer, (ACCURACY,), SOURCE, dev=("val",), test={"test": ""}, file=_file
)
"""Q->A."""
RATIONALE = Task(
    "vcr/rationale",
    FORM,
    _rationale,
    (ACCURACY,),
    SOURCE,
    dev=("val",),
    test={"test": ""},
    file=_file,
)
"""QA->R, given the right answer; Q->AR and the server's file need both tasks: `groundling vcr` writes them."""
