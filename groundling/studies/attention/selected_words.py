"""Whether attention agrees with the words that CLIP-TD's teacher selects (CLIP-TD, Figure 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from groundling.core.batch import Sample, require
from groundling.data.text import word_spans
from groundling.data.text.keywords import select_tokens
from groundling.studies.attention.importance import (
    Bootstrap,
    ClsAttention,
    intervals,
    mean_with_interval,
    right_choice_row,
)
from groundling.teachers.clip import ClipTeacher, text_for_clip

MIN_RANKED = 3
"""Least number of words for a rank correlation."""
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


def rank_correlation(values: np.ndarray, other_values: np.ndarray) -> float:
    """Spearman's correlation of two arrays (K,); NaN for fewer than three or for equal numbers."""
    if len(values) < MIN_RANKED or np.ptp(values) == 0 or np.ptp(other_values) == 0:
        return float("nan")
    return float(stats.spearmanr(values, other_values).statistic)


def selection_agreement(
    attention: np.ndarray, words: TeacherWordScores, num_words: int
) -> np.ndarray:
    """Agreement (3,) of attention (K,) with scores, over candidates; NaN without any.

    Spearman's correlation with the scores; the overlap of the `num_words` selected words with the
    words that get the most attention, as a share; and the overlap expected by chance.
    """
    places = np.flatnonzero(words.candidates)
    if not len(places):
        return np.full(3, np.nan)
    many = min(num_words, len(places))
    chosen = select_tokens(words.scores, words.candidates, num_words)
    attended = select_tokens(attention, words.candidates, num_words)
    shared = len(np.intersect1d(chosen, attended)) / many
    ranks = rank_correlation(attention[places], words.scores[places])
    return np.array([ranks, shared, many / len(places)])


def attention_to_words(
    cls_attention: ClsAttention, rows: Sequence[Sample], texts: Sequence[TeacherWordScores]
) -> list[np.ndarray]:
    """[CLS]'s attention (K,) to each raw word of each text, which the model reads as `rows`.

    The sum over a word's tokens; 0 for truncated words.
    """
    found = []
    for attention, sample, text in zip(cls_attention.means(), rows, texts, strict=True):
        row = sample.rows[right_choice_row(sample)]
        word = require(row.text, "text", "a student").word_ids
        inside = (word >= 0) & (word < len(text.words))
        of_tokens = attention[: len(word)][inside]
        found.append(np.bincount(word[inside], weights=of_tokens, minlength=len(text.words)))
    return found


def selected_words_summary(
    texts: Sequence[TeacherWordScores],
    attentions: Sequence[Sequence[np.ndarray]],
    num_words: int,
    bootstrap: Bootstrap,
) -> dict[str, Any]:
    """Agreement of attention with the `num_words` words that the teacher selects, as in `result.json`.

    `attentions` of each model to the words of each text; `bootstrap` over the examples of the texts.
    """
    scores = []
    for of_model in attentions:
        pairs = zip(of_model, texts, strict=True)
        scores.append(np.stack([selection_agreement(*pair, num_words) for pair in pairs]))

    def summary(values: np.ndarray) -> dict[str, Any]:
        ranks, overlap = intervals(bootstrap.means(values[:, :2]))
        return {"ranks": ranks, "overlap": overlap}

    place = next((n for n, one in enumerate(texts) if one.candidates.sum() >= MIN_CANDIDATES), 0)
    return {
        "examples": len(texts),
        "models": [summary(own) for own in scores],
        "overlap_by_chance": mean_with_interval(bootstrap.means(scores[0][:, 2])),
        "difference": summary(scores[1] - scores[0]) if len(scores) == 2 else None,
        "shown": example_scores(texts[place], [each[place] for each in attentions]),
    }


def example_scores(text: TeacherWordScores, attentions: Sequence[np.ndarray]) -> dict[str, Any]:
    """JSON of a text's words, the teacher's scores and each model's attention (K,) (Figure 2)."""
    rows = []
    for number, word in enumerate(text.words):
        score = round(float(text.scores[number]), 6) if text.candidates[number] else None
        shares = [round(float(attention[number]), 6) for attention in attentions]
        rows.append({"word": word, "score": score, "attention": shares})
    return {"text": text.text, "words": rows}
