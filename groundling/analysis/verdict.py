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
from typing import Any

import numpy as np
from scipy import stats

from groundling.errors import InputError
from groundling.keyed import generator
from groundling.metrics import ACCURACY, METRICS, Metric

ALPHA = 0.05
DRAWS = 2000
EXACT = 20_000
"""Relabellings up to which the permutation test counts all of them."""
COLLAPSED = 0.99
"""Share of equal predictions from which a run counts as collapsed to one class."""
DETECTABLE = stats.norm.ppf(1 - ALPHA / 2) + stats.norm.ppf(0.8)
"""A difference of so many standard errors is found in four cases of five."""


@dataclass(frozen=True)
class Runs:
    """One model's finished runs on one split of a task."""

    name: str
    task: str
    seeds: tuple[int, ...]
    ids: tuple[str, ...]
    labels: np.ndarray  # (N,)
    predictions: np.ndarray  # (S, N)
    unfinished: tuple[int, ...] = ()

    def scores(self, metric: Metric) -> np.ndarray:
        """The metric of every seed, (S,); NaN where it is undefined."""
        return np.array([metric.compute(p, self.labels) for p in self.predictions])

    def right(self, seeds: Sequence[int]) -> np.ndarray:
        """Where the predictions of some of the seeds are the label, (len(seeds), N) bool."""
        return self.predictions[[self.seeds.index(seed) for seed in seeds]] == self.labels

    def collapsed(self) -> list[int]:
        """Seeds whose predictions are (nearly) all the same."""
        shares = [np.unique(p, return_counts=True)[1].max() / len(p) for p in self.predictions]
        return [seed for seed, share in zip(self.seeds, shares, strict=True) if share >= COLLAPSED]

    def votes(self) -> np.ndarray:
        """The class most seeds chose, the smaller one of a tie; (N,)."""
        classes = np.unique(self.predictions)
        counts = (self.predictions[None] == classes[:, None, None]).sum(1)  # (classes, N)
        return classes[counts.argmax(0)]

    def agreement(self) -> float:
        """Mean share of examples on which two seeds say the same; NaN for one seed."""
        pairs = [float((a == b).mean()) for a, b in combinations(self.predictions, 2)]
        return float(np.mean(pairs)) if pairs else nan


@dataclass
class Verdict:
    """What can be said of `other` against `control` on one task; differences are `other - control`."""

    task: str
    metric: str
    control: str
    other: str
    difference: float = nan
    """Of the means over seeds; NaN, like all that follows from it, where one side has no defined score."""
    error: float = nan
    """Its standard error, from the bootstrap."""
    interval: tuple[float, float] = (nan, nan)
    permutation: dict[str, Any] = field(
        default_factory=lambda: {"p": nan, "smallest": nan, "holm": nan}
    )
    """`p`, the `smallest` p these seeds can give, and `holm`, p corrected over the tasks judged together."""
    mcnemar: dict[str, Any] | None = None
    """On majority votes: examples only one side has right, and the exact two-sided p; None for numbers."""
    wins: int | None = None
    """Right answers of `other` beyond the control's, summed over the seeds both have (XDBERT Section 4)."""
    detectable: float = nan
    """The difference that would be found in four cases of five."""
    notes: list[str] = field(default_factory=list)
    reliable: bool = False
    sentence: str = ""


def judge(control: Runs, other: Runs, metric: Metric, draws: int = DRAWS, seed: int = 0) -> Verdict:
    """Compare two models' runs on the same examples; raises InputError if the examples or labels differ."""
    _same_examples(control, other)
    both = [runs.scores(metric) for runs in (control, other)]
    kept = [
        runs.predictions[np.isfinite(s)] for runs, s in zip((control, other), both, strict=True)
    ]
    verdict = Verdict(
        control.task,
        metric.name,
        control.name,
        other.name,
        notes=_notes(control, other, both, metric),
    )
    if metric.classes:
        verdict.mcnemar = _mcnemar(control, other)
        if common := [s for s in control.seeds if s in other.seeds]:
            verdict.wins = int(other.right(common).sum() - control.right(common).sum())
    if all(map(len, kept)):
        means = [float(np.nanmean(s)) for s in both]
        paired = control.seeds == other.seeds and len(kept[0]) == len(kept[1])
        found = bootstrap(kept[0], kept[1], control.labels, metric, draws, seed, paired)
        verdict.difference = means[1] - means[0]
        verdict.error = float(found.std(ddof=1))
        verdict.interval = tuple(np.quantile(found, (ALPHA / 2, 1 - ALPHA / 2)).tolist())
        verdict.detectable = float(DETECTABLE * verdict.error)
        finite = [s[np.isfinite(s)] for s in both]
        p, smallest = permutation(finite[0], finite[1], seed)
        verdict.permutation = {"p": p, "smallest": smallest, "holm": p}
    return decide([verdict])[0]


