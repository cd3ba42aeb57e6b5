"""Visual facts: a subject, possible answers and people's answers, and the one reader of their files.

Our own format is jsonl with one fact per line: `subject`, `relation`, `options`, `shares` (of people's answers, or
counts), `prompts` (sentences with one `[MASK]`, by name), and if you like `id` and `group`. Files that others released
are mapped onto it (`fact_layouts`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from groundling.core.errors import InputError, require_nonempty
from groundling.data.tables import read_header, read_json_lines, read_rows
from groundling.studies.knowledge.fact_layouts import (
    MASK,
    FactRow,
    FactSource,
    at_line,
    layout_of,
)

JSON_LINES = (".json", ".jsonl")
"""Endings of files with one object per line; all others are tables."""


@dataclass(frozen=True)
class VisualFact:
    """A subject, its options, and the distribution of people's answers over them."""

    id: str
    """Unique within a file."""
    subject: str
    """The noun, without an article."""
    relation: str
    """The attribute: color, shape, material, size_larger, ..."""
    options: tuple[str, ...]
    """The possible answers."""
    target: np.ndarray
    """(options,) float, sums to 1: shares of people's answers; one-hot for a single answer."""
    group: str = ""
    """The file's group of the fact: Single, Multi, Any; in a world, the noun's split."""
    prompts: dict[str, str] = field(default_factory=dict)
    """Sentences with one `[MASK]`, by template name."""
    frequencies: np.ndarray | None = None
    """(options,) float: how many people named each option; feature norms alone have it."""


class FactsFile(NamedTuple):
    """The facts of a file, and counts of what was left out."""

    facts: list[VisualFact]
    left_out: dict[str, int]
    """Number of lines or subjects left out, by reason."""
    companion_files: tuple[Path, ...] = ()
    """Companion files that were read too."""
    set_name: str = ""
    """The published set that the file belongs to; empty: none."""


def open_facts(path: str | Path) -> FactsFile:
    """The facts of a file in our own format or a released one, with the name of its set, if it is a published one.

    Raises InputError for another format, or a damaged file, with its line.
    """
    path = Path(path)
    is_table = path.suffix not in JSON_LINES
    if is_table:
        layout = layout_of(path, dict.fromkeys(read_header(path), ""))
        rows = read_rows(path, layout.columns)
    else:
        _, first = next(read_json_lines(path))
        layout = layout_of(path, first)
        rows = read_json_lines(path)
    source = FactSource(path)
    facts: dict[str, VisualFact] = {}
    names: dict[str, None] = {}  # in order, each once
    for number, (where, row) in enumerate(layout.read(rows, source), 1):
        with at_line(where):
            _add(make_fact(row, f"{number}:{row['subject']}"), facts)
            names[row.get("set", "")] = None
    require_nonempty(facts, f"{path}: no fact is left")
    if len(names) > 1:
        raise InputError(f"{path}: has lines of {' and '.join(sorted(names))}; expected one set")
    without = [fact.subject for fact in facts.values() if not fact.prompts]
    if without:
        raise InputError(f"{path}: {without[0]!r} has no sentence with {MASK}")
    return FactsFile(list(facts.values()), dict(source.left_out), source.companions, *names)


def make_fact(row: FactRow, default_id: str) -> VisualFact:
    """A fact from a row of our own format; raises InputError if it would be scored wrongly."""
    options = tuple(row["options"])
    shares = np.array(row["shares"], float)
    prompts = dict(row["prompts"])
    are_texts = all(isinstance(one, str) and one for one in (row["subject"], *options))
    is_described = are_texts and all(one.count(MASK) == 1 for one in prompts.values())
    # The letters of a text are no options.
    are_options = len(set(options)) == len(options) and not isinstance(row["options"], str)
    are_shares = shares.shape == (len(options),) and (shares >= 0).all()
    if not (is_described and are_options and are_shares and 0 < shares.sum() < np.inf):
        raise InputError(
            f"{str(row['subject'])[:60]!r} with the options {', '.join(map(str, options))[:200]}: expected different "
            f"options, a share of at least 0 for each, one above 0, and sentences with one {MASK}"
        )
    frequencies = row.get("frequencies")
    return VisualFact(
        id=row.get("id", default_id),
        subject=row["subject"],
        relation=row["relation"],
        options=options,
        target=shares / shares.sum(),
        group=row.get("group", ""),
        prompts=prompts,
        frequencies=None if frequencies is None else np.array(frequencies, float),
    )


def _add(fact: VisualFact, facts: dict[str, VisualFact]) -> None:
    """Add a fact, or its sentences to those of an equal fact on an earlier line."""
    earlier = facts.setdefault(fact.id, fact)
    if earlier is fact:
        return
    is_equal = earlier.options == fact.options and np.array_equal(earlier.target, fact.target)
    if not is_equal or earlier.prompts.keys() & fact.prompts.keys():
        raise InputError(
            f"{fact.id} is also on an earlier line, with other answers or the same sentence"
        )
    earlier.prompts.update(fact.prompts)
