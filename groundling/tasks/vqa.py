"""VQA v2: open questions about images, with ten people's answers; from the official JSON files or LXMERT's lists."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.batch import IGNORE, Example
from groundling.core.errors import InputError, convert_read_errors, duplicates, require_nonempty
from groundling.core.metrics import SCORE
from groundling.core.output_types import OpenAnswer
from groundling.data.tables import lines_of
from groundling.runs.folder import json_text, read_json
from groundling.tasks import Task

YEARS = {"train": "train2014", "val": "val2014", "test-dev": "test-dev2015", "test": "test2015"}
"""Split names in the official files; any other split is an LXMERT list `{split}.json`, such as minival."""
COCO = "COCO_{subset}_{number:012d}"
"""An image's id in a region store."""
QUESTIONS = ("v2_OpenEnded_mscoco_{year}_questions.json", "{split}.json")
"""File names of questions: the official one, and LXMERT's."""
ANNOTATIONS = ("v2_mscoco_{year}_annotations.json",)
"""File names of people's answers."""
ANSWER_FILES = ("trainval_label2ans.json", "*ans2label.json", "answers_vqa.txt")
"""File names of the answer list by class; the first existing one is used."""

MARKS = ';/[]"{}()=+\\_-><@`,?!'
"""Punctuation that is deleted from an answer or replaced by a space."""
COMMA_IN_NUMBER = re.compile(r"\d,\d", re.ASCII)
PERIOD = re.compile(r"\.(?!\d)", re.ASCII)
"""Only ASCII digits match, as in Python 2, for which the official script was written."""
MOST_PERIODS = 32
"""Number of periods that the official script deletes: the value of `re.UNICODE`, which it passes as `count`."""
DIGITS = "zero one two three four five six seven eight nine ten"
NUMBERS = {"none": "0"} | {word: str(number) for number, word in enumerate(DIGITS.split())}
"""Number words, and the digits that replace them."""
ARTICLES = {"a", "an", "the"}
SPELT = """ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd
he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've needn't
not've o'clock oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll somebody's
someone'd someone'd've someone'll someone's something'd something'd've something'll that's there'd there'd've there're
there's they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's what've
when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've wouldn't
wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're you've"""
"""Contractions in the official script's spelling."""


CONTRACTIONS = {
    contraction[:place] + contraction[place + 1 :]: contraction
    for contraction in SPELT.split()
    for place, character in enumerate(contraction)
    if character == "'"
} | {"somebody'd": "somebodyd"}
"""By spelling with a missing apostrophe; the script's `Im`, `Ive` and `Id've` never match a lower-cased word."""


def normalise_answer(text: str) -> str:
    """An answer without punctuation and articles, and with digits for number words, with the official script's bugs.

    These are: a misspelt look-behind also deletes a period after a digit; a flag passed as `count` limits the
    deletion to 32 periods; and "somebody'd" loses its apostrophe where "somebodyd" should get one.

    Source: GT-Vision-Lab/VQA, PythonEvaluationTools/vqaEvaluation/vqaEval.py, processPunctuation and
    processDigitArticle, as Python 2 runs them, except for lower-casing of characters that Unicode added later.
    """
    text = _plain(text)
    out = text
    has_comma_in_number = COMMA_IN_NUMBER.search(text) is not None
    for mark in MARKS:
        beside_space = f"{mark} " in text or f" {mark}" in text
        goes = beside_space or has_comma_in_number
        out = out.replace(mark, "" if goes else " ")
    out = PERIOD.sub("", out, count=MOST_PERIODS)
    words = []
    for word in out.lower().split():
        word = NUMBERS.get(word, word)
        if word not in ARTICLES:
            words.append(CONTRACTIONS.get(word, word))
    return " ".join(words)


def _plain(text: str) -> str:
    return text.replace("\n", " ").replace("\t", " ").strip()


def credit(matches: int, people: int = 10) -> float:
    """Mean over people of min(1, matches among the others / 3): 0, 0.3, 0.6, 0.9, 1 for 0 to 4 of ten."""
    # For people who gave the answer, one match fewer remains. A single division makes 3 of 10 exactly 0.9.
    of_those_who_said_it = matches * min(3, matches - 1)
    of_the_others = (people - matches) * min(3, matches)
    return (of_those_who_said_it + of_the_others) / (3 * people)