def _same_examples(control: Runs, other: Runs) -> None:
    if control.ids != other.ids:
        mine, theirs = set(control.ids), set(other.ids)
        odd = sorted(mine ^ theirs)
        about = (
            f"{len(odd)} differ, the first is {odd[0]}" if odd else "the same ids in another order"
        )
        raise InputError(
            f"{control.task}: {control.name} and {other.name} were scored on different examples ({about})"
        )
    if not np.array_equal(control.labels, other.labels):
        first = control.ids[int(np.flatnonzero(control.labels != other.labels)[0])]
        raise InputError(
            f"{control.task}: {control.name} and {other.name} have different labels, first for {first}"
        )


def bootstrap(
    control: np.ndarray,
    other: np.ndarray,
    labels: np.ndarray,
    metric: Metric,
    draws: int = DRAWS,
    seed: int = 0,
    paired: bool = True,
) -> np.ndarray:
    """Differences of mean scores over `draws` resamples of seeds and examples; predictions are (S, N).

    As MultiBERTs' Multi-Bootstrap (Sellam et al. 2022), except that of S seeds S - 1 are drawn (Rao and Wu 1988): with
    S draws the spread between so few seeds would come out too small. What is noise of single runs is counted at both
    levels, so the interval is rather too wide than too narrow. Draws without a defined metric are left out.
    """
    rng = generator(seed, "verdict", metric.name)
    n = len(labels)
    # Both models' terms side by side, (N, S1 + S2, k): one product per block of draws.
    terms = np.stack([metric.terms(p, labels) for p in (*control, *other)], axis=1)
    sizes = len(control), len(other)
    out = []
    for start in range(0, draws, 200):
        block = min(200, draws - start)
        picked = rng.integers(n, size=(block, n)) + n * np.arange(block)[:, None]
        counts = np.bincount(picked.ravel(), minlength=n * block).reshape(block, n).astype(float)
        scores = metric.finish(
            (counts @ terms.reshape(n, -1)).reshape(block, *terms.shape[1:])
        )  # (block, S1 + S2)
        first = rng.integers(sizes[0], size=(block, max(1, sizes[0] - 1)))
        second = first if paired else rng.integers(sizes[1], size=(block, max(1, sizes[1] - 1)))
        rows = np.arange(block)[:, None]
        out.append(scores[rows, second + sizes[0]].mean(1) - scores[rows, first].mean(1))
    found = np.concatenate(out)
    return found[np.isfinite(found)] if np.isfinite(found).any() else np.full(2, nan)


