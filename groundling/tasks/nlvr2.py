"""NLVR2: is a sentence true of two images? From the official files, JSON lines in spite of their name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from groundling.batch import Example
from groundling.data.tables import lines_of
from groundling.errors import InputError, refuse
from groundling.forms import Classify
from groundling.metrics import ACCURACY
from groundling.tasks import Task

SOURCE = "Suhr et al. 2019, NLVR2, github.com/lil-lab/nlvr"
FORM = Classify(("False", "True"))
PARTS = ("balanced", "unbalanced")
"""Subsets, each with a file of identifiers."""


def records(path: Path, texts: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file of JSON lines and where each stands; every one has a text in each field of `texts`."""
    for number, line in enumerate(lines_of(path), 1):
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{where}: not valid JSON ({error.msg})") from None
        for name in texts:
            if not isinstance(row, dict) or not isinstance(row.get(name), str):
                raise InputError(f"{where}: no text in field {name!r}")
        yield where, row


def _file(folder: Path, split: str) -> Path:
    return Path(folder) / f"{split}.json"


def _read(folder: Path, split: str) -> list[Example]:
    """Examples in file order; their images are the stems of the official file names, left and right."""
    path, found, twice = _file(folder, split), dict[str, Example](), list[str]()
    for where, row in records(path, ("identifier", "sentence")):
        name = row["identifier"]
        if name.count("-") != 3:
            raise InputError(f"{where}: identifier {name!r}; expected split-set-pair-sentence")
        if name in found:
            twice.append(f"{where}: identifier {name} stands there before")
        # The test splits' labels were secret until 2022.
        known = "label" in row or not split.startswith("test")
        label = FORM.label(str(row.get("label")).capitalize(), where) if known else None
        if found and (label is None) != (next(iter(found.values())).label is None):
            raise InputError(f"{where}: some lines have a label and some have none")
        pair = name.rsplit("-", 1)[0]
        found[name] = Example(
            f"nlvr2-{name}", row["sentence"], label=label, images=(f"{pair}-img0", f"{pair}-img1")
        )
    if not found:
        raise InputError(f"{path}: holds no examples")
    refuse(twice)
    return list(found.values())


def consistency(right: Mapping[str, bool]) -> tuple[float, int]:
    """Share of the sentences that are judged right with all of their pairs of images, and the number of sentences."""
    sentences: dict[tuple[str, str, str], bool] = {}
    for identifier, good in right.items():
        split, group, _, sentence = identifier.split("-")
        sentences[split, group, sentence] = good and sentences.get((split, group, sentence), True)
    return sum(sentences.values()) / len(sentences), len(sentences)


def _extra(
    folder: Path, split: str, ids: Sequence[str], answers: Sequence[str]
) -> dict[str, float]:
    said = dict(zip(ids, answers, strict=True))
    labels = {e.id: FORM.labels[int(e.label)] for e in _read(folder, split) if e.label is not None}
    if not labels:
        return {}
    if absent := [name for name in labels if name not in said]:
        raise InputError(f"nlvr2: no prediction for {absent[0]} of {split} ({len(absent):,} such)")
    right = {_identifier(name): said[name] == label for name, label in labels.items()}
    scores = {"consistency": consistency(right)[0]}
    for path in (Path(folder) / f"{part}_{split}_identifiers.txt" for part in PARTS):
        names = lines_of(path) if path.is_file() else []
        if strange := [name for name in names if name not in right]:
            raise InputError(
                f"{path}: {strange[0]!r} is not in {split}.json ({len(strange):,} such)"
            )
        if names:
            part, own = path.name.partition("_")[0], {name: right[name] for name in names}
            scores |= {
                f"{part} accuracy": sum(own.values()) / len(own),
                f"{part} consistency": consistency(own)[0],
            }
    return scores


def _identifier(example: str) -> str:
    return example.removeprefix("nlvr2-")


def _submission(ids: Sequence[str], answers: Sequence[str]) -> str:
    return "".join(
        f"{_identifier(name)},{answer}\n" for name, answer in zip(ids, answers, strict=True)
    )


TEST = {"test1": "nlvr2_test1.csv", "test2": "nlvr2_test2.csv"}
NLVR2 = Task(
    "nlvr2",
    FORM,
    _read,
    (ACCURACY,),
    SOURCE,
    test=TEST,
    layout=_submission,
    file=_file,
    extra=_extra,
)
"""Papers call test1 Test-P, and test2, which was unpublished at the time, Test-U."""
