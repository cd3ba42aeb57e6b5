"""Rows and folders of official data sets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from groundling.commands.pretrain import TrainTexts
from groundling.commands.pretrain.data import TaskAnswers
from groundling.commands.pretrain.data import task_texts as pretraining_texts
from groundling.core.batch import Example
from groundling.data.captions import settings_by_file
from groundling.data.corpora import (
    EVERYTHING,
    full_blocks,
    iterate_texts,
    max_text_tokens,
    names_of,
    split_long_texts,
)
from groundling.data.samples import backend_tokenizer, subsample
from groundling.data.text import TokenizationCache
from groundling.settings.input_settings import CaptionSettings
from groundling.tasks import Task
from tiny.homes import put


def vqa(folder: Path) -> Path:
    """Official files of VQA v2: twelve questions to train on, six to be asked, about sixteen images."""
    asked = [("what is it", "dog"), ("how many", "2"), ("is it wet", "yes")]
    for split, count in (("train2014", 12), ("val2014", 6)):
        questions, notes = [], []
        for i in range(count):
            question, answer = asked[i % 3]
            image, number = i % 16, (i % 16) * 1000 + i
            questions.append(
                {"image_id": image, "question": f"{question} {i}?", "question_id": number}
            )
            notes.append(
                {
                    "question_id": number,
                    "image_id": image,
                    "question_type": question,
                    "answer_type": "other",
                    "multiple_choice_answer": answer,
                    "answers": [
                        {"answer": answer, "answer_confidence": "yes", "answer_id": n + 1}
                        for n in range(10)
                    ],
                }
            )
        put(
            folder / f"v2_OpenEnded_mscoco_{split}_questions.json",
            json.dumps({"info": {}, "questions": questions}),
        )
        put(
            folder / f"v2_mscoco_{split}_annotations.json",
            json.dumps({"info": {}, "annotations": notes}),
        )
    put(folder / "trainval_label2ans.json", json.dumps(["dog", "2", "yes", "no"]))
    return folder


def vqa_answers(folder: Path, answers: Sequence[str]) -> Path:
    """Official files of VQA v2, with these answers; the type of a question goes by its number."""
    asked = [
        {"question_id": n, "image_id": n, "question": f"is it {n} ?"} for n in range(len(answers))
    ]
    notes = []
    for number, answer in enumerate(answers):
        people = [{"answer": answer}] * 10
        kind = ("is the", "what color")[number % 2]
        notes.append(
            {
                "question_id": number,
                "answers": people,
                "answer_type": "other",
                "question_type": kind,
            }
        )
    for split in ("train2014", "val2014"):
        put(
            folder / f"v2_OpenEnded_mscoco_{split}_questions.json", json.dumps({"questions": asked})
        )
        put(folder / f"v2_mscoco_{split}_annotations.json", json.dumps({"annotations": notes}))
    put(folder / "answers_vqa.txt", "yes\nno\nred\n")
    return folder


SWAG_HEAD = [
    "",
    "video-id",
    "fold-ind",
    "startphrase",
    "sent1",
    "sent2",
    "gold-source",
    *(f"ending{i}" for i in range(4)),
]

COMMA = "stops, listening to a cup, who's standing."


def swag_row(number: int, *label: object) -> list[object]:
    """A row below `SWAG_HEAD`; a labelled file's ends in the label."""
    start, endings = (
        f"A dog runs {number}.",
        (f"sings {number}.", COMMA, 'says "no", twice.', "waits."),
    )
    return [number, "anetv_x", 18, f"{start} He", start, "He", "gold", *endings, *label]


def json_lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def entailed(name: str, label: str, **image: str) -> dict[str, Any]:
    """A pair of SNLI-VE or e-SNLI-VE, as its files have it."""
    return {
        "annotator_labels": [label],
        "captionID": name.split("r")[0],
        "gold_label": label,
        "pairID": name,
        "sentence1": "never read",
        "sentence2": f"a claim of {name}",
        **image,
    }