def permutation(control: np.ndarray, other: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """Two-sided p of the difference of means when seeds change sides, and the smallest p so many seeds can give.

    All relabellings are counted if there are at most `EXACT`, otherwise as many are drawn.
    """
    pool, size = np.concatenate([control, other]), len(other)
    every = comb(len(pool), size)
    if every <= EXACT:
        picks = np.array(list(combinations(range(len(pool)), size)))
    else:
        picks = generator(seed, "permutation").random((EXACT, len(pool))).argsort(axis=1)[:, :size]
    sums = pool[picks].sum(axis=1)
    middle = pool.sum() * size / len(pool)
    far = np.abs(sums - middle) >= abs(other.sum() - middle) - 1e-12
    # Equal sizes: each relabelling has a mirror image that is as far from the middle.
    smallest = (2 if len(control) == len(other) else 1) / every
    return (float(far.mean()) if every <= EXACT else float((far.sum() + 1) / (EXACT + 1))), min(
        1.0, smallest
    )


def _mcnemar(control: Runs, other: Runs) -> dict[str, Any]:
    """Exact McNemar test on majority votes."""
    a, b = control.votes() == control.labels, other.votes() == other.labels
    only_control, only_other = int((a & ~b).sum()), int((b & ~a).sum())
    n = only_control + only_other
    p = float(stats.binomtest(only_other, n).pvalue) if n else 1.0
    return {"only_control": only_control, "only_other": only_other, "p": p}


def holm(values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979); NaN stays NaN and does not count."""
    out = [nan] * len(values)
    ranked = sorted((p, i) for i, p in enumerate(values) if np.isfinite(p))
    worst = 0.0
    for rank, (p, i) in enumerate(ranked):
        worst = max(worst, min(1.0, (len(ranked) - rank) * p))
        out[i] = worst
    return out


def decide(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Correct over the tasks judged together, and say what each comparison shows."""
    corrected = holm([v.permutation["p"] for v in verdicts])
    for verdict, p in zip(verdicts, corrected, strict=True):
        verdict.permutation["holm"] = p
        low, high = verdict.interval
        verdict.reliable = bool(p <= ALPHA and (low > 0 or high < 0))
        verdict.sentence = _sentence(verdict, len(verdicts))
    return list(verdicts)


def _sentence(v: Verdict, tasks: int) -> str:
    metric = METRICS[v.metric]
    unit = "points" if metric.scale == 100 else metric.name.upper()
    digits = 1 if metric.scale == 100 else 3
    gap, error, low, high = (x * metric.scale for x in (v.difference, v.error, *v.interval))
    about = f"{v.other} against {v.control} on {v.task}"
    if not np.isfinite(v.difference):
        return f"{about}: no verdict, {metric.name} is undefined in every run of one side."
    span = f"95 % interval {low:+.{digits}f} to {high:+.{digits}f}"
    if v.reliable:
        better = (v.difference > 0) == metric.higher_is_better
        word = "better" if better else "worse"
        return f"{about}: {word} by {abs(gap):.{digits}f} ± {error:.{digits}f} {unit} ({span})."
    few = v.permutation["smallest"] * tasks > ALPHA
    short = (
        f" So few seeds could not show any: their smallest p is {v.permutation['smallest']:.2g}"
        if few
        else ""
    )
    short += f", times {tasks} tasks." if few and tasks > 1 else "." if few else ""
    # Without any spread (runs that all collapsed to one answer) nothing is known of what could be seen.
    least = (
        f" It would take about {v.detectable * metric.scale:.{digits}f} to be seen."
        if not few and error
        else ""
    )
    return f"{about}: no reliable difference ({gap:+.{digits}f} {unit}, {span}).{short}{least}"


def _notes(control: Runs, other: Runs, scores: list[np.ndarray], metric: Metric) -> list[str]:
    """What a reader must know of these runs: missing, unfinished, collapsed and undefined ones; none is left out."""
    notes = []
    for runs, against, values in ((control, other, scores[0]), (other, control, scores[1])):
        if missing := [s for s in against.seeds if s not in runs.seeds]:
            notes.append(f"{runs.name}: seed {_listed(missing)} is missing")
        if runs.unfinished:
            notes.append(f"{runs.name}: seed {_listed(runs.unfinished)} has not finished")
        if collapsed := runs.collapsed():
            notes.append(
                f"{runs.name}: seed {_listed(collapsed)} collapsed to one answer; it counts all the same"
            )
        undefined = [
            s for s, value in zip(runs.seeds, values, strict=True) if not np.isfinite(value)
        ]
        if undefined:
            notes.append(
                f"{runs.name}: {metric.name} is undefined for seed {_listed(undefined)}, left out of means"
            )
        if len(runs.seeds) == 1:
            notes.append(
                f"{runs.name}: one seed, so the spread between seeds is unknown and the interval too narrow"
            )
    return notes


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


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
) -> tuple[Runs, Runs]:
    """Runs of a control and of a model whose expected accuracy is higher by `gain`, with known noise.

    Examples differ in difficulty, seeds in accuracy (standard deviation `seed_sd`); `shared` is the correlation of two
    runs' answers that comes from difficulty, `own` the part of it that only runs of the same model have in common.
    """
    hard = rng.standard_normal(examples)
    sides = []
    for name, shift in (("control", 0.0), ("other", gain)):
        own_hard = rng.standard_normal(examples)
        levels = np.clip(accuracy + shift + seed_sd * rng.standard_normal(seeds), 0.001, 0.999)
        noise = rng.standard_normal((seeds, examples))
        ease = (
            np.sqrt(shared) * hard
            + np.sqrt(own) * own_hard
            + np.sqrt(max(0.0, 1 - shared - own)) * noise
        )
        right = ease < stats.norm.ppf(levels)[:, None]
        labels = np.zeros(examples)
        ids = tuple(map(str, range(examples)))
        sides.append(
            Runs(name, "simulated", tuple(range(seeds)), ids, labels, np.where(right, 0.0, 1.0))
        )
    return sides[0], sides[1]


def power(gain: float, trials: int = 1000, draws: int = 500, seed: int = 0, **noise: Any) -> float:
    """Share of simulated comparisons in which a true difference of `gain` is called reliable; 0 gives false alarms."""
    found = 0
    for trial in range(trials):
        control, other = simulate(generator(seed, "power", trial), gain, **noise)
        found += judge(control, other, ACCURACY, draws, trial).reliable
    return found / trials
