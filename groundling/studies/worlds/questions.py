"""Questions about the world's nouns, as rows of sentence and label: two on looks, two that text alone answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from groundling.studies.worlds.language import ATTRIBUTES, FRAMES, THINGS, Noun, sentence

ROWS = {"train": 2400, "dev": 400, "test": 800}
"""Most rows of a split's file."""
ODD_RULES = (
    "q shares at least 3 attributes with p, r at most 1",
    "q shares at least 2 more attributes with p than r",
)
"""Which triples of nouns may be asked about; the second holds where the first gives too few."""
ODD_NOUNS = 120
"""Nouns of which all triples are listed; they give more rows than any cap."""

Row = tuple[str, int]
"""A sentence and its label."""
Random = Callable[[str, int | str], Generator]
"""The world's generators by stream and index."""


@dataclass(frozen=True)
class Questions:
    """The four sorts of questions on the nouns of one split."""

    random: Random
    """The world's generators."""
    split: str
    """train, dev or test."""
    nouns: list[Noun]
    """The nouns of the split."""
    cap: int
    """Most rows of a sort."""

    def truth(self) -> list[Row]:
        """`the zib is red .`: per noun and attribute one true and one false; each value as often false as true."""
        rng = self.random("truth", self.split)
        rows: list[Row] = []
        nouns = self.nouns[: self.cap // 8]
        for column, values in enumerate(ATTRIBUTES.values()):
            true = [noun.looks[column] for noun in nouns]
            false = _false_values(rng, true, values)
            for noun, yes, no in zip(nouns, true, false, strict=True):
                rows.append((f"the {noun.name} is {yes} .", 1))
                rows.append((f"the {noun.name} is {no} .", 0))
        return rows

    def odd(self) -> tuple[list[Row], str]:
        """`the p looks like the q , not the r .` as rows, and which of `ODD_RULES` chose the nouns.

        A noun is similar about as often as not, so no noun gives the answer away.
        """
        nouns = self.nouns[:ODD_NOUNS]
        enough = min(self.cap, 4 * len(nouns))
        rows: list[Row] = []
        for rule, triples in zip(ODD_RULES, _triples(nouns), strict=True):
            rng = self.random("odd", self.split)
            rows = _odd_rows(rng, nouns, triples, self.cap)
            if len(rows) >= enough:
                return rows, rule
        return rows, ODD_RULES[-1]

    def category(self) -> list[Row]:
        """`she eats the zib with salt .`: per noun as many frames of its own category as of the others."""
        rng = self.random("category", self.split)
        rows: list[Row] = []
        nouns = self.nouns[: self.cap // 2]
        for noun in nouns:
            right, wrong = _frames(noun)
            most = min(len(right), self.cap // 2 // len(nouns))
            for i in rng.permutation(len(wrong))[:most]:
                rows.append((wrong[i], 0))
            for i in rng.permutation(len(right))[:most]:
                rows.append((right[i], 1))
        return rows

    def order(self, known: set[str]) -> list[Row]:
        """A new sentence, and the same with two words of different classes exchanged, which no template yields.

        `known`: sentences that must not be asked, such as those of the corpus.
        """
        rows: list[Row] = []
        if not self.nouns:
            return rows
        names = {noun.name for noun in self.nouns}
        classes = _word_classes(names)
        seen = set(known)
        for index in range(20 * self.cap):  # tries: many a sentence is known
            rng = self.random(f"order/{self.split}", index)
            text = sentence(rng, self.nouns, 0.0)
            swapped = _swapped(rng, text, classes)
            if names.isdisjoint(text.split()) or text in seen or swapped in seen:
                continue
            seen |= {text, swapped}
            rows.append((text, 1))
            rows.append((swapped, 0))
            if len(rows) >= self.cap:
                break
        return rows


def _false_values(rng: Generator, true: list[str], values: tuple[str, ...]) -> list[str]:
    """The true values in an order in which none stands at its own place, if there is one."""
    false = [true[i] for i in rng.permutation(len(true))]
    for i, word in enumerate(true):
        if false[i] != word:
            continue
        partners = []  # with which an exchange makes both false
        for j, other in enumerate(false):
            if word != other and word != true[j]:
                partners.append(j)
        if partners:
            j = partners[rng.integers(len(partners))]
            false[i], false[j] = false[j], false[i]
        else:
            false[i] = next(value for value in values if value != word)
    return false


def _triples(nouns: list[Noun]) -> tuple[np.ndarray, np.ndarray]:
    """All (p, q, r) that the two `ODD_RULES` allow, as numbers of nouns (N, 3)."""
    looks = np.array([noun.looks for noun in nouns]).reshape(-1, 4)
    shared = (looks[:, None] == looks[None]).sum(axis=2)
    shared_q = shared[:, :, None]
    shared_r = shared[:, None, :]
    same = np.eye(len(nouns), dtype=bool)
    distinct = ~(same[:, :, None] | same[:, None, :] | same[None, :, :])
    clear = (shared_q >= 3) & (shared_r <= 1)
    clear_enough = shared_q - shared_r >= 2
    return np.argwhere(clear & distinct), np.argwhere(clear_enough & distinct)


def _odd_rows(rng: Generator, nouns: list[Noun], triples: np.ndarray, cap: int) -> list[Row]:
    """A true and a false row of each triple (p, q, r) that is taken, from `triples` (N, 3) of the nouns' numbers."""
    rows: list[Row] = []
    tilt = np.zeros(len(nouns), dtype=int)  # how much more often a noun was q than r
    triples = triples[rng.permutation(len(triples))]
    while len(triples) and len(rows) < cap:
        likes = tilt[triples[:, 1]]
        unlikes = tilt[triples[:, 2]]
        lead = np.maximum(likes, -unlikes)
        pick = int(lead.argmin())
        if lead[pick] > 1:
            break
        p, q, r = triples[pick]
        triples = np.delete(triples, pick, axis=0)
        tilt[q] += 1
        tilt[r] -= 1
        subject = nouns[p].name
        like = nouns[q].name
        unlike = nouns[r].name
        rows.append((f"the {subject} looks like the {like} , not the {unlike} .", 1))
        rows.append((f"the {subject} looks like the {unlike} , not the {like} .", 0))
    return rows


def _frames(noun: Noun) -> tuple[list[str], list[str]]:
    """Sentences with the verbs and endings of the noun's own category, and with those of the others."""
    right: list[str] = []
    wrong: list[str] = []
    for category, (verbs, endings) in FRAMES.items():
        texts = right if category == noun.category else wrong
        for person, verb, ending in itertools.product(("she", "he"), verbs, endings):
            texts.append(f"{person} {verb} the {noun.name} {ending} .")
    return right, wrong


def _swapped(rng: Generator, text: str, classes: dict[str, str]) -> str:
    """A sentence with two words exchanged that are not of one class; the full stop stays."""
    words = text.split()
    kinds = [classes.get(word, word) for word in words]
    pairs = []
    for i, j in itertools.combinations(range(len(words) - 1), 2):
        if kinds[i] != kinds[j]:
            pairs.append((i, j))
    i, j = pairs[rng.integers(len(pairs))]
    words[i], words[j] = words[j], words[i]
    return " ".join(words)


def _word_classes(names: set[str]) -> dict[str, str]:
    """Articles, nouns and attributes by word; any other word is a class of its own."""
    classes = dict.fromkeys(("a", "the"), "article")
    classes |= dict.fromkeys((*names, *THINGS, "thing"), "noun")
    classes |= dict.fromkeys(itertools.chain(*ATTRIBUTES.values()), "attribute")
    return classes
