"""Evaluation of a fine-tuning on its way: on the task's first development split, by its main metric."""

from __future__ import annotations

from collections.abc import Mapping

from groundling.commands.finetune import FinetuneConfig
from groundling.commands.finetune.examples import trained_on
from groundling.core.errors import InputError
from groundling.data.samples import Samples
from groundling.models.kinds import Student
from groundling.objectives.supervised import Supervised
from groundling.tasks import Task
from groundling.training.evaluation import evaluate
from groundling.training.exams import Exam
from groundling.training.held_out import exam_every


def exam_of(
    student: Student,
    objective: Supervised,
    task: Task,
    samples: Mapping[str, Samples],
    config: FinetuneConfig,
) -> Exam | None:
    """What is measured every --eval-every epochs; None without."""
    split = task.dev[0]
    metric = task.metrics[0]

    def measure() -> dict[str, float]:
        return evaluate(student, objective, task, samples[split]).metrics

    return exam_every(config.examining, split, metric.name, measure, metric.higher_is_better)


def check_exam(task: Task, config: FinetuneConfig) -> None:
    """Raises InputError if the split that would be looked at is learned from."""
    if config.examining.eval_every and task.dev[0] in trained_on(task, config):
        raise InputError(
            f"--eval-every: {task.dev[0]} is learned from (--train-splits), so that it says nothing of held-out data; "
            "leave one of the two out"
        )
