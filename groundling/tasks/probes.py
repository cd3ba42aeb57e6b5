"""What a text encoder knows of the rendered world's nouns: two visual questions and two text-only controls."""

from __future__ import annotations

from pathlib import Path

from groundling.batch import Example
from groundling.data.tables import read_tsv
from groundling.errors import InputError
from groundling.forms import Classify
from groundling.metrics import ACCURACY
from groundling.tasks import Task

TRUE_FALSE = Classify(("0", "1"))


def _probe(name: str) -> Task:
    def file(folder: Path, split: str) -> Path:
        return Path(folder) / "probes" / f"{name}_{split}.tsv"

    def read(folder: Path, split: str) -> list[Example]:
        path = file(folder, split)
        examples = []
        for line, row in read_tsv(path, ("index", "sentence", "label")):
            index = row["index"]
            label = TRUE_FALSE.label(row["label"], f"{path}, line {line}")
            examples.append(
                Example(f"{name}-{split}-{index}", row["sentence"], label=label, official=index)
            )
        if not examples:
            raise InputError(f"{path}: holds no examples; render a world with more nouns")
        return examples

    return Task(
        f"world/{name}",
        TRUE_FALSE,
        read,
        metrics=(ACCURACY,),
        source="groundling.world",
        dev=("test",),
        file=file,
    )


TRUTH = _probe("truth")
"""Visual: is "the zib is red ." true? Chance 0.50."""
ODD = _probe("odd")
"""Visual: which of two nouns looks like a third? Chance 0.50."""
CATEGORY = _probe("category")
"""Control, known from text alone: does the verb fit the noun?"""
ORDER = _probe("order")
"""Control, known from text alone: are two words of the sentence exchanged?"""
