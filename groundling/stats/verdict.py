"""Is one model reliably better than another? Seeds, examples and chance, on one task.

A difference is called reliable when two tests agree: the two-level bootstrap's interval (seeds x examples) leaves out
0, and a permutation of seed labels is significant after Holm's correction over tasks. The first knows that the test
set is small, the second that the seeds are few (see `power` and docs/results.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import comb, nan
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
from scipy import stats

from groundling.core.errors import InputError
from groundling.core.metrics import ACCURACY, Metric, is_degenerate
from groundling.core.rng import generator
from groundling.stats.resampling import DRAWS, draw_item_counts, interval

ALPHA = 0.05
"""A p below this is significant."""
BLOCK = 200
"""Resamples that are computed at once, which bounds the memory."""
EXACT = 20_000
"""Relabellings up to which the permutation test counts all of them."""
DETECTABLE = stats.norm.ppf(1 - ALPHA / 2) + stats.norm.ppf(0.8)
"""A difference of so many standard errors is found in four cases of five."""


@dataclass(frozen=True)
class SeedRuns:
    """One model's finished runs on one split of a task: S seeds, N examples."""

    name: str
    """The model's, in sentences and tables."""
    task: str
    """The task's, with the split if it is not the first."""
    seeds: tuple[int, ...]
    """S seeds."""
    ids: tuple[str, ...]
    """N example ids."""
    labels: np.ndarray
    """(N,)."""
    predictions: np.ndarray
    """(S, N); of a graded metric what each answer gained, with labels of 1, see `Metric.from_per_example`."""
    unfinished: tuple[int, ...] = ()
    """Seeds that have begun and have no result."""
    answers: np.ndarray | None = None
    """(S, N): what was answered, where `predictions` are gains; None: the predictions."""
    folders: tuple[Path, ...] = ()
    """Of each seed, if they were read from folders: its own."""

    def scores(self, metric: Metric) -> np.ndarray:
        """The metric of every seed, (S,); NaN where it is undefined."""
        return np.array([metric.compute(values, self.labels) for values in self.predictions])

    def is_correct(self, seeds: Sequence[int]) -> np.ndarray:
        """Where the predictions of these seeds are the label, (len(seeds), N) bool."""
        rows = [self.seeds.index(seed) for seed in seeds]
        return self.predictions[rows] == self.labels

    def degenerate_seeds(self) -> list[int]:
        """Seeds whose answers are (nearly) all the same."""
        # Labels of gains are none of answers.
        labels = self.labels if self.answers is None else None
        answers = self.predictions if self.answers is None else self.answers
        by_seed = zip(self.seeds, answers, strict=True)
        return [seed for seed, values in by_seed if is_degenerate(values, labels)]

    def votes(self) -> np.ndarray:
        """The class most seeds chose, the smaller one of a tie; (N,)."""
        classes = np.unique(self.predictions)
        chosen = self.predictions[None] == classes[:, None, None]  # (classes, S, N)
        return classes[chosen.sum(1).argmax(0)]

    def agreement(self) -> float:
        """Mean share of examples on which two seeds say the same; NaN for one seed."""
        if len(self.seeds) < 2:
            return nan
        shares = [np.mean(first == second) for first, second in combinations(self.predictions, 2)]
        return float(np.mean(shares))


@dataclass
class Verdict:
    """What can be said of `other` against `control` on one task; differences are `other - control`."""

    task: str
    """The task's name, as in `SeedRuns`."""
    metric: Metric
    """What the runs are compared by."""
    control: str
    """Name of the model compared with."""
    other: str
    """Name of the model judged."""
    difference: float = nan
    """Of the means over seeds; NaN, like all that follows from it, where one side has no defined score."""
    error: float = nan
    """Its standard error, from the bootstrap."""
    interval: tuple[float, float] = (nan, nan)
    """Its 95 % interval, from the bootstrap."""
    permutation: dict[str, float] = field(
        default_factory=lambda: {"p": nan, "smallest": nan, "holm": nan}
    )
    """`p`, the `smallest` p these seeds can give, and `holm`, p corrected over the tasks judged together."""
    mcnemar: dict[str, float] | None = None
    """On majority votes: examples only one side has right, and the exact two-sided p; None for numbers."""
    wins: int | None = None
    """Right answers of `other` beyond the control's, summed over the seeds both have (XDBERT Section 4)."""
    by_seed: list[float] = field(default_factory=list)
    """Differences of the seeds both have; of other's seeds to the control's mean, if they have none in common."""
    detectable: float = nan
    """The difference that would be found in four cases of five."""
    notes: list[str] = field(default_factory=list)
    """Missing, unfinished, collapsed and undefined runs."""
    reliable: bool = False
    """Whether both tests call the difference significant."""
    sentence: str = ""
    """All of this for people."""

    def as_json(self) -> dict[str, Any]:
        """Its fields for `verdict.json`, the metric by its name."""
        return self.__dict__ | {"metric": self.metric.name}


