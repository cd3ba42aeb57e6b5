"""SNLI-VE: does an image entail a sentence? From the official JSON lines."""

from __future__ import annotations

from pathlib import Path

from groundling.batch import Example
from groundling.errors import InputError, refuse
from groundling.forms import Classify
from groundling.metrics import ACCURACY
from groundling.tasks import Task
from groundling.tasks.nlvr2 import records

SOURCE = "Xie et al. 2019, SNLI-VE, github.com/necla-ml/SNLI-VE"
FORM = Classify(("entailment", "neutral", "contradiction"))
"""In GLUE's order; SNLI-VE has none of its own."""
IMAGE = ("Flikr30kID", "Flickr30K_ID", "Flickr30kID")
"""The distributed files' key (sic), the generator script's, and that of its relabelled offspring."""


def _file(folder: Path, split: str) -> Path:
    return Path(folder) / f"snli_ve_{split}.jsonl"


def load(folder: Path, split: str) -> tuple[list[Example], int]:
    """Examples in file order, and how many lines were left out because their annotators did not agree (`-`).

    The premise is the image; `sentence1`, a caption of it, is no input. Images are Flickr30k's file names without .jpg.
    """
    lines, twice, examples, dropped = dict[str, str](), list[str](), list[Example](), 0
    for where, row in records(_file(folder, split), ("pairID", "sentence2", "gold_label")):
        name = row["pairID"]
        if name in lines:
            twice.append(
                f"{where}: pairID {name} is already that of {lines[name].rpartition(', ')[2]}"
            )
        lines[name] = where
        images = [row[key] for key in IMAGE if isinstance(row.get(key), str)]
        if not images:
            raise InputError(f"{where}: names no image; expected one of {', '.join(IMAGE)}")
        if row["gold_label"] == "-":
            dropped += 1
            continue
        label = FORM.label(row["gold_label"], where)
        image = images[0].removesuffix(".jpg")
        examples.append(
            Example(f"snli-ve-{split}-{name}", row["sentence2"], label=label, images=(image,))
        )
    if not examples:
        raise InputError(f"{_file(folder, split)}: holds no examples")
    refuse(twice)
    return examples, dropped


SNLI_VE = Task(
    "snli-ve",
    FORM,
    lambda folder, split: load(folder, split)[0],
    (ACCURACY,),
    SOURCE,
    dev=("dev", "test"),
    file=_file,
)
