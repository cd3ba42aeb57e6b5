"""Can a linear map read from a noun's state what people say of the noun? Ridge regression, folds over nouns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import StandardScaler

from groundling.core.errors import InputError
from groundling.core.keyed import generator
from groundling.stats.resampling import interval, resampled
from groundling.studies.knowledge.visual_facts import VisualFact

PENALTIES = np.logspace(0, 5, 11)
"""Strengths of regularisation, of which each fold's training nouns choose by leaving one out."""

DRAWS = 1000
"""Bootstrap samples of nouns."""

FLAT = 1e-9
"""A vector whose length is below this has no direction: what rounding leaves of zeros."""


@dataclass(frozen=True)
class Nouns:
    """The nouns of one relation, and what people say of each."""

    names: tuple[str, ...]
    """N different nouns."""
    options: tuple[str, ...]
    """O answers; of facts that differ in their options, all that occur."""
    shares: np.ndarray
    """(N, O) shares of answers, each row's sum 1; the mean over a noun's facts."""
    of_fact: np.ndarray
    """(F,) int64: the noun of each fact."""
    places: tuple[np.ndarray, ...]
    """Of each fact: where its own options stand among all, (its options,) int64."""
    same_options: bool
    """Whether all facts have the same options. If not, shares of what was never offered are no answers."""


class Read(NamedTuple):
    """What was predicted of nouns that the regression never saw."""

    roots: np.ndarray
    """(N, O) predicted square roots of shares; nothing keeps them from falling below 0."""
    agreement: np.ndarray
    """(N,) correlation of deviations; NaN for a noun of which people say just what they say of the others."""


def nouns_of(facts: Sequence[VisualFact]) -> Nouns:
    """The nouns of one relation's facts, each once, whatever the case of its letters."""
    number: dict[str, int] = {}
    options: dict[str, int] = {}
    names: list[str] = []
    for fact in facts:
        key = fact.subject.lower()
        if key not in number:
            number[key] = len(names)
            names.append(fact.subject)
        for option in fact.options:
            options.setdefault(option, len(options))
    of_fact = np.array([number[fact.subject.lower()] for fact in facts])
    places = tuple(np.array([options[option] for option in fact.options]) for fact in facts)
    shares = np.zeros((len(names), len(options)))
    for fact, noun, place in zip(facts, of_fact, places, strict=True):
        shares[noun, place] += fact.target
    shares /= shares.sum(1, keepdims=True)
    same = len({fact.options for fact in facts}) == 1
    return Nouns(tuple(names), tuple(options), shares, of_fact, places, same)


def folds_of(nouns: Nouns, folds: int, seed: int) -> np.ndarray:
    """Which fold each noun belongs to, (N,) int64: of equal size but for one noun, drawn by the seed.

    Raises InputError if a fold would be empty, or leave fewer than two nouns to learn from.
    """
    count = len(nouns.names)
    if not 2 <= folds <= count or count < 3:
        raise InputError(
            f"--folds {folds}: the data has {count} nouns of one relation; expected 2 folds or more, at most one for "
            "each noun, and 3 nouns or more"
        )
    places = np.empty(count, np.int64)
    places[generator(seed, "linear", "folds").permutation(count)] = np.arange(count) % folds
    return places


def read(states: np.ndarray, shares: np.ndarray, fold: np.ndarray) -> Read:
    """Ridge regression from states (N, D) to the square roots of shares (N, O), predicted by the fold (N,) left out.

    Square roots, as in Hellinger's distance, keep the few frequent answers from deciding everything. A deviation is
    what a noun's roots, predicted or people's, have more than the mean of the fold's training nouns; its correlation
    over answers is 0 if nothing but that mean was predicted.
    """
    roots = np.sqrt(shares)
    predicted = np.empty_like(roots)
    mean = np.empty_like(roots)
    for left_out in np.unique(fold):
        test = fold == left_out
        scale = StandardScaler().fit(states[~test])
        ridge = RidgeCV(PENALTIES).fit(scale.transform(states[~test]), roots[~test])
        predicted[test] = ridge.predict(scale.transform(states[test])).reshape(test.sum(), -1)
        mean[test] = roots[~test].mean(0)
    agreement = _correlations(predicted - mean, roots - mean)
    return Read(predicted, agreement)


