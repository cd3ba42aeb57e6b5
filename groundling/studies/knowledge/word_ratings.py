"""People's ratings of single words, and how well an encoder's states predict them.

The Lancaster Sensorimotor Norms (Lynott et al. 2020), the Glasgow Norms (Scott et al. 2019) and THINGSplus' properties
of THINGS' concepts (Stoinski et al. 2023), in the files of their releases, known by their columns.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import pearsonr

from groundling.core.errors import InputError, convert_errors, prefix_errors
from groundling.core.metrics import SPEARMAN
from groundling.data.tables import read_header, read_rows
from groundling.studies.knowledge.evaluation_sets import describe_set
from groundling.studies.knowledge.probe_facts import FOLDS, assign_folds, cross_validated_ridge
from groundling.studies.knowledge.probing_modes import LAST_LAYER, word_states


class RatingsLayout(NamedTuple):
    """Where a released table has its words and their mean ratings."""

    name: str
    """The set."""
    columns: tuple[str, ...]
    """The columns by which it is known; the first has the words."""
    key: str
    """The column whose values are all different."""
    rating: re.Pattern[str]
    """Columns of mean ratings, and in them the dimension."""
    first: tuple[str, ...]
    """Dimensions of how things look, which come first."""
    subheader: str = ""
    """What stands below the ratings' columns in a second header."""


THINGS = "manmade|precious|lives|heavy|natural|moves|grasp|hold|be[.-]moved|pleasant|arousal|size"
LAYOUTS = (
    RatingsLayout(
        "lancaster", ("Word", "Visual.mean"), "Word", re.compile(r"(.+)\.mean"), ("visual",)
    ),
    RatingsLayout(
        "things",
        ("Word", "uniqueID"),
        "uniqueID",
        re.compile(f"(?:property_)?({THINGS})_mean", re.IGNORECASE),
        ("size", "heavy"),
    ),
    # A first header names each scale over its mean, deviation and number of ratings; the second says M, SD, N.
    RatingsLayout(
        "glasgow", ("Words", "Length"), "Words", re.compile("([A-Z]+)"), ("imag", "cnc"), "M"
    ),
)
MISSING = ("", "na", "nan")
"""Values of a word that was not rated, in lower case."""
LEAST_WORDS = 3 * FOLDS


class WordRatings(NamedTuple):
    """Words with people's mean ratings on some dimensions."""

    name: str
    """The set."""
    words: list[str]
    dimensions: tuple[str, ...]
    """In lower case, those of how things look first."""
    ratings: np.ndarray
    """(words, dimensions) float."""
    left_out: Counter[str]
    """Number of words left out, by reason."""


def ratings_layout(path: str | Path) -> RatingsLayout | None:
    """The layout of a table of ratings of single words; None for another file."""
    header = read_header(Path(path))
    return next((one for one in LAYOUTS if set(one.columns) <= set(header)), None)


def read_word_ratings(path: str | Path, layout: RatingsLayout) -> WordRatings:
    """The words of a table that are rated on all of its dimensions.

    Words in capitals, as all of Lancaster's are, become lower case. A word of several concepts (THINGS' bat) is left
    out, since a word alone does not say which is meant. Raises InputError with the line that is damaged.
    """
    path = Path(path)
    columns = {
        match[1].lower(): column
        for column in read_header(path)
        if (match := layout.rating.fullmatch(column))
    }
    if not columns:
        raise InputError(f"{path}: no column of ratings, as {layout.rating.pattern}")
    dimensions = tuple(sorted(columns, key=lambda one: (*(one != own for own in layout.first), 0)))
    left_out: Counter[str] = Counter()
    rated: dict[str, tuple[str, list[float]]] = {}
    for number, (where, row) in enumerate(read_rows(path, (*layout.columns, *columns.values()))):
        with prefix_errors(where), convert_errors("not a word and its ratings"):
            cells = [row[columns[one]].strip() for one in dimensions]
            if layout.subheader and not number:
                if set(cells) != {layout.subheader}:
                    raise InputError(f"expected a second header with {layout.subheader}")
                continue
            word, key = row[layout.columns[0]].strip(), row[layout.key].strip()
            values = [np.nan if cell.lower() in MISSING else float(cell) for cell in cells]
            if not word or key in rated or np.isinf(values).any():
                raise InputError(f"{key!r}: expected a word that comes once, and finite numbers")
            rated[key] = (word.lower() if word.isupper() else word, values)
    times = Counter(word.lower() for word, _ in rated.values())
    words = [word for word, _ in rated.values()]
    ratings = np.array([values for _, values in rated.values()]).reshape(len(words), -1)
    is_whole = ~np.isnan(ratings).any(1)
    is_one = np.array([times[word.lower()] == 1 for word in words], bool)
    left_out.update(not_rated=int((~is_whole).sum()), several_concepts=int((~is_one).sum()))
    kept = np.flatnonzero(is_whole & is_one)
    ratings = ratings[kept]
    if len(kept) < LEAST_WORDS or not np.ptp(ratings, axis=0).all():
        raise InputError(
            f"{path}: {len(kept)} words; expected {LEAST_WORDS}, not all rated alike on a dimension"
        )
    return WordRatings(layout.name, [words[place] for place in kept], dimensions, ratings, left_out)


class PredictedRatings(NamedTuple):
    """How well an encoder's states of words predict people's ratings of them."""

    result: dict[str, dict[str, Any]]
    """By dimension, for `result.json`."""
    lines: list[dict[str, Any]]
    """Each word with its ratings and their predictions."""


def predict_ratings(
    source: str | Path, rated: WordRatings, template: str, max_length: int
) -> PredictedRatings:
    """Ridge regression of ratings on states of the last layer, each word predicted from the other folds' words.

    `spearman` and `pearson` correlate predictions and ratings over words.
    """
    read = word_states(source, rated.words, (template,), LAST_LAYER, max_length)
    states = np.stack([read.states[word] for word in rated.words])
    fold = assign_folds(rated.words, FOLDS, seed=0)
    predicted = cross_validated_ridge(states, rated.ratings, fold, alone=True)
    about = {**describe_set(rated.name), "words": len(rated.words), "left_out": rated.left_out}
    about |= {"words_with_unknown_tokens": len(read.unknown), "layer": read.layers[-1]}
    result = {
        dimension: {
            **about,
            "spearman": float(SPEARMAN.compute(own, ratings)),
            "pearson": float(pearsonr(own, ratings).statistic),
        }
        for dimension, own, ratings in zip(
            rated.dimensions, predicted.T, rated.ratings.T, strict=True
        )
    }
    lines = [
        {
            "set": rated.name,
            "word": word,
            "ratings": dict(zip(rated.dimensions, ratings, strict=True)),
            "predicted": dict(zip(rated.dimensions, own, strict=True)),
        }
        for word, ratings, own in zip(
            rated.words, rated.ratings.tolist(), predicted.round(6).tolist(), strict=True
        )
    ]
    return PredictedRatings(result, lines)
