"""The language of a rendered world: nouns, attributes, categories, templates, sentences, and questions.

Nouns are invented names with visual attributes, categories and splits, as balanced as their count allows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from groundling.core.rng import generator

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "colour": ("red", "green", "blue", "yellow", "purple", "pink"),
    "shape": ("round", "square", "bent", "tall", "hollow", "flat"),
    "size": ("small", "large"),
    "texture": ("plain", "striped", "dotted"),
}
"""Values by attribute; all tuples of visual attributes have this order."""
SPOKEN = (2, 0, 3, 1)
"""Attribute numbers in the order of English adjectives: size, colour, texture, shape."""
SHAPE = list(ATTRIBUTES).index("shape")
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
"""The inverse of each relation."""
RELATIONS = tuple(OPPOSITE)
THINGS = {
    "block": "blocks",
    "toy": "toys",
    "ball": "balls",
    "box": "boxes",
    "cup": "cups",
    "hat": "hats",
}
"""Ordinary objects, singular and plural."""
FRAMES = {
    "animal": (
        ("feeds", "walks", "pets", "calls"),
        ("in the morning", "at the farm", "after school"),
    ),
    "food": (("eats", "cooks", "tastes", "bakes"), ("with salt", "for dinner", "in the kitchen")),
    "tool": (("uses", "repairs", "sharpens", "lends"), ("at work", "in the shed", "before lunch")),
    "plant": (
        ("waters", "prunes", "grows", "trims"),
        ("in the garden", "in spring", "by the fence"),
    ),
}
"""Categories with their verbs and endings; verb and ending always agree, so only the noun can be wrong."""
TEMPLATES: tuple[tuple[int, str], ...] = (
    (20, "there is a O .\na O is R a O .\na O is R a O ."),
    (
        18,
        """the T is A .
        the T is not A .
        the T is A , not B .
        the T and the T are A .
        the two P have the same K .
        the A T and the A T have the same K .
        the A T and the B T do not have the same K .
        the T looks like the T .
        the T looks like the T , not the T .
        the A T looks like the A T , not the B T .""",
    ),
    (
        12,
        """the N is near the N .
        the N is R the N .
        the N is near the A T .
        the N is not here .
        S sees the N and the N .
        S puts the N on the table , not the N .
        there is a N and a T .""",
    ),
    # Verb and ending appear separately, too: together, one predicts the other without the noun.
    (
        50,
        "S V the N .\nS V the N .\nS V the N .\nS sees the N E .\nS sees the N E .\nS V the N E .",
    ),
)
"""Percentage of the text, and templates, one per line.