def _correlations(predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Of each row (N,): Pearson's correlation; 0 if the predicted row is constant, NaN if the true one is."""
    predicted = predicted - predicted.mean(1, keepdims=True)
    true = true - true.mean(1, keepdims=True)
    lengths = np.linalg.norm(predicted, axis=1), np.linalg.norm(true, axis=1)
    product = (predicted * true).sum(1)
    said = (lengths[0] > FLAT) & (lengths[1] > FLAT)
    found = np.divide(product, lengths[0] * lengths[1], out=np.zeros(len(true)), where=said)
    return np.where(lengths[1] > FLAT, found, np.nan)


def measured(nouns: Nouns, facts: Sequence[VisualFact], found: Read, seed: int) -> dict[str, Any]:
    """Scores of what was read, each with its interval over nouns: `deviations`, `spearman`, `accuracy`.

    `deviations` is the mean correlation of deviations. `spearman` is that of the shares themselves, which a constant
    prediction of the mean inflates; it is left out where facts differ in their options, as size and co-occurrence do.
    `accuracy` is of each fact among its own options. A score is None if it is defined for no noun.
    """
    right = np.zeros(len(nouns.names))
    asked = np.bincount(nouns.of_fact, minlength=len(right))
    for fact, noun, place in zip(facts, nouns.of_fact, nouns.places, strict=True):
        best = fact.target == fact.target.max()
        right[noun] += best[found.roots[noun, place].argmax()]
    values = {"deviations": found.agreement}
    if nouns.same_options:
        ranks = rankdata(found.roots, axis=1), rankdata(nouns.shares, axis=1)
        values["spearman"] = _correlations(*ranks)
    values["accuracy"] = right / asked
    return {name: _with_interval(each, seed) for name, each in values.items()}


def _with_interval(values: np.ndarray, seed: int) -> dict[str, Any] | None:
    """The mean of values (N,) that are defined, and the ends of its interval when nouns are drawn anew."""
    defined = values[~np.isnan(values)]
    if not len(defined):
        return None
    rng = generator(seed, "linear", "bootstrap")
    count = len(defined)
    ends = interval(resampled(defined, rng, DRAWS) / count).tolist()
    return {"mean": float(defined.mean()), "interval": ends, "nouns": count}


def random_states(nouns: Nouns, width: int, seed: int) -> np.ndarray:
    """A control (N, D) of the same width: normal numbers that say which noun it is, and nothing of it."""
    rows = [generator(seed, "linear", name).standard_normal(width) for name in nouns.names]
    return np.stack(rows)


def compared(
    facts: Sequence[VisualFact],
    states: Mapping[str, Mapping[str, np.ndarray]],
    folds: int,
    seed: int,
) -> tuple[dict[str, Any], dict[str, list[np.ndarray]]]:
    """Scores of one relation's facts from several kinds of `states`, and by kind what was predicted of each fact.

    `states` holds by kind the state (D,) of every noun. The kind `random`, of the first one's width, is added.
    """
    nouns = nouns_of(facts)
    fold = folds_of(nouns, folds, seed)
    kinds = {
        kind: np.stack([of_noun[name] for name in nouns.names]) for kind, of_noun in states.items()
    }
    width = next(iter(kinds.values())).shape[1]
    kinds["random"] = random_states(nouns, width, seed)
    rows = {}
    outputs = {}
    for kind, each in kinds.items():
        found = read(each, nouns.shares, fold)
        rows[kind] = {"width": each.shape[1], **measured(nouns, facts, found, seed)}
        outputs[kind] = [
            found.roots[noun, place]
            for noun, place in zip(nouns.of_fact, nouns.places, strict=True)
        ]
    summary = {"facts": len(facts), "nouns": len(nouns.names), "options": len(nouns.options)}
    return {**summary, "folds": folds, "from": rows}, outputs
