"""Nouns, sentences and questions of a rendered world, in the language of its family.

Nouns are invented names with visual attributes, categories and splits, as balanced as their count allows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from groundling.core.rng import generator
from groundling.studies.worlds.families import VisualAttributes, WorldFamily, draw_attributes


@dataclass(frozen=True)
class Noun:
    """An invented noun for objects of one category with the same visual attributes."""

    name: str
    """The word."""
    attributes: VisualAttributes
    """A value of each of the family's visual attributes."""
    category: str
    """One of the family's categories; only the text shows it."""
    split: str
    """Probing split: train, dev or test."""


def phrase(
    rng: Generator,
    family: WorldFamily,
    name: str,
    attributes: VisualAttributes,
    stated_rate: float,
) -> str:
    """A noun, with probability `stated_rate` with one attribute; without a name, a "thing" with two to four attributes.

    The family's `box_attribute` of a "thing" is always stated: a contrastive teacher learns it last, and only from
    captions.
    """
    kinds = list(family.attributes)
    order = rng.permutation(len(kinds))
    bias = rng.random()
    number_of_others = int(rng.integers(1, 4))
    if name:
        words = [attributes[order[0]]] if bias < stated_rate else []
    else:
        others = [kinds[i] for i in order if kinds[i] != family.box_attribute]
        mentioned = {family.box_attribute, *others[:number_of_others]}
        words = [attributes[kinds.index(kind)] for kind in family.phrase_order if kind in mentioned]
    noun = name or family.thing
    return " ".join([*words, noun] if family.attributes_first else [noun, *words])


def sentence(rng: Generator, family: WorldFamily, nouns: Sequence[Noun], stated_rate: float) -> str:
    """A line of text about `nouns`; each mention states an attribute with probability `stated_rate`."""
    percents = [percent for percent, _ in family.templates]
    group = np.searchsorted(np.cumsum(percents), rng.integers(100), side="right")
    templates = family.templates[int(group)][1].splitlines()
    template = templates[rng.integers(len(templates))]
    chosen = [nouns[i] for i in rng.permutation(len(nouns))[:2]]
    mentions = iter(chosen * 2)
    things = iter([str(thing) for thing in rng.permutation(list(family.things))])
    fixed = _fixed_words(rng, family, chosen[0].category)
    words = []
    for token in template.split():
        if token in ("N", "O"):
            noun = next(mentions)
            if token == "N" or rng.random() < 0.6:
                words.append(phrase(rng, family, noun.name, noun.attributes, stated_rate))
            else:
                words.append(phrase(rng, family, "", draw_attributes(rng, family), stated_rate))
        elif token == "T":
            words.append(next(things))
        elif token == "P":
            words.append(family.things[next(things)])
        else:
            words.append(fixed.get(token, token))
    return " ".join(words)


def _fixed_words(rng: Generator, family: WorldFamily, category: str) -> dict[str, str]:
    """Words for the letters A, B, K, R, S, V and E of a template; all are always drawn."""
    attribute = list(family.attributes)[rng.integers(len(family.attributes))]
    values = rng.permutation(family.attributes[attribute])
    relation = family.relations[rng.integers(len(family.relations))]
    person = family.persons[rng.integers(len(family.persons))]
    verbs, endings = family.categories[category]
    return {
        "A": str(values[0]),
        "B": str(values[1]),
        "K": attribute,
        "R": relation,
        "S": person,
        "V": verbs[rng.integers(len(verbs))],
        "E": endings[rng.integers(len(endings))],
    }


def draw_nouns(
    family: WorldFamily, seed: int, nouns: int, test_nouns: int, dev_nouns: int
) -> list[Noun]:
    """Nouns whose attributes and categories are as balanced and independent as the count allows."""
    rng = generator(seed, "nouns", 0)
    names = family.noun_names()
    spelling = rng.permutation(len(names))
    properties = (*family.attributes.values(), tuple(family.categories))
    counts = [len(values) for values in properties]
    combinations = np.array(list(itertools.product(*map(range, counts))))
    # Indicators (N, sum of counts), scaled by the root of a property's value count.
    columns = zip(combinations.T, counts, strict=True)
    one_hot = np.concatenate([np.eye(count)[one] * count**0.5 for one, count in columns], axis=1)
    picks = _pick(rng, nouns, one_hot, len(family.categories))
    values = combinations[picks]
    splits = _split(rng, test_nouns, dev_nouns, values, one_hot[picks])
    drawn = []
    for row, name, split in zip(values, spelling, splits, strict=False):
        *attributes, category = (options[i] for options, i in zip(properties, row, strict=True))
        drawn.append(Noun(names[name], tuple(attributes), category, str(split)))
    return drawn


def _pick(rng: Generator, nouns: int, one_hot: np.ndarray, categories: int) -> list[int]:
    """Choose each noun's combination: first unused visual attributes, then rare values and value pairs, then chance."""
    attribute_sets = np.arange(len(one_hot)) // categories
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
        look_alikes = (shared == attributes.shape[1] - 1).sum(axis=1)
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