N noun; O noun or described object as in captions; T, P ordinary object and its plural; A, B two values of attribute K;
R relation; S person; V, E verb and ending of the category of N.
"""

VisualAttributes = tuple[str, ...]
"""Colour, shape, size, texture, in the order of ATTRIBUTES."""
SYLLABLES = ("bdfgklmnprstvz", "aeiou", "bdglmnrvz", "aeiou", "kv")
"""Possible letters at each place of a name."""
PROPERTIES = (*ATTRIBUTES.values(), tuple(FRAMES))
"""Values of the four visual attributes, and the categories last."""


@dataclass(frozen=True)
class Noun:
    """An invented noun for objects of one category with the same visual attributes."""

    name: str
    """The word."""
    colour: str
    """Colour of its objects."""
    shape: str
    """Shape of its objects."""
    size: str
    """Size of its objects."""
    texture: str
    """Texture of its objects."""
    category: str
    """Animal, food, tool or plant; only the text shows it."""
    split: str
    """Probing split: train, dev or test."""

    @property
    def attributes(self) -> VisualAttributes:
        """The four visual attributes, in the order of ATTRIBUTES."""
        return (self.colour, self.shape, self.size, self.texture)


def draw_attributes(rng: Generator) -> VisualAttributes:
    """Four visual attributes, each drawn uniformly."""
    places = rng.integers((6, 6, 2, 3))
    return tuple(values[i] for values, i in zip(ATTRIBUTES.values(), places, strict=True))


def phrase(rng: Generator, name: str, attributes: VisualAttributes, stated_rate: float) -> str:
    """A noun, with probability `stated_rate` after one attribute; without a name, "thing" after two to four attributes.

    The shape of a "thing" is always stated: a contrastive teacher learns it last, and only from captions.
    """
    order = rng.permutation(4)
    bias = rng.random()
    number_of_others = int(rng.integers(1, 4))
    if name:
        return f"{attributes[order[0]]} {name}" if bias < stated_rate else name
    mentioned = {SHAPE}
    mentioned.update([i for i in order if i != SHAPE][:number_of_others])
    words = [attributes[i] for i in SPOKEN if i in mentioned]
    return " ".join([*words, "thing"])


def sentence(rng: Generator, nouns: Sequence[Noun], stated_rate: float) -> str:
    """A line of text about `nouns`; each mention states an attribute with probability `stated_rate`."""
    template = _template(rng)
    chosen = [nouns[i] for i in rng.permutation(len(nouns))[:2]]
    mentions = iter(chosen * 2)
    things = iter([str(thing) for thing in rng.permutation(list(THINGS))])
    fixed = _fixed_words(rng, chosen[0].category)
    words = []
    for token in template.split():
        if token in ("N", "O"):
            noun = next(mentions)
            if token == "N" or rng.random() < 0.6:
                words.append(phrase(rng, noun.name, noun.attributes, stated_rate))
            else:
                words.append(phrase(rng, "", draw_attributes(rng), stated_rate))
        elif token == "T":
            words.append(next(things))
        elif token == "P":
            words.append(THINGS[next(things)])
        else:
            words.append(fixed.get(token, token))
    return " ".join(words)


def _template(rng: Generator) -> str:
    percents = [percent for percent, _ in TEMPLATES]
    group = np.searchsorted(np.cumsum(percents), rng.integers(100), side="right")
    templates = TEMPLATES[int(group)][1].splitlines()
    return templates[rng.integers(len(templates))]


def _fixed_words(rng: Generator, category: str) -> dict[str, str]:
    """Words for the letters A, B, K, R, S, V and E of a template; all are always drawn."""
    attribute = list(ATTRIBUTES)[rng.integers(4)]
    values = rng.permutation(ATTRIBUTES[attribute])
    relation = RELATIONS[rng.integers(4)]
    person = ("she", "he")[rng.integers(2)]
    verbs, endings = FRAMES[category]
    return {
        "A": str(values[0]),
        "B": str(values[1]),
        "K": attribute,
        "R": relation,
        "S": person,
        "V": verbs[rng.integers(len(verbs))],
        "E": endings[rng.integers(len(endings))],
    }


def draw_nouns(seed: int, nouns: int, test_nouns: int, dev_nouns: int) -> list[Noun]:
    """Nouns whose attributes and categories are as balanced and independent as the count allows."""
    rng = generator(seed, "nouns", 0)
    names = ["".join(letters) for letters in itertools.product(*SYLLABLES)]
    spelling = rng.permutation(len(names))
    counts = [len(values) for values in PROPERTIES]
    combinations = np.array(list(itertools.product(*map(range, counts))))
    one_hot = _one_hot(combinations, counts)
    picks = _pick(rng, nouns, one_hot)
    values = combinations[picks]
    splits = _split(rng, test_nouns, dev_nouns, values, one_hot[picks])
    drawn = []
    for row, name, split in zip(values, spelling, splits, strict=False):
        colour, shape, size, texture, category = (
            options[i] for options, i in zip(PROPERTIES, row, strict=True)
        )
        drawn.append(Noun(names[name], colour, shape, size, texture, category, str(split)))
    return drawn


def _one_hot(combinations: np.ndarray, counts: list[int]) -> np.ndarray:
    """Combinations (N, 5) as indicators (N, sum of counts), scaled by the square root of a property's value count."""
    columns = []
    for column, count in enumerate(counts):
        columns.append(np.eye(count)[combinations[:, column]] * count**0.5)
    return np.concatenate(columns, axis=1)


