"""SWAG: choose the right one of four endings. From the official csv files, "regular" and "full"."""

from __future__ import annotations

from pathlib import Path

from groundling.core.batch import Example
from groundling.core.errors import InputError, require_nonempty
from groundling.core.metrics import ACCURACY
from groundling.core.output_types import MultipleChoice
from groundling.core.rng import generator
from groundling.data.tables import read_rows
from groundling.tasks import Task

ENDINGS = tuple(f"ending{i}" for i in range(4))
DISTRACTORS = tuple(f"distractor-{i}" for i in range(4))
FORM = MultipleChoice(("0", "1", "2", "3"))
SOURCE = "Zellers et al. 2018, SWAG, github.com/rowanz/swagaf"


def _regular_file(folder: Path, split: str) -> Path:
    return Path(folder) / f"{split}.csv"


def _full_file(folder: Path, split: str) -> Path:
    return Path(folder) / f"{split}_full.csv"


def _regular(folder: Path, split: str) -> list[Example]:
    path = _regular_file(folder, split)
    labelled = split != "test"
    columns = ("sent1", "sent2", *ENDINGS, *(["label"] if labelled else []))
    examples: list[Example] = []
    for number, (where, row) in enumerate(read_rows(path, columns)):
        endings = [row[name] for name in ENDINGS]
        label = FORM.parse_label(row["label"], where) if labelled else None
        examples.append(_example(f"swag-{split}", number, row, endings, label))
    require_nonempty(examples, f"{path}: contains no examples")
    return examples


def _full(folder: Path, split: str) -> list[Example]:
    """The gold ending at a place drawn from the id, among the first three nonempty distractors."""
    path = _full_file(folder, split)
    name = f"swag-full-{split}"
    examples: list[Example] = []
    for number, (where, row) in enumerate(
        read_rows(path, ("sent1", "sent2", "gold-ending", *DISTRACTORS))
    ):
        endings = [row[column] for column in DISTRACTORS if row[column].strip()][:3]
        if len(endings) < 3:
            raise InputError(f"{where}: {len(endings)} distractors, expected at least 3")
        place = int(generator("swag", f"{name}-{number}").integers(4))
        endings.insert(place, row["gold-ending"])
        examples.append(_example(name, number, row, endings, place))
    require_nonempty(examples, f"{path}: contains no examples")
    return examples


def _example(
    name: str, number: int, row: dict[str, str], endings: list[str], label: int | None
) -> Example:
    """An example with its row number as official id, as the server's file expects."""
    return Example(
        f"{name}-{number}",
        row["sent1"],
        label=label,
        choices=tuple(f"{row['sent2']} {ending}" for ending in endings),
        official_id=str(number),
    )


REGULAR = Task(
    "swag",
    FORM,
    _regular,
    (ACCURACY,),
    SOURCE,
    dev=("val",),
    test={"test": "predictions.tsv"},
    file=_regular_file,
)
"""Papers report accuracy on `val`; the server's format is undocumented, so the file has index and choice."""
FULL = Task("swag/full", FORM, _full, (ACCURACY,), SOURCE, dev=("val",), file=_full_file)
