"""How often the better one of several scored things wins, by group, with intervals: BLiMP, EWoK, Winoground."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from groundling.core.keyed import generator
from groundling.stats.resampling import interval, resampled


class Rule(NamedTuple):
    """When an item counts as right."""

    name: str
    """What `result.json` calls its share."""
    chance: float
    """What scores drawn at random reach."""
    worth: Callable[[np.ndarray], np.ndarray]
    """Scores (N, S) of N items, to what each is worth, 0 to 1: (N,)."""


def _first_above(first: int, second: int) -> Callable[[np.ndarray], np.ndarray]:
    """Whether one score is strictly above another."""
    return lambda scores: (scores[:, first] > scores[:, second]).astype(float)


def _all(*comparisons: tuple[int, int]) -> Callable[[np.ndarray], np.ndarray]:
    """Whether all of these scores are strictly above others."""
    return lambda scores: (
        np.all([scores[:, a] > scores[:, b] for a, b in comparisons], axis=0) * 1.0
    )


def _half_for_ties(*comparisons: tuple[int, int]) -> Callable[[np.ndarray], np.ndarray]:
    """Mean over comparisons: 1 if the first is above, a half if both are equal."""
    return lambda scores: np.mean(
        [(1 + np.sign(scores[:, a] - scores[:, b])) / 2 for a, b in comparisons], axis=0
    )


PAIR = (Rule("accuracy", 1 / 2, _first_above(0, 1)),)
"""BLiMP: the good sentence is strictly likelier; a tie is wrong (Warstadt et al. 2020, Section 4)."""

EWOK = (
    Rule("accuracy", 1 / 2, _half_for_ties((0, 1), (3, 2))),
    Rule("both", 1 / 4, _all((0, 1), (3, 2))),
    Rule("targets", 1 / 2, _first_above(0, 2)),
)
"""EWoK, of target 1 after contexts 1 and 2, then of target 2.

`accuracy` (Ivanova et al. 2024; release: ewok-core/ewok-paper, analyses/scripts/ewok_analysis_utils.R): each target is
likelier after its own context than after the other, a tie is worth a half, and an item the mean of its two targets.
`both`: neither comparison fails or ties (`Accuracy_both` there). `targets`: after context 1, target 1 is likelier than
target 2, which is what the BabyLM challenge of 2025 counts (release: babylm/evaluation-pipeline-2025,
sentence_zero_shot/read_files.py).
"""

WINOGROUND = (
    Rule("text", 1 / 4, _all((0, 1), (3, 2))),
    Rule("image", 1 / 4, _all((0, 2), (3, 1))),
    Rule("group", 1 / 6, _all((0, 1), (3, 2), (0, 2), (3, 1))),
)
"""Thrush et al. 2022, Eqs. 1 to 3, of image 0 with captions 0 and 1, then of image 1.

`text`: of each image the right caption scores higher; `image`: of each caption the right image; `group`: both.
"""


class Estimate(NamedTuple):
    """Means of C columns over items, and what resampling the items makes of them."""

    items: int
    """How many items."""
    mean: np.ndarray
    """(C,)."""
    draws: np.ndarray
    """(DRAWS, C)."""


def estimate(values: np.ndarray, *key: str) -> Estimate:
    """Of items' values (N, C) the means and their bootstrap over items; the draws are keyed, and paired over columns.

    Items are drawn with replacement; as equal ones are exchangeable, only how many of each kind are drawn is.
    """
    kinds, counts = np.unique(values, axis=0, return_counts=True)
    drawn = resampled(kinds, generator(0, "preferences", *key), often=counts)
    return Estimate(len(values), values.mean(0), drawn / len(values))


def macro(parts: Sequence[Estimate]) -> Estimate:
    """The mean of groups' means, each group counting alike; items are drawn within groups."""
    return Estimate(
        sum(part.items for part in parts),
        np.mean([part.mean for part in parts], axis=0),
        np.mean([part.draws for part in parts], axis=0),
    )


def as_json(rules: Iterable[Rule], found: Estimate, first: int = 0) -> dict[str, Any]:
    """By rule the mean and its 95 % interval, of the columns from `first` on, and the number of items."""
    told: dict[str, Any] = {"items": found.items}
    for column, rule in enumerate(rules, first):
        low, high = interval(found.draws[:, column]).tolist()
        told[rule.name] = float(found.mean[column])
        told[f"{rule.name}_interval"] = [low, high]
    return told


def less(found: Estimate, columns: int) -> Estimate:
    """The second `columns` columns less the first ones: what another model has beyond this one, item by item."""
    mean = found.mean[columns:] - found.mean[:columns]
    return Estimate(found.items, mean, found.draws[:, columns:] - found.draws[:, :columns])


def grouped(names: Sequence[str]) -> Mapping[str, np.ndarray]:
    """The numbers of the items of each group, by its name, in the order of their first item."""
    groups: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        groups.setdefault(name, []).append(number)
    return {name: np.array(numbers) for name, numbers in groups.items()}
