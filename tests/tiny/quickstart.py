"""Results of the quickstart's arms, made up."""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

from groundling.studies.bench.quickstart import READ_OUT, TEXTUAL, VISUAL

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