def judge(
    control: SeedRuns, other: SeedRuns, metric: Metric, draws: int = DRAWS, seed: int = 0
) -> Verdict:
    """Compare two models' runs on the same examples; raises InputError if the examples or labels differ."""
    _same_examples(control, other)
    control_scores = control.scores(metric)
    other_scores = other.scores(metric)
    verdict = Verdict(control.task, metric, control.name, other.name)
    verdict.by_seed = _by_seed(control, other, control_scores, other_scores)
    verdict.notes += _notes(control, other.seeds, control_scores, metric)
    verdict.notes += _notes(other, control.seeds, other_scores, metric)
    if metric.is_classification:
        verdict.mcnemar = _mcnemar(control, other)
        verdict.wins = _wins(control, other)

    control_defined = np.isfinite(control_scores)
    other_defined = np.isfinite(other_scores)
    if control_defined.any() and other_defined.any():
        control_scores = control_scores[control_defined]
        other_scores = other_scores[other_defined]
        verdict.difference = float(other_scores.mean() - control_scores.mean())
        differences = bootstrap(
            control.predictions[control_defined],
            other.predictions[other_defined],
            control.labels,
            metric,
            draws,
            seed,
            paired=_seeds(control, control_defined) == _seeds(other, other_defined),
        )
        verdict.error = float(differences.std(ddof=1))
        low, high = interval(differences).tolist()
        verdict.interval = (low, high)
        verdict.detectable = float(DETECTABLE * verdict.error)
        p, smallest = permutation(control_scores, other_scores, seed)
        verdict.permutation = {"p": p, "smallest": smallest, "holm": p}
    return decide([verdict])[0]


def _by_seed(
    control: SeedRuns, other: SeedRuns, control_scores: np.ndarray, other_scores: np.ndarray
) -> list[float]:
    """Each seed's difference, where it is defined."""
    of_control = dict(zip(control.seeds, control_scores.tolist(), strict=True))
    common = of_control.keys() & set(other.seeds)
    defined = control_scores[np.isfinite(control_scores)]
    mean = float(defined.mean()) if len(defined) else nan
    differences = [
        score - of_control.get(seed, mean)
        for seed, score in zip(other.seeds, other_scores.tolist(), strict=True)
        if seed in common or not common
    ]
    return [value for value in differences if np.isfinite(value)]


def _seeds(runs: SeedRuns, defined: np.ndarray) -> list[int]:
    return [
        seed for seed, score_is_defined in zip(runs.seeds, defined, strict=True) if score_is_defined
    ]


def _same_examples(control: SeedRuns, other: SeedRuns) -> None:
    pair = f"{control.task}: {control.name} and {other.name}"
    if control.ids != other.ids:
        odd = sorted(set(control.ids) ^ set(other.ids))
        about = "the same ids in another order"
        if odd:
            about = f"{len(odd)} differ, the first is {odd[0]}"
        raise InputError(f"{pair} were scored on different examples ({about})")
    differing = np.flatnonzero(control.labels != other.labels)
    if len(differing):
        raise InputError(f"{pair} have different labels, first for {control.ids[differing[0]]}")


