"""Whether a student attends to the words that CLIP-TD's teacher selects (CLIP-TD, Figure 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from groundling.core.batch import Sample, require
from groundling.data.text import word_spans
from groundling.data.text.keywords import select_tokens
from groundling.studies.attention.attribution import rank_correlation
from groundling.studies.attention.importance import (
    Bootstrap,
    ClsAttention,
    intervals,
    mean_with_interval,
    right_choice_row,
)
from groundling.teachers.clip import ClipTeacher, text_for_clip

MIN_CANDIDATES = 4
"""Least number of candidate words in the text that is shown as an example."""


@dataclass(frozen=True)
class TeacherWordScores:
    """The teacher's selection scores of the K raw words of a row."""

    scores: np.ndarray
    """(K,) selection scores; 0 for words that are no candidates."""
    candidates: np.ndarray
    """(K,) bool: words that may be selected."""
    words: tuple[str, ...]
    """The words as written in the text."""
    text: str


def teacher_word_scores(
    teacher: ClipTeacher, samples: Sequence[Sample], batch: int
) -> list[TeacherWordScores]:
    """A teacher's scores for each sample's row of `right_choice_row`; it is fitted to these samples."""
    rows = [sample.rows[right_choice_row(sample)] for sample in samples]
    found = []
    for start in range(0, len(rows), batch):
        batch_rows = rows[start : start + batch]
        for row, (scores, candidates) in zip(
            batch_rows, teacher.word_scores(batch_rows), strict=True
        ):
            text = text_for_clip(require(row.example, "example", "a teacher"))
            words = tuple(text[first:last] for first, last in word_spans(text))
            found.append(
                TeacherWordScores(scores[: len(words)], candidates[: len(words)], words, text)
            )
    return found


def sum_word_attention(attention: np.ndarray, sample: Sample, count: int) -> np.ndarray:
    """[CLS]'s attention to each raw word (layers, count), summed over its tokens, from `attention`
    (layers, T + R); 0 for truncated words.
    """
    word = require(sample.rows[right_choice_row(sample)].text, "text", "a student").word_ids
    inside = (word >= 0) & (word < count)
    of_words = np.zeros((len(attention), count))
    np.add.at(of_words.T, word[inside], attention[:, : len(word)][:, inside].T)
    return of_words


def selection_agreement(
    attention: np.ndarray, words: TeacherWordScores, num_words: int
) -> np.ndarray:
    """Agreement of attention (layers, K) with scores, by layer and for their mean: (layers + 1, 3).

    Over candidates: Spearman's correlation with the scores; the overlap of the `num_words` selected
    words with the words that get the most attention, as a share; and the overlap expected by
    chance. NaN with too few candidates.
    """
    places = np.flatnonzero(words.candidates)
    many = min(num_words, len(places))
    agreement = []
    for row in (*attention, attention.mean(0)):
        if not many:
            agreement.append([np.nan] * 3)
            continue
        chosen = select_tokens(words.scores, words.candidates, num_words)
        attended = select_tokens(row, words.candidates, num_words)
        shared = len(np.intersect1d(chosen, attended)) / many
        ranks = rank_correlation(row[places], words.scores[places])
        agreement.append([ranks, shared, many / len(places)])
    return np.array(agreement)


def attention_to_words(
    cls_attention: ClsAttention, rows: Sequence[Sample], texts: Sequence[TeacherWordScores]
) -> list[np.ndarray]:
    """A model's attention (layers, K) to each word, for each text, which it reads as `rows`."""
    attention = cls_attention.attention.by_sample()
    return [
        sum_word_attention(one, sample, len(text.words))
        for one, sample, text in zip(attention, rows, texts, strict=True)
    ]


def selected_words_summary(
    texts: Sequence[TeacherWordScores],
    attentions: Sequence[Sequence[np.ndarray]],
    layers: Sequence[Sequence[int]],
    num_words: int,
    bootstrap: Bootstrap,
) -> dict[str, Any]:
    """Agreement of attention with the `num_words` words that the teacher selects, as in `result.json`.

    `attentions` of each model to the words of each text, and numbers of its `layers`; `bootstrap` over
    the examples of the texts.
    """
    scores = [
        np.stack([selection_agreement(*one, num_words) for one in zip(each, texts, strict=True)])
        for each in attentions
    ]
    difference = None
    if len(scores) == 2:
        change = bootstrap.means(scores[1][:, -1, :2] - scores[0][:, -1, :2])
        difference = dict(zip(("ranks", "overlap"), intervals(change), strict=True))
    place = next((n for n, one in enumerate(texts) if one.candidates.sum() >= MIN_CANDIDATES), 0)
    return {
        "examples": len(texts),
        "models": [
            {
                "ranks": bootstrap.by_layer(one[..., 0], own),
                "overlap": bootstrap.by_layer(one[..., 1], own),
            }
            for one, own in zip(scores, layers, strict=True)
        ],
        "overlap_by_chance": mean_with_interval(bootstrap.means(scores[0][:, -1, 2])),
        "difference": difference,
        "shown": example_scores(texts[place], [each[place] for each in attentions]),
    }


def example_scores(text: TeacherWordScores, attentions: Sequence[np.ndarray]) -> dict[str, Any]:
    """JSON of a text's words, the teacher's scores and the models' mean attention (Figure 2)."""
    means = [attention.mean(0) for attention in attentions]
    rows = []
    for number, word in enumerate(text.words):
        score = round(float(text.scores[number]), 6) if text.candidates[number] else None
        attention = [round(float(mean[number]), 6) for mean in means]
        rows.append({"word": word, "score": score, "attention": attention})
    return {"text": text.text, "words": rows}
