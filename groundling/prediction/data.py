"""What a saved model is asked about: a file of one's own, or a folder with its task's official files."""

from __future__ import annotations

from pathlib import Path

from groundling.core.errors import InputError
from groundling.core.forms import Answer, Classify
from groundling.data.tables import separator_note
from groundling.prediction.examples import Columns, Line, line_of, lines_of
from groundling.prediction.loaded import Loaded
from groundling.prediction.sight import Sight
from groundling.settings.inputs import Asking
from groundling.tasks import Task


def columns_for(model: Loaded, asking: Asking) -> Columns | None:
    """The columns of one's own file: as told, or as in the file that the model learned from; None if neither says."""
    own = model.about.own
    text = asking.text or ("" if own is None else own.text)
    if not text:
        return None
    image = asking.image or ("" if own is None else own.image)
    columns = Columns(text, image if model.sees else "", asking.choices)
    model.note_pairs(len(columns.texts))
    return columns


def is_own_file(model: Loaded, data: Path, columns: Columns | None) -> bool:
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


def data_lines(
    model: Loaded, data: Path, split: str, asking: Asking, sight: Sight
) -> tuple[Task, list[str], list[Line]]:
    """The task, the names of the data's own columns, and a line for each of its rows or examples."""
    columns = columns_for(model, asking)
    if is_own_file(model, data, columns) and columns is not None:
        if split:
            raise InputError(f"--split {split}: {data} is a file, and has no splits")
        header, lines = own_lines(model, data, columns, sight)
        return model.form_alone, header, lines
    task = model.task()
    split = split or next(iter(task.test), task.dev[0])
    check_answers(task, data, split)
    examples = task.read(data, split)
    lines = [line_of(example, f"{data}, {split}") for example in examples]
    return task, list(dict.fromkeys(name for line in lines for name in line.cells)), lines


def own_lines(
    model: Loaded, data: Path, columns: Columns, sight: Sight
) -> tuple[list[str], list[Line]]:
    """As `lines_of`; the model's notes get what is to be said of how the file was read."""
    header, lines = lines_of(data, columns, model.form, model.about.reads, sight)
    for note in (separator_note(data), *sight.notes):
        if note:
            model.note(note)
    return header, lines


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
