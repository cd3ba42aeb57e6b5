"""Other folders' development splits beside a task's own: one training, scored on standard and shifted files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.tasks import Task


def with_others(task: Task, others: Sequence[str]) -> Task:
    """The task with a development split for each NAME=FOLDER: the first one of that folder's.

    Raises:
        InputError: No name, no folder, or a name that a split has already.
    """
    folders: dict[str, Path] = {}
    for other in others:
        name, _, folder = other.partition("=")
        if not name.isidentifier() or not folder or not Path(folder).is_dir():
            raise InputError(
                f"--also {other}: expected NAME=FOLDER, a plain name and a folder of data"
            )
        if name in {*folders, task.train, *task.dev, *task.test}:
            raise InputError(f"--also {other}: {task.name} has a split {name!r} already")
        folders[name] = Path(folder)
    if not folders:
        return task

    def place(folder: Path, split: str) -> tuple[Path, str]:
        return (folders[split], task.dev[0]) if split in folders else (folder, split)

    def read(folder: Path, split: str) -> list[Example]:
        return task.read(*place(folder, split))

    def file(folder: Path, split: str) -> Path:
        return task.file(*place(folder, split))

    def extra(
        folder: Path, split: str, officials: Sequence[str], answers: Sequence[str]
    ) -> dict[str, float]:
        if task.extra is None:
            return {}
        return task.extra(*place(folder, split), officials, answers)

    return replace(task, dev=(*task.dev, *folders), read=read, file=file, extra=extra)
