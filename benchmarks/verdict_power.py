"""How often `groundling.stats.verdict` calls a difference reliable: false alarms, and power for published effects.

    python benchmarks/verdict_power.py

The runs are simulated (`verdict.simulate`): examples differ in difficulty, and seeds differ in accuracy with a standard
deviation of two points. "Own" is the share of difficulty that only runs of the same model have in common.
"""

from groundling.runs.report import format_table
from groundling.stats.verdict import SimulationSettings, power

TRIALS = 1000
FEWER_TRIALS = 250
DRAWS = 300

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
