"""Held-out answers in words, worst first: as a csv, or as a page with thumbnails, confusions and F1 per class."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.output_types import OutputType, RegionSelection, Regression
from groundling.data.images import read_image
from groundling.data.samples import texts_of
from groundling.prediction.predictions import make_predictions
from groundling.runs.folder import write_whole
from groundling.runs.report import Report, ReportImage, ReportSection
from groundling.training.evaluation import EvaluationOutput

PICTURES = 60
"""Answers with a thumbnail on a page; the csv has all."""
SIDE = 160
"""Longest side of a thumbnail in pixels."""
MOST_CLASSES = 20
"""Classes of a confusion matrix on a page, most frequent first."""

AnswerRow = dict[str, Any]
"""`photo`, `question`, `gold`, `answer`, `probability`, and `right` (for numbers, `error`)."""


def answer_rows(
    output: EvaluationOutput, form: OutputType, examples: Sequence[Example]
) -> list[AnswerRow]:
    """One row per labelled example, worst first: wrong answers by falling, then right ones by rising probability.

    Numbers are sorted by their error. Raises InputError where the answer is a region.
    """
    if isinstance(form, RegionSelection):
        raise InputError("answers=FILE: the answers of this task are regions, which have no words")
    rows = []
    for one, said in zip(examples, make_predictions(output, form, examples), strict=True):
        gold = _gold(one, form)
        row: AnswerRow = {
            "photo": ", ".join(one.images),
            "question": " | ".join(texts_of(one)),
            "gold": gold,
            "answer": said.answer,
            "probability": said.probability,
        }
        if isinstance(form, Regression):
            row["error"] = abs(float(said.answer) - float(gold))
        else:
            row["right"] = gold == said.answer
        rows.append(row)
    return sorted(rows, key=_badness)


def _gold(example: Example, form: OutputType) -> Any:
    label: Any = example.label
    if isinstance(form, Regression):
        return float(label)
    if np.ndim(label):  # pairs of class and credit: the most credited
        label = np.asarray(label)[np.asarray(label)[:, 1].argmax(), 0]
    return form.format_prediction(int(label)) if label >= 0 else ""


def _badness(row: AnswerRow) -> tuple[bool, float]:
    if "error" in row:
        return False, -float(row["error"])
    sure = float(row["probability"] or 0)
    return row["right"], sure if row["right"] else -sure


def write_answers(
    path: Path, rows: Sequence[AnswerRow], files: Mapping[str, Sequence[Path]], title: str
) -> None:
    """Write the rows to a csv or a self-contained page; `files`: the photographs' files by id."""
    if path.suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_whole(path, text.getvalue())
        return
    shown = rows[:PICTURES]
    pictures = [
        ReportImage(_thumbnail(files[row["photo"]][0]), _caption(row))
        for row in shown
        if files.get(row["photo"])
    ]
    table = [{name: _cell(value) for name, value in row.items()} for row in shown]
    classes = [] if "error" in rows[0] else _class_sections(rows)
    worst = ReportSection("Answers, worst first", pictures=pictures, rows=[] if pictures else table)
    below = "all" if len(shown) == len(rows) else f"the first {len(shown)}"
    said = f"{len(rows)} answers; {below} are below, worst first."
    Report(title, [*classes, worst], [said]).write(path)


def _class_sections(rows: Sequence[AnswerRow]) -> list[ReportSection]:
    gold, said = ([str(row[name]) for row in rows] for name in ("gold", "answer"))
    names = [name for name, _ in Counter([*gold, *said]).most_common(MOST_CLASSES)]
    parts = precision_recall_fscore_support(gold, said, labels=names, zero_division=0)
    scores = [
        {
            "class": name,
            "precision": f"{precision:.3f}",
            "recall": f"{recall:.3f}",
            "F1": f"{f1:.3f}",
            "n": str(int(count)),
        }
        for name, precision, recall, f1, count in zip(names, *parts, strict=True)
    ]
    matrix = confusion_matrix(gold, said, labels=names)
    confusions = [
        {
            "right answer": name,
            **{f"said {other}": str(n) for other, n in zip(names, line, strict=True)},
        }
        for name, line in zip(names, matrix.tolist(), strict=True)
    ]
    return [
        ReportSection("Scores by class", rows=scores),
        ReportSection("Confusion matrix", rows=confusions),
    ]


def _thumbnail(path: Path) -> bytes:
    image = read_image(path)
    image.thumbnail((SIDE, SIDE))
    out = io.BytesIO()
    image.save(out, "png")
    return out.getvalue()


def _caption(row: AnswerRow) -> str:
    sure = "" if row["probability"] is None else f" ({row['probability']:.2f})"
    gold = "right" if row.get("right") else f"should be {row['gold']}"
    return f"{row['question']}\n{row['answer']}{sure}, {gold}\n{row['photo']}"


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
