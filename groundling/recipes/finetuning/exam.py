"""Evaluation of a fine-tuning on its way: on the task's first development split, by its main metric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from groundling.config import FinetuneConfig
from groundling.data.samples import Samples
from groundling.errors import InputError
from groundling.evaluate import evaluate
from groundling.exams import Exam
from groundling.models.kinds import Student
from groundling.objectives.supervised import Supervised
from groundling.recipes.finetuning.examples import trained_on
from groundling.tasks import Task


def exam_of(
    student: Student,
    objective: Supervised,
    task: Task,
    samples: Mapping[str, Samples],
    config: FinetuneConfig,
) -> Exam | None:
    """What is measured every --eval-every epochs; None without."""
    examining = config.examining
    if not examining.eval_every:
        return None
    split = task.dev[0]
    metric = task.metrics[0]

    def measure() -> dict[str, float]:
        return evaluate(student, objective, task, samples[split]).metrics

    return Exam(
        split=split,
        metric=metric.name,
        measure=measure,
        every=examining.eval_every,
        keep=examining.keep,
        patience=examining.patience,
        higher_is_better=metric.higher_is_better,
    )


def check_exam(task: Task, config: FinetuneConfig) -> None:
    """Raises InputError if the split that would be looked at is learned from."""
    if config.examining.eval_every and task.dev[0] in trained_on(task, config):
        raise InputError(
            f"--eval-every: {task.dev[0]} is learned from (--train-splits), so that it says nothing of held-out data; "
            "leave one of the two out"
        )


def flattery(trained: Mapping[str, Any]) -> list[str]:
    """What a reader must know of a score by which the weights were chosen."""
    exam = trained.get("exam")
    if exam is None or exam["keep"] == "last" or exam["evaluations"] < 2:
        return []
    return [
        f"the weights of step {exam['kept_step']} were kept, the best of {exam['evaluations']} evaluations on "
        f"{exam['split']}: its scores on {exam['split']} are flattered by that choice"
    ]
