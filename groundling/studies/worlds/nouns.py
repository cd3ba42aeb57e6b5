"""The world's nouns: invented names with looks, categories and splits, as balanced as their count allows."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.random import Generator

from groundling.core.keyed import generator
from groundling.studies.worlds.commands import WorldConfig
from groundling.studies.worlds.language import ATTRIBUTES, FRAMES, Noun

SYLLABLES = ("bdfgklmnprstvz", "aeiou", "bdglmnrvz", "aeiou", "kv")
"""The letters that may stand at each place of a name."""
PROPERTIES = (*ATTRIBUTES.values(), tuple(FRAMES))
"""The values of the four attributes and of the category, which is the last property."""


def draw_nouns(config: WorldConfig) -> list[Noun]:
    """Nouns with attributes and category as balanced, and as independent of each other, as the count allows."""
    rng = generator(config.seed, "nouns", 0)
    names = ["".join(letters) for letters in itertools.product(*SYLLABLES)]
    spelling = rng.permutation(len(names))
    counts = [len(values) for values in PROPERTIES]
    combinations = np.array(list(itertools.product(*map(range, counts))))
    one_hot = _one_hot(combinations, counts)
    picks = _pick(rng, config.nouns, one_hot)
    values = combinations[picks]
    splits = _split(rng, config, values, one_hot[picks])
    nouns = []
    for row, name, split in zip(values, spelling, splits, strict=False):
        colour, shape, size, texture, category = (
            options[i] for options, i in zip(PROPERTIES, row, strict=True)
        )
        nouns.append(Noun(names[name], colour, shape, size, texture, category, str(split)))
    return nouns


def _one_hot(combinations: np.ndarray, counts: list[int]) -> np.ndarray:
    """The combinations (N, 5) as indicators (N, sum of counts), larger where a property has more values."""
    columns = []
    for column, count in enumerate(counts):
        columns.append(np.eye(count)[combinations[:, column]] * count**0.5)
    return np.concatenate(columns, axis=1)


def _pick(rng: Generator, nouns: int, one_hot: np.ndarray) -> list[int]:
    """The combination of each noun: looks that no noun has, then rare values and pairs of values, then the lot."""
    looks = np.arange(len(one_hot)) // len(FRAMES)
    taken = np.zeros(len(one_hot))
    together = np.zeros((one_hot.shape[1], one_hot.shape[1]))
    weights = 1 + 4 * np.eye(len(together))  # values by themselves count five times a pair of them
    picks: list[int] = []
    for _ in range(nouns):
        repeats = 1e6 * taken[looks]
        commonness = ((one_hot @ together) * one_hot).sum(axis=1)
        cost = repeats + commonness + rng.random(len(one_hot))
        pick = int(cost.argmin())
        picks.append(pick)
        taken[looks[pick]] += 1
        picked = one_hot[pick]
        together += np.outer(picked, picked) * weights
    return picks


def _split(
    rng: Generator, config: WorldConfig, values: np.ndarray, one_hot: np.ndarray
) -> np.ndarray:
    """The split of each noun (N,): test and dev take nouns with values that are rare in them so far."""
    looks = values[:, :-1]
    splits = np.full(config.nouns, "train")
    for split in ["test"] * config.test_nouns + ["dev"] * config.dev_nouns:
        inside = splits == split
        commonness = 2 * one_hot @ one_hot[inside].sum(axis=0)
        # Among equals, a noun with one look-alike in the split goes first: the probe "odd" needs those.
        shared = (looks[:, None, :] == looks[None, inside, :]).sum(axis=2)
        look_alikes = (shared == len(ATTRIBUTES) - 1).sum(axis=1)
        cost = commonness + (look_alikes != 1) + rng.random(config.nouns)
        cost[splits != "train"] = np.inf
        splits[cost.argmin()] = split
    return splits
