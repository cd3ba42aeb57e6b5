"""A saved model and the data that it is asked about, as `predict` and `evaluate` are told of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState

from groundling.batch import Example
from groundling.config import Asking, EvaluateConfig, OwnFile, PredictConfig, Saved
from groundling.errors import InputError
from groundling.forms import Answer, Classify, Form
from groundling.predicting.examples import Columns, Line, line_of, lines_of
from groundling.predicting.fitted import Fitted, load
from groundling.predicting.sight import Sight
from groundling.tasks import Task
from groundling.tasks.table import example_of, held_out, own_rows, texts_in


def opened(saved: Saved) -> Fitted:
    """The model that the settings name, on this process's device."""
    device = str(PartialState(cpu=saved.cpu).device)
    seed = None if saved.seed < 0 else saved.seed
    return load(saved.model, seed, detector=saved.detector, backbone=saved.backbone, device=device)


def sight_of(model: Fitted, saved: Saved, decode: bool) -> Sight:
    """Where the model looks at images; raises InputError as `Sight`."""
    return model.sight(
        saved.regions, saved.images, other_regions=saved.other_regions, decode=decode
    )


def columns_for(model: Fitted, asking: Asking) -> Columns | None:
    """The columns of one's own file: as told, or as in the file that the model learned from; None if neither says."""
    own = model.about.own
    text = asking.text or ("" if own is None else own.text)
    if not text:
        return None
    image = asking.image or ("" if own is None else own.image)
    return Columns(text, image if model.sees else "", asking.choices)


def is_own_file(model: Fitted, data: Path, columns: Columns | None) -> bool:
    """Whether data is a file of columns, and none that the task's own reader takes; raises InputError for neither."""
    if not data.exists():
        raise InputError(f"{data}: no such file or folder")
    if data.is_dir():
        if model.about.own is not None:
            raise InputError(f"{data}: this model learned from a file of one's own; pass a file")
        return False
    if columns is not None:
        return True
    task = model.task()
    if task.file(data, task.dev[0]) != data:
        raise InputError(
            f"{data}: say which columns hold what is asked (--text COLUMN, --image COLUMN, --choices COLUMNS), or pass "
            f"a folder with the official files of {task.name}"
        )
    return False


def data_lines(model: Fitted, config: PredictConfig) -> tuple[Task, list[str], list[Line]]:
    """The task, the names of the data's own columns, and a line for each of its rows or examples."""
    data = Path(config.data)
    columns = columns_for(model, config.asking)
    if is_own_file(model, data, columns) and columns is not None:
        if config.split:
            raise InputError(f"--split {config.split}: {data} is a file, and has no splits")
        header, lines = lines_of(data, columns, model.form, model.about.reads, model.sees)
        return model.form_alone, header, lines
    task = model.task()
    split = config.split or next(iter(task.test), task.dev[0])
    check_answers(task, data, split)
    examples = task.read(data, split)
    lines = [line_of(example, f"{data}, {split}") for example in examples]
    return task, list(dict.fromkeys(name for line in lines for name in line.cells)), lines


def check_answers(task: Task, data: Path, split: str) -> None:
    """Raises InputError if a folder lists other answers than the model has; one without a list is as good as any."""
    if task.listed is None or not isinstance(task.form, Answer | Classify):
        return
    try:
        there = task.listed(data)
    except InputError:
        if split in task.test:
            return
        raise
    if isinstance(there, Answer | Classify) and there.labels != task.form.labels:
        raise InputError(
            f"{data}: its {len(there.labels):,} answers are not the {len(task.form.labels):,} that the model learned, "
            "or not in their order"
        )


# -- labelled data -----------------------------------------------------------------------------------------------------

ALL = "all rows"
"""What the scores of a whole file are called."""


def labelled_parts(model: Fitted, config: EvaluateConfig) -> tuple[Task, dict[str, list[Example]]]:
    """The task, and labelled examples by split, of official files or one's own; raises InputError without labels."""
    data = Path(config.data)
    task = model.task()
    columns = columns_for(model, config.asking)
    if is_own_file(model, data, columns) and columns is not None:
        # What is `extra` the data set's own files would have to tell.
        return replace(task, extra=None), {config.split or ALL: _own(model, config, data, columns)}
    return task, {split: _labelled(task, data, split) for split in _splits(task, config.split)}


def _splits(task: Task, asked: str) -> tuple[str, ...]:
    return (asked,) if asked else task.dev


def _labelled(task: Task, data: Path, split: str) -> list[Example]:
    """The examples of a split of official files; raises InputError if they have no labels."""
    check_answers(task, data, split)
    examples = task.read(data, split)
    if examples[0].label is None and task.mark is None:
        raise InputError(f"{data}: {split!r} of {task.name} has no labels; `predict` answers it")
    return examples


def _own(model: Fitted, config: EvaluateConfig, data: Path, columns: Columns) -> list[Example]:
    """The labelled rows of one's own file: all, or one side of the split that training made."""
    own = model.about.own or OwnFile()
    label = config.label or own.label
    if not label:
        raise InputError(f"{data}: say which column has the labels (--label COLUMN)")
    if config.split:
        return _side(model, replace(own, label=label), data, config.split)
    header, lines = lines_of(data, columns, model.form, model.about.reads, model.sees)
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
        answer = _label(model.form, text.strip(), line.where)
        examples.append(replace(line.example, label=answer))
    return examples


def _label(form: Form, text: str, where: str) -> Any:
    """A label as the form has it, of many answers as credit for one; raises InputError for one that it has not."""
    label = form.label(text, where)
    return np.array([[label, 1.0]], np.float32) if isinstance(form, Answer) else label


def _side(model: Fitted, own: OwnFile, data: Path, split: str) -> list[Example]:
    """The rows that training learned from or held out, of the very file that it read."""
    if split not in ("train", "dev"):
        raise InputError(f"--split {split}: one's own file has train and dev")
    rows = own_rows(data, own)
    held = held_out(data, [row.group for row in rows])
    sides = [row for row in rows if (row.group in held) == (split == "dev")]
    return [example_of(row, model.form, data, split) for row in sides]
