"""Feature norms as facts: what people say of a concept, with production frequencies, and MAP over all labels.

After Visual Property Norms (Hagström and Johansson 2022; lovhag/measure-visual-commonsense-knowledge,
`visual_property_norms/`): a query is a concept and the start of a feature (is, has, has a, is made of), its
labels are the features' last words, and the score is the average precision over the labels of all concepts.
Three formats: CSLB's `norms.dat`, McRae's `CONCS_FEATS_concstats_brm.txt` (and tables with its columns), and
the queries that the release generates. Here a label may have several tokens; the release keeps words that
are one token of BERT. Of a feature with alternatives (`noisy_loud`) the first is used; the release picks the
most frequent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import average_precision_score

from groundling.core.errors import InputError
from groundling.data.tables import lines_of, read_json_lines, read_rows
from groundling.studies.knowledge.visual_facts import MASK, FactsFile, VisualFact

CSLB = ("feature type", "concept", "feature", "pf")
MCRAE = ("Concept", "Feature", "BR_Label", "Prod_Freq")
QUERIES = ("query", "labels", "concept", "query_template", "feature_starter", "pf")
"""Columns, or fields, of the three formats."""
STARTS = {"is": "is", "has": "has", "has a": "has a", "has an": "has a", "made of": "is made of"}
"""Starts of features, and how a query begins."""
TYPES = ("visual", "tactile")
"""Types of features that are kept: those that begin so (CSLB: `visual perceptual`)."""
PROMPTS = ("{} {} {}.", "Usually {} {} {}.")
"""Prompts of concept, start and mask."""
LEAST = (2, 5, 10, 20, 30)
"""Production frequencies from which a label counts as right, as in the release."""
LABELS = "labels.txt"
"""File of all labels, in the folder of the queries or the one above it."""
OTHER_TYPES, OTHER_STARTS, RARE = "other_feature_types", "other_features", "rare_features"
"""Reasons for leaving a row out."""


class _Feature(NamedTuple):
    """One row of a table of norms."""

    concept: str
    start: str
    label: str
    frequency: int


def is_norms_table(columns: Iterable[str]) -> bool:
    """Whether a table has CSLB's or McRae's columns."""
    names = set(columns)
    return names.issuperset(CSLB) or names.issuperset(MCRAE)


def read_norms(path: Path, columns: Sequence[str]) -> FactsFile:
    """The facts of CSLB's or McRae's table, with these columns: one for each concept and start of a feature.

    Rows of other types, other features and frequencies below two are left out and counted.

    Raises InputError for a row with a damaged field, or if nothing is left.
    """
    is_cslb = set(columns) >= set(CSLB)
    names = CSLB if is_cslb else MCRAE
    left_out = {OTHER_TYPES: 0, OTHER_STARTS: 0, RARE: 0}
    features = []
    for where, row in read_rows(path, names):
        kind = row["feature type" if is_cslb else "BR_Label"]
        feature = row["feature"] if is_cslb else row["Feature"].replace("_", " ")
        start, _, label = feature.strip().rpartition(" ")
        label = label.partition("_")[0].lower()
        concept = row["concept" if is_cslb else "Concept"].replace("_", " ").strip()
        frequency = _frequency(row, names[-1], where)
        if not concept or not label:
            raise InputError(f"{where}: {'concept' if label else 'feature'} is empty")
        if MASK in concept:
            raise InputError(f"{where}: concept contains {MASK}; remove it")
        if not kind.startswith(TYPES):
            left_out[OTHER_TYPES] += 1
        elif start not in STARTS:
            left_out[OTHER_STARTS] += 1
        elif frequency < LEAST[0]:
            left_out[RARE] += 1
        else:
            features.append(_Feature(concept, STARTS[start], label, frequency))
    if not features:
        raise InputError(
            f"{path}: no row has a feature of type {' or '.join(TYPES)} that begins with {', '.join(STARTS)}"
        )
    return FactsFile(
        _facts_of(features), left_out, set_name="norms/cslb" if is_cslb else "norms/mcrae"
    )


def _frequency(row: Mapping[str, str], name: str, where: str) -> int:
    value = row[name].strip()
    if not value.isdecimal() or len(value) > 6:
        raise InputError(f"{where}: {name} is {value[:60]!r}; expected a whole number")
    return int(value)


def _facts_of(features: Sequence[_Feature]) -> list[VisualFact]:
    options = tuple(sorted({feature.label for feature in features}))
    place = {label: number for number, label in enumerate(options)}
    frequencies: dict[tuple[str, str], np.ndarray] = {}
    for feature in features:
        key = feature.concept, feature.start
        own = frequencies.setdefault(key, np.zeros(len(options)))
        own[place[feature.label]] = max(own[place[feature.label]], feature.frequency)
    facts = []
    for (concept, start), own in frequencies.items():
        phrase = f"{'an' if concept[0].lower() in 'aeiou' else 'a'} {concept}"
        prompts = {prompt: prompt.format(phrase, start, MASK) for prompt in PROMPTS}
        facts.append(_fact(concept, start, options, own, prompts))
    return facts


def _fact(
    concept: str,
    start: str,
    options: tuple[str, ...],
    frequencies: np.ndarray,
    prompts: dict[str, str],
) -> VisualFact:
    return VisualFact(
        id=f"{concept}/{start}",
        subject=concept,
        relation="norms",
        options=options,
        target=frequencies / frequencies.sum(),
        group=start,
        prompts=prompts,
        frequencies=frequencies,
    )


def read_queries(path: Path) -> FactsFile:
    """The facts of a file of queries, in which all labels have the file's minimal frequency.

    The options are the labels of `labels.txt`, beside the file or in the folder above, or else all labels
    of the file. Raises InputError for a damaged line.
    """
    beside = next(
        (one for one in (path.parent / LABELS, path.parent.parent / LABELS) if one.is_file()), None
    )
    rows = [_query(where, row) for where, row in read_json_lines(path, ())]
    every = {label for row in rows for label in row["labels"]}
    if beside is not None:
        listed = [line.strip() for line in lines_of(beside) if line.strip()]
        missing = sorted(every - set(listed))
        if missing:
            raise InputError(f"{beside}: does not list {missing[0]!r}, which {path} contains")
        every = set(listed)
    options = tuple(sorted(every))
    place = {label: number for number, label in enumerate(options)}
    facts: dict[tuple[str, str], VisualFact] = {}
    for number, row in enumerate(rows, start=1):
        own = np.zeros(len(options))
        own[[place[label] for label in row["labels"]]] = row["pf"]
        prompts = {row["query_template"]: row["query"]}
        key = row["concept"], row["feature_starter"]
        fact = _fact(*key, options, own, prompts)
        earlier = facts.setdefault(key, fact)
        if earlier is fact:
            continue
        repeated = row["query_template"] in earlier.prompts
        if repeated or not np.array_equal(earlier.target, fact.target):
            raise InputError(
                f"{path}, line {number}: {fact.id} is on an earlier line with the same query_template or other labels"
            )
        earlier.prompts.update(prompts)
    companions = () if beside is None else (beside,)
    return FactsFile(list(facts.values()), {}, companions, set_name="norms/queries")


def _query(where: str, row: object) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected a JSON object")
    for name in ("query", "concept", "query_template", "feature_starter"):
        if not isinstance(row.get(name), str) or not row[name].strip():
            raise InputError(f"{where}: {name} is {str(row.get(name))[:60]!r}; expected a text")
    labels = row.get("labels")
    if (
        not isinstance(labels, list)
        or not labels
        or not all(isinstance(one, str) and one.strip() for one in labels)
    ):
        raise InputError(f"{where}: labels is {str(labels)[:60]}; expected a list of words")
    if type(row.get("pf")) is not int or not 0 < row["pf"] < 10**6:
        raise InputError(f"{where}: pf is {str(row.get('pf'))[:60]!r}; expected a number from 1 up")
    if row["query"].count(MASK) != 1:
        raise InputError(f"{where}: query is {row['query'][:60]!r}; expected one {MASK} in it")
    return row


def mean_average_precision(
    facts: Sequence[VisualFact], scores: Sequence[np.ndarray]
) -> dict[str, dict[str, float]]:
    """MAP over all labels, by minimal production frequency: `map`, `queries`, and `chance`.

    A query counts if one of its labels has this frequency; these labels are its right ones. `chance` is
    the mean share of right labels, the average precision of equal scores. As in the release,
    scikit-learn's average precision.

    Args:
        facts: F facts with frequencies.
        scores: The model's score of each label (options,), by fact.
    """
    result = {}
    for least in LEAST:
        precisions = average_precisions(facts, scores, least)
        defined = np.isfinite(precisions)
        shares = [
            (fact.frequencies >= least).mean()
            for fact, counts in zip(facts, defined, strict=True)
            if counts and fact.frequencies is not None
        ]
        if shares:
            result[str(least)] = {
                "map": float(precisions[defined].mean()),
                "queries": len(shares),
                "chance": float(np.mean(shares)),
            }
    return result


def average_precisions(
    facts: Sequence[VisualFact], scores: Sequence[np.ndarray], least: int
) -> np.ndarray:
    """The average precision of each fact's labels, (F,), for a minimal production frequency; NaN if none has it.

    Raises InputError for facts without production frequencies.
    """
    precisions = np.full(len(facts), np.nan)
    for number, (fact, score) in enumerate(zip(facts, scores, strict=True)):
        if fact.frequencies is None:
            raise InputError(f"{fact.id}: has no production frequencies; expected feature norms")
        right = fact.frequencies >= least
        if right.any():
            precisions[number] = average_precision_score(right, score)
    return precisions
