"""Combinations of finished runs: ensembles of averaged probabilities, and VCR's joint Q->AR score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from groundling.core.batch import Example
from groundling.core.errors import InputError, prefix_errors, require_nonempty
from groundling.core.output_types import (
    Classification,
    MultipleChoice,
    OpenAnswer,
    OutputType,
    Regression,
)
from groundling.core.registry import resolve
from groundling.prediction.predictions import (
    FILE,
    PredictionRow,
    choice_scores,
    predictions_of,
    probabilities,
)
from groundling.runs.folder import (
    check_run_of,
    disk_errors,
    read_result,
    write_json,
    write_whole,
)
from groundling.runs.run import Run
from groundling.studies.clip_td.commands import EnsembleConfig, VcrJointScoreConfig
from groundling.tasks import Task
from groundling.tasks.vcr import (
    ANSWER,
    BOTH,
    CHOICES,
    RATIONALE,
    leaderboard,
    q_to_ar,
    read_items,
    select_part,
)
from groundling.training.evaluation import (
    MAX_OUTPUTS,
    EvaluationOutput,
    find_top_classes,
    write_predictions,
)

SEED = "seed-0"
"""Folder of the ensemble's predictions: a run with one seed, which `groundling vcr` and `ensemble` can read."""
LEAST = 1e-12
"""Lower bound of probabilities before the logarithm."""


def ensemble(config: EnsembleConfig, run: Run) -> dict[str, Any]:
    """Average the members' softmax probabilities on every split that all of them predicted; scores in `result.json`.

    Outputs are written as logarithms of the averages, so a softmax restores the averages.

    Raises:
        InputError: Members with different tasks or examples, or a task without class probabilities or numbers.
    """
    folder = Path(config.data)
    task, members, splits = _members_and_splits(config)
    place = run.folder / SEED
    with disk_errors(place):
        place.mkdir(exist_ok=True)
    scores: dict[str, dict[str, float]] = {}
    counts: dict[str, int] = {}
    for split in splits:
        answers = average_probabilities(
            task, folder, split, [member / FILE.format(split) for member in members]
        )
        write_predictions(answers, task, split, place)
        if answers.labels is not None:
            official = task.official(folder, split, answers.official_ids, answers.predictions)
            scores[split] = answers.metrics | official
            counts[split] = len(answers.examples)
    done = {"seed": 0, "task": config.task, "metrics": [metric.name for metric in task.metrics]}
    done |= {"splits": list(scores), "scores": scores, "members": [str(one) for one in members]}
    done["n"] = counts
    result = {"task": config.task, "members": done["members"], "scores": scores, "n": counts}
    learned = [split for split in splits if any(_trained_on(member, split) for member in members)]
    if learned:
        done["trained_on"] = learned
        result["trained_on"] = learned
    write_json(place / "result.json", done)
    return result


def _members_and_splits(config: EnsembleConfig) -> tuple[Task, list[Path], list[str]]:
    """The task, the members' folders, and the splits that all members predicted."""
    task = resolve("tasks", Task, config.task).with_answers_of(Path(config.data))
    if not isinstance(task.form, Classification | OpenAnswer | Regression):
        raise InputError(f"ensemble: answers of {task.name} cannot be averaged over runs")
    members = [member for run in config.runs for member in members_of(run, config.task)]
    return task, members, _splits(task, members)


def _trained_on(member: Path, split: str) -> bool:
    """Whether a member was trained on a split, so that its scores there are not held-out."""
    return split in (read_result(member) or {}).get("trained_on", [])


def members_of(run: str, task: str) -> list[Path]:
    """Folders of a run's finished seeds; `run` may also be a single seed's folder, `task` is a name or MODULE:NAME.

    Raises:
        InputError: There is no finished seed, or one of another task.
    """
    members = list(_finished_seeds([Path(run), *sorted(Path(run).glob("seed-*"))], task).values())
    require_nonempty(members, f"{run}: no finished seed (seed-*/result.json with a task)")
    return members


def _finished_seeds(places: Sequence[Path], task: str) -> dict[int, Path]:
    """The folders of finished seeds; raises InputError for one of another task."""
    seeds: dict[int, Path] = {}
    for place in places:
        done = read_result(place)
        if done is not None and "seed" in done:
            check_run_of(place, done, task)
            seeds[done["seed"]] = place
    return seeds


def _splits(task: Task, members: Sequence[Path]) -> list[str]:
    """The splits that every member predicted; raises InputError if there are none."""
    splits = [
        split
        for split in (*task.dev, *task.test)
        if all((member / FILE.format(split)).is_file() for member in members)
    ]
    require_nonempty(
        splits, f"{members[0]}: no predictions of {', '.join((*task.dev, *task.test))}"
    )
    return splits


def average_probabilities(
    task: Task, folder: Path, split: str, files: Sequence[Path]
) -> EvaluationOutput:
    """Mean probabilities of several prediction files for every example of a split, in the data's order.

    Raises:
        InputError: A file lacks an example, has an unknown one, or has scores of another output type.
    """
    examples = task.read(folder, split)
    members = {path: predictions_of(path, examples) for path in files}
    rows = [_mean_of(members, number, task.form) for number in range(len(examples))]
    predictions = np.array([row.prediction for row in rows])
    labels = None
    metrics: dict[str, float] = {}
    if examples[0].label is not None:
        labels = np.array([example.label for example in examples], float)
        metrics = task.score(predictions, labels)
    outputs = np.array([row.outputs for row in rows])
    likely = [row.likely for row in rows]
    return EvaluationOutput(examples, outputs, predictions, labels, metrics, likely)


