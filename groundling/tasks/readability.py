"""Readability of a passage: the CommonLit Readability Prize's csv, or the CLEAR workbook exported to csv."""

from __future__ import annotations

from pathlib import Path

from groundling.batch import Example
from groundling.data.tables import read_csv, read_text
from groundling.errors import InputError
from groundling.forms import Regress
from groundling.keyed import generator
from groundling.metrics import MSE, RMSE
from groundling.tasks import Task

NAMES = (("id", "excerpt", "target"), ("ID", "Excerpt", "BT_easiness"))
"""Columns of Kaggle's file, and what the same columns are called in the CLEAR workbook."""

DEV_SHARE = 0.2
"""Share of the labelled passages held out: neither source has a labelled dev split."""


def file_of(folder: Path, split: str) -> Path:
    """`test.csv`, or the labelled file: `train.csv`, else the folder's only other csv; a file stands for itself."""
    folder = Path(folder)
    if folder.is_file():
        return folder
    found = [p for p in sorted(folder.glob("*.csv")) if p.stem not in {"test", "sample_submission"}]
    if split == "test" or (folder / "train.csv").exists() or len(found) != 1:
        return folder / ("test.csv" if split == "test" else "train.csv")
    return found[0]


def held_out(example: str) -> bool:
    """Whether a passage belongs to the dev split; its id alone decides."""
    return bool(generator("readability", example).random() < DEV_SHARE)


def _read(folder: Path, split: str) -> list[Example]:
    path = file_of(folder, split)
    header = read_text(path).partition("\n")[0]
    number, text, label = next((names for names in NAMES if names[1] in header), NAMES[0])
    labelled = split != "test"
    examples: list[Example] = []
    for line, row in read_csv(path, (number, text, label) if labelled else (number, text)):
        if not row[text].strip():
            raise InputError(f"{path}, line {line}: column {text!r} is empty; expected a passage")
        if not labelled:
            examples.append(Example(f"readability-test-{row[number]}", row[text]))
        elif held_out(row[number]) == (split == "dev"):
            value = FORM.label(row[label], f"{path}, line {line}")
            examples.append(Example(f"readability-{split}-{row[number]}", row[text], label=value))
    if not examples:
        raise InputError(f"{path}: holds no examples of {split}")
    return examples


FORM = Regress()
SOURCE = (
    "CommonLit Readability Prize (Kaggle 2021): RMSE; XDBERT's code computes the mean squared error"
)
READABILITY = Task(
    "readability",
    FORM,
    _read,
    (RMSE, MSE),
    SOURCE,
    test={"test": "submission.csv"},
    layout=("id", "target", ","),
    file=file_of,
)
"""READ of XDBERT's Table 1; lower is better."""
