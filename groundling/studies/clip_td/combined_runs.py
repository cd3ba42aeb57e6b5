"""Combinations of finished runs: ensembles of averaged probabilities, and VCR's joint Q->AR score."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    is_listed,
    predictions_of,
    probabilities,
)
from groundling.runs.folder import check_run_of, disk_errors, read_result, write_json, write_whole
from groundling.runs.run import Run
from groundling.studies.clip_td.commands import EnsembleConfig, VcrJointScoreConfig, ZeroShotConfig
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
    score_split,
    write_predictions,
)

SEED = "seed-0"
"""Folder of predictions in which nothing is random: a run with one seed, which `vcr`, `ensemble` and `verdict` read."""
LEAST = 1e-12
"""Lower bound of probabilities before the logarithm."""


def ensemble(config: EnsembleConfig, run: Run) -> dict[str, Any]:
    """Average the members' softmax probabilities on every split that all of them predicted; scores in `result.json`.

    Outputs are written as logarithms of the averages, so a softmax restores the averages.

    Raises InputError: members with different tasks or examples, or a task without class probabilities or numbers.
    """
    folder = Path(config.data)
    task = resolve("tasks", Task, config.task).with_answers_of(folder)
    if not isinstance(task.form, Classification | OpenAnswer | Regression):
        raise InputError(f"ensemble: answers of {task.name} cannot be averaged over runs")
    members: list[Path] = []
    for one in config.runs:
        seeds = finished_seeds(one, config.task)
        require_nonempty(seeds, f"{one}: no finished seed (seed-*/result.json with a task)")
        members += seeds.values()
    files = {
        split: [member / FILE.format(split) for member in members]
        for split in (*task.dev, *task.test)
    }
    splits = [split for split, of_split in files.items() if all(one.is_file() for one in of_split)]
    require_nonempty(splits, f"{members[0]}: no predictions of {', '.join(files)}")
    about: dict[str, Any] = {"members": [str(one) for one in members]}
    learned = [split for split in splits if any(_trained_on(member, split) for member in members)]
    if learned:
        about["trained_on"] = learned
    answers = (
        (split, average_probabilities(task, folder, split, files[split])) for split in splits
    )
    return {"task": config.task, **write_single_seed(run, task, config, answers, about), **about}


def write_single_seed(
    run: Run,
    task: Task,
    config: EnsembleConfig | ZeroShotConfig,
    answers: Iterable[tuple[str, EvaluationOutput]],
    about: Mapping[str, Any],
    is_whole: bool = True,
) -> dict[str, Any]:
    """Write answers by split, and their scores with `about`, as the run of one seed; returns `scores` and sizes `n`.

    `is_whole`: whether the splits are, so that the benchmark's own scores are defined.
    """
    place = run.folder / SEED
    with disk_errors(place):
        place.mkdir(exist_ok=True)
    scores: dict[str, dict[str, float]] = {}
    counts: dict[str, int] = {}
    for split, output in answers:
        if run.state.is_main_process:
            write_predictions(output, task, split, place)
        if output.labels is not None:
            scores[split] = score_split(output, task, split, Path(config.data), is_whole)
            counts[split] = len(output.examples)
    done = {"seed": 0, "task": config.task, "metrics": [metric.name for metric in task.metrics]}
    done |= {"splits": list(scores), "scores": scores, "n": counts, **about}
    if run.state.is_main_process:
        write_json(place / "result.json", done)
    return {"scores": scores, "n": counts}


def score_answers(
    task: Task,
    examples: Sequence[Example],
    outputs: np.ndarray,
    predictions: np.ndarray,
    likely: Sequence[Sequence[tuple[int, float]]] = (),
) -> EvaluationOutput:
    """The answers with the task's metrics, where the examples have labels."""
    labels = None
    metrics: dict[str, float] = {}
    if examples[0].label is not None:
        labels = np.array([example.label for example in examples], float)
        metrics = task.score(predictions, labels)
    return EvaluationOutput(examples, outputs, predictions, labels, metrics, likely)


