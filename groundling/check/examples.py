"""The examples of a task's split: how many, which labels, which have no text."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from groundling.check.report import EMPTY, Report
from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.forms import Classify
from groundling.data.tables import TABLES, lines_of, separator_note
from groundling.tasks import Task
from groundling.tasks.glue import Reader


def examples_of(task: Task, folder: Path, split: str, report: Report) -> list[Example] | None:
    """A split, counted and looked through; None if it cannot be read."""
    try:
        examples = task.read(folder, split)
    except InputError as error:
        report.error(error)
        return None
    path = task.file(folder, split)
    if path.suffix in TABLES and (note := separator_note(path)):
        report.fact(path, f"note: {note.removeprefix(f'{path}: ')}")
    if split == task.train:
        report.problems.extend(task.same_files(folder))
    about = f"{len(examples):,} examples"
    if task.file(folder, task.train) == task.file(folder, task.dev[0]):
        about += f" of {split}"  # one file holds them all
    about += _labels(task, examples)
    if isinstance(task.read, Reader) and task.read.skip_short:
        rows = len(lines_of(path)) - 1
        about += f"; {rows - len(examples):,} short rows skipped"
    report.fact(path, f"{about}")
    report.repeated(path, [f"example {example.id}" for example in examples])
    report.problem(path, EMPTY, _empty_texts(examples))
    return examples


def _labels(task: Task, examples: list[Example]) -> str:
    """How often there is each label, or which values they have; nothing for labels of other sorts."""
    labels = [e.label for e in examples if isinstance(e.label, int | float)]
    if not labels:
        return ""
    if isinstance(task.form, Classify):
        counts = [f"{name}: {labels.count(i):,}" for i, name in enumerate(task.form.labels)]
        return "; labels " + ", ".join(counts)
    return f"; labels {min(labels):g} to {max(labels):g}, mean {np.mean(labels):.2f}"


def _empty_texts(examples: list[Example]) -> list[str]:
    empty = []
    for example in examples:
        for text in (example.text, example.pair, *example.choices):
            if text is not None and not text.strip():
                empty.append(f"example {example.id}")
    return empty