def bootstrap(
    control: np.ndarray,
    other: np.ndarray,
    labels: np.ndarray,
    metric: Metric,
    draws: int = DRAWS,
    seed: int = 0,
    paired: bool = True,
) -> np.ndarray:
    """Differences of mean scores over `draws` resamples of seeds and examples, (draws,).

    As MultiBERTs' Multi-Bootstrap (Sellam et al. 2022), except that of S seeds S - 1 are drawn (Rao and Wu 1988): with
    S draws the spread between so few seeds would come out too small. What is noise of single runs is counted at both
    levels, so the interval is rather too wide than too narrow.

    Resamples in which the metric is undefined (all drawn labels of a correlation are equal) are left out, for both
    models alike; a constant prediction is no such case, it scores 0 there as everywhere.

    Args:
        control: predictions (S1, N).
        other: predictions (S2, N).
        labels: (N,).
        metric: one whose `terms` do not depend on the other examples (not Spearman).
        draws: number of resamples.
        seed: of the resampling.
        paired: whether both have the same seeds in the same order, which are then drawn together.
    """
    rng = generator(seed, "verdict", metric.name)
    examples = len(labels)
    predictions = [*control, *other]
    # Both models' terms side by side, (N, S1 + S2, k): one product per block of draws.
    terms = np.stack([metric.example_terms(values, labels) for values in predictions], axis=1)
    control_runs = len(control)
    other_runs = len(other)
    differences = []
    for start in range(0, draws, BLOCK):
        block = min(BLOCK, draws - start)
        sums = draw_item_counts(examples, block, rng) @ terms.reshape(examples, -1)
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
    """Two-sided p of the difference of means when seeds change sides, and the smallest p so many seeds can give.

    All relabellings are counted if there are at most `EXACT`, otherwise as many are drawn; scores are (S1,) and (S2,).
    """
    pool = np.concatenate([control, other])
    size = len(other)
    relabellings = comb(len(pool), size)
    counted = relabellings <= EXACT
    if counted:
        chosen = np.array(list(combinations(range(len(pool)), size)))
    else:
        shuffled = generator(seed, "permutation").random((EXACT, len(pool))).argsort(axis=1)
        chosen = shuffled[:, :size]
    sums = pool[chosen].sum(axis=1)
    middle = pool.sum() * size / len(pool)
    as_far = np.abs(sums - middle) >= abs(other.sum() - middle) - 1e-12
    # Of relabellings that were drawn, the one observed counts as one more.
    p = as_far.mean() if counted else (as_far.sum() + 1) / (EXACT + 1)
    # Equal sizes: each relabelling has a mirror image that is as far from the middle.
    extremes = 2 if len(control) == len(other) else 1
    return float(p), min(1.0, extremes / relabellings)


def _mcnemar(control: SeedRuns, other: SeedRuns) -> dict[str, float]:
    """Exact McNemar test on majority votes."""
    control_right = control.votes() == control.labels
    other_right = other.votes() == other.labels
    only_control = int((control_right & ~other_right).sum())
    only_other = int((other_right & ~control_right).sum())
    discordant = only_control + only_other
    p = 1.0
    if discordant:
        p = float(stats.binomtest(only_other, discordant).pvalue)
    return {"only_control": only_control, "only_other": only_other, "p": p}


def _wins(control: SeedRuns, other: SeedRuns) -> int | None:
    common = [seed for seed in control.seeds if seed in other.seeds]
    if not common:
        return None
    return int(other.is_correct(common).sum() - control.is_correct(common).sum())


def holm(values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979) of p values; NaN stays NaN and does not count."""
    corrected = [nan] * len(values)
    ranked = sorted((p, place) for place, p in enumerate(values) if np.isfinite(p))
    largest = 0.0
    for rank, (p, place) in enumerate(ranked):
        scaled = min(1.0, (len(ranked) - rank) * p)
        largest = max(largest, scaled)
        corrected[place] = largest
    return corrected


def decide(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Correct over the tasks judged together, and say what each comparison shows."""
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
    points = metric.scale == 100
    unit = "points" if points else metric.name.upper()
    digits = 1 if points else 3
    about = f"{verdict.other} against {verdict.control} on {verdict.task}"
    if not np.isfinite(verdict.difference):
        return f"{about}: no verdict, {metric.name} is undefined in every run of one side."

    difference = verdict.difference * metric.scale
    error = verdict.error * metric.scale
    low = verdict.interval[0] * metric.scale
    high = verdict.interval[1] * metric.scale
    interval = f"95 % interval {low:+.{digits}f} to {high:+.{digits}f}"
    if verdict.reliable:
        is_better = (difference > 0) == metric.higher_is_better
        word = "better" if is_better else "worse"
        size = f"{abs(difference):.{digits}f} ± {error:.{digits}f} {unit}"
        return f"{about}: {word} by {size} ({interval})."

    told = f"{about}: no reliable difference ({difference:+.{digits}f} {unit}, {interval})."
    smallest = verdict.permutation["smallest"]
    if smallest * tasks > ALPHA:
        told += f" So few seeds could not show any: their smallest p is {smallest:.2g}"
        told += f", times {tasks} tasks." if tasks > 1 else "."
    elif (
        error
    ):  # runs without any spread (all collapsed to one answer) say nothing of what could be seen
        least = verdict.detectable * metric.scale
        told += f" It would take about {least:.{digits}f} to be seen."
    return told


