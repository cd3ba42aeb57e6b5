"""VCR's joint score, or its server's file, from runs on its two tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from groundling.config import VcrConfig
from groundling.errors import InputError
from groundling.runs import disk_errors, finished, open_run, write_json
from groundling.tasks import Task
from groundling.tasks.nlvr2 import records
from groundling.tasks.vcr import ANSWER, RATIONALE, items, leaderboard, q_to_ar


def vcr(config: VcrConfig, out: str | Path) -> dict[str, Any]:
    """Q->A, QA->R and Q->AR, 0..1, of each seed that both runs have, and medians, written to `out/result.json`.

    Of a split without labels the server's csv is written instead, `out/SPLIT-seed-N.csv`. Raises InputError for runs of
    other tasks, runs without a common seed, and an item without a prediction.
    """
    for field in ("answers", "rationales", "data"):
        if not asdict(config)[field]:
            raise InputError(f"vcr needs --{field}")
    folder, split = Path(config.data), config.split
    asked = items(folder, split)
    answered, reasoned = (
        _seeds(config.answers, ANSWER, split),
        _seeds(config.rationales, RATIONALE, split),
    )
    seeds = sorted(answered.keys() & reasoned.keys())
    if not seeds:
        there = f"{sorted(answered)} and {sorted(reasoned)}"
        raise InputError(
            f"{config.answers}, {config.rationales}: no finished seed in both; there are {there}"
        )
    paths = {
        f"{name} {seed}": found[seed]
        for seed in seeds
        for name, found in (("a", answered), ("r", reasoned))
    }
    run = open_run(out, "vcr", asdict(config), {"data": ANSWER.file(folder, split), **paths})
    result: dict[str, Any] = {"split": split, "items": len(asked), "seeds": seeds}
    result["left_out_seeds"] = sorted(answered.keys() ^ reasoned.keys())
    scores = dict[str, list[float]]()
    for seed in seeds:
        both = ((ANSWER, answered[seed]), (RATIONALE, reasoned[seed]))
        answers, reasons = (
            _rows(path, [e.id for e in task.read(folder, split)]) for task, path in both
        )
        if asked[0].answer is None:
            path = run / f"{split}-seed-{seed}.csv"
            a, r = (
                {name: np.array(row["outputs"]) for name, row in own.items()}
                for own in (answers, reasons)
            )
            with disk_errors(path):
                path.write_text(leaderboard(a, r), encoding="utf-8")
            result.setdefault("files", []).append(str(path))
            continue
        said, why = (
            {_item(name): int(row["prediction"]) for name, row in own.items()}
            for own in (answers, reasons)
        )
        for name, score in q_to_ar(said, why, asked).items():
            scores.setdefault(name, []).append(float(score))
    if scores:
        result |= {
            "scores": scores,
            "median": {name: median(values) for name, values in scores.items()},
        }
    write_json(run / "result.json", result)
    return result


def _seeds(run: str, task: Task, split: str) -> dict[int, Path]:
    """The predictions of every finished seed of a run folder."""
    found = dict[int, Path]()
    for own in sorted(Path(run).glob("seed-*")):
        if (done := finished(own)) is not None:
            if done.get("task") != task.name:
                raise InputError(f"{own}: a run of {done.get('task')}, expected one of {task.name}")
            found[int(done["seed"])] = own / f"predictions_{split}.jsonl"
    return found


def _rows(path: Path, wanted: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The prediction of each wanted example, one of 0 to 3, and its `outputs`, a score for each choice.

    UNITER has two a choice, wrong and right, of which the second counts.
    """
    if not path.is_file():
        raise InputError(
            f"{path}: no such file; `finetune --submit` predicts the unlabelled test split, too"
        )
    found = dict[str, dict[str, Any]]()
    for where, row in records(path, ("id",)):
        scores = row["outputs"] if isinstance(row.get("outputs"), list) else []
        numbers = len(scores) in (4, 8) and all(isinstance(s, int | float) for s in scores)
        if not numbers or row.get("prediction") not in range(4):
            raise InputError(
                f"{where}: expected 4 numbers (or 8) in 'outputs', and a 'prediction' from 0 to 3"
            )
        each = len(scores) // 4
        found[row["id"]] = row | {"outputs": scores[each - 1 :: each]}
    if absent := [name for name in wanted if name not in found]:
        raise InputError(
            f"{path}: no prediction for {absent[0]} ({len(absent):,} such); other data, or cut off?"
        )
    return {name: found[name] for name in wanted}


def _item(example: str) -> str:
    return example.removeprefix("vcr-answer-").removeprefix("vcr-rationale-")