def truth_rows(
    rng: Generator, family: WorldFamily, nouns: Sequence[Noun], cap: int
) -> list[LabelledSentence]:
    """`the zib is red .`: one true and one false row per noun and attribute; values are balanced over labels."""
    rows: list[LabelledSentence] = []
    nouns = nouns[: cap // (2 * len(family.attributes))]
    for column, values in enumerate(family.attributes.values()):
        true = [noun.attributes[column] for noun in nouns]
        false = _false_values(rng, true, values)
        for noun, yes, no in zip(nouns, true, false, strict=True):
            rows.append((family.truth.format(noun=noun.name, value=yes), 1))
            rows.append((family.truth.format(noun=noun.name, value=no), 0))
    return rows


def odd_rows(
    random: Callable[[], Generator], family: WorldFamily, nouns: Sequence[Noun], cap: int
) -> tuple[list[LabelledSentence], str]:
    """`the p looks like the q , not the r .` as rows, and the rule of `ODD_RULES` that chose the triples.

    Each noun is about as often q as r, so no noun predicts the answer. Each rule begins with its own generator of
    `random`.
    """
    nouns = nouns[:ODD_NOUNS]
    enough = min(cap, 4 * len(nouns))
    rows: list[LabelledSentence] = []
    for rule, triples in zip(ODD_RULES, _triples(nouns), strict=True):
        rows = _odd_rows(random(), family.odd, nouns, triples, cap)
        if len(rows) >= enough:
            return rows, rule
    return rows, ODD_RULES[-1]


def category_rows(
    rng: Generator, family: WorldFamily, nouns: Sequence[Noun], cap: int
) -> list[LabelledSentence]:
    """`she eats the zib with salt .`: as many sentences of the noun's category as of other categories."""
    rows: list[LabelledSentence] = []
    nouns = nouns[: cap // 2]
    for noun in nouns:
        texts: tuple[list[str], list[str]] = [], []
        for category, (verbs, endings) in family.categories.items():
            for person, verb, ending in itertools.product(family.persons, verbs, endings):
                words = {"person": person, "verb": verb, "noun": noun.name, "ending": ending}
                texts[category == noun.category].append(family.category.format(**words))
        most = min(len(texts[1]), cap // 2 // len(nouns))
        for label, own in enumerate(texts):
            rows += [(own[i], label) for i in rng.permutation(len(own))[:most]]
    return rows


def order_rows(
    random: Callable[[int], Generator],
    family: WorldFamily,
    nouns: Sequence[Noun],
    cap: int,
    excluded: set[str],
) -> list[LabelledSentence]:
    """New sentences, and the same with two words of different classes swapped, which no template produces.

    `random`: the generator of each attempt. `excluded`: sentences to exclude, such as those of the corpus.
    """
    rows: list[LabelledSentence] = []
    names = {noun.name for noun in nouns}
    # Every other word forms a class of its own.
    classes: dict[str, str] = {}
    for kind, words in family.word_classes.items():
        classes |= dict.fromkeys(words, kind)
    classes |= dict.fromkeys((*names, *family.things, family.thing), "noun")
    classes |= dict.fromkeys(itertools.chain(*family.attributes.values()), "attribute")
    used = set(excluded)
    for index in range(20 * cap):  # attempts: many sentences are already known
        rng = random(index)
        text = sentence(rng, family, nouns, 0.0)
        swapped = _swapped(rng, text, classes)
        if names.isdisjoint(text.split()) or text in used or swapped in used:
            continue
        used |= {text, swapped}
        rows += [(text, 1), (swapped, 0)]
        if len(rows) >= cap:
            break
    return rows


def _false_values(rng: Generator, true: list[str], values: tuple[str, ...]) -> list[str]:
    """The true values in an order without fixed points, if there is one."""
    false = [true[i] for i in rng.permutation(len(true))]
    for i, word in enumerate(true):
        if false[i] != word:
            continue
        # Swapping with these makes both values false.
        partners = [j for j, other in enumerate(false) if word not in (other, true[j])]
        if partners:
            j = partners[rng.integers(len(partners))]
            false[i], false[j] = false[j], false[i]
        else:
            false[i] = next(value for value in values if value != word)
    return false


def _triples(nouns: Sequence[Noun]) -> tuple[np.ndarray, np.ndarray]:
    """All (p, q, r) that each of the two `ODD_RULES` allows, as noun numbers (N, 3)."""
    attributes = np.array([noun.attributes for noun in nouns])
    shared = (attributes[:, None] == attributes[None]).sum(axis=2)
    shared_q = shared[:, :, None]
    shared_r = shared[:, None, :]
    same = np.eye(len(nouns), dtype=bool)
    distinct = ~(same[:, :, None] | same[:, None, :] | same[None, :, :])
    clear = (shared_q >= 3) & (shared_r <= 1)
    clear_enough = shared_q - shared_r >= 2
    return np.argwhere(clear & distinct), np.argwhere(clear_enough & distinct)


def _odd_rows(
    rng: Generator, statement: str, nouns: Sequence[Noun], triples: np.ndarray, cap: int
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
        subject, like, unlike = (nouns[number].name for number in (p, q, r))
        rows.append((statement.format(subject=subject, like=like, unlike=unlike), 1))
        rows.append((statement.format(subject=subject, like=unlike, unlike=like), 0))
    return rows


def _swapped(rng: Generator, text: str, classes: dict[str, str]) -> str:
    words = text.split()
    kinds = [classes.get(word, word) for word in words]
    places = itertools.combinations(range(len(words) - 1), 2)
    pairs = [(i, j) for i, j in places if kinds[i] != kinds[j]]
    i, j = pairs[rng.integers(len(pairs))]
    words[i], words[j] = words[j], words[i]
    return " ".join(words)
