"""Word similarity: rank correlation of cosines with people's ratings, for each layer of an encoder.

Sets: MEN, SimLex-999, WordSim-353, SimVerb-3500 and RG-65, in the formats of their releases; the number of
pairs identifies the set. Lexi-contrastive grounding (Zhuang et al. 2024; EvLab-MIT/LexiContrastiveGrd,
`word_sim/eval_word_sim.py`) reports the best layer. It takes the state of a word's last token and, in its
paper, words with an age of acquisition below ten alone; here a word's state is the mean of its tokens'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor

from groundling.core.batch import collate, require
from groundling.core.errors import InputError
from groundling.core.metrics import SPEARMAN
from groundling.data.tables import lines_of
from groundling.models.clip import CLIP_LIKE
from groundling.models.loading import load_config
from groundling.models.text_encoder import load_text_encoder
from groundling.runs.folder import json_text, whole_file
from groundling.runs.report import format_table
from groundling.runs.run import Run
from groundling.studies.knowledge.commands import ProbeWordsConfig
from groundling.studies.knowledge.evaluation_sets import find_same_items, mean_over_sets
from groundling.studies.knowledge.fact_files import describe_set
from groundling.studies.knowledge.probing_modes import (
    SLOT,
    fill_slot,
    iterate_texts,
    load_word_state_encoder,
    tokenize_spans,
    tokens_of_span,
)

SIZES = {3000: "men", 999: "simlex-999", 353: "wordsim-353", 3500: "simverb-3500", 65: "rg-65"}
"""Names of sets by their number of pairs."""
SEPARATORS = ("\t", ";", ",", None)
"""Possible separators of columns, in this order; None: spaces."""
WORD_COLUMNS = (("word1", "word2"), ("word 1", "word 2"))
"""Names of the columns of words, in lower case."""
RATING_COLUMNS = ("simlex999", "human (mean)", "similarity", "mean", "score", "rating")
"""Names of the column of ratings, in lower case."""
PARTS_OF_SPEECH = ("-n", "-v", "-j")
"""Endings of MEN's words in lemma form."""
LEAST_LENGTH = 1e-12
"""A shorter vector counts as this long."""
PAIRS = "pairs.jsonl"
"""File of each pair's cosine."""
OUTPUT = "output"
"""The name of a CLIP-like tower's only layer."""


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

    - MEN's `MEN_dataset_natural_form_full` and `..._lemma_form_full`: words and rating, by spaces;
      a lemma's part of speech is removed.
    - SimLex-999's `SimLex-999.txt`: a header; word1, word2, POS, SimLex999, ... by tabs.
    - WordSim-353's `combined.csv` and `combined.tab`: a header; Word 1, Word 2, Human (mean).
    - SimVerb-3500's `SimVerb-3500.txt`: words, POS, rating, relation, by tabs.
    - RG-65 and any other: words and rating, by tabs, semicolons, commas or spaces; or a header with
      word1, word2 and similarity.

    Raises InputError with the line and field that is damaged.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder; pass one of its files")
    lines = lines_of(path)
    separator = next((mark for mark in SEPARATORS if len(_split(lines[0], mark)) > 2), None)
    header = [name.lower() for name in _split(lines[0], separator)]
    if len(header) < 3:
        raise InputError(f"{path}, line 1: {len(header)} columns; expected two words and a rating")
    columns = _named_columns(header)
    first = 1
    if columns is None:
        columns = _columns_of_row(path, _split(lines[0], separator))
        first = 0
    pairs = []
    ratings = []
    for number, line in enumerate(lines[first:], start=first + 1):
        values = _split(line, separator)
        where = f"{path}, line {number}"
        if len(values) != len(header):
            raise InputError(f"{where}: {len(values)} columns, expected {len(header)}")
        one, other = (values[place] for place in columns[:2])
        if not one or not other:
            raise InputError(f"{where}: word {1 if not one else 2} is empty")
        pairs.append((one, other))
        ratings.append(_rating(values[columns[2]], where))
    if len(pairs) < 3:
        raise InputError(f"{path}: {len(pairs)} pairs; a correlation needs three")
    if all(word.endswith(PARTS_OF_SPEECH) for pair in pairs for word in pair):
        pairs = [(one[:-2], other[:-2]) for one, other in pairs]
    return WordPairs(SIZES.get(len(pairs), path.stem), pairs, np.array(ratings))