def _notes(
    runs: SeedRuns, other_seeds: Sequence[int], scores: np.ndarray, metric: Metric
) -> list[str]:
    """What a reader must know of these runs: missing, unfinished, collapsed and undefined ones; none is left out."""
    missing = [seed for seed in other_seeds if seed not in runs.seeds]
    undefined = _seeds(runs, ~np.isfinite(scores))
    told = []
    if missing:
        told.append(f"seed {_listed(missing)} is missing")
    if runs.unfinished:
        told.append(f"seed {_listed(runs.unfinished)} has not finished")
    if runs.degenerate_seeds():
        told.append(
            f"seed {_listed(runs.degenerate_seeds())} collapsed to one answer; it counts all the same"
        )
    if undefined:
        told.append(f"{metric.name} is undefined for seed {_listed(undefined)}, left out of means")
    if len(runs.seeds) == 1:
        told.append("one seed, so the spread between seeds is unknown and the interval too narrow")
    return [f"{runs.name}: {note}" for note in told]


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


# -- calibration -------------------------------------------------------------------------------------------------------


class SimulationSettings(TypedDict, total=False):
    """What simulated runs differ by."""

    examples: int
    """Size of the test set."""
    seeds: int
    """Runs of each model."""
    accuracy: float
    """Expected accuracy of the control."""
    seed_sd: float
    """Standard deviation of the accuracy between seeds."""
    shared: float
    """Correlation of any two runs' answers, which comes from how difficult the examples are."""
    own: float
    """Correlation beyond that of two runs of one model."""


def simulate(
    rng: np.random.Generator,
    gain: float = 0.0,
    *,
    examples: int = 277,
    seeds: int = 5,
    accuracy: float = 0.67,
    seed_sd: float = 0.02,
    shared: float = 0.8,
    own: float = 0.0,
) -> tuple[SeedRuns, SeedRuns]:
    """Runs of a control and of a model whose expected accuracy is higher by `gain`, with known noise (see `SimulationSettings`)."""
    difficulty = rng.standard_normal(examples)
    control = _simulated(rng, "control", accuracy, difficulty, seeds, seed_sd, shared, own)
    other = _simulated(rng, "other", accuracy + gain, difficulty, seeds, seed_sd, shared, own)
    return control, other


def _simulated(
    rng: np.random.Generator,
    name: str,
    accuracy: float,
    difficulty: np.ndarray,
    seeds: int,
    seed_sd: float,
    shared: float,
    own: float,
) -> SeedRuns:
    """Runs whose answer to an example is right where difficulty and noise stay below the seed's level."""
    examples = len(difficulty)
    model_difficulty = rng.standard_normal(examples)
    levels = np.clip(accuracy + seed_sd * rng.standard_normal(seeds), 0.001, 0.999)
    noise = rng.standard_normal((seeds, examples))
    rest = max(0.0, 1 - shared - own)
    total = np.sqrt(shared) * difficulty + np.sqrt(own) * model_difficulty + np.sqrt(rest) * noise
    right = total < stats.norm.ppf(levels)[:, None]
    return SeedRuns(
        name,
        "simulated",
        seeds=tuple(range(seeds)),
        ids=tuple(map(str, range(examples))),
        labels=np.zeros(examples),
        predictions=np.where(right, 0.0, 1.0),
    )


def power(
    gain: float,
    trials: int = 1000,
    draws: int = 500,
    seed: int = 0,
    **noise: Unpack[SimulationSettings],
) -> float:
    """Share of simulated comparisons in which a true difference of `gain` is called reliable; 0 gives false alarms."""
    reliable = 0
    for trial in range(trials):
        control, other = simulate(generator(seed, "power", trial), gain, **noise)
        reliable += judge(control, other, ACCURACY, draws, trial).reliable
    return reliable / trials
