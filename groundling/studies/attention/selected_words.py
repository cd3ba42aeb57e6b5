"""Does a student look at the words that CLIP-TD's teacher selects (CLIP-TD, Figure 2)?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from groundling.core.batch import Sample, require
from groundling.data.text.keywords import select_tokens
from groundling.data.text.words import word_spans
from groundling.studies.attention.attribution import rank_correlation
from groundling.studies.attention.importance import (
    Bootstrap,
    ClsAttention,
    mean_with_interval,
    right_choice_row,
)
from groundling.teachers.clip import ClipTeacher
from groundling.teachers.clip_parts import text_for_clip

MIN_CANDIDATES = 4
"""Words that may be selected, of a text that is worth showing."""


@dataclass(frozen=True)
class WordScores:
    """What the teacher makes of the K raw words of a row."""

    scores: np.ndarray
    """(K,) selection scores, 0 of words that may not be selected."""
    candidates: np.ndarray
    """(K,) bool."""
    words: tuple[str, ...]
    """As they stand in the text."""
    text: str


def teacher_word_scores(
    teacher: ClipTeacher, samples: Sequence[Sample], batch: int
) -> list[WordScores]:
    """What a teacher, fitted to these samples, makes of the row of each that `right_choice_row` names."""
    rows = [sample.rows[right_choice_row(sample)] for sample in samples]
    found = []
    for start in range(0, len(rows), batch):
        some = rows[start : start + batch]
        for row, (scores, candidates) in zip(some, teacher.word_scores(some), strict=True):
            text = text_for_clip(require(row.example, "example", "a teacher"))
            words = tuple(text[first:last] for first, last in word_spans(text))
            found.append(WordScores(scores[: len(words)], candidates[: len(words)], words, text))
    return found


def sum_word_attention(looks: np.ndarray, sample: Sample, count: int) -> np.ndarray:
    """[CLS]'s attention (layers, T + R) to each raw word (layers, count), summed over its pieces; 0 of one not read."""
    word = require(sample.rows[right_choice_row(sample)].text, "text", "a student").word_ids
    inside = (word >= 0) & (word < count)
    of_words = np.zeros((len(looks), count))
    np.add.at(of_words.T, word[inside], looks[:, : len(word)][:, inside].T)
    return of_words


def selection_agreement(attention: np.ndarray, worth: WordScores, most: int) -> np.ndarray:
    """(layers + 1, 3) of attention (layers, K): for each layer, and last for the mean of layers, over candidates.

    Spearman's correlation with the scores; the share of the `most` selected words that are among as many with the most
    attention; and that share if words were drawn by chance. NaN where there are too few candidates.
    """
    places = np.flatnonzero(worth.candidates)
    many = min(most, len(places))
    found = []
    for row in (*attention, attention.mean(0)):
        if not many:
            found.append([np.nan] * 3)
            continue
        chosen = select_tokens(worth.scores, worth.candidates, most)
        looked_at = select_tokens(row, worth.candidates, most)
        shared = len(np.intersect1d(chosen, looked_at)) / many
        ranks = rank_correlation(row[places], worth.scores[places])
        found.append([ranks, shared, many / len(places)])
    return np.array(found)


class WordAttention(NamedTuple):
    """A model whose attention to words is compared with the teacher's scores."""

    rows: Sequence[Sample]
    """The texts as it reads them."""
    cls_attention: ClsAttention
    """What it looked at in them."""

    def attentions(self, worths: Sequence[WordScores]) -> list[np.ndarray]:
        """Its attention (layers, K) to each word of each text."""
        looks = self.cls_attention.by_sample.rows
        return [
            sum_word_attention(looks[place], sample, len(worth.words))
            for place, (sample, worth) in enumerate(zip(self.rows, worths, strict=True))
        ]


def selected_words_summary(
    worths: Sequence[WordScores], readers: Sequence[WordAttention], most: int, bootstrap: Bootstrap
) -> dict[str, Any]:
    """What `result.json` says: whether attention goes to the `most` words of each text that the teacher selects.

    `bootstrap` over the examples of the texts.
    """
    attentions = [reader.attentions(worths) for reader in readers]
    scores = [
        np.stack([selection_agreement(*one, most) for one in zip(each, worths, strict=True)])
        for each in attentions
    ]
    difference = None
    if len(scores) == 2:
        change = bootstrap.means(scores[1][:, -1, :2] - scores[0][:, -1, :2])
        difference = {
            "ranks": mean_with_interval(change[:, 0]),
            "overlap": mean_with_interval(change[:, 1]),
        }
    place = next((n for n, one in enumerate(worths) if one.candidates.sum() >= MIN_CANDIDATES), 0)
    return {
        "examples": len(worths),
        "models": [
            {
                "ranks": bootstrap.by_layer(one[..., 0], reader.cls_attention.layers.numbers),
                "overlap": bootstrap.by_layer(one[..., 1], reader.cls_attention.layers.numbers),
            }
            for one, reader in zip(scores, readers, strict=True)
        ],
        "overlap_by_chance": mean_with_interval(bootstrap.means(scores[0][:, -1, 2])),
        "difference": difference,
        "shown": example_scores(worths[place], [each[place] for each in attentions]),
    }


def example_scores(worth: WordScores, attentions: Sequence[np.ndarray]) -> dict[str, Any]:
    """A text's words with the teacher's scores and each model's attention, the mean of layers, as JSON (Figure 2)."""
    means = [attention.mean(0) for attention in attentions]
    rows = []
    for number, word in enumerate(worth.words):
        score = round(float(worth.scores[number]), 6) if worth.candidates[number] else None
        attention = [round(float(mean[number]), 6) for mean in means]
        rows.append({"word": word, "score": score, "attention": attention})
    return {"text": worth.text, "words": rows}
