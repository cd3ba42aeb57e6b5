"""Questions about the world's nouns, as rows of sentence and label: two on looks, two that text alone answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from groundling.world.language import ATTRIBUTES, FRAMES, THINGS, Noun, sentence

ROWS = {"train": 2400, "dev": 400, "test": 800}
ODD_RULES = (
    "q shares at least 3 attributes with p, r at most 1",
    "q shares at least 2 more attributes with p than r",
)

Row = tuple[str, int]
Random = Callable[[str, int | str], np.random.Generator]


def truth(random: Random, split: str, nouns: list[Noun], cap: int) -> list[Row]:
    """`the zib is red .`: per noun and attribute one true and one false; each value as often false as true."""
    rng, rows = random("truth", split), []
    nouns = nouns[: cap // 8]
    for column, values in enumerate(ATTRIBUTES.values()):
        true = [noun.looks[column] for noun in nouns]
        false = [true[i] for i in rng.permutation(len(true))]
        for i, word in enumerate(true):
            if false[i] == word:
                swaps = [j for j, taken in enumerate(false) if word not in (taken, true[j])]
                if swaps:
                    j = swaps[rng.integers(len(swaps))]
                    false[i], false[j] = false[j], false[i]
                else:
                    false[i] = next(value for value in values if value != word)
        for noun, yes, no in zip(nouns, true, false, strict=True):
            rows += [(f"the {noun.name} is {yes} .", 1), (f"the {noun.name} is {no} .", 0)]
    return rows


def odd(random: Random, split: str, nouns: list[Noun], cap: int) -> tuple[list[Row], str]:
    """`the p looks like the q , not the r .`; a noun is similar about as often as not, so no noun gives it away."""
    nouns = nouns[:120]  # a table of all triples; these give more rows than any cap
    looks = np.array([noun.looks for noun in nouns]).reshape(-1, 4)
    shared = (looks[:, None] == looks[None]).sum(axis=2)
    near, far = shared[:, :, None], shared[:, None, :]
    own = np.eye(len(nouns), dtype=bool)
    apart = ~(own[:, :, None] | own[:, None, :] | own[None, :, :])
    rows: list[Row] = []
    for rule, fits in zip(ODD_RULES, ((near >= 3) & (far <= 1), near - far >= 2), strict=True):
        triples = np.argwhere(fits & apart)
        rng, rows, tilt = random("odd", split), [], np.zeros(len(nouns), dtype=int)
        triples = triples[rng.permutation(len(triples))]
        while len(triples) and len(rows) < cap:
            lead = np.maximum(tilt[triples[:, 1]], -tilt[triples[:, 2]])
            pick = int(lead.argmin())
            if lead[pick] > 1:
                break
            p, q, r = triples[pick]
            triples = np.delete(triples, pick, axis=0)
            tilt[q] += 1
            tilt[r] -= 1
            for label, (one, two) in ((1, (q, r)), (0, (r, q))):
                like, unlike = nouns[one].name, nouns[two].name
                rows.append(
                    (f"the {nouns[p].name} looks like the {like} , not the {unlike} .", label)
                )
        if len(rows) >= min(cap, 4 * len(nouns)):
            return rows, rule
    return rows, ODD_RULES[-1]


def category(random: Random, split: str, nouns: list[Noun], cap: int) -> list[Row]:
    """`she eats the zib with salt .`: per noun as many frames of its own category as of the others."""
    rng, rows = random("category", split), []
    nouns = nouns[: cap // 2]
    for noun in nouns:
        frames: tuple[list[str], list[str]] = [], []
        for category, parts in FRAMES.items():
            for person, verb, ending in itertools.product(("she", "he"), *parts):
                frames[category == noun.category].append(
                    f"{person} {verb} the {noun.name} {ending} ."
                )
        for label, texts in enumerate(frames):
            order = rng.permutation(len(texts))[: min(len(frames[1]), cap // 2 // len(nouns))]
            rows += [(texts[i], label) for i in order]
    return rows


def order(random: Random, split: str, nouns: list[Noun], cap: int, known: set[str]) -> list[Row]:
    """A new sentence, and the same with two words of different classes exchanged, which no template yields."""
    rows: list[Row] = []
    names, seen = {noun.name for noun in nouns}, set(known)
    classes = dict.fromkeys(("a", "the"), "article") | dict.fromkeys(
        (*names, *THINGS, "thing"), "noun"
    )
    classes |= dict.fromkeys(itertools.chain(*ATTRIBUTES.values()), "attribute")
    for index in range(20 * cap if nouns else 0):
        rng = random(f"order/{split}", index)
        text = sentence(rng, nouns, 0.0)
        words = text.split()
        pairs = [
            (i, j)
            for i, j in itertools.combinations(range(len(words) - 1), 2)
            if classes.get(words[i], words[i]) != classes.get(words[j], words[j])
        ]
        i, j = pairs[rng.integers(len(pairs))]
        words[i], words[j] = words[j], words[i]
        swapped = " ".join(words)
        if names & set(words) and not {text, swapped} & seen:
            seen |= {text, swapped}
            rows += [(text, 1), (swapped, 0)]
        if len(rows) >= cap:
            break
    return rows
