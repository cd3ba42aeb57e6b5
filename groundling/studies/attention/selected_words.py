"""Does a student look at the words that CLIP-TD's teacher selects (CLIP-TD, Figure 2)?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from groundling.core.batch import Sample, needed
from groundling.data.text.keywords import select
from groundling.data.text.words import spans
from groundling.studies.attention.attribution import ranks_agree
from groundling.studies.attention.importance import right_row
from groundling.teachers.clip import ClipTeacher, text_of


@dataclass(frozen=True)
class Worth:
    """What the teacher makes of the K raw words of a row."""

    scores: np.ndarray
    """(K,) selection scores, 0 of words that may not be selected."""
    candidates: np.ndarray
    """(K,) bool."""
    words: tuple[str, ...]
    """As they stand in the text."""
    text: str


def worths(teacher: ClipTeacher, samples: Sequence[Sample], batch: int) -> list[Worth]:
    """What a teacher, fitted to these samples, makes of the row of each that `right_row` names."""
    rows = [sample.rows[right_row(sample)] for sample in samples]
    found = []
    for start in range(0, len(rows), batch):
        some = rows[start : start + batch]
        for row, (scores, candidates) in zip(some, teacher.word_scores(some), strict=True):
            text = text_of(needed(row.example, "example", "a teacher"))
            words = tuple(text[first:last] for first, last in spans(text))
            found.append(Worth(scores[: len(words)], candidates[: len(words)], words, text))
    return found


def attention_of_words(looks: np.ndarray, sample: Sample, count: int) -> np.ndarray:
    """[CLS]'s attention (layers, T + R) to each raw word (layers, count), summed over its pieces; 0 of one not read."""
    word = needed(sample.rows[right_row(sample)].text, "text", "a student").word
    inside = (word >= 0) & (word < count)
    of_words = np.zeros((len(looks), count))
    np.add.at(of_words.T, word[inside], looks[:, : len(word)][:, inside].T)
    return of_words


def agreement(attention: np.ndarray, worth: Worth, most: int) -> np.ndarray:
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
        chosen = select(worth.scores, worth.candidates, most)
        looked_at = select(row, worth.candidates, most)
        shared = len(np.intersect1d(chosen, looked_at)) / many
        ranks = ranks_agree(row[places], worth.scores[places])
        found.append([ranks, shared, many / len(places)])
    return np.array(found)


def shown(worth: Worth, attentions: Sequence[np.ndarray]) -> dict[str, Any]:
    """A text's words with the teacher's scores and each model's attention, the mean of layers, as JSON (Figure 2)."""
    means = [attention.mean(0) for attention in attentions]
    rows = []
    for number, word in enumerate(worth.words):
        score = round(float(worth.scores[number]), 6) if worth.candidates[number] else None
        attention = [round(float(mean[number]), 6) for mean in means]
        rows.append({"word": word, "score": score, "attention": attention})
    return {"text": worth.text, "words": rows}
