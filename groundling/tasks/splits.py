"""Selections of examples: few-shot partitions, splits of other folders, samples without labels.

A partition depends only on seed, stratum and official ids, through SHA-256: not on a random generator, the file's order
or any version. With one seed, a smaller partition is a subset of every larger one. CLIP-TD Sections 4.1.1, 4.2.1, 4.3.1
and 8.3 (VCR: 100 or 1,000 per question category; SNLI-VE: 1,000 or 10,000 per class; VQA: 100 or 1,000).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from groundling.core.batch import IGNORE, Example, Sample
from groundling.core.errors import (
    InputError,
    convert_read_errors,
    duplicates,
    raise_first,
    require_known,
    require_nonempty,
)
from groundling.core.output_types import Classification, MultipleChoice, OpenAnswer
from groundling.data.samples import SampleDataset, SampleWrapper
from groundling.runs.folder import data_hash, json_text, read_object, write_whole
from groundling.tasks import Task, vcr, vqa

T = TypeVar("T")
StratifyBy = Literal["auto", "total", "label", "category", "question-type", "answer"]
"""Criterion of the strata."""
FORMAT = "groundling partition 1"
ALL = "all"
"""The one stratum of `total`."""
UNMATCHED = "unmatched"
"""VCR questions that match no pattern; they are never drawn."""
NO_ANSWER = "no answer in the map"
"""VQA questions without a known answer; they are never drawn."""
NEVER = (UNMATCHED, NO_ANSWER)

CATEGORIES = {
    "hypothetical": r"if|would|could|chance|might|may",
    "temporal": r"happened|before|after|earlier|later|next",
    "mental": r"feel(s|ing)?|think(s|ing)?|saying|love|upset|angry",
    "role": r"relation(s|ship|ships)?|related|occupations?|profession|job|strangers|married",
    "scene": r"where|near|time",
    "activity": r"doing|looking|events?|happening|playing|preparing",
    "explanation": r"why|how",
}
"""Words by question category; the first category with a matching word is used.

VCR has no categories. CLIP-TD, Section 8.3, lists some words of each; the others are of the same kind. Questions with
words of several categories (`why would ...`) belong to the first one, which is rarer.
"""
_PATTERNS = {name: re.compile(rf"\b({words})\b") for name, words in CATEGORIES.items()}


def category(question: Sequence[vcr.VcrToken]) -> str:
    """The category of a VCR question; `unmatched` if no word matches."""
    text = " ".join(token.lower() for token in question if isinstance(token, str))
    return next((name for name, one in _PATTERNS.items() if one.search(text)), UNMATCHED)


def name_of(example: Example) -> str:
    """The id of an example in a partition: the official id, or the package's id if there is none."""
    return example.official_id or example.id


def strata(task: Task, folder: Path, stratify_by: StratifyBy = "auto") -> dict[str, str]:
    """The stratum of every training example, by official id.

    `auto`: VCR's question category, a classification's label, otherwise the whole split as one stratum.

    Raises InputError: the task has no such strata, an official id is repeated, or the files cannot be read.
    """
    split = task.train
    stratify_by = resolve_strata(task, stratify_by)
    examples = task.read(folder, split)
    names = [name_of(example) for example in examples]
    for name in duplicates(names):
        raise InputError(f"{task.name}, {split}: repeated id {name}")
    if stratify_by == "total":
        return dict.fromkeys(names, ALL)
    if stratify_by == "category":
        found = {item.id: category(item.question) for item in vcr.read_items(folder, split)}
    elif stratify_by == "question-type":
        asked = vqa.read_questions(folder, split)
        untyped = [one.id for one in asked if not one.types]
        raise_first([f"question {one}: LXMERT's lists have no question types" for one in untyped])
        found = {str(one.id): one.types[1] for one in asked}
    else:
        found = {name_of(example): _label_text(task, example) for example in examples}
    return {name: found[name] for name in names}


