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
"""In GLUE's order; SNLI-VE has none of its own."""
IMAGE = ("Flikr30kID", "Flickr30K_ID", "Flickr30kID")
"""The distributed files' key (sic), the generator script's, and that of its relabelled offspring."""
UNDECIDED = "-"
"""Label of a line whose annotators did not agree."""


def _file(folder: Path, split: str) -> Path:
    return Path(folder) / f"snli_ve_{split}.jsonl"


def _noted(folder: Path, split: str) -> tuple[list[Example], list[str]]:
    """Examples in file order, and how many lines were left out because their annotators did not agree (`-`).

    The premise is the image; `sentence1`, a caption of it, is no input. Images are Flickr30k's file names without .jpg.

    Raises:
        InputError: A line lacks a field, has an unknown label or the pairID of an earlier line, or none is left.
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
            repeated.append(f"{where}: pairID {pair} is already that of line {line_of[pair]}")
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
    require_nonempty(examples, f"{path}: holds no examples")
    raise_first(repeated)
    what = f"lines without a label that annotators agree on ({UNDECIDED}) are left out"
    return examples, [f"{undecided:,} {what}"]


def _image(where: str, row: Mapping[str, object]) -> str:
    """The image's id, under any of its three keys."""
    for key in IMAGE:
        name = row.get(key)
        if isinstance(name, str):
            return name.removesuffix(".jpg")
    raise InputError(f"{where}: names no image; expected one of {', '.join(IMAGE)}")


def _read(folder: Path, split: str) -> list[Example]:
    examples, _ = _noted(folder, split)
    return examples


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
