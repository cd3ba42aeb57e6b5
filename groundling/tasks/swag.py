"""SWAG: choose the right one of four endings. From the official csv files ("regular")."""

from __future__ import annotations

from pathlib import Path

from groundling.core.batch import Example
from groundling.core.errors import require_nonempty
from groundling.core.metrics import ACCURACY
from groundling.core.output_types import MultipleChoice
from groundling.data.tables import read_rows
from groundling.tasks import Task

ENDINGS = tuple(f"ending{i}" for i in range(4))
FORM = MultipleChoice(("0", "1", "2", "3"))
SOURCE = "Zellers et al. 2018, SWAG, github.com/rowanz/swagaf"


def _file(folder: Path, split: str) -> Path:
    return Path(folder) / f"{split}.csv"


def _read(folder: Path, split: str) -> list[Example]:
    """Examples with their row numbers as official ids, as the server's file expects."""
    path = _file(folder, split)
    labelled = split != "test"
    columns = ("sent1", "sent2", *ENDINGS, *(["label"] if labelled else []))
    examples: list[Example] = []
    for number, (where, row) in enumerate(read_rows(path, columns)):
        example = Example(
            f"swag-{split}-{number}",
            row["sent1"],
            label=FORM.parse_label(row["label"], where) if labelled else None,
            choices=tuple(f"{row['sent2']} {row[ending]}" for ending in ENDINGS),
            official_id=str(number),
        )
        examples.append(example)
    require_nonempty(examples, f"{path}: contains no examples")
    return examples


REGULAR = Task(
    "swag",
    FORM,
    _read,
    (ACCURACY,),
    SOURCE,
    dev=("val",),
    test={"test": "predictions.tsv"},
    file=_file,
)
"""Papers report accuracy on `val`; the server's format is undocumented, so the file has index and choice."""
