"""Readability of passages: csv of the CommonLit Readability Prize, or the CLEAR workbook exported to csv."""

from __future__ import annotations

from pathlib import Path

from groundling.core.batch import Example
from groundling.core.errors import InputError, require_nonempty
from groundling.core.metrics import MSE, RMSE
from groundling.core.output_types import Regression
from groundling.core.rng import generator
from groundling.data.tables import read_header, read_rows
from groundling.tasks import Task

KAGGLE = ("id", "excerpt", "target")
"""Columns of the prize's file: id, passage, readability."""
CLEAR = ("ID", "Excerpt", "BT_easiness")
"""The same columns of the CLEAR workbook."""

DEV_SHARE = 0.2
"""Held-out share of the labelled passages: neither source has a labelled dev split."""


def file_of(folder: Path, split: str) -> Path:
    """`test.csv`, or the labelled file: `train.csv`, else the folder's only other csv; a file is returned unchanged."""
    folder = Path(folder)
    if folder.is_file():
        return folder
    if split == "test":
        return folder / "test.csv"
    labelled = folder / "train.csv"
    if not labelled.exists():
        unlabelled = {"test", "sample_submission"}
        others = [path for path in sorted(folder.glob("*.csv")) if path.stem not in unlabelled]
        if len(others) == 1:
            return others[0]
    return labelled


def held_out(example: str) -> bool:
    """Whether a passage belongs to the dev split; depends only on its id."""
    return bool(generator("readability", example).random() < DEV_SHARE)


def _read(folder: Path, split: str) -> list[Example]:
    path = file_of(folder, split)
    columns = CLEAR if CLEAR[1] in read_header(path) else KAGGLE
    labelled = split != "test"
    examples: list[Example] = []
    for where, row in read_rows(path, columns if labelled else columns[:2]):
        number, text = row[columns[0]], row[columns[1]]
        if not text.strip():
            raise InputError(f"{where}: the passage is empty")
        label = None
        if labelled:
            if held_out(number) != (split == "dev"):
                continue
            label = FORM.parse_label(row[columns[2]], where)
        name = f"readability-{split}-{number}"
        examples.append(Example(name, text, label=label, official_id=number))
    require_nonempty(examples, f"{path}: contains no examples of {split}")
    return examples


FORM = Regression()
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
    submission_format=("id", "target", ","),
    file=file_of,
)
"""READ of XDBERT's Table 1; lower is better."""
