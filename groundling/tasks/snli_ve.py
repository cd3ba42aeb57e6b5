"""SNLI-VE: does an image entail a sentence? From the official JSON lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from groundling.core.batch import Example
from groundling.core.errors import InputError, raise_first, require_nonempty
from groundling.core.metrics import ACCURACY
from groundling.core.output_types import Classification
from groundling.data.tables import read_json_lines
from groundling.tasks import Task

SOURCE = "Xie et al. 2019, SNLI-VE, github.com/necla-ml/SNLI-VE"
FORM = Classification(("entailment", "neutral", "contradiction"))
"""Classes in GLUE's order, since SNLI-VE defines none."""
IMAGE = ("Flikr30kID", "Flickr30K_ID", "Flickr30kID")
"""Keys of the image id: in the distributed files (sic), in the generator script, and in relabelled versions."""
UNDECIDED = "-"
"""Label of a line on which the annotators disagree."""


def _file(folder: Path, split: str) -> Path:
    return Path(folder) / f"snli_ve_{split}.jsonl"


def _noted(folder: Path, split: str) -> tuple[list[Example], list[str]]:
    """Examples in file order, and a note on the omitted lines whose annotators disagree (`-`).

    The premise is the image; its caption `sentence1` is not used. Image ids are Flickr30k's file names without .jpg.

    Raises InputError if a line lacks a field, has an unknown label or a repeated pairID, or no example is left.
    """
    path = _file(folder, split)
    examples = []
    undecided = 0
    line_of: dict[str, int] = {}
    repeated = []
    for number, (where, row) in enumerate(
        read_json_lines(path, ("pairID", "sentence2", "gold_label")), 1
    ):
        pair = row["pairID"]
        if pair in line_of:
            repeated.append(f"{where}: repeated pairID {pair}, first in line {line_of[pair]}")
        line_of[pair] = number
        image = _image(where, row)
        if row["gold_label"] == UNDECIDED:
            undecided += 1
            continue
        examples.append(
            Example(
                f"snli-ve-{split}-{pair}",
                row["sentence2"],
                label=FORM.parse_label(row["gold_label"], where),
                images=(image,),
                official_id=pair,
            )
        )
    require_nonempty(examples, f"{path}: contains no examples")
    raise_first(repeated)
    return examples, [f"{undecided:,} lines without a majority label ({UNDECIDED}) are omitted"]


def _image(where: str, row: Mapping[str, object]) -> str:
    """The image id, under any of its three keys."""
    for name in map(row.get, IMAGE):
        if isinstance(name, str):
            return name.removesuffix(".jpg")
    raise InputError(f"{where}: no image; expected one of {', '.join(IMAGE)}")


def _read(folder: Path, split: str) -> list[Example]:
    return _noted(folder, split)[0]


SNLI_VE = Task(
    "snli-ve",
    FORM,
    _read,
    (ACCURACY,),
    SOURCE,
    dev=("dev", "test"),
    read_with_notes=_noted,
    file=_file,
)
