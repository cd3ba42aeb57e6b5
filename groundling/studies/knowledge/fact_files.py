"""Opens any file of facts: its content identifies the data set, and so the reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from groundling.core.errors import InputError
from groundling.data.tables import read_header, read_json_lines
from groundling.studies.knowledge.commonsense_facts import (
    COLUMNS,
    is_commonsense,
    read_commonsense,
    read_imagenet_vc,
)
from groundling.studies.knowledge.evaluation_sets import SETS, sets_with_same_items
from groundling.studies.knowledge.feature_norms import (
    QUERIES,
    is_norms_table,
    read_norms,
    read_queries,
)
from groundling.studies.knowledge.visual_facts import FactsFile, is_raw_coda, open_visual_facts

TABLE_ENDINGS = (".csv", ".tsv", ".txt", ".dat")
"""Endings of tables of facts."""


def open_facts(path: str | Path) -> FactsFile:
    """The facts of a file in any of these formats, with the name of its set, if it is a published one:

    Memory Colors, CoDa, ViComTe and worlds (`open_visual_facts`); VEC and spatial commonsense
    (`read_commonsense`); ImageNetVC (`read_imagenet_vc`); feature norms (`read_norms`, `read_queries`).

    Raises InputError for a folder, another format, or a damaged file, with its line and field.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder; pass one of its files")
    if path.suffix in TABLE_ENDINGS:
        columns = read_header(path)
        if set(columns) >= set(COLUMNS):
            return read_imagenet_vc(path)
        if is_norms_table(columns):
            return read_norms(path, columns)
        raise InputError(
            f"{path}: columns are {', '.join(columns)[:80]}; expected question, answer (ImageNetVC), or concept, "
            "feature and pf (CSLB), Concept, Feature and Prod_Freq (McRae)"
        )
    if is_raw_coda(path):
        return open_visual_facts(path)
    _, first = next(read_json_lines(path))
    fields = list(first)
    if set(fields) >= {"query", "labels"} and set(fields) & set(QUERIES[2:]):
        return read_queries(path)
    if is_commonsense(fields, path.suffix):
        return read_commonsense(path)
    return open_visual_facts(path)


def describe_set(name: str) -> dict[str, Any]:
    """A published set for `result.json`; empty for another file.

    `published` is the number of items of its evaluation split, and `same_items` names the sets that share
    items with it, with which it must not be averaged.
    """
    if not name:
        return {}
    known = SETS.get(name)
    about: dict[str, Any] = {"name": name, "same_items": sets_with_same_items(name)}
    if known is not None:
        about |= {"measure": known.measure, "source": known.source}
        about |= {"published": known.items} if known.items else {}
    return {"set": about}
