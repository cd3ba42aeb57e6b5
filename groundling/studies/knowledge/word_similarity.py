"""Word similarity: rank correlation of cosines with people's ratings, for each layer of an encoder.

Lexi-contrastive grounding (Zhuang et al. 2024; EvLab-MIT/LexiContrastiveGrd,
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
from groundling.models.clip import CLIP_LIKE
from groundling.models.loading import load_config
from groundling.models.text_encoder import load_text_encoder
from groundling.runs.folder import json_text, whole_file
from groundling.runs.report import format_table
from groundling.runs.run import Run
from groundling.studies.knowledge.commands import ProbeWordsConfig
from groundling.studies.knowledge.evaluation_sets import (
    describe_set,
    find_same_items,
    mean_over_sets,
)
from groundling.studies.knowledge.probing_modes import (
    SLOT,
    fill_slot,
    iterate_texts,
    load_word_state_encoder,
    tokenize_spans,
    tokens_of_span,
)
from groundling.studies.knowledge.word_pairs import WordPairs, read_word_pairs

LEAST_LENGTH = 1e-12
"""A shorter vector counts as this long."""
PAIRS = "pairs.jsonl"
"""File of each pair's cosine."""
OUTPUT = "output"
"""The name of a CLIP-like tower's only layer."""


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
        raise InputError(f"data: two files hold {twice}; leave one out")
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
