"""Word similarity: files of word pairs with people's ratings, and their rank correlation with each layer's cosines.

Sets: MEN, SimLex-999, WordSim-353, SimVerb-3500 and RG-65, in the formats of their releases; the number of pairs
identifies the set. Lexi-contrastive grounding (Zhuang et al. 2024; EvLab-MIT/LexiContrastiveGrd,
`word_sim/eval_word_sim.py`) reports the best layer. It takes the state of a word's last token and, in its
paper, words with an age of acquisition below ten alone; here a word's state is the mean of its tokens'.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import pearsonr

from groundling.core.errors import InputError, convert_errors, duplicates, prefix_errors
from groundling.core.metrics import SPEARMAN
from groundling.data.tables import lines_of, read_header, read_rows
from groundling.runs.folder import write_json_lines
from groundling.runs.progress import end_dry_run
from groundling.runs.report import format_table
from groundling.runs.run import Run
from groundling.studies.knowledge import JsonObject, describe_set
from groundling.studies.knowledge.commands import ProbeWordsConfig
from groundling.studies.knowledge.probe_facts import FOLDS, assign_folds, cross_validated_ridge
from groundling.studies.knowledge.probing_modes import LAST_LAYER, WordStates, word_states

LEAST_LENGTH = 1e-12
"""A shorter vector counts as this long."""
PAIRS = "pairs.jsonl"
"""File of each pair's cosine."""
RATINGS = "ratings.jsonl"
"""File of each single word's ratings and their predictions."""
SIZES = {3000: "men", 999: "simlex-999", 353: "wordsim-353", 3500: "simverb-3500", 65: "rg-65"}
"""Names of sets by their number of pairs."""
SEPARATORS = ("\t", ";", ",", None)
"""Possible separators of columns, in this order; None: spaces."""
COLUMNS = (
    ("word1", "word2", "simlex999"),
    ("word 1", "word 2", "human (mean)"),
    ("word1", "word2", "similarity"),
)
"""Columns of words and ratings that headers name, in lower case: SimLex, WordSim, your own file."""
PARTS_OF_SPEECH = ("-n", "-v", "-j")
"""Endings of MEN's words in lemma form."""


class WordPairs(NamedTuple):
    """Pairs of words with people's ratings."""

    name: str
    """The set, by its number of pairs; the file's name for another number."""
    pairs: list[tuple[str, str]]
    ratings: np.ndarray
    """(pairs,) float."""


def read_word_pairs(path: str | Path) -> WordPairs:
    """Pairs of words of one file; its first line determines the separator and the columns.

    - Your own: a header with word1, word2 and similarity; or words and rating without a header, as RG-65.
    - MEN's `MEN_dataset_natural_form_full` and `..._lemma_form_full`: words and rating, by spaces;
      a lemma's part of speech is removed.
    - SimLex-999's `SimLex-999.txt`: a header; word1, word2, POS, SimLex999, ... by tabs.
    - WordSim-353's `combined.csv` and `combined.tab`: a header; Word 1, Word 2, Human (mean).
    - SimVerb-3500's `SimVerb-3500.txt`: words, POS, rating, relation, by tabs.

    Raises InputError with the line that is damaged.
    """
    path = Path(path)
    lines = lines_of(path)
    separator = next((mark for mark in SEPARATORS if len(lines[0].split(mark)) > 2), None)
    rows = []
    for line in lines:
        cells = line.strip().split(separator)
        rows.append([cell.strip() for cell in cells])
    header = [name.lower() for name in rows[0]]
    names = next((names for names in COLUMNS if set(names) <= set(header)), ())
    # Without a header the rating is the first number, which SimVerb's part of speech precedes.
    has_pos = len(header) > 3 and header[2].isalpha()
    places = [header.index(name) for name in names] or [0, 1, 2 + has_pos]
    pairs = []
    ratings = []
    for number, row in enumerate(rows, start=1):
        if names and number == 1:
            continue
        with prefix_errors(f"{path}, line {number}"), convert_errors("not two words and a rating"):
            one, other, rating = (row[place] for place in places)
            is_whole = len(row) == len(header) and one and other
            if not is_whole or not np.isfinite(float(rating)):
                raise InputError(f"expected {len(header)} columns: two words and a number")
        pairs.append((one, other))
        ratings.append(float(rating))
    if len(pairs) < 3 or not np.ptp(ratings):
        raise InputError(
            f"{path}: {len(pairs)} pairs; a correlation needs three, not all rated alike"
        )
    if all(word.endswith(PARTS_OF_SPEECH) for pair in pairs for word in pair):
        pairs = [(one[:-2], other[:-2]) for one, other in pairs]
    return WordPairs(SIZES.get(len(pairs), path.stem), pairs, np.array(ratings))


# -- scores ------------------------------------------------------------------------------------------------------------
def cosines_by_layer(pairs: WordPairs, states: WordStates) -> np.ndarray:
    """The cosine of each pair's states at each layer, (pairs, L)."""
    one = np.stack([states.states[first] for first, _ in pairs.pairs])
    other = np.stack([states.states[second] for _, second in pairs.pairs])
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    products = (one * other).sum(-1)
    cosines: np.ndarray = products / np.maximum(lengths, LEAST_LENGTH)
    return cosines