VCR_OBJECTS = ["person", "car", "person"]

VCR_QUESTION = [[2], "saw", "a", [1], "?"]

VCR_ANSWERS = [["yes", "."], [[0], "did", "."], ["no", "."], ["a", "dog", "did", "."]]

VCR_REASONS = [["it", "is", [2], "."], ["a", "red", "one", "."], [[0], "ran", "."], ["so", "."]]


def vcr_line(n: int, labelled: bool = True, answer: int | None = None) -> str:
    """A line of VCR's files; labels go by the number."""
    row: dict[str, Any] = {"annot_id": f"v-{n}", "img_fn": f"m/{n}.jpg", "objects": VCR_OBJECTS}
    row |= {
        "question": VCR_QUESTION,
        "answer_choices": VCR_ANSWERS,
        "rationale_choices": VCR_REASONS,
    }
    if labelled:
        row |= {"answer_label": n % 4 if answer is None else answer, "rationale_label": n // 4 % 4}
    return json.dumps(row) + "\n"


def _texts(
    answers: TaskAnswers,
    task: Task,
    folder: Path,
    tags: bool = False,
    partition: str = "",
    splits: tuple[str, ...] = (),
) -> list[Any]:
    """A task's texts for pre-training, the versions of each if there may be several."""
    texts = TrainTexts(task=task.name, data=str(folder), partition=partition, train_splits=splits)
    versions = pretraining_texts(task, texts, answers, tags)
    return versions if answers == "any" else [one for (one,) in versions]


task_texts = partial(_texts, "right")
judged_texts = partial(_texts, "judged")
unlabelled_texts = partial(_texts, "any")


# -- A corpus as one reads it without stores, all in memory: what tokenised ones are compared with --
def corpus_lines(path: str | Path, selection: CaptionSettings = EVERYTHING) -> list[str]:
    """The texts of a file, all in memory."""
    return [line.text for line in iterate_texts(path, selection)]


def corpus(
    paths: Sequence[str | Path],
    form: Literal["lines", "blocks"],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    limit: int = 0,
    wanted: CaptionSettings = EVERYTHING,
) -> list[Example]:
    """Examples of one or more text files, captions with their images.

    The ids are `file:number` of a line, a caption or a block, counted from 0, and `file:number.part` where a line or a
    caption is cut: however others are cut, a line keeps its number. A block is of several captions, and has no image.

    Args:
        paths: text files or caption files, see `lines`.
        form: every line by itself (`fitting`), or a file's lines joined and cut (`full_blocks`).
        tokenizer: the text encoder's, a fast one.
        max_length: most tokens of an example, special tokens counted.
        limit: keep at most so many examples, evenly spaced; 0: all.
        wanted: which captions of caption files.

    Raises:
        InputError: no file is given, one cannot be read, or `max_length` leaves no room beside special tokens.
    """
    each = settings_by_file(paths, wanted)
    engine = backend_tokenizer(tokenizer)
    tokens = max_text_tokens(engine, max_length)
    lexicon = TokenizationCache(engine)
    examples: list[Example] = []
    for name, path, own in zip(names_of(paths), paths, each, strict=True):
        read = list(iterate_texts(path, own))
        texts = [line.text for line in read]
        if form == "blocks":
            blocks_of_it = enumerate(full_blocks(texts, lexicon, tokens))
            examples += [Example(f"{name}:{number}", text) for number, text in blocks_of_it]
            continue
        for number, parts in groupby(split_long_texts(texts, lexicon, tokens), key=itemgetter(0)):
            image = read[number].image
            own_parts = [text for _, text in parts]
            for part, text in enumerate(own_parts):
                name_of_it = f"{name}:{number}" + (f".{part}" if len(own_parts) > 1 else "")
                examples.append(Example(name_of_it, text, images=(image,) if image else ()))
    return subsample(examples, limit)