def _pick(rng: Generator, nouns: int, one_hot: np.ndarray) -> list[int]:
    """Choose each noun's combination: first unused visual attributes, then rare values and value pairs, then chance."""
    attribute_sets = np.arange(len(one_hot)) // len(FRAMES)
    uses = np.zeros(len(one_hot))
    together = np.zeros((one_hot.shape[1], one_hot.shape[1]))
    weights = 1 + 4 * np.eye(len(together))  # single values weigh five times as much as pairs
    picks: list[int] = []
    for _ in range(nouns):
        repeats = 1e6 * uses[attribute_sets]
        commonness = ((one_hot @ together) * one_hot).sum(axis=1)
        cost = repeats + commonness + rng.random(len(one_hot))
        pick = int(cost.argmin())
        picks.append(pick)
        uses[attribute_sets[pick]] += 1
        picked = one_hot[pick]
        together += np.outer(picked, picked) * weights
    return picks


def _split(
    rng: Generator, test: int, dev: int, values: np.ndarray, one_hot: np.ndarray
) -> np.ndarray:
    """The split of each noun (N,): test and dev take nouns with values that are still rare in the split."""
    attributes = values[:, :-1]
    splits = np.full(len(values), "train")
    for split in ["test"] * test + ["dev"] * dev:
        inside = splits == split
        commonness = 2 * one_hot @ one_hot[inside].sum(axis=0)
        # Ties prefer a noun with one similar noun in the split: the probe "odd" needs such pairs.
        shared = (attributes[:, None, :] == attributes[None, inside, :]).sum(axis=2)
        look_alikes = (shared == len(ATTRIBUTES) - 1).sum(axis=1)
        cost = commonness + (look_alikes != 1) + rng.random(len(values))
        cost[splits != "train"] = np.inf
        splits[cost.argmin()] = split
    return splits


# Questions about the nouns, as rows of sentence and label: two on visual attributes, two that text alone answers.

ROWS = {"train": 2400, "dev": 400, "test": 800}
"""Maximum number of rows in each split's file."""
ODD_RULES = (
    "q shares at least 3 attributes with p, r at most 1",
    "q shares at least 2 more attributes with p than r",
)
"""Conditions on triples of nouns; the second is used if the first gives too few."""
ODD_NOUNS = 120
"""Maximum number of nouns whose triples are enumerated; these give more rows than any cap."""

LabelledSentence = tuple[str, int]
"""A sentence and its label."""
GeneratorOf = Callable[[str, int | str], Generator]
"""The world's random generators by stream and index."""


