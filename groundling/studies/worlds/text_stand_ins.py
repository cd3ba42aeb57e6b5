"""Small stand-ins for tasks of text: the sentences of a rendered world in the layouts of GLUE, SWAG and READ."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path

from groundling.core.forms import Classify, Form
from groundling.runs.folder import whole_folder
from groundling.tasks import Task
from groundling.tasks.glue import TASKS, Reader
from groundling.tasks.readability import KAGGLE, READABILITY
from groundling.tasks.swag import ENDINGS, REGULAR

TEXT_TASKS: Mapping[str, Task] = {task.name: task for task in (*TASKS, REGULAR, READABILITY)}
"""Kinds of data that are tasks of text, by name."""
ROWS = 8
"""Examples of a split."""
PASSAGES = 40
"""Of READ, whose ids decide which of them are held out."""


def write_text_task(name: str, sentences: Sequence[str], root: Path) -> Path:
    """A task's folder below `root`, written unless it is there, with labels that say nothing of the `sentences`."""
    folder = root / name.replace("/", "-")
    if folder.exists():
        return folder
    with whole_folder(root) as partial:
        made = partial / folder.name
        made.mkdir()
        _write_task(TEXT_TASKS[name], cycle(sentences), made)
    return folder


def _write_task(task: Task, said: Iterator[str], folder: Path) -> None:
    if isinstance(task.read, Reader):
        for split in (task.train, *task.dev):
            _write_glue(task.read, said, task.read.path(folder, split))
    elif task is REGULAR:
        for split in (task.train, *task.dev):
            rows = [[*islice(said, 2 + len(ENDINGS)), number % 4] for number in range(ROWS)]
            _write_csv(folder / f"{split}.csv", ["sent1", "sent2", *ENDINGS, "label"], rows)
    else:
        passages = [[f"p{number}", next(said), number / 10] for number in range(PASSAGES)]
        _write_csv(folder / "train.csv", KAGGLE, passages)


def _write_glue(reader: Reader, said: Iterator[str], path: Path) -> None:
    columns = reader.headless or (*reader.texts, reader.label)
    lines = [] if reader.headless else ["\t".join(columns)]
    for number in range(ROWS):
        row = dict.fromkeys(columns, "-")
        row |= {name: next(said) for name in reader.texts}
        row[reader.label] = _label(reader.form, number)
        lines.append("\t".join(row[name] for name in columns))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _label(form: Form, number: int) -> str:
    labels = form.labels if isinstance(form, Classify) else [str(value / 2) for value in range(10)]
    return labels[number % len(labels)]


def _write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
