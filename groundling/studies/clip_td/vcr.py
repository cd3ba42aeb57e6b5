"""VCR's joint score, or its server's file, from runs on its two tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.data.tables import read_json_lines
from groundling.prediction.agreement import Agreement
from groundling.runs.folder import RESULT, finished, write_whole
from groundling.runs.run import Run
from groundling.studies.clip_td.commands import VcrConfig
from groundling.tasks import Task
from groundling.tasks.vcr import (
    ANSWER,
    BOTH,
    CHOICES,
    RATIONALE,
    Item,
    items,
    leaderboard,
    one_part,
    q_to_ar,
)


def vcr(config: VcrConfig, run: Run) -> dict[str, Any]:
    """Q->A, QA->R and Q->AR, 0..1, of each seed that both runs have, and medians, written to `result.json`.

    Of a split without labels the server's csv is written instead, `SPLIT-seed-N.csv`.

    Raises:
        InputError: Runs of other tasks, runs without a common seed, or an item without a prediction.
    """
    folder = Path(config.data)
    split = config.split
    asked = items(folder, split)
    answer_files, rationale_files = _files_of_both(config, split)
    seeds = sorted(answer_files.keys() & rationale_files.keys())
    result: dict[str, Any] = {
        "split": split,
        "items": len(asked),
        "seeds": seeds,
        "left_out_seeds": sorted(answer_files.keys() ^ rationale_files.keys()),
    }
    files = (*answer_files.values(), *rationale_files.values())
    if any(_learned(file, split) for file in files):
        result["trained_on"] = [split]
    if config.both:
        predicted = _predicted_by_one(folder, split, [answer_files[seed] for seed in seeds])
    else:
        pairs = [(answer_files[seed], rationale_files[seed]) for seed in seeds]
        predicted = _predicted(folder, split, pairs)
    if asked[0].answer is None:
        result["files"] = []
        for seed, (answers, rationales) in zip(seeds, predicted, strict=True):
            path = run.folder / f"{split}-seed-{seed}.csv"
            _write_leaderboard(path, answers, rationales)
            result["files"].append(str(path))
    else:
        scores = _joint_scores(predicted, asked)
        result["scores"] = scores
        result["median"] = {name: median(values) for name, values in scores.items()}
    return result


@dataclass(frozen=True)
class Prediction:
    """What a run says of one example."""

    choice: int
    """The predicted one, 0 to 3."""
    scores: np.ndarray
    """(4,) of the choices."""


Predictions = dict[str, Prediction]
"""By official id."""


def _predicted(
    folder: Path, split: str, files: Sequence[tuple[Path, Path]]
) -> list[tuple[Predictions, Predictions]]:
    """Answers and rationales of every pair of files."""
    answers = ANSWER.read(folder, split)
    rationales = RATIONALE.read(folder, split)
    return [(_predictions(one, answers), _predictions(other, rationales)) for one, other in files]


def _predicted_by_one(
    folder: Path, split: str, files: Sequence[Path]
) -> list[tuple[Predictions, Predictions]]:
    """Answers and rationales of every file of a run on both."""
    examples = BOTH.read(folder, split)
    every = [_predictions(path, examples) for path in files]
    return [(one_part("answer", said), one_part("rationale", said)) for said in every]


def _joint_scores(
    predicted: list[tuple[Predictions, Predictions]], asked: list[Item]
) -> dict[str, list[float]]:
    """Every score by name, seed after seed."""
    scores: dict[str, list[float]] = {}
    for answers, rationales in predicted:
        chosen_answers = {official: row.choice for official, row in answers.items()}
        chosen_rationales = {official: row.choice for official, row in rationales.items()}
        for name, score in q_to_ar(chosen_answers, chosen_rationales, asked).items():
            scores.setdefault(name, []).append(float(score))
    return scores


def _write_leaderboard(path: Path, answers: Predictions, rationales: Predictions) -> None:
    answer_scores = {official: row.scores for official, row in answers.items()}
    rationale_scores = {official: row.scores for official, row in rationales.items()}
    write_whole(path, leaderboard(answer_scores, rationale_scores))


def _files_of_both(config: VcrConfig, split: str) -> tuple[dict[int, Path], dict[int, Path]]:
    """The files of answers and of rationales by seed, which of a run on both are the same ones.

    Raises InputError if no seed has finished both.
    """
    if config.both:
        files = _files(config.both, BOTH, split)
        if not files:
            raise InputError(f"{config.both}: no finished seed of {BOTH.name}")
        return files, files
    answer_files = _files(config.answers, ANSWER, split)
    rationale_files = _files(config.rationales, RATIONALE, split)
    if not answer_files.keys() & rationale_files.keys():
        raise InputError(
            f"{config.answers}, {config.rationales}: no finished seed in both; "
            f"there are {sorted(answer_files)} and {sorted(rationale_files)}"
        )
    return answer_files, rationale_files


def _files(run: str, task: Task, split: str) -> dict[int, Path]:
    """The file of predictions of every finished seed of a run folder."""
    files: dict[int, Path] = {}
    for seed_folder in sorted(Path(run).glob("seed-*")):
        done = finished(seed_folder)
        if done is None:
            continue
        if done.get("task") != task.name:
            raise InputError(
                f"{seed_folder}: a run of {done.get('task')}, expected one of {task.name}"
            )
        if type(done.get("seed")) is not int:
            raise InputError(f"{seed_folder / RESULT}: expected a whole number in 'seed'")
        files[done["seed"]] = seed_folder / f"predictions_{split}.jsonl"
    return files


def _learned(file: Path, split: str) -> bool:
    """Whether the run whose predictions these are learned from the split."""
    return split in (finished(file.parent) or {}).get("trained_on", [])


def _predictions(path: Path, examples: list[Example]) -> Predictions:
    """A file's prediction of every example, in the examples' order, by official id."""
    if not path.is_file():
        raise InputError(
            f"{path}: no such file; `finetune --submit` predicts the unlabelled test split, too"
        )
    # Files of runs before the field `official` was written name an example by its id alone.
    official_of = {example.id: example.official for example in examples}
    predictions: Predictions = {}
    agreement = Agreement(ANSWER.form)
    for where, row in read_json_lines(path, ("id",)):
        official = row.get("official")
        if not isinstance(official, str):
            official = official_of.get(row["id"], "")
        predictions[official] = _prediction(where, row)
        agreement.check(where, row, predictions[official].choice)
    absent = [example.id for example in examples if example.official not in predictions]
    if absent:
        raise InputError(
            f"{path}: no prediction for {absent[0]} ({len(absent):,} such); other data, or cut off?"
        )
    return {example.official: predictions[example.official] for example in examples}


def _prediction(where: str, row: Mapping[str, Any]) -> Prediction:
    """A line's choice and scores; UNITER has two scores a choice, wrong and right, of which the second counts."""
    outputs = row.get("outputs")
    choice = row.get("prediction")
    has_scores = (
        isinstance(outputs, list)
        and len(outputs) in (CHOICES, 2 * CHOICES)
        and all(isinstance(output, int | float) for output in outputs)
    )
    if not has_scores or choice not in range(CHOICES):
        raise InputError(
            f"{where}: expected 4 numbers (or 8) in 'outputs', and a 'prediction' from 0 to 3"
        )
    scores = np.array(outputs, float).reshape(CHOICES, -1)
    return Prediction(int(row["prediction"]), scores[:, -1])
