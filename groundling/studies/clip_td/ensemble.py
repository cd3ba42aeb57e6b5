"""Several finished runs as one: their probabilities averaged, aligned by what the data set calls its examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.errors import InputError, refuse
from groundling.core.find import named
from groundling.core.forms import Answer, Choose, Classify, Form, Regress
from groundling.prediction.predictions import FILE, Said, probabilities, read_predictions, told_of
from groundling.runs.folder import disk_errors, finished, write_json
from groundling.runs.run import Run
from groundling.studies.clip_td.commands import EnsembleConfig
from groundling.tasks import Task
from groundling.tasks.partitions import name_of
from groundling.training.evaluation import MANY, Scores, most_likely, write_answers

SEED = "seed-0"
"""Where the ensemble's own answers are: it is a run of one seed, which `groundling vcr` and another ensemble read."""
LEAST = 1e-12
"""A probability below this is written as this one, for a logarithm."""


def ensemble(config: EnsembleConfig, run: Run) -> dict[str, Any]:
    """Average the runs' softmax probabilities on every split that all of them predicted; scores in `result.json`.

    Outputs are written as logarithms of the averages, so that a softmax of them gives the averages again.

    Raises:
        InputError: Fewer than two members, members of other tasks or examples, or a task whose answers have no
            probabilities.
    """
    folder = Path(config.data)
    task, members, splits = _averaged(config)
    place = run.folder / SEED
    with disk_errors(place):
        place.mkdir(exist_ok=True)
    scores: dict[str, dict[str, float]] = {}
    for split in splits:
        answers = averaged(task, folder, split, [member / FILE.format(split) for member in members])
        write_answers(answers, task, split, place)
        if answers.labels is not None:
            official = task.official(folder, split, answers.officials, answers.predictions)
            scores[split] = answers.metrics | official
    done = {"seed": 0, "task": config.task, "metrics": [metric.name for metric in task.metrics]}
    done |= {"splits": list(scores), "scores": scores, "members": [str(one) for one in members]}
    result = {"task": config.task, "members": done["members"], "scores": scores}
    learned = [split for split in splits if any(_learned(member, split) for member in members)]
    if learned:
        done["trained_on"] = learned
        result["trained_on"] = learned
    write_json(place / "result.json", done)
    return result


def _averaged(config: EnsembleConfig) -> tuple[Task, list[Path], list[str]]:
    """The task, the members' folders, and the splits that all of them predicted."""
    task = named("tasks", Task, config.task).at(Path(config.data))
    if not isinstance(task.form, Classify | Answer | Regress):
        raise InputError(f"ensemble: answers of {task.name} cannot be averaged over runs")
    members = [member for run in config.runs for member in members_of(run, config.task)]
    if len(members) < 2:
        raise InputError(f"ensemble: {len(members)} finished seeds in --runs, expected at least 2")
    return task, members, _splits(task, members)


def _learned(member: Path, split: str) -> bool:
    """Whether a member learned from a split, so that its scores there are not of held-out data."""
    return split in (finished(member) or {}).get("trained_on", [])


def members_of(run: str, task: str) -> list[Path]:
    """The folders of a run's finished seeds on a task, by name or MODULE:NAME; a seed's own folder is one.

    Raises:
        InputError: There is none, or one of another task.
    """
    places = [Path(run), *sorted(Path(run).glob("seed-*"))]
    found = []
    for place in places:
        done = finished(place)
        if done is None or "seed" not in done:
            continue
        if done.get("task") != task:
            raise InputError(f"{place}: a run of {done.get('task')}, expected one of {task}")
        found.append(place)
    if not found:
        raise InputError(f"{run}: holds no finished seed (seed-*/result.json with a task)")
    return found


def _splits(task: Task, members: Sequence[Path]) -> list[str]:
    """The splits that every member predicted; raises InputError if there are none, or some have what others lack."""
    splits = []
    for split in (*task.dev, *task.test):
        paths = [member / FILE.format(split) for member in members]
        there = [path for path in paths if path.is_file()]
        if len(there) == len(paths):
            splits.append(split)
        elif there:
            absent = next(path for path in paths if path not in there)
            raise InputError(f"{absent}: no such file, but {there[0]} is there")
    if not splits:
        raise InputError(f"{members[0]}: no predictions of {', '.join((*task.dev, *task.test))}")
    return splits


def averaged(task: Task, folder: Path, split: str, files: Sequence[Path]) -> Scores:
    """The mean of several files' probabilities for every example of a split, in the data's order.

    Raises:
        InputError: A file lacks an example, has another one, or scores of another form.
    """
    examples = task.read(folder, split)
    names = [name_of(example) for example in examples]
    members = {path: read_predictions(path, task.form) for path in files}
    for path, said in members.items():
        _same_ids(path, names, said)
    rows = [_mean_of(members, name, task.form) for name in names]
    predictions = np.array([row.prediction for row in rows])
    labels = None
    metrics: dict[str, float] = {}
    if examples[0].label is not None:
        labels = np.array([example.label for example in examples], float)
        metrics = task.score(predictions, labels)
    return Scores(
        [example.id for example in examples],
        np.array([row.outputs for row in rows]),
        predictions,
        labels,
        metrics,
        [example.official for example in examples],
        [row.likely for row in rows],
    )


def _mean_of(members: Mapping[Path, Mapping[str, Said]], name: str, form: Form) -> Said:
    """What the members say of one example together."""
    of_members = []
    for path, said in members.items():
        with told_of(f"{path}, {name}"):
            of_members.append(probabilities(said[name], form))
    mean = np.mean(of_members, axis=0)
    if isinstance(form, Regress):
        return Said(float(mean[0]), mean)
    # Two scores a choice (UNITER) are one probability here, which `form.predict` would not expect.
    best = int(mean.argmax() if isinstance(form, Choose) else form.predict(mean[None])[0])
    outputs = np.log(np.maximum(mean, LEAST))
    if len(mean) <= MANY:
        return Said(best, outputs)
    return Said(best, outputs[best : best + 1], tuple(most_likely(outputs[None])[0]))


def _same_ids(path: Path, names: Sequence[str], said: Mapping[str, Said]) -> None:
    """Raises InputError naming the first example of the data that a file lacks, or has beyond them."""
    absent = [name for name in names if name not in said]
    refuse([f"{path}: no prediction for {name}; other data, or cut off?" for name in absent])
    surplus = sorted(said.keys() - set(names))
    refuse([f"{path}: a prediction for {name}, which is not in the data" for name in surplus])