@dataclass(frozen=True)
class NounQuestions:
    """The four kinds of questions on the nouns of one split."""

    random: GeneratorOf
    """The world's random generators."""
    split: str
    """train, dev or test."""
    nouns: list[Noun]
    """The nouns of the split."""
    cap: int
    """Maximum number of rows of a kind."""

    def truth(self) -> list[LabelledSentence]:
        """`the zib is red .`: one true and one false row per noun and attribute; values are balanced over labels."""
        rng = self.random("truth", self.split)
        rows: list[LabelledSentence] = []
        nouns = self.nouns[: self.cap // 8]
        for column, values in enumerate(ATTRIBUTES.values()):
            true = [noun.attributes[column] for noun in nouns]
            false = _false_values(rng, true, values)
            for noun, yes, no in zip(nouns, true, false, strict=True):
                rows.append((f"the {noun.name} is {yes} .", 1))
                rows.append((f"the {noun.name} is {no} .", 0))
        return rows

    def odd(self) -> tuple[list[LabelledSentence], str]:
        """`the p looks like the q , not the r .` as rows, and the rule of `ODD_RULES` that chose the triples.

        Each noun is about as often q as r, so no noun predicts the answer.
        """
        nouns = self.nouns[:ODD_NOUNS]
        enough = min(self.cap, 4 * len(nouns))
        rows: list[LabelledSentence] = []
        for rule, triples in zip(ODD_RULES, _triples(nouns), strict=True):
            rng = self.random("odd", self.split)
            rows = _odd_rows(rng, nouns, triples, self.cap)
            if len(rows) >= enough:
                return rows, rule
        return rows, ODD_RULES[-1]

    def category(self) -> list[LabelledSentence]:
        """`she eats the zib with salt .`: as many sentences of the noun's category as of other categories."""
        rng = self.random("category", self.split)
        rows: list[LabelledSentence] = []
        nouns = self.nouns[: self.cap // 2]
        for noun in nouns:
            right, wrong = _frames(noun)
            most = min(len(right), self.cap // 2 // len(nouns))
            for i in rng.permutation(len(wrong))[:most]:
                rows.append((wrong[i], 0))
            for i in rng.permutation(len(right))[:most]:
                rows.append((right[i], 1))
        return rows

    def order(self, excluded: set[str]) -> list[LabelledSentence]:
        """New sentences, and the same with two words of different classes swapped, which no template produces.

        `excluded`: sentences to exclude, such as those of the corpus.
        """
        rows: list[LabelledSentence] = []
        if not self.nouns:
            return rows
        names = {noun.name for noun in self.nouns}
        classes = _word_classes(names)
        used = set(excluded)
        for index in range(20 * self.cap):  # attempts: many sentences are already known
            rng = self.random(f"order/{self.split}", index)
            text = sentence(rng, self.nouns, 0.0)
            swapped = _swapped(rng, text, classes)
            if names.isdisjoint(text.split()) or text in used or swapped in used:
                continue
            used |= {text, swapped}
            rows.append((text, 1))
            rows.append((swapped, 0))
            if len(rows) >= self.cap:
                break
        return rows


def _false_values(rng: Generator, true: list[str], values: tuple[str, ...]) -> list[str]:
    """The true values in an order without fixed points, if there is one."""
    false = [true[i] for i in rng.permutation(len(true))]
    for i, word in enumerate(true):
        if false[i] != word:
            continue
        partners = []  # swapping with these makes both values false
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
    """All (p, q, r) that each of the two `ODD_RULES` allows, as noun numbers (N, 3)."""
    attributes = np.array([noun.attributes for noun in nouns]).reshape(-1, 4)
    shared = (attributes[:, None] == attributes[None]).sum(axis=2)
    shared_q = shared[:, :, None]
    shared_r = shared[:, None, :]
    same = np.eye(len(nouns), dtype=bool)
    distinct = ~(same[:, :, None] | same[:, None, :] | same[None, :, :])
    clear = (shared_q >= 3) & (shared_r <= 1)
    clear_enough = shared_q - shared_r >= 2
    return np.argwhere(clear & distinct), np.argwhere(clear_enough & distinct)


def _odd_rows(
    rng: Generator, nouns: list[Noun], triples: np.ndarray, cap: int
) -> list[LabelledSentence]:
    """A true and a false row for each selected triple (p, q, r) of `triples`, noun numbers (N, 3)."""
    rows: list[LabelledSentence] = []
    tilt = np.zeros(len(nouns), dtype=int)  # how often a noun was q, minus how often r
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
    """Sentences with the verbs and endings of the noun's own category, and of other categories."""
    right: list[str] = []
    wrong: list[str] = []
    for category, (verbs, endings) in FRAMES.items():
        texts = right if category == noun.category else wrong
        for person, verb, ending in itertools.product(("she", "he"), verbs, endings):
            texts.append(f"{person} {verb} the {noun.name} {ending} .")
    return right, wrong


def _swapped(rng: Generator, text: str, classes: dict[str, str]) -> str:
    """A sentence with two words of different classes swapped; the full stop stays."""
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
    """Word class of articles, nouns and attributes; every other word forms its own class."""
    classes = dict.fromkeys(("a", "the"), "article")
    classes |= dict.fromkeys((*names, *THINGS, "thing"), "noun")
    classes |= dict.fromkeys(itertools.chain(*ATTRIBUTES.values()), "attribute")
    return classes