def accuracy(prediction: str, answers: Sequence[str]) -> float:
    """The official accuracy, 0..1, of one answer; without normalisation if all people's answers are identical."""
    prediction = _plain(prediction)
    answers = [_plain(answer) for answer in answers]
    if len(set(answers)) > 1:
        prediction = normalise_answer(prediction)
        answers = [normalise_answer(answer) for answer in answers]
    return credit(answers.count(prediction), len(answers))


@dataclass(frozen=True)
class VqaQuestion:
    """One question and its known answers."""

    id: int
    """The data set's `question_id`."""
    text: str
    """The question."""
    image: str
    """Id of the image in a region store."""
    scores: Mapping[str, float] | None = None
    """Soft score of every answer, in the answer list or not; None if unlabelled."""
    answers: tuple[str, ...] = ()
    """The ten people's answers; empty in LXMERT's lists."""
    types: tuple[str, ...] = ()
    """Answer type (yes/no, number, other) and question type (what color, is the, ...)."""


def answers_of(folder: Path) -> tuple[str, ...]:
    """Answers by class, from the first of `ANSWER_FILES`.

    All repositories have the same 3,129 answers, each in the order of its own Python 2 dictionary, so the list is
    always read, never generated. Raises InputError for several files, or answers that repeat or have gaps.
    """
    path = _answer_file(Path(folder))
    answers = lines_of(path) if path.suffix == ".txt" else read_json(path)
    with convert_read_errors(path):
        if isinstance(answers, dict):
            if sorted(answers.values()) != list(range(len(answers))):
                raise InputError(f"{path}: expected answers numbered from 0 on without gaps")
            answers = sorted(answers, key=answers.__getitem__)
        if len(set(answers)) < len(answers):
            raise InputError(f"{path}: repeated answer {duplicates(answers)[0]!r}")
    return tuple(answers)


def _answer_file(folder: Path) -> Path:
    for pattern in ANSWER_FILES:
        paths = sorted(folder.glob(pattern))
        if len(paths) > 1:
            raise InputError(
                f"{folder}: keep {paths[0].name} or {paths[1].name}; orders may differ"
            )
        if paths:
            return paths[0]
    *others, last = ANSWER_FILES
    raise InputError(f"{folder}: no answer list; expected {', '.join(others)} or {last}")


def read_questions(folder: Path, split: str) -> list[VqaQuestion]:
    """The questions of a split in file order, joined with their answers by id; a `test` split may have no answers.

    Raises InputError if a file or field is missing, or questions and answers do not match.
    """
    path = file_of(folder, split)
    entries = _entries(path, "questions")
    # test-dev has a part of test2015's images.
    subset = YEARS.get(split, split).replace("-dev", "")
    with convert_read_errors(path):
        if all("sent" in entry for entry in entries.values()):
            return _lxmert_questions(path, entries)
        questions = []
        for number, entry in entries.items():
            image = COCO.format(subset=subset, number=entry["image_id"])
            questions.append(VqaQuestion(number, entry["question"], image))
    notes_path = file_of(folder, split, ANNOTATIONS)
    if split.startswith("test") and not notes_path.is_file():
        return questions
    notes = _entries(notes_path, "annotations")
    for number in entries.keys() ^ notes.keys():
        raise InputError(f"{path}, {notes_path}: question_id {number} is in one of them only")
    with convert_read_errors(notes_path):
        for place, question in enumerate(questions):
            note = notes[question.id]
            answers = [answer["answer"] for answer in note["answers"]]
            if not answers:
                raise InputError(f"{notes_path}: question_id {question.id} has no answers")
            # Answers are counted without normalisation, like the published targets (hengyuan-hu/
            # bottom-up-attention-vqa, tools/compute_softscore.py), although a comment there asks for normalisation.
            counts = Counter(answers)
            scores = {answer: credit(count, len(answers)) for answer, count in counts.items()}
            types = (note["answer_type"], note["question_type"])
            questions[place] = replace(question, scores=scores, answers=tuple(answers), types=types)
        return questions


def _lxmert_questions(path: Path, entries: Mapping[int, Mapping[str, Any]]) -> list[VqaQuestion]:
    # If one has scores, all must.
    is_labelled = any("label" in entry for entry in entries.values())
    questions = []
    for number, entry in entries.items():
        _, subset, image_number = entry["img_id"].split("_")
        scores = entry["label"] if is_labelled else None
        if not all(0 <= score <= 1 for score in (scores or {}).values()):
            raise InputError(f"{path}: question_id {number}: expected numbers from 0 to 1 in label")
        name = COCO.format(subset=subset, number=int(image_number))
        questions.append(VqaQuestion(number, entry["sent"], name, scores))
    return questions