def _trained_on(member: Path, split: str) -> bool:
    """Whether a member was trained on a split, so that its scores there are not held-out."""
    return split in (read_result(member) or {}).get("trained_on", [])


def finished_seeds(run: str, task: str) -> dict[int, Path]:
    """Folders of a run's finished seeds; `run` may also be the folder of one, `task` is a name or MODULE:NAME.

    Raises InputError for a seed of another task.
    """
    seeds: dict[int, Path] = {}
    for place in [Path(run), *sorted(Path(run).glob("seed-*"))]:
        done = read_result(place)
        if done is not None and "seed" in done and is_listed(Path(run), done["seed"]):
            check_run_of(place, done, task)
            seeds[done["seed"]] = place
    return seeds


def average_probabilities(
    task: Task, folder: Path, split: str, files: Sequence[Path]
) -> EvaluationOutput:
    """Mean probabilities of several prediction files for every example of a split, in the data's order.

    Raises InputError: a file lacks an example, has an unknown one, or has scores of another output type.
    """
    examples = task.read(folder, split)
    members = {path: predictions_of(path, examples) for path in files}
    rows = [_mean_of(members, number, task.form) for number in range(len(examples))]
    predictions = np.array([row.prediction for row in rows])
    outputs = np.array([row.outputs for row in rows])
    return score_answers(task, examples, outputs, predictions, [row.likely for row in rows])


def _mean_of(
    members: Mapping[Path, Sequence[PredictionRow]], number: int, form: OutputType
) -> PredictionRow:
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

    Raises InputError: runs of other tasks, no common seed, or an item without a prediction.
    """
    folder = Path(config.data)
    split = config.split
    items = read_items(folder, split)
    sources = {"answer": (ANSWER, config.answers), "rationale": (RATIONALE, config.rationales)}
    if config.both:
        sources = dict.fromkeys(sources, (BOTH, config.both))
    folders = {part: finished_seeds(source, task.name) for part, (task, source) in sources.items()}
    finished = [set(of_part) for of_part in folders.values()]
    seeds = sorted(set.intersection(*finished))
    require_nonempty(
        seeds,
        f"{config.both or config.answers}: no finished seed that has both answers and rationales; finished seeds are "
        + " and ".join(str(sorted(some)) for some in finished),
    )
    result: dict[str, Any] = {
        "split": split,
        "items": len(items),
        "seeds": seeds,
        "left_out_seeds": sorted(set.union(*finished) - set(seeds)),
    }
    if any(_trained_on(one, split) for some in folders.values() for one in some.values()):
        result["trained_on"] = [split]
    by_name: dict[str, list[float]] = {}
    server_files: list[str] = []
    for seed in seeds:
        answers, rationales = (
            _predictions(part, task, folders[part][seed] / FILE.format(split), folder, split)
            for part, (task, _) in sources.items()
        )
        if items[0].answer is None:
            path = run.folder / f"{split}-seed-{seed}.csv"
            scores = [
                {name: row.outputs for name, row in some.items()} for some in (answers, rationales)
            ]
            write_whole(path, leaderboard(*scores))
            server_files.append(str(path))
            continue
        right, why = (
            {name: int(row.prediction) for name, row in some.items()}
            for some in (answers, rationales)
        )
        for name, score in q_to_ar(right, why, items).items():
            by_name.setdefault(name, []).append(float(score))
    if server_files:
        return result | {"files": server_files}
    medians = {name: median(values) for name, values in by_name.items()}
    return result | {"scores": by_name, "median": medians}


def _predictions(
    part: str, task: Task, path: Path, folder: Path, split: str
) -> dict[str, PredictionRow]:
    """A seed's predictions of a part by official id, with one score for each choice, (4,).

    The file of a run on both tasks holds two parts.
    """
    examples = task.read(folder, split)
    predictions = {}
    for example, row in zip(examples, predictions_of(path, examples), strict=True):
        with prefix_errors(f"{path}, {row.name}"):
            scores = choice_scores(row, CHOICES)
        predictions[example.official_id] = replace(row, outputs=scores)
    return select_part(part, predictions) if task is BOTH else predictions