def resolve_strata(task: Task, stratify_by: StratifyBy) -> StratifyBy:
    """Resolve `auto` for a task; raises InputError if the task has no such strata."""
    is_vcr = task.name in (vcr.ANSWER.name, vcr.RATIONALE.name)
    is_labelled = isinstance(task.form, Classification) and not isinstance(
        task.form, MultipleChoice
    )
    if stratify_by == "auto":
        return "category" if is_vcr else "label" if is_labelled else "total"
    offered = {
        "total": True,
        "category": is_vcr,
        "label": is_labelled,
        "question-type": task.name.partition("/")[0] == vqa.VQA.name,
        "answer": isinstance(task.form, OpenAnswer),
    }
    available = [name for name, applies in offered.items() if applies]
    require_known(stratify_by, available, f"{task.name} has no strata by {stratify_by}")
    return stratify_by


def _label_text(task: Task, example: Example) -> str:
    if example.label is None:
        raise InputError(f"{task.name}: {name_of(example)} has no label")
    if isinstance(task.form, OpenAnswer):
        return task.form.best_answer(example.label) or NO_ANSWER
    return task.form.format_prediction(float(example.label))


def draw_partition(
    stratum_of: Mapping[str, str], per_stratum: int, seed: int, allow_fewer: bool = False
) -> list[str]:
    """The sorted ids of a partition: `per_stratum` ids of every stratum, given the stratum of each id.

    Raises InputError for a stratum smaller than `per_stratum`, unless `allow_fewer`.
    """
    members: dict[str, list[str]] = {}
    for name, stratum in stratum_of.items():
        if stratum not in NEVER:
            members.setdefault(stratum, []).append(name)
    require_nonempty(members, f"none of {len(stratum_of):,} examples can be drawn")
    for stratum, names in sorted(members.items()):
        if len(names) < per_stratum and not allow_fewer:
            raise InputError(f"stratum {stratum!r}: {len(names):,} examples; set allow_fewer")
    drawn: list[str] = []
    for stratum, names in members.items():
        # JSON makes the hashed keys unambiguous.
        lots = [json.dumps([seed, stratum, name]).encode() for name in names]
        order = sorted(zip((hashlib.sha256(lot).hexdigest() for lot in lots), names, strict=True))
        drawn += [name for _, name in order[:per_stratum]]
    return sorted(drawn)


def partition_manifest(
    task: Task,
    folder: Path,
    per_stratum: int,
    seed: int,
    stratify_by: StratifyBy = "auto",
    allow_fewer: bool = False,
) -> dict[str, Any]:
    """Everything needed to draw or check the same partition elsewhere; raises as `strata` and `draw_partition`."""
    stratum_of = strata(task, folder, stratify_by)
    ids = draw_partition(stratum_of, per_stratum, seed, allow_fewer)
    sizes = Counter(stratum_of.values())
    drawn = Counter(stratum_of[name] for name in ids)
    return {
        "format": FORMAT,
        "task": task.name,
        "version": task.version,
        "split": task.train,
        "files": files_of(task, folder),
        "stratify_by": resolve_strata(task, stratify_by),
        "per_stratum": per_stratum,
        "seed": seed,
        "examples": len(stratum_of),
        "strata": {name: {"examples": size, "drawn": drawn[name]} for name, size in sizes.items()},
        "ids": ids,
        "sha256": _hash(ids),
    }


def files_of(task: Task, folder: Path) -> dict[str, str]:
    """SHA-256 of the training split's files, by file name below the folder."""
    paths = [task.file(folder, task.train)]
    if task.name.partition("/")[0] == vqa.VQA.name:
        paths.append(vqa.file_of(folder, task.train, vqa.ANNOTATIONS))
    existing = [path for path in paths if path.exists()]
    return {path.relative_to(folder).as_posix(): data_hash(path) for path in existing}


def _hash(ids: Sequence[str]) -> str:
    return hashlib.sha256("".join(f"{name}\n" for name in ids).encode()).hexdigest()


