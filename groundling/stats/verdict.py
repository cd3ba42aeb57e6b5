"""Tests whether one model is reliably better than another on a task, over seeds and examples.

A difference is reliable if two tests agree: the interval of a two-level bootstrap (seeds x examples) excludes 0, which
accounts for a small test set, and a permutation test over seeds is significant after Holm's correction over tasks,
which accounts for few seeds (benchmarks/verdict_power.py measures how often both together err).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, count
from math import comb, nan
from typing import Any

import numpy as np
from scipy import stats

from groundling.core.errors import InputError
from groundling.core.metrics import Metric, is_degenerate
from groundling.core.resampling import DRAWS, draw_item_counts, interval
from groundling.core.rng import generator

ALPHA = 0.05
"""Significance level."""
BLOCK = 200
"""Number of resamples in memory at once."""
EXAMPLES = "example"
"""What is resampled without groups."""
MIN_GROUPS = 20
"""Minimum number of groups to resample: the spread of a few groups says little."""
EXACT = 20_000
"""Up to this number of relabellings the permutation test is exact."""
DETECTABLE = stats.norm.ppf(1 - ALPHA / 2) + stats.norm.ppf(0.8)
"""Minimum detectable difference in standard errors, at 80 % power."""


@dataclass(frozen=True)
class SeedRuns:
    """One model's finished runs on one split of a task: S seeds, N examples."""

    name: str
    """The model's name in sentences and tables."""
    task: str
    """The task's name, with the split if it is not the first."""
    seeds: tuple[int, ...]
    """S seeds."""
    ids: tuple[str, ...]
    """N example ids."""
    labels: np.ndarray
    """(N,)."""
    predictions: np.ndarray
    """(S, N); for a metric that uses example scores, the score of each answer, with labels of 1."""
    answers: np.ndarray | None = None
    """(S, N): the answers, where `predictions` are scores of answers; None: the predictions."""
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Number of each example's group (N,) by kind, e.g. `image`; examples of a group are not independent."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The run's settings by name; empty if they are not known."""

    def scores(self, metric: Metric) -> np.ndarray:
        """The metric of every seed, (S,); NaN where it is undefined."""
        return np.array([metric.compute(values, self.labels) for values in self.predictions])

    def is_correct(self, seeds: Sequence[int]) -> np.ndarray:
        """Whether each prediction of these seeds is right, (len(seeds), N) bool."""
        rows = [self.seeds.index(seed) for seed in seeds]
        return self.predictions[rows] == self.labels

    def degenerate_seeds(self) -> list[int]:
        """Degenerate seeds, whose answers are (nearly) all the same."""
        # The labels of scored answers are all 1, not the right answers.
        labels = self.labels if self.answers is None else None
        answers = self.predictions if self.answers is None else self.answers
        by_seed = zip(self.seeds, answers, strict=True)
        return [seed for seed, values in by_seed if is_degenerate(values, labels)]


@dataclass
class Verdict:
    """Comparison of `other` with `control` on one task; differences are `other - control`."""

    task: str
    """The task's name, as in `SeedRuns`."""
    metric: Metric
    """The metric that compares the runs."""
    control: str
    """Name of the model compared with."""
    other: str
    """Name of the model judged."""
    difference: float = nan
    """Difference of the means over seeds; NaN, like all values below, if one side has no defined score."""
    error: float = nan
    """Bootstrap standard error of the difference."""
    resampled: str = EXAMPLES
    """What the bootstrap draws: `example`, or the kind of groups whose standard error is larger."""
    interval: tuple[float, float] = (nan, nan)
    """Bootstrap 95 % interval of the difference."""
    permutation: dict[str, float] = field(
        default_factory=lambda: {"p": nan, "smallest": nan, "holm": nan}
    )
    """`p`, the `smallest` possible p with these seeds, and `holm`, p corrected over the tasks compared together."""
    wins: int | None = None
    """Right answers of `other` minus those of the control, summed over common seeds (XDBERT Section 4)."""
    seeds: tuple[int, int] = (0, 0)
    """Numbers of defined runs of control and other."""
    by_seed: list[float] = field(default_factory=list)
    """Differences by common seed; without common seeds, from each of other's seeds to the control's mean."""
    detectable: float = nan
    """Minimum detectable difference, at 80 % power."""
    notes: list[str] = field(default_factory=list)
    """Notes on missing, degenerate and undefined runs."""
    reliable: bool = False
    """Whether both tests find the difference significant."""
    sentence: str = ""
    """The comparison in one sentence."""

    @property
    def unit(self) -> str:
        """Unit of `scaled` differences."""
        return "points" if self.metric.scale == 100 else self.metric.name.upper()

    def scaled(self, value: float) -> float:
        """A difference in this unit."""
        return value * self.metric.scale

    def as_json(self) -> dict[str, Any]:
        """Fields for `verdict.json`, with the metric's name."""
        return self.__dict__ | {"metric": self.metric.name}


