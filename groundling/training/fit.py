"""What every training command does with a model, its objectives and its data: train, evaluate, note and save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from groundling.core.errors import InputError
from groundling.models.loading import Encoder
from groundling.objectives import (
    Objective,
    ObjectiveContext,
    in_batch_negatives_note,
    make_objectives,
    save_objective_heads,
)
from groundling.runs.run import RunFolder
from groundling.settings.objectives import TrainingStepSettings
from groundling.settings.training import EvaluationSettings, TrainingArguments
from groundling.teachers import Teacher
from groundling.teachers.feature_cache import TeacherSet
from groundling.training.batch_sampler import DataSource
from groundling.training.evaluation import Evaluator
from groundling.training.held_out_loss import (
    HeldOutLoss,
    selection_bias_note,
)
from groundling.training.loop import train
from groundling.training.training_steps import load_training_step


def taught_objectives(
    names: Sequence[str], context: ObjectiveContext, teacher_set: TeacherSet, seed: int
) -> list[Objective]:
    """Objectives with heads as wide as their teachers' features."""
    context = replace(context, sizes=teacher_set.sizes(context.sizes))
    return make_objectives(names, context, seed)


Data = tuple[Sequence[DataSource], Sequence[Teacher]]
"""Data sources, and the teachers that run in every step, since the features of their samples are not cached."""


def fit(
    model: nn.Module,
    objectives: Sequence[Objective],
    data: Data,
    training: TrainingArguments,
    run: RunFolder,
    *,
    training_step: TrainingStepSettings = TrainingStepSettings(),  # noqa: B008  (frozen)
    evaluation: EvaluationSettings = EvaluationSettings(),  # noqa: B008  (frozen)
    held_out: Data | None = None,
    evaluator: Evaluator | None = None,
) -> dict[str, Any]:
    """`train` in the run's folder, with notes on what limits the result; returns it with the loss on `held_out`.

    Evaluation during training is by the `evaluator` or, without one, by this loss.
    """
    sources, teachers = data
    loss = None
    if held_out is not None:
        loss = HeldOutLoss("texts", held_out[0], model, objectives, held_out[1], training)
        evaluator = evaluator or loss.evaluator(evaluation)
    if evaluation.eval_every and evaluator is None:
        raise InputError("eval_every: there is no held-out data to evaluate on")
    run.note(*in_batch_negatives_note(objectives, training))
    result: dict[str, Any] = train(
        model,
        objectives,
        sources,
        training,
        run.folder,
        teachers=teachers,
        training_step=load_training_step(training_step),
        evaluator=evaluator,
    )
    # Terms that share a gate return the same notes.
    monitored = [note for one in objectives for note in one.notes(result["train_metrics"])]
    run.note(*dict.fromkeys(monitored), *selection_bias_note(result))
    return result if loss is None else {**result, "held": loss.report()}


def save_trained(folder: Path, model: Encoder, objectives: Sequence[Objective]) -> None:
    """Write a trained model with the heads of its objectives."""
    model.export(folder)
    save_objective_heads(folder, objectives)