def file_of(folder: Path, split: str, patterns: Sequence[str] = QUESTIONS) -> Path:
    """A split's question file: the official one if it exists, else LXMERT's; if neither exists, the official path."""
    names = [pattern.format(year=YEARS.get(split, split), split=split) for pattern in patterns]
    paths = [Path(folder) / name for name in names]
    return next((path for path in paths if path.is_file()), paths[0])


def _entries(path: Path, key: str) -> dict[int, Mapping[str, Any]]:
    content = read_json(path)
    with convert_read_errors(path):
        listed = content[key] if isinstance(content, dict) else content
        entries = {int(entry["question_id"]): entry for entry in listed}
    require_nonempty(entries, f"{path}: contains no {key}")
    if len(entries) < len(listed):
        raise InputError(f"{path}: repeated question_id")
    return entries


def form_of(folder: Path) -> OpenAnswer:
    """The output type with the folder's answers; VL-BERT's and VisualBERT's `<unk>` is never predicted."""
    return OpenAnswer(answers_of(folder), excluded_answers=("<unk>",))


def read(folder: Path, split: str) -> list[Example]:
    """Examples in file order, with soft targets; examples without a listed answer stay, with all targets 0.

    A label is (K, 2) float32, pairs of class and score padded with (`IGNORE`, `IGNORE`), or None; errors are as for
    `read_questions`.
    """
    questions = read_questions(folder, split)
    # An unlabelled split needs no answer list, and its folder may not have one.
    labelled = any(question.scores is not None for question in questions)
    form = form_of(folder) if labelled else OpenAnswer(())
    targets = [None if q.scores is None else form.targets(q.scores) for q in questions]
    if labelled and not any(len(pairs) for pairs in targets if pairs is not None):
        raise InputError(f"{_answer_file(Path(folder))}: has no answer to any question of {split}")
    width = max([1, *(len(pairs) for pairs in targets if pairs is not None)])
    examples = []
    for question, pairs in zip(questions, targets, strict=True):
        label = None
        if pairs is not None:
            label = np.full((width, 2), IGNORE, np.float32)
            label[: len(pairs)] = pairs
        examples.append(
            Example(
                f"vqa-{split}-{question.id}",
                question.text,
                label=label,
                images=(question.image,),
                official_id=str(question.id),
            )
        )
    return examples


def official_accuracy(
    predictions: Mapping[int, str], questions: Sequence[VqaQuestion]
) -> dict[str, float]:
    """Official accuracy, 0..1, overall and by answer and question type; the script prints it x 100, two decimals.

    `predictions` are by question id; raises InputError for one without a question, or a question without one.
    """
    ids = {question.id for question in questions}
    for number in sorted(ids ^ predictions.keys()):
        raise InputError(f"vqa: question {number} has no prediction, or is unknown")
    groups: dict[str, list[float]] = defaultdict(list)
    for question in questions:
        score = accuracy(predictions[question.id], question.answers)
        groups["official"].append(score)
        for name in question.types:
            groups[f"official, {name}"].append(score)
    return {name: fsum(values) / len(values) for name, values in groups.items()}


def _extra(
    folder: Path, split: str, officials: Sequence[str], answers: Sequence[str]
) -> dict[str, float]:
    asked = read_questions(folder, split)
    if not asked[0].answers:
        # LXMERT's lists and unlabelled splits lack the ten people's answers.
        return {}
    said = {int(number): answer for number, answer in zip(officials, answers, strict=True)}
    return official_accuracy(said, asked)


def _submission(officials: Sequence[str], answers: Sequence[str]) -> str:
    pairs = zip(officials, answers, strict=True)
    return json_text([{"question_id": int(number), "answer": answer} for number, answer in pairs])


SOURCE = "Goyal et al. 2017, VQA v2, visualqa.org; scored as github.com/GT-Vision-Lab/VQA does"
TEST = {"test-dev": "vqa_test-dev.json", "test": "vqa_test.json"}
VQA = Task(
    "vqa",
    OpenAnswer(()),
    read,
    (SCORE,),
    SOURCE,
    dev=("val",),
    test=TEST,
    submission_format=_submission,
    file=file_of,
    read_form=form_of,
    official_scores=_extra,
)
MINIVAL = replace(VQA, name="vqa/minival", dev=("minival", "nominival"), head_task="vqa")
"""Scored on a part of val, with the rest for training: LXMERT's `minival.json` and `nominival.json`.

UNITER and VisualBERT also split val, each into its own lists.
"""