def _mean_of(
    members: Mapping[Path, Sequence[PredictionRow]], number: int, form: OutputType
) -> PredictionRow:
    """The members' averaged prediction for one example."""
    of_members = []
    for path, rows in members.items():
        with prefix_errors(f"{path}, {rows[number].name}"):
            of_members.append(probabilities(rows[number], form))
    mean = np.mean(of_members, axis=0)
    if isinstance(form, Regression):
        return PredictionRow(float(mean[0]), mean)
    # UNITER's two scores per choice are one probability here, which `form.predict` does not expect.
    best = int(mean.argmax() if isinstance(form, MultipleChoice) else form.predict(mean[None])[0])
    outputs = np.log(np.maximum(mean, LEAST))
    if len(mean) <= MAX_OUTPUTS:
        return PredictionRow(best, outputs)
    return PredictionRow(best, outputs[best : best + 1], tuple(find_top_classes(outputs[None])[0]))


# VCR's joint score, or the file for its server, from runs on its two tasks.


def vcr(config: VcrJointScoreConfig, run: Run) -> dict[str, Any]:
    """Q->A, QA->R and Q->AR, 0..1, of each common seed, and medians, written to `result.json`.

    For a split without labels, writes the server's csv instead, `SPLIT-seed-N.csv`.

    Raises:
        InputError: Runs of other tasks, no common seed, or an item without a prediction.
    """
    folder = Path(config.data)
    split = config.split
    items = read_items(folder, split)
    answer_files, rationale_files = _files_of_both(config, split)
    seeds = sorted(answer_files.keys() & rationale_files.keys())
    result: dict[str, Any] = {
        "split": split,
        "items": len(items),
        "seeds": seeds,
        "left_out_seeds": sorted(answer_files.keys() ^ rationale_files.keys()),
    }
    files = (*answer_files.values(), *rationale_files.values())
    if any(_trained_on(file.parent, split) for file in files):
        result["trained_on"] = [split]
    predicted = [
        _predictions_of_both(config, answer_files[seed], rationale_files[seed]) for seed in seeds
    ]
    if items[0].answer is None:
        result["files"] = []
        for seed, both in zip(seeds, predicted, strict=True):
            path = run.folder / f"{split}-seed-{seed}.csv"
            scores = ({name: row.outputs for name, row in part.items()} for part in both)
            write_whole(path, leaderboard(*scores))
            result["files"].append(str(path))
        return result
    by_name: dict[str, list[float]] = {}
    for both in predicted:
        answers, rationales = (
            {name: int(row.prediction) for name, row in part.items()} for part in both
        )
        for name, score in q_to_ar(answers, rationales, items).items():
            by_name.setdefault(name, []).append(float(score))
    result["scores"] = by_name
    result["median"] = {name: median(values) for name, values in by_name.items()}
    return result


ChoicePredictions = dict[str, PredictionRow]
"""By official id; the outputs are (4,), one score for each choice."""


def _predictions_of_both(
    config: VcrJointScoreConfig, answers: Path, rationales: Path
) -> tuple[ChoicePredictions, ChoicePredictions]:
    """Predicted answers and rationales of a seed; the files are one for a run on both tasks."""
    folder, split = Path(config.data), config.split
    if config.both:
        predictions = _predictions(answers, BOTH.read(folder, split))
        return select_part("answer", predictions), select_part("rationale", predictions)
    return (
        _predictions(answers, ANSWER.read(folder, split)),
        _predictions(rationales, RATIONALE.read(folder, split)),
    )


def _files_of_both(
    config: VcrJointScoreConfig, split: str
) -> tuple[dict[int, Path], dict[int, Path]]:
    """Prediction files of answers and of rationales by seed; the same files for a run on both tasks.

    Raises InputError if no seed has both.
    """
    if config.both:
        answer_files = rationale_files = _files(config.both, BOTH, split)
    else:
        answer_files = _files(config.answers, ANSWER, split)
        rationale_files = _files(config.rationales, RATIONALE, split)
    if not answer_files.keys() & rationale_files.keys():
        raise InputError(
            f"{config.both or config.answers}: no finished seed that has both answers and rationales; finished seeds "
            f"are {sorted(answer_files)} and {sorted(rationale_files)}"
        )
    return answer_files, rationale_files


def _files(run: str, task: Task, split: str) -> dict[int, Path]:
    """Prediction file of every finished seed of a run."""
    seeds = _finished_seeds(sorted(Path(run).glob("seed-*")), task.name)
    return {seed: place / FILE.format(split) for seed, place in seeds.items()}


def _predictions(path: Path, examples: list[Example]) -> ChoicePredictions:
    """A file's prediction for every example, in the examples' order, by official id."""
    predictions = {}
    for example, row in zip(examples, predictions_of(path, examples), strict=True):
        with prefix_errors(f"{path}, {row.name}"):
            scores = choice_scores(row, CHOICES)
        predictions[example.official_id] = replace(row, outputs=scores)
    return predictions
