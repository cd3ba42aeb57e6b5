"""Made-up predictions and finished runs that gave them, and results of the quickstart's arms."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from verdict_power import simulate

from groundling.core.rng import generator
from groundling.stats.verdict import SeedRuns
from groundling.stats.verdict_report import collect_groups, write_verdict
from groundling.studies.bench.quickstart import READ_OUT, TEXTUAL, VISUAL


def both(gain: float, seed: int = 0, **noise: float) -> tuple[SeedRuns, SeedRuns]:
    """A base's runs and another's, which is better by a gain."""
    return simulate(generator(seed, "test"), gain, **noise)  # type: ignore[arg-type]


def write_runs(
    folder: Path,
    made: SeedRuns,
    task: str = "glue/rte",
    metric: str = "accuracy",
    graded: list[object] | None = None,
) -> Path:
    """Run folders of these predictions; `graded` is every example's label, if it is a list."""
    for seed, predictions in zip(made.seeds, made.predictions, strict=True):
        own = folder / task.replace("/", "-") / f"seed-{seed}"
        own.mkdir(parents=True)
        lines = [
            json.dumps({"id": i, "prediction": p, "label": y if graded is None else graded})
            for i, p, y in zip(made.ids, predictions.tolist(), made.labels.tolist(), strict=True)
        ]
        (own / "predictions_dev.jsonl").write_text("\n".join(lines) + "\n")
        (own / "log.jsonl").write_text('{"step": 1}\n')
        (own / "result.json").write_text(
            json.dumps({"seed": seed, "task": task, "metrics": [metric], "splits": ["dev"]})
        )
    return folder


def judge_folders(
    groups: Mapping[str, Path],
    out: Path,
    log: Callable[[str], None] = print,
    published: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, Any]:
    """The verdict on run folders by name, the control first."""
    return write_verdict(collect_groups(groups), out, log, published)


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


LINEAR = {f"linear/{name}": name for name in ("colour", "shape", "size", "texture")}
"""Labels for linear probes of the nouns' states, in a world of objects."""


def scores(visual: float, textual: float = 0.9) -> dict[str, Any]:
    """An arm's result: the same accuracy on every visual, and on every textual question."""
    looks = (*VISUAL, *READ_OUT, *LINEAR)
    found = {name: {"dev": 0.0, "test": visual, "chance": 0.5} for name in looks}
    return found | {name: {"dev": 0.0, "test": textual, "chance": 0.25} for name in TEXTUAL}


def tuned(*seeds: float | None) -> dict[str, Any]:
    """A fine-tuned probe's result by seed; None: that seed's probe did not train."""
    counted = [value for value in seeds if value is not None]
    return {
        "dev": None,
        "test": mean(counted) if counted else None,
        "test_sd": stdev(counted) if len(counted) > 1 else None,
        "chance": 0.5,
        "scores": {"test": [0.5 if value is None else value for value in seeds]},
        "learned": [value is not None for value in seeds],
    }
