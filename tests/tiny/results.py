"""Made-up predictions and finished runs that gave them, and what the quickstart's arms read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from verdict_power import simulate

from groundling.core.rng import generator
from groundling.runs.folder import write_json, write_json_lines
from groundling.stats.verdict import SeedRuns
from groundling.stats.verdict_report import collect_groups, write_verdict
from groundling.studies.bench.engine import METHOD, SHUFFLED, TEXT_CONTROL
from groundling.studies.bench.methods.text_and_teacher import CONTRASTIVE, L1, XDBERT


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


def write_training(
    folder: Path, losses: Sequence[float], is_finished: bool = True, **settings: Any
) -> Path:
    """An adaptation's folder with these losses every ten steps, an evaluation and the scores of three seeds."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"arm": "mlm", "train": {"lr": settings.pop("lr", 2e-5)}, **settings}
    write_json(folder / "config.json", {"kind": "adapt", "config": config, "inputs": {}})
    lines = [
        {"step": 10 * place, "loss": loss, "mlm": loss, "lr": 1e-5, "seconds": 1.0}
        for place, loss in enumerate(losses, 1)
    ]
    end = {"step": 10 * len(losses)}
    lines += [{**end, "held-out texts loss": losses[-1] + 0.1}, {**end, "dev accuracy": 0.75}]
    write_json_lines(folder / "log.jsonl", lines)
    if is_finished:
        scores = {"dev": {"accuracy": [0.5, 0.75, 1.0]}}
        result = {"steps": end["step"], "scores": scores, "n": {"dev": 8}}
        write_json(folder / "result.json", {**result, "notes": ["too short to judge"]})
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


METHODS = {one.name: {"data": one.data} for one in (XDBERT, L1, CONTRASTIVE)}
ROWS = [*METHODS, *(f"  {name}: {TEXT_CONTROL}" for name in METHODS), f"  contrastive: {SHUFFLED}"]
"""Labels of the full quickstart's table."""


def tuned(*seeds: float | None) -> dict[str, Any]:
    """A fine-tuned probe's reading by seed; None: that seed's probe did not train."""
    counted = [value for value in seeds if value is not None]
    return {
        "dev": None,
        "test": mean(counted) if counted else None,
        "chance": 0.5,
        "scores": [0.5 if value is None else value for value in seeds],
        "trained": [value is not None for value in seeds],
    }


def entry(method: str, arm: str, visual: float, odd: Sequence[float | None]) -> dict[str, Any]:
    """An arm whose linear readings are all `visual`, with the seeds of "odd one out"."""
    linear = {"train": visual, "dev": visual, "test": visual, "chance": 0.25}
    names = ("visual", "linear/colour", "linear/category", "readout odd")
    readings = {name: linear for name in names} | {"odd": tuned(*odd), "category": tuned(0.9)}
    place = {"family": "objects", "world": 0, "seed": 0, "texts": "abc"}
    return {"method": method, "arm": arm, **place, "readings": readings}


def full() -> dict[str, Any]:
    """The result of a full quickstart, in which contrastive alone transfers."""
    blind = [entry(name, METHOD, 0.3, (None, 0.5)) for name in METHODS if name != CONTRASTIVE.name]
    runs = [
        *blind,
        entry("contrastive", METHOD, 0.814, (0.7, 0.75, 0.8)),
        entry("", TEXT_CONTROL, 0.3, (None, None)),
        entry("contrastive", SHUFFLED, 0.25, (None, None)),
    ]
    recall = {"images": 500.0, "text_to_image_r@1": 45.3, "image_to_text_r@1": 64.6}
    return {"methods": METHODS, "runs": runs, "retrieval": recall, "seconds": 200.0, "scale": 1.0}
