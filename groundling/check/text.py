"""Layouts of text: GLUE, the csv files of SWAG and readability, and lines of plain text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from groundling.check.examples import examples_of
from groundling.check.places import Match, Place
from groundling.check.report import Report
from groundling.core.errors import InputError
from groundling.data.captions.files import header_of
from groundling.data.samples import thinned
from groundling.data.tables.tables import lines_of
from groundling.data.text.lengths import TELLING, told_by_length
from groundling.tasks import Task
from groundling.tasks.glue import TASKS, Reader
from groundling.tasks.readability import NAMES, READABILITY
from groundling.tasks.swag import FULL, REGULAR

GLUE = tuple((task, task.read) for task in TASKS if isinstance(task.read, Reader))
"""GLUE's tasks, each with its reader."""
CSV = {"ending0": REGULAR, "gold-ending": FULL} | {excerpt: READABILITY for _, excerpt, _ in NAMES}
"""The column by which a csv file tells its task."""
PLAIN = frozenset({".txt", ".raw", ".tokens"})
"""Endings of plain text."""


def glue(place: Place, report: Report) -> Match | None:
    """A GLUE root, or the folder of one of its tasks."""
    tasks = _glue_tasks(place.folder)
    for task, _ in tasks:
        _splits(task, place.folder, report)
    if not tasks:
        return None
    names = ", ".join(reader.folder for _, reader in tasks)
    return Match(_all(place), (f"GLUE {names}",))


def _glue_tasks(folder: Path) -> list[tuple[Task, Reader]]:
    """The tasks that a root has folders of; else the task that the folder is called by, or else fits."""
    inside = [pair for pair in GLUE if any((folder / pair[1].folder).glob("*.tsv"))]
    if inside or not any(folder.glob("*.tsv")):
        return inside
    name = folder.resolve().name
    named = [pair for pair in GLUE if pair[1].folder == name]
    if named:
        return named
    for task, reader in GLUE:
        if examples_of(task, folder, task.dev[0], Report("")) is not None:
            return [(task, reader)]
    return []


def tables(place: Place, report: Report) -> Match | None:
    """The csv files of SWAG and of readability."""
    tasks: dict[str, Task] = {}
    columns: set[str] = set()
    for path in place.files:
        if path.suffix == ".csv":
            columns.update(header_of(path))
    for column, task in CSV.items():
        if column in columns:
            tasks[task.name] = task
    for task in tasks.values():
        _splits(task, place.folder, report)
    return Match(_all(place), tuple(tasks)) if tasks else None


def _splits(task: Task, folder: Path, report: Report) -> None:
    for split in (task.train, *task.dev):
        examples_of(task, folder, split, report)
    for split in task.test:
        if task.file(folder, split).is_file():  # only a submission needs it
            examples_of(task, folder, split, report)


def _all(place: Place) -> dict[Path, list[str]]:
    """All files of a place: what lies beside a text task's files is not looked at."""
    return {path: [] for path in place.files}


def plain_text(place: Place, report: Report) -> Match | None:
    """Lines of text in files below the folder."""
    return Match() if count_lines(place.folder, report) else None


def count_lines(folder: Path, report: Report) -> int:
    """Report the lines and words of the text files below a folder; returns the number of files."""
    paths = [p for p in sorted(folder.rglob("*")) if p.suffix in PLAIN and p.is_file()]
    for path in paths:
        try:
            lines = lines_of(path)
        except InputError as error:
            report.error(error)
            continue
        words = [len(line.split()) for line in lines]
        full = [line for line, count in zip(lines, words, strict=True) if count]
        report.fact(path, f"{len(words):,} lines, {len(full):,} with text, {sum(words):,} words")
        if len(full) >= LEAST:
            report.fact(path, _by_length(full))
    return len(paths)


LEAST = 100
"""Fewest lines whose lengths are compared."""
COMPARED = 2000
"""Most of them."""


def _by_length(lines: Sequence[str]) -> str:
    """Whether two lines can be told to be different by their lengths alone, in words."""
    some = thinned(lines, COMPARED)
    words = np.array([len(line.split()) for line in some])
    letters = np.array([len(line) for line in some])
    # Every line beside itself, and beside the one that lies half the file away.
    others = np.roll(letters, len(some) // 2)
    same = np.repeat([True, False], len(some))
    area = told_by_length(np.tile(words, 2), np.concatenate([letters, others]), same)
    said = f"words of one line against letters of another tell different lines at an AUC of {area:.2f} (chance .5)"
    if area < TELLING:
        return said
    return f"{said}; `adapt --arm xdbert` reads blocks, or with --form lines wants --match-negatives length"
