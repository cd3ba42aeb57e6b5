"""How often `groundling.stats.verdict` calls a difference reliable: false alarms, and power for published effects.

    python benchmarks/verdict_power.py

The runs are simulated: examples differ in difficulty, and seeds differ in accuracy with a standard
deviation of two points. "Own" is the share of difficulty that only runs of the same model have in common.
"""

from __future__ import annotations

from typing import TypedDict, Unpack

import numpy as np
from scipy import stats

from groundling.core.metrics import ACCURACY
from groundling.core.rng import generator
from groundling.runs.report import format_table
from groundling.stats.verdict import SeedRuns, judge

TRIALS = 1000
FEWER_TRIALS = 250
DRAWS = 300


class SimulationSettings(TypedDict, total=False):
    """Settings of simulated runs."""

    examples: int
    """Number of test examples."""
    seeds: int
    """Number of seeds of each model."""
    accuracy: float
    """Expected accuracy of the control."""
    seed_sd: float
    """Standard deviation of the accuracy between seeds."""
    shared: float
    """Correlation between the answers of any two runs, through the examples' difficulty."""
    own: float
    """Additional correlation between two runs of one model."""


NULLS: dict[str, SimulationSettings] = {
    "seeds alone": {},
    "also by example (own .3)": {"shared": 0.6, "own": 0.3},
    "by example, seeds alike (own .38, sd .3)": {"shared": 0.6, "own": 0.38, "seed_sd": 0.003},
    "seeds far apart (sd 5)": {"shared": 0.6, "own": 0.1, "seed_sd": 0.05},
}
# XDBERT, Section 4: gains in accuracy; examples of the dev set; accuracy of the base
EFFECTS: dict[str, tuple[float, SimulationSettings]] = {
    "RTE +2.74": (0.0274, {"examples": 277, "accuracy": 0.66}),
    "MRPC +.3": (0.003, {"examples": 408, "accuracy": 0.84}),
    "CoLA +.9": (0.009, {"examples": 1043, "accuracy": 0.82}),
}
SEEDS = (3, 5, 9, 20)


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
    """Simulate a control and a model whose expected accuracy is higher by `gain`; settings as in
    `SimulationSettings`.
    """
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
    """Simulated runs; an answer is right where difficulty plus noise is below the seed's threshold."""
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
    """Share of simulated comparisons with a reliable difference, for a true `gain`; 0 gives the false positive rate."""
    reliable = 0
    for trial in range(trials):
        control, other = simulate(generator(seed, "power", trial), gain, **noise)
        reliable += judge(control, other, ACCURACY, draws, trial).reliable
    return reliable / trials


def main() -> None:
    rows = []
    for name, noise in NULLS.items():
        share = power(0.0, TRIALS, DRAWS, **noise)
        rows.append({"models that differ by": name, "called reliable": f"{share:.3f}"})
    print(f"No true difference, 5 seeds, 277 examples ({TRIALS} comparisons each):")
    print(f"{format_table(rows)}\n")

    rows = []
    for name, (gain, noise) in EFFECTS.items():
        row = {"true difference": name}
        for seeds in SEEDS:
            share = power(gain, FEWER_TRIALS, DRAWS, seeds=seeds, **noise)
            row[f"{seeds} seeds"] = f"{share:.2f}"
        rows.append(row)
    print(f"Share found ({FEWER_TRIALS} comparisons each):\n{format_table(rows)}")


if __name__ == "__main__":
    main()