def probe_words(config: ProbeWordsConfig, run: Run) -> JsonObject:
    """Correlate a model's cosines with ratings of word pairs; predict ratings of single words from its states.

    Writes `result.json` (returned); `pairs.jsonl`, each pair with its rating and its cosine in the last layer; and
    `ratings.jsonl`, each single word with its ratings and their predictions.

    `best` is the best layer on the set itself, so it is too good; `last` is not selected.

    Raises InputError for a model without a text side, and malformed data.
    """
    layouts = {path: ratings_layout(path) for path in config.data}
    rated = {path: read_word_ratings(path, layout) for path, layout in layouts.items() if layout}
    read = {path: read_word_pairs(path) for path, layout in layouts.items() if not layout}
    names = [pairs.name for pairs in read.values()]
    names += [words.name for words in rated.values()]
    for name in duplicates(names):
        raise InputError(f"data: two files hold {name}; leave one out")
    end_dry_run("probing")
    result: JsonObject = {}
    if read:
        result |= _probe_pairs(config, list(read.values()), run)
    lines: list[JsonObject] = []
    for words in rated.values():
        found, own = predict_ratings(config.model, words, config.template, config.max_length)
        result.setdefault("ratings", {})[words.name] = found
        lines += own
    if rated:
        write_json_lines(run.folder / RATINGS, lines)
    return result


def _probe_pairs(config: ProbeWordsConfig, read: Sequence[WordPairs], run: Run) -> JsonObject:
    words = [word for pairs in read for pair in pairs.pairs for word in pair]
    states = word_states(config.model, words, (config.template,), None, config.max_length)
    unknown = set(states.unknown)
    sets: JsonObject = {}
    lines: list[JsonObject] = []
    for pairs in read:
        cosines = cosines_by_layer(pairs, states)
        scores = {
            layer: float(SPEARMAN.compute(of_layer, pairs.ratings))
            for layer, of_layer in zip(states.layers, cosines.T, strict=True)
        }
        best = max(scores, key=scores.__getitem__)
        sets[pairs.name] = {
            **describe_set(pairs.name),
            "pairs": len(pairs.pairs),
            "pairs_with_unknown_tokens": sum(not unknown.isdisjoint(pair) for pair in pairs.pairs),
            "best": {"layer": best, "spearman": scores[best]},
            "last": {"layer": states.layers[-1], "spearman": scores[states.layers[-1]]},
            "layers": scores,
        }
        for words_of_pair, rating, cosine in zip(
            pairs.pairs, pairs.ratings.tolist(), cosines[:, -1].tolist(), strict=True
        ):
            lines.append(
                {
                    "set": pairs.name,
                    "words": words_of_pair,
                    "rating": rating,
                    "cosine": round(cosine, 6),
                }
            )
    write_json_lines(run.folder / PAIRS, lines)
    return {"sets": sets}


def format_words(result: Mapping[str, Any]) -> str:
    """The result as text."""
    single = [
        {
            "": f"{name} {dimension}",
            "words": f"{values['words']:,}",
            **{measure: f"{values[measure]:.3f}" for measure in ("spearman", "pearson")},
        }
        for name, by_dimension in result.get("ratings", {}).items()
        for dimension, values in by_dimension.items()
    ]
    pairs = []
    for name, values in result.get("sets", {}).items():
        row = {"": name, "pairs": f"{values['pairs']:,}"}
        for which in ("best", "last"):
            own = values[which]
            row[f"{which} layer"] = f"{own['spearman']:.3f} ({own['layer']})"
        pairs.append(row)
    return "\n\n".join(format_table(rows) for rows in (pairs, single) if rows)


# -- people's ratings of single words ----------------------------------------------------------------------------------
# How well an encoder's states predict them: the Lancaster Sensorimotor Norms (Lynott et al. 2020), the Glasgow Norms
# (Scott et al. 2019) and THINGSplus' properties of THINGS' concepts (Stoinski et al. 2023), in the files of their
# releases, known by their columns.


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
            word = row[layout.columns[0]].strip()
            key = row[layout.key].strip()
            values = [np.nan if cell.lower() in MISSING else float(cell) for cell in cells]
            if not word or key in rated or np.isinf(values).any():
                raise InputError(f"{key!r}: expected a word that comes once, and finite numbers")
            rated[key] = (word.lower() if word.isupper() else word, values)
    times = Counter(word.lower() for word, _ in rated.values())
    words = [word for word, _ in rated.values()]
    values_of_words = [values for _, values in rated.values()]
    ratings = np.array(values_of_words).reshape(len(words), -1)
    is_whole = ~np.isnan(ratings).any(1)
    is_one = np.array([times[word.lower()] == 1 for word in words], bool)
    left_out["not_rated"] = int((~is_whole).sum())
    left_out["several_concepts"] = int((~is_one).sum())
    kept = np.flatnonzero(is_whole & is_one)
    ratings = ratings[kept]
    if len(kept) < LEAST_WORDS or not np.ptp(ratings, axis=0).all():
        raise InputError(
            f"{path}: {len(kept)} words; expected {LEAST_WORDS}, not all rated alike on a dimension"
        )
    words = [words[place] for place in kept]
    return WordRatings(layout.name, words, dimensions, ratings, left_out)


def predict_ratings(
    source: str | Path, rated: WordRatings, template: str, max_length: int
) -> tuple[dict[str, JsonObject], list[JsonObject]]:
    """Ridge regression of ratings on states of the last layer, each word predicted from the other folds' words.

    Returns the result by dimension, and each word with its ratings and their predictions. `spearman` and `pearson`
    correlate predictions and ratings over words.
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
    return result, lines