def _split(line: str, separator: str | None) -> list[str]:
    return [value.strip() for value in line.strip().split(separator)]


def _named_columns(header: Sequence[str]) -> tuple[int, int, int] | None:
    """The columns of words and rating that a header names; None without one."""
    for names in WORD_COLUMNS:
        rating = next((name for name in RATING_COLUMNS if name in header), None)
        if set(names) <= set(header) and rating is not None:
            return header.index(names[0]), header.index(names[1]), header.index(rating)
    return None


def _columns_of_row(path: Path, values: Sequence[str]) -> tuple[int, int, int]:
    """The columns of a file without a header: words, and the first number after them."""
    for place, value in enumerate(values[2:4], start=2):
        if _is_number(value):
            return 0, 1, place
    raise InputError(
        f"{path}, line 1: columns are {', '.join(values)[:80]}; expected two words and a rating, or a header with "
        "word1, word2 and similarity"
    )


def _is_number(value: str) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except ValueError:
        return False


def _rating(value: str, where: str) -> float:
    if not _is_number(value):
        raise InputError(f"{where}: rating is {value[:60]!r}; expected a number")
    return float(value)


# -- states of words, by layer -----------------------------------------------------------------------------------------


class LayerStates(NamedTuple):
    """States of words."""

    layers: list[str]
    """Names of L layers: 0 the embeddings, k the k-th layer; `output` for a CLIP-like tower."""
    states: dict[str, np.ndarray]
    """(L, D) of each word."""
    unknown: list[str]
    """Words with unknown tokens."""


@torch.no_grad()
def word_states_by_layer(
    source: str | Path, words: Sequence[str], frame: str = SLOT, max_length: int = 64
) -> LayerStates:
    """States of words in a frame (a text with one `{}`) at every layer: the mean over a word's tokens.

    A CLIP-like tower has one layer, the text feature of the whole frame. Raises InputError for a frame
    without a slot, a word without tokens, and a text of more than `max_length` tokens.
    """
    if frame.count(SLOT) != 1:
        raise InputError(f"--template {frame!r}: expected a text with one {SLOT} for the word")
    distinct = list(dict.fromkeys(words))
    if load_config(source).model_type in CLIP_LIKE:
        return _tower_states(source, distinct, frame, max_length)
    device = PartialState().device
    model = load_text_encoder(source).to(device).eval()
    text_input, _ = model.inputs(max_length)
    result = LayerStates([], {}, [])
    for some in iterate_texts(distinct):
        spans = [fill_slot(frame, SLOT, word) for word in some]
        samples = tokenize_spans(spans, text_input)
        layers: Tensor = torch.stack(
            [layer.float().cpu() for layer in model.hidden_states(collate(samples).to(device))]
        )
        result.layers[:] = [str(number) for number in range(len(layers))]
        for place, (word, span, sample) in enumerate(zip(some, spans, samples, strict=True)):
            row = require(sample.text, "text", "a state")
            inside = torch.from_numpy(tokens_of_span(span, row))
            own = layers[:, place, : len(inside)][:, inside]
            result.states[word] = own.mean(1).numpy()
            if model.tokenizer.unk_token_id in row.input_ids[inside.numpy()]:
                result.unknown.append(word)
    return result


