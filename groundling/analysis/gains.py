"""Whether a model gains over another where texts are more visually grounded (XDBERT, Figure 4 and Appendix D).

Improved and worsened examples exist between two copies of one model, too; and grounded texts differ from others in
length and label. So beside each comparison stand the same one between the base model's own seeds, and one within
strata of length and label.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import mannwhitneyu

from groundling.analysis.grounded import Grounding, Variant
from groundling.batch import Example
from groundling.errors import InputError
from groundling.keyed import generator
from groundling.report import new_figure, svg_of

DRAWS = 2000
"""Bootstrap samples, and permutations."""


class Split(NamedTuple):
    """Numbers of the examples that more, fewer, and as many seeds of the other model get right."""

    improved: np.ndarray
    worsened: np.ndarray
    on_par: np.ndarray


def split(base: ArrayLike, other: ArrayLike) -> Split:
    """Groups of examples by right answers, (S, N) booleans each: seeds by examples in the same order."""
    ours, theirs = np.asarray(base, bool), np.asarray(other, bool)
    # Unequal numbers of seeds would sort examples by difficulty: of three, one is right more often than of two.
    if ours.ndim != 2 or ours.shape != theirs.shape:
        raise InputError(
            f"right answers: expected two equal (seeds, examples), got {ours.shape} and {theirs.shape}"
        )
    gain = theirs.sum(0) - ours.sum(0)
    return Split(np.flatnonzero(gain > 0), np.flatnonzero(gain < 0), np.flatnonzero(gain == 0))


def null_split(base: ArrayLike, seed: int = 0) -> Split:
    """The same groups between two random halves of one model's seeds; of an odd number, one is left out."""
    right = np.asarray(base, bool)
    if right.ndim != 2 or len(right) < 2:
        raise InputError(
            f"the null split needs at least 2 seeds by examples of the base model, got {right.shape}"
        )
    order, half = generator(seed, "null split").permutation(len(right)), len(right) // 2
    return split(right[order[:half]], right[order[half : 2 * half]])


def analyse(
    ratios: ArrayLike,
    base: ArrayLike,
    other: ArrayLike,
    lengths: ArrayLike,
    labels: ArrayLike,
    seed: int = 0,
) -> dict[str, Any]:
    """Improved against worsened examples, between the models (`models`) and between base seeds (`null`).

    `ratios` (NaN: undefined), `lengths` and `labels` are (N,), right answers (S, N). What cannot be computed is None.
    """
    values, long, kinds = np.asarray(ratios, float), np.asarray(lengths, float), np.asarray(labels)
    size = np.shape(base)[-1:]
    if not values.shape == long.shape == kinds.shape == size:
        raise InputError(
            f"ratios {values.shape}, lengths {long.shape}, labels {kinds.shape}: expected {size}, as base"
        )
    parts = {"models": split(base, other), "null": null_split(base, seed)}
    return {name: _compare(values, part, long, kinds, seed) for name, part in parts.items()}


def _compare(
    ratios: np.ndarray, parts: Split, lengths: np.ndarray, labels: np.ndarray, seed: int
) -> dict[str, Any]:
    out: dict[str, Any] = {
        "groups": {name: _summary(ratios[at]) for name, at in parts._asdict().items()}
    }
    up, down = (at[~np.isnan(ratios[at])] for at in (parts.improved, parts.worsened))
    if not len(up) or not len(down):
        return {
            **out,
            "mann_whitney_p": None,
            "cliffs_delta": None,
            "interval": None,
            "controlled": None,
        }
    rng = generator(seed, "bootstrap")
    drawn = [
        _delta(rng.choice(ratios[up], len(up)), rng.choice(ratios[down], len(down)))
        for _ in range(DRAWS)
    ]
    both, group = np.r_[up, down], np.repeat([1.0, 0.0], [len(up), len(down)])
    return {
        **out,
        "mann_whitney_p": float(mannwhitneyu(ratios[up], ratios[down]).pvalue),
        "cliffs_delta": _delta(ratios[up], ratios[down]),
        "interval": [float(x) for x in np.quantile(drawn, [0.025, 0.975])],
        "controlled": _controlled(ratios[both], group, lengths[both], labels[both], seed),
    }


def _summary(ratios: np.ndarray) -> dict[str, Any]:
    defined = ratios[~np.isnan(ratios)]
    mean = float(defined.mean()) if len(defined) else None
    low, median, high = (
        np.quantile(defined, [0.25, 0.5, 0.75]).tolist() if len(defined) else [None] * 3
    )
    counts = {"n": len(defined), "undefined": len(ratios) - len(defined)}
    return {**counts, "mean": mean, "median": median, "q1": low, "q3": high}


