"""VQA v2: an open question about an image, answered by ten people; from the official json files, or LXMERT's lists."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np

from groundling.batch import IGNORE, Example
from groundling.data.tables import lines_of
from groundling.errors import InputError, refuse
from groundling.forms import Answer
from groundling.metrics import SCORE
from groundling.runs import read_json
from groundling.tasks import Task

YEARS = {"train": "train2014", "val": "val2014", "test-dev": "test-dev2015", "test": "test2015"}
"""What the official files call a split; any other split is an LXMERT list `{split}.json`, such as minival."""
COCO = "COCO_{subset}_{number:012d}"
"""An image's id in LXMERT's features; for other stores (`{number}`): `replace(VQA, read=partial(read, image=...))`."""
QUESTIONS = ("v2_OpenEnded_mscoco_{year}_questions.json", "{split}.json")
ANNOTATIONS = ("v2_mscoco_{year}_annotations.json",)
MARKS = ';/[]"{}()=+\\_-><@`,?!'
DIGITS = "zero one two three four five six seven eight nine ten"
NUMBERS = {"none": "0"} | {word: str(n) for n, word in enumerate(DIGITS.split())}
ARTICLES = {"a", "an", "the"}
SPELT = """ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd
he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've needn't
not've o'clock oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll somebody's
someone'd someone'd've someone'll someone's something'd something'd've something'll that's there'd there'd've there're
there's they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's what've
when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've wouldn't
wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're you've"""
CONTRACTIONS = {
    form[:i] + form[i + 1 :]: form for form in SPELT.split() for i, c in enumerate(form) if c == "'"
}
"""Each with one apostrophe too few; the script's `Im`, `Ive` and `Id've` never meet a lower-cased word."""


def normalise(text: str, official: bool = True) -> str:
    """An answer without punctuation, articles and number words; `official` keeps the script's three mistakes.

    They are: a misspelt look-behind, so that a period after a digit goes too; a flag given as a count, so that only the
    first 32 periods go; and "somebody'd", which loses its apostrophe where "somebodyd" should have got one.
    """
    kept = text = _plain(text)
    thousands = re.search(r"\d,\d", text)
    for mark in MARKS:
        beside_space = f"{mark} " in text or f" {mark}" in text
        kept = kept.replace(mark, "" if beside_space or thousands else " ")
    kept = (
        re.sub(r"\.(?!\d)", "", kept, count=32)
        if official
        else re.sub(r"(?<!\d)\.(?!\d)", "", kept)
    )
    words = [NUMBERS.get(word, word) for word in kept.lower().split()]
    fixes = CONTRACTIONS | (
        {"somebody'd": "somebodyd"} if official else {"somebodyd": "somebody'd"}
    )
    return " ".join(fixes.get(word, word) for word in words if word not in ARTICLES)


def _plain(text: str) -> str:
    return text.replace("\n", " ").replace("\t", " ").strip()


def credit(matches: int, people: int = 10) -> float:
    """Mean over the people of min(1, matches among the others / 3): 0, 0.3, 0.6, 0.9, 1 for 0 to 4 of ten."""
    # Of those who gave the answer, each sees one match fewer. One division, so that 3 of 10 is exactly 0.9.
    return (matches * min(3, matches - 1) + (people - matches) * min(3, matches)) / (3 * people)


def accuracy(said: str, answers: Sequence[str]) -> float:
    """The official accuracy of one answer; nothing is normalised where all people agree to the letter."""
    said, answers = _plain(said), [_plain(answer) for answer in answers]
    if len(set(answers)) > 1:
        said, answers = normalise(said), [normalise(answer) for answer in answers]
    return credit(answers.count(said), len(answers))


@dataclass(frozen=True)
class Question:
    """One question and what is known of its answer."""

    id: int
    text: str
    image: str
    scores: Mapping[str, float] | None = None
    """Credit of every answer, in the map or not; None where nobody's answer is known."""
    answers: tuple[str, ...] = ()
    """What each of ten people said; empty in LXMERT's lists."""
    types: tuple[str, ...] = ()
    """Of the answer (yes/no, number, other) and of the question (what color, is the, ...)."""


def answers_of(folder: Path) -> tuple[str, ...]:
    """Answers by class, of `trainval_label2ans.json`, else the one `*ans2label.json`, else `answers_vqa.txt`.

    All repositories have the same 3,129, each in the order of its own Python 2 dictionary: read, never made anew.
    """
    listed, numbered, lines = (
        sorted(Path(folder).glob(n))
        for n in ("trainval_label2ans.json", "*ans2label.json", "answers_vqa.txt")
    )
    path = next(iter(listed or numbered or lines), None)
    if path is None:
        raise InputError(
            f"{folder}: no answers; expected trainval_label2ans.json, *ans2label.json or answers_vqa.txt"
        )
    if path in numbered and len(numbered) > 1:
        raise InputError(
            f"{folder}: {path.name} and {numbered[1].name} may differ in order; keep one"
        )
    found: Any = lines_of(path) if path in lines else read_json(path)
    if isinstance(found, dict):
        places = sorted(found.items(), key=lambda pair: str(pair[1]).zfill(9))
        if [place for _, place in places] != list(range(len(places))):
            raise InputError(
                f"{path}: expected an object of answers numbered from 0 to {len(places) - 1} without gaps"
            )
        found = [answer for answer, _ in places]
    if not isinstance(found, list) or not all(isinstance(answer, str) for answer in found):
        raise InputError(f"{path}: expected a list of answers, or an object with a number for each")
    if twice := [answer for answer, n in Counter(found).items() if n > 1]:
        raise InputError(f"{path}: answer {twice[0]!r} stands there twice")
    return tuple(found)


def questions(folder: Path, split: str, image: str = COCO) -> list[Question]:
    """The questions of a split in file order, joined with their answers by id; a `test` split may have no answers."""
    path, notes_path = file_of(folder, split), file_of(folder, split, ANNOTATIONS)
    entries = _entries(path, "questions")
    if all("sent" in entry for _, entry in entries.values()):
        return _lxmert(entries, image)
    labelled = notes_path.is_file() or not split.startswith("test")
    notes = _entries(notes_path, "annotations") if labelled else {}
    gaps = list[str]()
    for file, here, other, there in (
        (path, entries, notes_path, notes),
        (notes_path, notes, path, entries),
    ):
        if labelled and (alone := [number for number in here if number not in there]):
            gaps.append(
                f"{file}: question_id {alone[0]} is not in {other.name} ({len(alone):,} such)"
            )
    if gaps:
        raise InputError("; ".join(gaps))
    subset = YEARS.get(split, split).replace(
        "-dev", ""
    )  # test-dev asks about some of test2015's images
    found = []
    for number, (where, entry) in entries.items():
        name = image.format(subset=subset, number=_field(where, entry, "image_id", int))
        found.append(question := Question(number, _field(where, entry, "question", str), name))
        if labelled:
            where, note = notes[number]
            said = tuple(
                _field(where, answer, "answer", str)
                for answer in _field(where, note, "answers", list)
            )
            types = tuple(
                _field(where, note, kind, str) for kind in ("answer_type", "question_type")
            )
            # Counted as they were written: the published targets are, though a comment in their code says otherwise.
            scores = {answer: credit(n, len(said)) for answer, n in Counter(said).items()}
            found[-1] = replace(question, scores=scores, answers=said, types=types)
    return found


def _lxmert(entries: Mapping[int, tuple[str, dict[str, Any]]], image: str) -> list[Question]:
    found, labelled = [], any("label" in entry for _, entry in entries.values())
    for number, (where, entry) in entries.items():
        picture = re.fullmatch(r"COCO_(\w+)_(\d+)", _field(where, entry, "img_id", str))
        scores = _field(where, entry, "label", dict) if labelled else None
        if picture is None or not all(
            isinstance(score, int | float) for score in (scores or {}).values()
        ):
            raise InputError(
                f"{where}: expected an img_id like COCO_val2014_000000000042, and numbers in label"
            )
        name = image.format(subset=picture[1], number=int(picture[2]))
        found.append(Question(number, _field(where, entry, "sent", str), name, scores))
    return found


def file_of(folder: Path, split: str, patterns: Sequence[str] = QUESTIONS) -> Path:
    """The questions of a split: the official file, else LXMERT's."""
    paths = [
        Path(folder) / pattern.format(year=YEARS.get(split, split), split=split)
        for pattern in patterns
    ]
    return next((path for path in paths if path.is_file()), paths[0])


def _entries(path: Path, key: str) -> dict[int, tuple[str, dict[str, Any]]]:
    """Where every entry stands, and the entry, by question id; of a list, or of the list under `key`."""
    content = read_json(path)
    content = content.get(key) if isinstance(content, dict) else content
    if not isinstance(content, list) or not content:
        raise InputError(f"{path}: expected a list of {key}, bare or under {key!r}")
    found, twice = dict[int, tuple[str, dict[str, Any]]](), list[str]()
    for where, entry in ((f"{path}, {key}[{n}]", entry) for n, entry in enumerate(content)):
        number = _field(where, entry, "question_id", int)
        if number in found:
            twice.append(f"{where}: question_id {number} stands there before")
        found[number] = (where, entry)
    refuse(twice)
    return found


def _field(where: str, entry: Any, name: str, kind: type) -> Any:
    if not isinstance(entry, dict) or not isinstance(entry.get(name), kind) or entry[name] == []:
        what = {str: "a text", int: "a whole number", list: "a list of some", dict: "an object"}[
            kind
        ]
        raise InputError(f"{where}: expected {what} in {name!r}")
    return entry[name]


def form_of(folder: Path) -> Answer:
    """All answers of the folder's map; VL-BERT's and VisualBERT's `<unk>` is never predicted."""
    return Answer(answers_of(folder), never=("<unk>",))


def read(folder: Path, split: str, image: str = COCO) -> list[Example]:
    """Examples in file order, with soft targets; those with no answer in the map stay, with none above 0."""
    form, asked = form_of(folder), questions(folder, split, image)
    targets = [None if q.scores is None else form.targets(q.scores) for q in asked]
    labels = np.full(
        (len(asked), max([1, *(len(t) for t in targets if t is not None)]), 2), IGNORE, np.float32
    )
    found = []
    for q, known, label in zip(asked, targets, labels, strict=True):
        if known is not None:
            label[: len(known)] = known
        found.append(
            Example(
                f"vqa-{split}-{q.id}",
                q.text,
                label=None if known is None else label,
                images=(q.image,),
            )
        )
    return found


def unknown(asked: Sequence[Question], form: Answer) -> tuple[int, int]:
    """How many of the people's answers are not in the map, and how many questions have no answer in it."""
    outside = sum(
        answer not in form.place for q in asked for answer in (q.answers or q.scores or ())
    )
    return outside, sum(
        q.scores is not None and not form.place.keys() & q.scores.keys() for q in asked
    )


def official(said: Mapping[int, str], asked: Sequence[Question]) -> dict[str, float]:
    """Official accuracy, 0..1, overall, by type of answer and of question; the script prints it x 100 in two decimals.

    Raises InputError for a question without a prediction, and the reverse.
    """
    wanted = {q.id for q in asked}
    for what, alone in (
        ("no prediction for", wanted - said.keys()),
        ("nobody asked", said.keys() - wanted),
    ):
        if alone:
            raise InputError(f"vqa: {what} question {min(alone)} ({len(alone):,} such)")
    groups: dict[str, list[float]] = {"official": []}
    for q in asked:
        got = accuracy(said[q.id], q.answers)
        for name in ("official", *(f"official, {kind}" for kind in q.types)):
            groups.setdefault(name, []).append(got)
    return {name: fsum(values) / len(values) for name, values in groups.items()}


def _extra(
    folder: Path, split: str, ids: Sequence[str], answers: Sequence[str]
) -> dict[str, float]:
    asked = questions(folder, split)
    # LXMERT's lists and unlabelled splits say nothing of what the ten people said.
    return (
        official(dict(zip(map(_number, ids), answers, strict=True)), asked)
        if asked[0].answers
        else {}
    )


def _number(example: str) -> int:
    return int(example.rsplit("-", 1)[1])


def _submission(ids: Sequence[str], answers: Sequence[str]) -> str:
    return json.dumps(
        [
            {"question_id": _number(i), "answer": answer}
            for i, answer in zip(ids, answers, strict=True)
        ]
    )


SOURCE = "Goyal et al. 2017, VQA v2, visualqa.org; scored as github.com/GT-Vision-Lab/VQA does"
TEST = {"test-dev": "vqa_test-dev.json", "test": "vqa_test.json"}
VQA = Task(
    "vqa",
    Answer(()),
    read,
    (SCORE,),
    SOURCE,
    dev=("val",),
    test=TEST,
    layout=_submission,
    file=file_of,
    listed=form_of,
    extra=_extra,
)
