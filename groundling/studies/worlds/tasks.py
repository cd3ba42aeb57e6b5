"""True-or-false questions about a world's nouns, one file per split.

A rendered world has two visual questions and two text-only controls; other folders may have other questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from groundling.core.batch import Example
from groundling.core.errors import require_known, require_nonempty
from groundling.core.metrics import ACCURACY
from groundling.core.output_types import Classification
from groundling.data.tables import read_rows
from groundling.tasks import Task

TRUE_FALSE = Classification(("0", "1"))


TRAIN = "_train.tsv"
"""Ending of a question's training file."""


def question_task(name: str) -> Task:
    """The task of a folder's `probes/NAME_train.tsv`, `_dev.tsv` and `_test.tsv`: index, sentence, label 0 or 1."""

    def file(folder: Path, split: str) -> Path:
        return Path(folder) / "probes" / f"{name}_{split}.tsv"

    def read(folder: Path, split: str) -> list[Example]:
        path = file(folder, split)
        examples = []
        for where, row in read_rows(path, ("index", "sentence", "label")):
            index = row["index"]
            label = TRUE_FALSE.parse_label(row["label"], where)
            examples.append(
                Example(f"{name}-{split}-{index}", row["sentence"], label=label, official_id=index)
            )
        message = f"{path}: contains no examples; make a world with more nouns"
        require_nonempty(examples, message)
        return examples

    return Task(
        f"world/{name}",
        TRUE_FALSE,
        read,
        metrics=(ACCURACY,),
        source="groundling.studies.worlds.world",
        dev=("test",),
        file=file,
    )


TRUTH = question_task("truth")
"""Visual: is "the zib is red ." true? Chance 0.50."""
ODD = question_task("odd")
"""Visual: which of two nouns looks like a third? Chance 0.50."""
CATEGORY = question_task("category")
"""Control, answered by text alone: does the verb fit the noun?"""
ORDER = question_task("order")
"""Control, answered by text alone: are two words of the sentence swapped?"""


def questions_in(folder: Path, names: Sequence[str] = ()) -> list[Task]:
    """The questions in a folder's `probes`, or only `names`; raises InputError for a name without a file."""
    files = sorted((Path(folder) / "probes").glob(f"*{TRAIN}"))
    available = [path.name.removesuffix(TRAIN) for path in files]
    for name in names:
        require_known(name, available, f"questions={name}: no {name}{TRAIN} in {folder}/probes")
    return [question_task(name) for name in names or available]