def _delta(up: np.ndarray, down: np.ndarray) -> float:
    """Cliff's delta: how much more often a value of `up` is the larger of a pair than the smaller."""
    down = np.sort(down)
    return float(
        np.mean(np.searchsorted(down, up, "left") + np.searchsorted(down, up, "right")) / len(down)
        - 1
    )


def _controlled(
    values: np.ndarray, group: np.ndarray, lengths: np.ndarray, labels: np.ndarray, seed: int
) -> dict[str, Any] | None:
    """The difference of means within strata (label by quarter of length), tested by permuting groups within them.

    Within a stratum nothing is assumed of how ratios depend on length, unlike in a regression.
    """
    quarter = np.searchsorted(np.quantile(lengths, [0.25, 0.5, 0.75]), lengths)
    _, stratum = np.unique(
        np.unique(labels, return_inverse=True)[1] * 4 + quarter, return_inverse=True
    )
    order = np.argsort(stratum, kind="stable")
    values, group, stratum = values[order], group[order], stratum[order]
    size = np.bincount(stratum)
    share = np.bincount(stratum, group) / size
    centred = values - (np.bincount(stratum, values) / size)[stratum]
    spread = float((share * (1 - share) * size).sum())
    if spread < 1e-9:  # no stratum has both groups
        return None
    effect = float(group @ centred / spread)
    rng = generator(seed, "permutation")
    # Strata are whole numbers apart, so that sorting with a fraction added shuffles within each.
    drawn = (
        np.array(
            [group[np.argsort(stratum + rng.random(len(group)))] @ centred for _ in range(DRAWS)]
        )
        / spread
    )
    extreme = int((np.abs(drawn) >= abs(effect) - 1e-12).sum())
    mixed = int(((share > 0) & (share < 1)).sum())
    return {"difference": effect, "p": (1 + extreme) / (1 + DRAWS), "strata": mixed}


def figure(
    groups: Mapping[str, ArrayLike],
    null_groups: Mapping[str, ArrayLike],
    path: str | Path | None = None,
) -> str:
    """Boxes of the groups' ratios (line: median, green plus: mean), the null split beside, as SVG; a PNG at `path`."""
    drawing = new_figure(10, 3.8)
    panels: Any = drawing.subplots(1, 2, sharey=True)
    titles = "between the models", "null split: between base seeds"
    for axes, title, content in zip(panels, titles, (groups, null_groups), strict=True):
        values = [
            (every := np.asarray(ratios, float))[~np.isnan(every)] for ratios in content.values()
        ]
        names = [
            f"{name.replace('_', ' ')}\nn = {len(defined)}"
            for name, defined in zip(content, values, strict=True)
        ]
        plus = {"marker": "+", "markeredgecolor": "green", "markersize": 10, "markeredgewidth": 2}
        axes.boxplot(values, tick_labels=names, widths=0.5, showmeans=True, meanprops=plus)
        axes.set_title(title)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("visually grounded ratio")
    return svg_of(drawing, path)


def listing(
    grounding: Grounding,
    examples: Sequence[Example],
    base: ArrayLike,
    other: ArrayLike,
    k: int = 3,
    variant: Variant = "pieces",
    names: tuple[str, str] = ("base", "other"),
) -> str:
    """The `k` most extreme examples of each group as Markdown: **grounded** tokens, (stop words and punctuation)."""
    parts = split(base, other)
    right = [np.asarray(answers, bool).sum(0) for answers in (base, other)]
    seeds = len(np.asarray(base))
    if len(examples) != len(right[0]):
        raise InputError(f"{len(examples)} examples, but right answers of {len(right[0])}")
    # Most extreme: the largest gain or loss; on par, all seeds right or all wrong. Equal ones in the data's order.
    extreme = np.where(
        right[0] == right[1], np.abs(2 * right[0] - seeds), np.abs(right[1] - right[0])
    )
    lines = []
    for name, group in parts._asdict().items():
        lines += [f"## {name.replace('_', ' ').capitalize()}", ""]
        for at in group[np.argsort(-extreme[group], kind="stable")][:k]:
            example = examples[at]
            a, b = grounding.shares(example.text, example.pair, variant)
            ratio = f"{a}/({a}+{b}) = {a / (a + b):.4f}" if a + b else "undefined"
            answers = ", ".join(
                f"{model} right {count[at]}/{seeds}"
                for model, count in zip(names, right, strict=True)
            )
            lines += [f"Example {example.id}: grounded ratio {ratio}; {answers}", ""]
            for text in (example.text, *(() if example.pair is None else (example.pair,))):
                lines += [
                    " ".join(_marked(*token) for token in grounding.tokens(text, variant)),
                    "",
                ]
    return "\n".join(lines)


def _marked(token: str, status: bool | None) -> str:
    token = re.sub(r"([\\*_`<\[\]])", r"\\\1", token)
    return {True: f"**{token}**", False: token, None: f"({token})"}[status]