def write_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """Write the manifest as JSON whose bytes depend only on its content: sorted keys, ASCII."""
    text = json_text(content, indent=1, sort_keys=True, ensure_ascii=True) + "\n"
    write_whole(path, text)


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest and check its ids against their hash; raises InputError for anything else."""
    content = read_object(path)
    with convert_read_errors(path):
        if content["format"] != FORMAT or _hash(content["ids"]) != content["sha256"]:
            raise InputError(f"{path}: not a partition, or damaged or edited")
    return content


def select_partition(
    examples: Sequence[Example], path: Path, task: Task, folder: Path
) -> list[Example]:
    """The examples of a partition, in the order of the data.

    Raises InputError if the manifest is damaged, edited or of other files, or names an unknown example.
    """
    content = read_manifest(path)
    # In other files, a row's number or id may name another example.
    if content.get("files") != files_of(task, folder):
        raise InputError(f"{path}: drawn from other files than those in {folder}")
    ids = set(content["ids"])
    for name in sorted(ids - {name_of(example) for example in examples}):
        raise InputError(f"{path}: {name} is not among the training examples of {task.name}")
    return [example for example in examples if name_of(example) in ids]


def examples_outside(
    examples: Sequence[Example], few: Sequence[Example], task: Task, folder: Path
) -> list[Example]:
    """The training examples outside a partition (`few`), without their labels.

    If a task's texts depend on a label (VCR's rationales follow the right answer), all versions of each example.
    """
    taken_ids = {example.id for example in few}
    versions = hidden_versions(examples, task, folder)
    rest = [some for one, some in zip(examples, versions, strict=True) if one.id not in taken_ids]
    return [replace(example, label=None) for some in rest for example in some]


def hidden_versions(
    examples: Sequence[Example], task: Task, folder: Path, splits: Sequence[str] = ()
) -> list[tuple[Example, ...]]:
    """All versions of every training example that are possible without its label.

    `splits` are the examples' splits, by default the task's training split. Raises InputError if the task does not
    return versions for each of these examples.
    """
    if task.read_unlabelled is None:
        return [(example,) for example in examples]
    versions = [
        some for split in splits or (task.train,) for some in task.read_unlabelled(folder, split)
    ]
    if len(versions) != len(examples):
        raise InputError(f"{task.name}: {len(versions)} of {len(examples)} examples without label")
    return versions


# Development splits of other folders: one training run is scored on standard and shifted files.


def with_extra_splits(task: Task, extras: Sequence[str]) -> Task:
    """The task with an additional development split for each NAME=FOLDER: the folder's first one.

    Raises InputError for a missing name or folder, the name of an existing split, or other answers than the task's.
    """
    folders: dict[str, Path] = {}
    for extra in extras:
        name, _, folder = extra.partition("=")
        if not name.isidentifier() or not folder or not Path(folder).is_dir():
            raise InputError(f"extra_eval {extra}: expected NAME=FOLDER, an existing folder")
        if name in {*folders, task.train, *task.dev, *task.test}:
            raise InputError(f"extra_eval {extra}: {task.name} has a split {name!r} already")
        if not task.has_answers_of(Path(folder)):
            raise InputError(
                f"extra_eval {extra}: its answers and those of data differ, or their order"
            )
        folders[name] = Path(folder)
    if not folders:
        return task

    def elsewhere(call: Callable[..., T]) -> Callable[..., T]:
        def called(folder: Path, split: str, *rest: Sequence[str]) -> T:
            place = (folders[split], task.dev[0]) if split in folders else (folder, split)
            return call(*place, *rest)

        return called

    scores = None if task.official_scores is None else elsewhere(task.official_scores)
    read, file = elsewhere(task.read), elsewhere(task.file)
    return replace(task, dev=(*task.dev, *folders), read=read, file=file, official_scores=scores)


# Samples without labels, for training on labelled and unlabelled samples together (CLIP-TD, Table 3).


def missing_label(label: np.ndarray) -> np.ndarray:
    """A placeholder for a missing label: NaN for floats, IGNORE for integers.

    Its shape is () for a single label, and (1, ...) for a label (L, ...) that is padded in a batch.
    """
    fill = np.nan if np.issubdtype(label.dtype, np.floating) else IGNORE
    return np.full((1, *label.shape[1:]) if label.ndim else (), fill, label.dtype)


class UnlabelledDataset(SampleWrapper):
    """Samples without labels; other fields stay.

    `DataSource(labelled, extra_samples=UnlabelledDataset(others, like), extra_per_sample=3)` adds
    three to each labelled sample.
    """

    def __init__(self, samples: SampleDataset, like: np.ndarray) -> None:
        """`like` is a label of the task, () or (L, ...), as in the labelled samples."""
        super().__init__(samples)
        self.label = missing_label(like)

    def change(self, sample: Sample, index: int) -> Sample:
        """A sample without its label."""
        example = sample.example
        if example is not None:
            example = replace(example, label=None)
        return replace(sample, example=example).with_label("label", self.label)