def judge(
    control: SeedRuns, other: SeedRuns, metric: Metric, draws: int = DRAWS, seed: int = 0
) -> Verdict:
    """Compare two models' runs on the same examples; raises InputError if the examples or labels differ."""
    if control.ids != other.ids or not np.array_equal(control.labels, other.labels):
        raise InputError(
            f"{control.task}: examples, their order, or labels of {control.name} and {other.name} differ"
        )
    control_scores = control.scores(metric)
    other_scores = other.scores(metric)
    verdict = Verdict(control.task, metric, control.name, other.name)
    verdict.by_seed = _by_seed(control, other, control_scores, other_scores)
    verdict.notes += _notes(control, other.seeds, control_scores, metric)
    verdict.notes += _notes(other, control.seeds, other_scores, metric)
    if metric.is_classification:
        common = [seed for seed in control.seeds if seed in other.seeds]
        right, before = (runs.is_correct(common).sum() for runs in (other, control))
        verdict.wins = int(right - before) if common else None

    control_defined = np.isfinite(control_scores)
    other_defined = np.isfinite(other_scores)
    if control_defined.any() and other_defined.any():
        control_scores = control_scores[control_defined]
        other_scores = other_scores[other_defined]
        verdict.difference = float(other_scores.mean() - control_scores.mean())
        resamples = {
            kind: bootstrap(
                control.predictions[control_defined],
                other.predictions[other_defined],
                control.labels,
                metric,
                draws,
                seed,
                paired=_seeds(control, control_defined) == _seeds(other, other_defined),
                groups=numbers,
            )
            for kind, numbers in _groupings(control, other).items()
        }
        # Groups overlap, as images and questions do: of each one alone, the widest.
        verdict.resampled = max(resamples, key=lambda kind: float(resamples[kind].std(ddof=1)))
        differences = resamples[verdict.resampled]
        low, high = interval(differences).tolist()
        verdict.interval = (low, high)
        verdict.error = float(differences.std(ddof=1))
        verdict.detectable = float(DETECTABLE * verdict.error)
        p, smallest = permutation(control_scores, other_scores, seed)
        verdict.permutation = {"p": p, "smallest": smallest, "holm": p}
        verdict.seeds = len(control_scores), len(other_scores)
    return decide([verdict])[0]


def _groupings(control: SeedRuns, other: SeedRuns) -> dict[str, np.ndarray | None]:
    """What may be resampled: single examples (None), and groups (N,) of which there are enough."""
    groupings: dict[str, np.ndarray | None] = {EXAMPLES: None}
    for kind, numbers in {**other.groups, **control.groups}.items():
        if MIN_GROUPS <= len(np.unique(numbers)) < len(numbers):
            groupings[kind] = numbers
    return groupings


def _by_seed(
    control: SeedRuns, other: SeedRuns, control_scores: np.ndarray, other_scores: np.ndarray
) -> list[float]:
    before = dict(zip(control.seeds, control_scores.tolist(), strict=True))
    after = dict(zip(other.seeds, other_scores.tolist(), strict=True))
    if before.keys().isdisjoint(after):
        defined = control_scores[np.isfinite(control_scores)]
        before = dict.fromkeys(after, float(defined.mean()) if len(defined) else nan)
    differences = [after[seed] - before[seed] for seed in after if seed in before]
    return [value for value in differences if np.isfinite(value)]


