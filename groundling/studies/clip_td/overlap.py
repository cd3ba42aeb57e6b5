"""How much choices share with what they are asked about: CLIP-TD's Table 9, and what tags alone would answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from groundling.data.text.words import stop_words
from groundling.studies.clip_td.lines import MASK, PARTS, Line, Part, Text

Lemma = Callable[[str], str]
"""The word that a form is a form of: WordNet's, or simply the form in lower case."""
WORD = re.compile(r"[A-Za-z]+(-[A-Za-z]+)*")
STOPS = stop_words()


def is_content(token: object) -> bool:
    """Whether a token is a word that says something: no tag, stop word, mark, number or mask."""
    if not isinstance(token, str) or token == MASK:
        return False
    return WORD.fullmatch(token) is not None and len(token) > 1 and token.lower() not in STOPS


def content(text: Text, lemma: Lemma) -> set[str]:
    """The lemmas of a text's content words."""
    return {lemma(token) for token in text if isinstance(token, str) and is_content(token)}


def labels(line: Line, lemma: Lemma) -> set[str]:
    """The lemmas of the classes of an image's objects, which is the image's side of Table 9."""
    return {lemma(name) for name in line.item.objects}


def _everything(text: Text, line: Line) -> set[str]:
    """Every word in lower case, stop words and marks too, and every tag as its object."""
    out = {token.lower() for token in text if isinstance(token, str) and token != MASK}
    return out | {f"object {number}" for number in _tags(text)}


def _tags(text: Text) -> set[int]:
    return {number for token in text if isinstance(token, list) for number in token}


def measured(lines: Sequence[Line], lemma: Lemma) -> dict[str, Any]:
    """Table 9's numbers, and the tags-alone baseline, of both parts of some lines.

    The paper says neither whether stop words and tags count nor which lemmas: `question` and `image` count content
    words by lemma, without tags; `question, every token` counts all words and tags. Rationales are asked after the
    right answer, too.
    """
    out: dict[str, Any] = {"items": len(lines)}
    for part in PARTS:
        counts: dict[str, list[list[int]]] = {
            "question": [],
            "image": [],
            "question, every token": [],
        }
        for line in lines:
            asked = line.asked(part)
            words = [content(choice, lemma) for choice in line.choices(part)]
            told = content(asked, lemma)
            seen = labels(line, lemma)
            every = _everything(asked, line)
            counts["question"].append([len(one & told) for one in words])
            counts["image"].append([len(one & seen) for one in words])
            counts["question, every token"].append(
                [len(_everything(choice, line) & every) for choice in line.choices(part)]
            )
        right = np.array([line.right(part) for line in lines])
        table = {name: compared(np.array(rows), right) for name, rows in counts.items()}
        out[part] = {**table, "tags alone": tags_alone(lines, part)}
    return out


def compared(counts: np.ndarray, right: np.ndarray) -> dict[str, float]:
    """Table 9's two columns of counts (N, 4), the right choice of each row being `right` (N,).

    Means over items, those of wrong choices over three first; shares of the items in which the right choice has more
    than the mean wrong one, the reverse, and neither.
    """
    is_right = np.arange(counts.shape[1]) == right[:, None]
    correct = counts[is_right]
    incorrect = counts[~is_right].reshape(len(counts), -1).mean(1)
    return {
        "correct": float(correct.mean()),
        "incorrect": float(incorrect.mean()),
        "correct has more": float((correct > incorrect).mean()),
        "incorrect has more": float((correct < incorrect).mean()),
        "neither": float((correct == incorrect).mean()),
    }


def tags_alone(lines: Sequence[Line], part: Part) -> dict[str, float]:
    """How often the choice that shares most tags with the question is right; no word is read.

    `first of the best` predicts the first of equals, and is an accuracy; `among the best` counts an item wherever the
    right choice is one of them. The release reports both (yekeren/VCR-shortcut-effects-study, tools/cheat.py: about
    0.29 and above 0.65 for answers).
    """
    first = []
    among = []
    for line in lines:
        asked = _tags(line.asked(part))
        shared = [len(_tags(choice) & asked) for choice in line.choices(part)]
        right = line.right(part)
        first.append(shared.index(max(shared)) == right)
        among.append(shared[right] == max(shared))
    return {"first of the best": fmean(first), "among the best": fmean(among)}
