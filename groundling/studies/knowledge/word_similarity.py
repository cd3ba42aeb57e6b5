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
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import pearsonr

from groundling.core.errors import InputError, convert_errors, prefix_errors
from groundling.core.metrics import SPEARMAN
from groundling.data.tables import lines_of, read_header, read_rows
from groundling.runs.folder import json_text, write_whole
from groundling.runs.report import format_table
from groundling.runs.run import Run
from groundling.studies.knowledge import describe_set
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

    @property
    def items(self) -> set[frozenset[str]]:
        """The distinct pairs, in lower case and either order."""
        return {frozenset((one.lower(), other.lower())) for one, other in self.pairs}


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
    rows = [[value.strip() for value in line.strip().split(separator)] for line in lines]
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
            if not one or not other or len(row) != len(header) or not np.isfinite(float(rating)):
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
    one, other = (np.stack([states.states[pair[side]] for pair in pairs.pairs]) for side in (0, 1))
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    cosines: np.ndarray = (one * other).sum(-1) / np.maximum(lengths, LEAST_LENGTH)
    return cosines


def find_same_items(sets: Sequence[WordPairs]) -> str:
    """Why a mean over sets would count pairs twice; empty if it would not."""
    for one, other in combinations(sets, 2):
        shared = one.items & other.items
        if shared:
            return f"{one.name} and {other.name} share {len(shared):,} items"
    return ""


def probe_words(config: ProbeWordsConfig, run: Run) -> dict[str, Any]:
    """Correlate a model's cosines with ratings of word pairs; predict ratings of single words from its states.

    Writes `result.json` (returned); `pairs.jsonl`, each pair with its rating and its cosine in the last layer; and
    `ratings.jsonl`, each single word with its ratings and their predictions.

    `best` is the best layer on the set itself, so it is too good; `last` is not selected. The mean over sets of pairs
    is of the last layer, and left out with its reason if sets share pairs.

    Raises InputError for a model without a text side, and malformed data.
    """
    layouts = {path: ratings_layout(path) for path in config.data}
    rated = {path: read_word_ratings(path, layout) for path, layout in layouts.items() if layout}
    read = {path: read_word_pairs(path) for path, layout in layouts.items() if not layout}
    names = [pairs.name for pairs in read.values()] + [words.name for words in rated.values()]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"data: two files hold {twice}; leave one out")
    result: dict[str, Any] = _probe_pairs(config, list(read.values()), run) if read else {}
    lines: list[dict[str, Any]] = []
    for words in rated.values():
        found = predict_ratings(config.model, words, config.template, config.max_length)
        result.setdefault("ratings", {})[words.name] = found.result
        lines += found.lines
    if rated:
        write_whole(run.folder / RATINGS, "".join(json_text(line) + "\n" for line in lines))
    return result


def _probe_pairs(config: ProbeWordsConfig, read: Sequence[WordPairs], run: Run) -> dict[str, Any]:
    words = [word for pairs in read for pair in pairs.pairs for word in pair]
    states = word_states(config.model, words, (config.template,), None, config.max_length)
    unknown = set(states.unknown)
    sets: dict[str, Any] = {}
    lines: list[dict[str, Any]] = []
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
            pairs.pairs, pairs.ratings, cosines[:, -1], strict=True
        ):
            line: dict[str, Any] = {"set": pairs.name, "words": words_of_pair}
            lines.append(line | {"rating": float(rating), "cosine": round(float(cosine), 6)})
    write_whole(run.folder / PAIRS, "".join(json_text(line) + "\n" for line in lines))
    result: dict[str, Any] = {"sets": sets}
    if len(sets) > 1:
        reason = find_same_items(read)
        last = [values["last"]["spearman"] for values in sets.values()]
        result |= {"no_mean": reason} if reason else {"mean_of_last": float(np.mean(last))}
    return result


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
    tables = [format_table(single)] if single else []
    if "sets" in result:
        tables.insert(0, _format_pairs(result))
    return "\n\n".join(tables)


def _format_pairs(result: Mapping[str, Any]) -> str:
    rows = []
    for name, values in result["sets"].items():
        row = {"": name, "pairs": f"{values['pairs']:,}"}
        for which in ("best", "last"):
            own = values[which]
            row[f"{which} layer"] = f"{own['spearman']:.3f} ({own['layer']})"
        rows.append(row)
    table = format_table(rows)
    if "no_mean" in result:
        return f"{table}\nno mean over sets: {result['no_mean']}"
    if "mean_of_last" in result:
        return f"{table}\nmean over sets, last layer: {result['mean_of_last']:.3f}"
    return table


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
