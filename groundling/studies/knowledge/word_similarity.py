"""Word similarity: files of word pairs with people's ratings, and their rank correlation with each layer's cosines.

Sets: MEN, SimLex-999, WordSim-353, SimVerb-3500 and RG-65, in the formats of their releases; the number of pairs
identifies the set. Lexi-contrastive grounding (Zhuang et al. 2024; EvLab-MIT/LexiContrastiveGrd,
`word_sim/eval_word_sim.py`) reports the best layer. It takes the state of a word's last token and, in its
paper, words with an age of acquisition below ten alone; here a word's state is the mean of its tokens'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from groundling.core.errors import InputError, convert_errors, prefix_errors
from groundling.core.metrics import SPEARMAN
from groundling.data.tables import lines_of
from groundling.runs.folder import json_text, write_whole
from groundling.runs.progress import end_dry_run
from groundling.runs.report import format_table
from groundling.runs.run import Run
from groundling.studies.knowledge.commands import ProbeWordsConfig
from groundling.studies.knowledge.evaluation_sets import describe_set
from groundling.studies.knowledge.probing_modes import WordStates, word_states
from groundling.studies.knowledge.word_ratings import (
    predict_ratings,
    ratings_layout,
    read_word_ratings,
)

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
    end_dry_run("probing")
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