def _tower_states(
    source: str | Path, words: Sequence[str], frame: str, max_length: int
) -> LayerStates:
    reader = load_word_state_encoder(source, max_length=max_length)
    result = LayerStates([OUTPUT], {}, [])
    for some in iterate_texts(list(words)):
        spans = [fill_slot(frame, SLOT, word) for word in some]
        samples = reader.samples(spans)
        states = reader.states(spans, samples)
        for word, span, sample, state in zip(some, spans, samples, states, strict=True):
            row = reader.row(sample)
            result.states[word] = state.numpy()[None]
            if reader.unknown in row.input_ids[tokens_of_span(span, row)]:
                result.unknown.append(word)
    return result


# -- scores ------------------------------------------------------------------------------------------------------------


def correlate_by_layer(pairs: WordPairs, states: LayerStates) -> dict[str, float]:
    """Spearman's correlation of the cosine of each pair's states with people's ratings, by layer."""
    cosines = cosines_by_layer(pairs, states)
    return {
        layer: float(SPEARMAN.compute(cosines[:, place], pairs.ratings))
        for place, layer in enumerate(states.layers)
    }


def cosines_by_layer(pairs: WordPairs, states: LayerStates) -> np.ndarray:
    """The cosine of each pair's states at each layer, (pairs, L)."""
    one, other = (np.stack([states.states[pair[side]] for pair in pairs.pairs]) for side in (0, 1))
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    cosines: np.ndarray = (one * other).sum(-1) / np.maximum(lengths, LEAST_LENGTH)
    return cosines


def probe_words(config: ProbeWordsConfig, run: Run) -> dict[str, Any]:
    """Correlate a model's cosines with ratings of word pairs; writes `result.json` (returned) and `pairs.jsonl`.

    The latter has each pair with its rating and its cosine in the last layer.

    `best` is the best layer on the set itself, so it is too good; `last` is not selected. The mean over sets is
    of the last layer, and left out with its reason if sets share pairs.

    Raises InputError for a model without a text side, and malformed data.
    """
    read = {path: read_word_pairs(path) for path in config.data}
    names = [pairs.name for pairs in read.values()]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"--data: two files hold {twice}; leave one out")
    words = [word for pairs in read.values() for pair in pairs.pairs for word in pair]
    states = word_states_by_layer(config.model, words, config.template, config.max_length)
    unknown = set(states.unknown)
    sets: dict[str, Any] = {}
    for pairs in read.values():
        scores = correlate_by_layer(pairs, states)
        best = max(scores, key=_score_of(scores))
        sets[pairs.name] = {
            **describe_set(pairs.name),
            "pairs": len(pairs.pairs),
            "pairs_with_unknown_tokens": sum(not unknown.isdisjoint(pair) for pair in pairs.pairs),
            "best": {"layer": best, "spearman": scores[best]},
            "last": {"layer": states.layers[-1], "spearman": scores[states.layers[-1]]},
            "layers": scores,
        }
    with whole_file(run.folder / PAIRS) as file:
        for pairs in read.values():
            last_layer = cosines_by_layer(pairs, states)[:, -1]
            rated = zip(pairs.pairs, pairs.ratings, last_layer, strict=True)
            for words_of_pair, rating, cosine in rated:
                line: dict[str, Any] = {"set": pairs.name, "words": words_of_pair}
                line |= {"rating": float(rating), "cosine": round(float(cosine), 6)}
                file.write(json_text(line) + "\n")
    result: dict[str, Any] = {"sets": sets}
    if len(sets) > 1:
        items = {pairs.name: pairs.items for pairs in read.values()}
        reason = find_same_items(sets, items)
        last = {name: values["last"]["spearman"] for name, values in sets.items()}
        result |= {"no_mean": reason} if reason else {"mean_of_last": mean_over_sets(last, items)}
    return result


def _score_of(scores: Mapping[str, float]) -> Callable[[str], float]:
    return lambda layer: scores[layer]


def format_words(result: Mapping[str, Any]) -> str:
    """The result as text."""
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