def _seeds(runs: SeedRuns, defined: np.ndarray) -> list[int]:
    return [seed for seed, is_defined in zip(runs.seeds, defined, strict=True) if is_defined]


def bootstrap(
    control: np.ndarray,
    other: np.ndarray,
    labels: np.ndarray,
    metric: Metric,
    draws: int = DRAWS,
    seed: int = 0,
    paired: bool = True,
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """Differences of mean scores of predictions (S1, N) and (S2, N), in `draws` resamples of seeds and examples.

    As MultiBERTs' Multi-Bootstrap (Sellam et al. 2022), except that S - 1 of S seeds are drawn (Rao and Wu 1988): S
    draws would underestimate the variance between few seeds. Noise of single runs counts at both levels, so the
    interval is conservative. `paired` seeds are drawn together; with `groups` (N,), whole groups are drawn.
    Resamples in which the metric is undefined (all drawn labels of a correlation are equal) are omitted.
    """
    rng = generator(seed, "verdict", metric.name)
    predictions = [*control, *other]
    # Both models' terms side by side, (N, S1 + S2, k): one product per block of draws.
    terms = np.stack([metric.example_terms(values, labels) for values in predictions], axis=1)
    if groups is not None:
        of_groups = np.zeros((int(groups.max()) + 1, *terms.shape[1:]))
        np.add.at(of_groups, groups, terms)
        terms = of_groups
    drawn = len(terms)
    control_runs = len(control)
    other_runs = len(other)
    differences = []
    for start in range(0, draws, BLOCK):
        block = min(BLOCK, draws - start)
        sums = draw_item_counts(drawn, block, rng) @ terms.reshape(drawn, -1)
        scores = metric.from_sums(sums.reshape(block, *terms.shape[1:]))  # (block, S1 + S2)
        from_control = rng.integers(control_runs, size=(block, max(1, control_runs - 1)))
        from_other = from_control
        if not paired:
            from_other = rng.integers(other_runs, size=(block, max(1, other_runs - 1)))
        of_control = np.take_along_axis(scores, from_control, 1).mean(1)
        of_other = np.take_along_axis(scores, control_runs + from_other, 1).mean(1)
        differences.append(of_other - of_control)
    every = np.concatenate(differences)
    defined = every[np.isfinite(every)]
    return defined if len(defined) else np.full(2, nan)


def permutation(control: np.ndarray, other: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """Two-sided permutation p of the difference of mean scores (S1,) and (S2,), and the smallest possible p."""
    pool = np.concatenate([control, other])
    size = len(other)
    relabellings = comb(len(pool), size)
    is_exact = relabellings <= EXACT
    if is_exact:
        chosen = np.array(list(combinations(range(len(pool)), size)))
    else:
        shuffled = generator(seed, "permutation").random((EXACT, len(pool))).argsort(axis=1)
        chosen = shuffled[:, :size]
    sums = pool[chosen].sum(axis=1)
    middle = pool.sum() * size / len(pool)
    as_far = np.abs(sums - middle) >= abs(other.sum() - middle) - 1e-12
    # With random relabellings, the observed one is added.
    p = as_far.mean() if is_exact else (as_far.sum() + 1) / (EXACT + 1)
    return float(p), smallest_p(len(control), len(other))


def smallest_p(control: int, other: int) -> float:
    """The smallest p that `permutation` can give with these numbers of seeds."""
    # Equal sizes: each relabelling has a mirror image at the same distance from the middle.
    extremes = 2 if control == other else 1
    return min(1.0, extremes / comb(control + other, other))


def seeds_needed(tasks: int = 1) -> int:
    """The fewest seeds of each model with which a difference on `tasks` compared together can be significant."""
    return next(seeds for seeds in count(2) if smallest_p(seeds, seeds) * tasks <= ALPHA)


def few_seeds_note(seeds: int, tasks: int = 1) -> list[str]:
    """A note, before anything is trained, if no result of so many seeds could be significant."""
    needed = seeds_needed(tasks)
    if seeds >= needed:
        return []
    times = f" after Holm's correction over {tasks} tasks" if tasks > 1 else ""
    return [
        f"{seeds} seeds cannot show a difference, however large: the smallest possible p{times} is "
        f"{min(1.0, smallest_p(seeds, seeds) * tasks):.2g}; {needed} seeds can"
    ]


def holm(values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979) of p values; NaN stays NaN and is not counted."""
    corrected = [nan] * len(values)
    ranked = sorted((p, place) for place, p in enumerate(values) if np.isfinite(p))
    largest = 0.0
    for rank, (p, place) in enumerate(ranked):
        largest = max(largest, min(1.0, (len(ranked) - rank) * p))
        corrected[place] = largest
    return corrected


def decide(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Correct p over the tasks compared together, and set `reliable` and `sentence` of each verdict."""
    corrected = holm([verdict.permutation["p"] for verdict in verdicts])
    for verdict, p in zip(verdicts, corrected, strict=True):
        low, high = verdict.interval
        leaves_out_zero = low > 0 or high < 0
        verdict.permutation["holm"] = p
        verdict.reliable = bool(p <= ALPHA and leaves_out_zero)
        verdict.sentence = _sentence(verdict, len(verdicts))
    return list(verdicts)


def _sentence(verdict: Verdict, tasks: int) -> str:
    metric = verdict.metric
    digits = 1 if metric.scale == 100 else 3
    about = f"{verdict.other} against {verdict.control} on {verdict.task}"
    if not np.isfinite(verdict.difference):
        return f"{about}: no verdict, {metric.name} is undefined for all runs of one side."
    values = (verdict.difference, verdict.error, verdict.detectable, *verdict.interval)
    difference, error, detectable, low, high = map(verdict.scaled, values)
    interval = f"95 % interval {low:+.{digits}f} to {high:+.{digits}f}"
    if verdict.reliable:
        word = "better" if (difference > 0) == metric.higher_is_better else "worse"
        size = f"{abs(difference):.{digits}f} ± {error:.{digits}f} {verdict.unit}"
        return f"{about}: {word} by {size} ({interval})."

    size = f"{difference:+.{digits}f} {verdict.unit}"
    smallest = verdict.permutation["smallest"]
    if smallest * tasks > ALPHA:
        seeds = " and ".join(map(str, dict.fromkeys(verdict.seeds)))
        times = f", times {tasks} tasks" if tasks > 1 else ""
        return (
            f"{about}: cannot be decided with {seeds} seeds ({size}, {interval}): the smallest possible p is "
            f"{smallest:.2g}{times}; {seeds_needed(tasks)} seeds can."
        )
    sentence = f"{about}: no reliable difference ({size}, {interval})."
    if error:  # without variance (all seeds degenerate) the detectable difference is unknown
        sentence += f" Minimum detectable difference: about {detectable:.{digits}f}."
    return sentence


def _notes(
    runs: SeedRuns, other_seeds: Sequence[int], scores: np.ndarray, metric: Metric
) -> list[str]:
    """Notes on missing, degenerate and undefined runs; all runs stay in the comparison."""
    seeds_by_fault = {
        "missing": [seed for seed in other_seeds if seed not in runs.seeds],
        "degenerate (one answer to nearly all examples) but included": runs.degenerate_seeds(),
        f"omitted from means, where {metric.name} is undefined": _seeds(runs, ~np.isfinite(scores)),
    }
    notes = [
        f"{runs.name}, {fault}: seed {', '.join(map(str, seeds))}"
        for fault, seeds in seeds_by_fault.items()
        if seeds
    ]
    if len(runs.seeds) == 1:
        notes.append(
            f"{runs.name}: one seed, so the variance between seeds is unknown and the interval too narrow"
        )
    return notes
