"""A saved model's scores on labelled data, as its training run would have them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.forms import Answer, Form
from groundling.data.tables import texts_in
from groundling.prediction.data import check_answers, columns_for, is_own_file, own_lines
from groundling.prediction.examples import Columns
from groundling.prediction.loaded import Loaded, such
from groundling.prediction.sight import Sight
from groundling.settings.inputs import Asking, OwnFile
from groundling.tasks import Task
from groundling.tasks.table import example_of, held_out, own_rows
from groundling.training.evaluation import Scores, joined, scored

ALL = "all rows"
"""What the scores of a whole file are called."""


def scores_on(
    model: Loaded, data: Path, split: str, asking: Asking, label: str, sight: Sight
) -> dict[str, Any]:
    """The model's scores by split and metric, 0..1 as in `result.json`, and how many examples these are of.

    Raises InputError if the data has no labels, others than the model knows, or a row that cannot be asked.
    """
    task, parts = labelled_parts(model, data, split, asking, label, sight)
    scores = {}
    counts = {}
    dropped = 0
    for name, examples in parts.items():
        answers = _answers(model, examples, sight, task)
        scores[name] = scored(answers, task, name, data)
        counts[name] = len(examples)
        dropped += answers.dropped
    result: dict[str, Any] = {"task": task.name, "model": str(model.folder), "scores": scores}
    result |= {"examples": counts, "dropped_pieces": dropped}
    return result | ({"notes": model.notes} if model.notes else {})


def labelled_parts(
    model: Loaded, data: Path, split: str, asking: Asking, label: str, sight: Sight
) -> tuple[Task, dict[str, list[Example]]]:
    """The model's task, and labelled examples by split, of official files or of a file of one's own.

    Raises InputError as `scores_on`.
    """
    task = model.task()
    columns = columns_for(model, asking)
    if is_own_file(model, data, columns) and columns is not None:
        # What is `extra` the data set's own files would have to tell.
        task = replace(task, extra=None)
        return task, {split or ALL: _own(model, data, split, columns, label, sight)}
    return task, {name: _labelled(task, data, name) for name in _splits(task, split)}


def _splits(task: Task, asked: str) -> tuple[str, ...]:
    return (asked,) if asked else task.dev


def _labelled(task: Task, data: Path, split: str) -> list[Example]:
    """The examples of a split of official files; raises InputError if they have no labels."""
    check_answers(task, data, split)
    examples = task.read(data, split)
    if examples[0].label is None and task.mark is None:
        raise InputError(f"{data}: {split!r} of {task.name} has no labels; `predict` answers it")
    return examples


def _own(
    model: Loaded, data: Path, split: str, columns: Columns, label: str, sight: Sight
) -> list[Example]:
    """The labelled rows of one's own file: all, or one side of the split that training made."""
    own = model.about.own or OwnFile()
    label = label or own.label
    if not label:
        raise InputError(f"{data}: say which column has the labels ({sight.names.mark}label)")
    if label in columns.texts:
        raise InputError(
            f"{sight.names.mark}text {columns.text}: column {label!r} is the label, which no text may tell"
        )
    if split:
        return _side(model, replace(own, label=label), data, split)
    header, lines = own_lines(model, data, columns, sight)
    if label not in header:
        raise InputError(f"{data}: no column {label!r}; there are: {', '.join(header)}")
    examples = []
    for line in lines:
        if line.example is None:
            raise InputError(f"{line.where}: {line.fault}")
        try:
            (text,) = texts_in(line.cells, [label])
        except InputError as error:
            raise InputError(f"{line.where}: {error}") from None
        answer = _label(model.form, text.strip(), str(line.where))
        examples.append(replace(line.example, label=answer))
    return examples


def _label(form: Form, text: str, where: str) -> Any:
    """A label as the form has it, of many answers as credit for one; raises InputError for one that it has not."""
    number = form.label(text, where)
    return np.array([[number, 1.0]], np.float32) if isinstance(form, Answer) else number


def _side(model: Loaded, own: OwnFile, data: Path, split: str) -> list[Example]:
    """The rows that training learned from or held out, of the very file that it read."""
    if split not in ("train", "dev"):
        raise InputError(f"--split {split}: one's own file has train and dev")
    rows = own_rows(data, own)
    held = held_out(data, [row.group for row in rows])
    sides = [row for row in rows if (row.group in held) == (split == "dev")]
    return [example_of(row, model.form, data, split) for row in sides]


def _answers(model: Loaded, examples: list[Example], sight: Sight, task: Task) -> Scores:
    parts = []
    for part in model.ask(examples, sight, task, task.mark):
        for fault in part.faults.values():
            raise InputError(f"{fault}{such(len(part.faults))}")
        if part.scores is not None:
            parts.append(part.scores)
    return joined(parts, task)
