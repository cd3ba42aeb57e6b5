"""False alarms of `groundling.stats.verdict` where examples come in groups, by what the bootstrap draws; and McNemar's.

    python benchmarks/verdict_groups.py

1,000 comparisons a row of two models without a true difference. Examples of a group share an image or a text; "own by
group" is the share of difficulty that only runs of one model have in common, and only on the examples of one group. All
comparisons of a row are resampled together; the first ones are also judged by `judge` itself, which must agree.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy import stats

from groundling.core.metrics import ACCURACY
from groundling.core.resampling import draw_item_counts, interval
from groundling.core.rng import generator
from groundling.runs.report import format_table
from groundling.stats.verdict import ALPHA, SeedRuns, judge

TRIALS = 1000
CHECKED = 50
DRAWS = 500
SEEDS = 5
EXAMPLES = 1000
ACCURACY_OF_BOTH = 0.67
SEED_SD = 0.02
SHARED = 0.5


class Null(NamedTuple):
    """Models without a true difference."""

    group_size: int
    own: float
    """Share of difficulty that the runs of one model share, by example."""
    own_by_group: float
    """The same, by group."""


NULLS = {
    "no groups, seeds alone": Null(1, 0.0, 0.0),
    "no groups, models differ by example (own .3)": Null(1, 0.3, 0.0),
    "groups of 4, models differ by example (own .3)": Null(4, 0.3, 0.0),
    "groups of 4, models differ by group (own .1)": Null(4, 0.0, 0.1),
    "groups of 4, models differ by group (own .3)": Null(4, 0.0, 0.3),
    "groups of 20, models differ by group (own .1)": Null(20, 0.0, 0.1),
}


def simulate(null: Null, rng: np.random.Generator) -> np.ndarray:
    """Right answers (TRIALS, 2 models, SEEDS, EXAMPLES) bool."""
    groups = EXAMPLES // null.group_size
    shape = (TRIALS, 2, 1)
    total = np.sqrt(SHARED) * rng.standard_normal((TRIALS, 1, 1, EXAMPLES), np.float32)
    total = total + np.sqrt(null.own) * rng.standard_normal((*shape, EXAMPLES), np.float32)
    of_group = rng.standard_normal((*shape, groups), np.float32).repeat(null.group_size, -1)
    total = total + np.sqrt(null.own_by_group) * of_group
    rest = 1 - SHARED - null.own - null.own_by_group
    levels = ACCURACY_OF_BOTH + SEED_SD * rng.standard_normal((TRIALS, 2, SEEDS, 1))
    thresholds = stats.norm.ppf(np.clip(levels, 0.001, 0.999))
    right = np.empty((TRIALS, 2, SEEDS, EXAMPLES), bool)
    for seed in range(SEEDS):
        noise = rng.standard_normal((TRIALS, 2, EXAMPLES), np.float32)
        right[:, :, seed] = total[:, :, 0] + np.sqrt(rest) * noise < thresholds[:, :, seed]
    return right


def excludes_zero(right: np.ndarray, group_size: int, rng: np.random.Generator) -> np.ndarray:
    """Whether the bootstrap's interval excludes 0, and its standard error: (2, TRIALS)."""
    groups = EXAMPLES // group_size
    by_group = right.reshape(TRIALS, 2 * SEEDS, groups, group_size).mean(-1, dtype=np.float32)
    counts = draw_item_counts(groups, DRAWS, rng).astype(np.float32) / groups
    scores = (by_group.reshape(-1, groups) @ counts.T).reshape(TRIALS, 2, SEEDS, DRAWS)
    differences = scores[:, 1] - scores[:, 0]
    drawn = rng.integers(SEEDS, size=(TRIALS, SEEDS - 1, DRAWS))  # seeds are paired
    resampled = np.take_along_axis(differences, drawn, 1).mean(1)
    low, high = interval(resampled.T)
    return np.stack([(low > 0) | (high < 0), resampled.std(1, ddof=1)])


def permutation(right: np.ndarray) -> np.ndarray:
    """Exact two-sided permutation p over seeds, (TRIALS,)."""
    scores = right.mean(-1).reshape(TRIALS, 2 * SEEDS)
    chosen = np.array(list(combinations(range(2 * SEEDS), SEEDS)))
    sums = scores[:, chosen].sum(-1)
    middle = scores.sum(1, keepdims=True) / 2
    observed = scores[:, SEEDS:].sum(1, keepdims=True)
    p: np.ndarray = (np.abs(sums - middle) >= np.abs(observed - middle) - 1e-12).mean(1)
    return p


def mcnemar(right: np.ndarray) -> np.ndarray:
    """Exact McNemar p on majority votes, (TRIALS,)."""
    votes = right.sum(2) > SEEDS // 2
    gained = (votes[:, 1] & ~votes[:, 0]).sum(-1)
    lost = (votes[:, 0] & ~votes[:, 1]).sum(-1)
    p = 2 * stats.binom.cdf(np.minimum(gained, lost), gained + lost, 0.5)
    return np.minimum(p, 1.0)


def judged(right: np.ndarray, group_size: int, trial: int) -> bool:
    """The library's own verdict on one comparison."""
    groups = {"image": np.arange(EXAMPLES) // group_size} if group_size > 1 else {}
    control, other = (
        SeedRuns(
            name,
            "simulated",
            tuple(range(SEEDS)),
            tuple(map(str, range(EXAMPLES))),
            np.ones(EXAMPLES),
            right[trial, number].astype(float),
            groups=groups,
        )
        for number, name in enumerate(("control", "other"))
    )
    return judge(control, other, ACCURACY, DRAWS).reliable


def main() -> None:
    rows = []
    for name, null in NULLS.items():
        rng = generator("verdict groups", name)
        right = simulate(null, rng)
        p = permutation(right)
        single, error = excludes_zero(right, 1, rng)
        grouped, group_error = excludes_zero(right, null.group_size, rng)
        widest = np.where(group_error > error, grouped, single).astype(bool)
        reliable = widest & (p <= ALPHA)
        votes = mcnemar(right)
        own = [judged(right, null.group_size, trial) for trial in range(CHECKED)]
        agree = sum(verdict == reliable[trial] for trial, verdict in enumerate(own))
        rows.append(
            {
                "models": name,
                "interval, examples drawn": f"{single.mean():.3f}",
                "interval, widest": f"{widest.mean():.3f}",
                "reliable, examples drawn": f"{(single.astype(bool) & (p <= ALPHA)).mean():.3f}",
                "reliable": f"{reliable.mean():.3f}",
                "McNemar p < .05": f"{(votes < ALPHA).mean():.3f}",
                "as `judge`": f"{agree} of {CHECKED}",
            }
        )
    print(f"{TRIALS} comparisons a row, {EXAMPLES} examples, {SEEDS} seeds, no true difference:")
    print(format_table(rows))


if __name__ == "__main__":
    main()
