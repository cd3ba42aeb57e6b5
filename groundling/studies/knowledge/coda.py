"""CoDa as its annotators left it (Paik et al. 2021): colours by worker, words of each object, and templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.stats import kendalltau

from groundling.core.errors import InputError
from groundling.data.tables import lines_of, read_json_lines, read_text

COLOURS = (
    *("black", "blue", "brown", "gray", "green", "orange"),
    *("pink", "purple", "red", "white", "yellow"),
)
"""CoDa's answers, in the order of its published labels."""

ANNOTATIONS = "annotations.jsonl"
OBJECTS = "objects.jsonl"
TEMPLATES = "templates.yaml"
"""How the raw files are called, all with the same beginning, which may be empty."""

MASKED = "text-masked"
"""The templates whose sentences have a mask."""

WORDS = ("object_s", "areis_s", "object_pl", "areis_pl")
"""Fields of an object: its singular and plural, each with its verb; None where it has no such form."""


@dataclass(frozen=True)
class CodaObject:
    """An object as people see it."""

    id: str
    """CoDa's own, `class_id`."""
    noun: str
    shares: np.ndarray
    """(11,) float, sums to 1: the mean over annotators of each one's shares, in the order of `COLOURS`."""
    prompts: dict[str, str]
    """Sentences with a `[MASK]`, by their number among all templates."""


def is_raw(path: str | Path) -> bool:
    """Whether a file looks like CoDa's annotations, one worker's answer a line."""
    first = lines_of(path)[0]
    return all(f'"{name}"' in first for name in ("class_id", "included", "action"))


def beside(path: str | Path) -> tuple[Path, Path]:
    """The files of objects and of templates that belong to a file of annotations.

    Raises InputError if that is not called `annotations.jsonl`, with or without something before it.
    """
    path = Path(path)
    if not path.name.endswith(ANNOTATIONS):
        raise InputError(
            f"{path}: CoDa's raw annotations must be called {ANNOTATIONS}, beside {OBJECTS} and {TEMPLATES}"
        )
    start = path.name.removesuffix(ANNOTATIONS)
    return path.with_name(start + OBJECTS), path.with_name(start + TEMPLATES)


def read_coda(path: str | Path) -> tuple[list[CodaObject], dict[str, int]]:
    """The objects of CoDa's raw files, and how many lines and objects were left out, by reason.

    As in nala-cub/coda, projects/coda/probing/dataset/dataset.py: answers that are not `included` are skipped ones; of
    the rest, each one's numbers are divided by their sum, and the one that agrees least with the object's mean is left
    out for as long as its Kendall's tau is negative; an object that `objects.jsonl` does not list is no part of CoDa.

    Raises InputError for a line, a field or a file that is not as expected.
    """
    objects, templates = beside(path)
    answers, skipped = _answers(Path(path))
    sentences = _sentences(templates)
    kept = []
    disagreeing = 0
    unseen = 0
    for where, row in read_json_lines(objects, ("class_id", "ngram")):
        given = answers.pop(row["class_id"], None)
        if given is None:
            unseen += 1
            continue
        agreeing = _agreeing(np.stack(given))
        disagreeing += len(given) - len(agreeing)
        prompts = _filled(sentences, row, where)
        kept.append(CodaObject(row["class_id"], row["ngram"], agreeing.mean(0), prompts))
    if not kept:
        raise InputError(f"{objects}: no object has a class_id of {path}")
    left_out = {
        "skipped_annotations": skipped,
        "disagreeing_annotations": disagreeing,
        "objects_not_listed": len(answers),
        "objects_not_annotated": unseen,
    }
    return kept, left_out


def _answers(path: Path) -> tuple[dict[str, list[np.ndarray]], int]:
    """Shares (11,) of each included answer, by object, and the number of answers that are not included."""
    answers: dict[str, list[np.ndarray]] = {}
    skipped = 0
    for where, row in read_json_lines(path, ("class_id",)):
        if type(row.get("included")) is not bool:
            raise InputError(
                f"{where}: included is {row.get('included')!r}; expected true or false"
            )
        if not row["included"]:
            skipped += 1
            continue
        numbers = np.array([_number(row, colour, where) for colour in COLOURS])
        if not numbers.sum():
            raise InputError(f"{where}: no colour has a number above 0; expected included: false")
        answers.setdefault(row["class_id"], []).append(numbers / numbers.sum())
    return answers, skipped


def _number(row: Mapping[str, Any], colour: str, where: str) -> float:
    value: Any = row.get(colour)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < np.inf:
        raise InputError(f"{where}: {colour} is {value!r}; expected a number from 0 up")
    return float(value)


def _agreeing(shares: np.ndarray) -> np.ndarray:
    """The answers (n, 11) without those that contradict the others, the worst first."""
    while True:
        mean = shares.mean(0)
        tau = np.array([kendalltau(own, mean).statistic for own in shares])
        # An answer of equal numbers has none: it agrees with everybody.
        tau = np.where(np.isnan(tau), np.inf, tau)
        if tau.min() >= 0:
            return shares
        shares = np.delete(shares, tau.argmin(), axis=0)


def _sentences(path: Path) -> dict[str, str]:
    """Sentences with a mask, by their number among all templates in alphabetical order (the release's template_idx)."""
    try:
        content = yaml.safe_load(read_text(path))
        groups = [(group["name"], list(group["templates"])) for group in content["templates"]]
    except (yaml.YAMLError, KeyError, TypeError):
        raise InputError(
            f"{path}: expected CoDa's YAML, `templates:` as a list of a `name` and its `templates`"
        ) from None
    texts = sorted((str(text), name) for name, some in groups for text in some)
    masked = {str(n): text for n, (text, name) in enumerate(texts) if name == MASKED}
    if not masked:
        raise InputError(f"{path}: no group of templates is called {MASKED}")
    return masked


def _filled(sentences: Mapping[str, str], row: Mapping[str, Any], where: str) -> dict[str, str]:
    """The sentences that an object has the words for: some have no singular."""
    for name in WORDS:
        if name not in row or not isinstance(row[name], str | None):
            raise InputError(f"{where}: {name} is {row.get(name)!r}; expected a text or null")
    words: dict[str, str] = {name: row[name] for name in WORDS if row[name]}
    for form in ("s", "pl"):
        parts: Sequence[str | None] = (words.get(f"object_{form}"), words.get(f"areis_{form}"))
        if all(parts):
            words[f"object_areis_{form}"] = " ".join(part for part in parts if part)
    prompts = {}
    for number, sentence in sentences.items():
        filled = sentence
        for name, word in words.items():
            filled = filled.replace(f"{{{name}}}", word)
        if "{" not in filled:
            prompts[number] = filled
    return prompts
