"""Fine-tune a model on a task, over seeds, and report medians."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from groundling.commands.finetune import COMMAND, FinetuneConfig
from groundling.commands.finetune.baselines import (
    Majority,
    all_alike,
    beside_majority,
    one_answer,
    text_alone,
    without_images,
)
from groundling.commands.finetune.description import described_of
from groundling.commands.finetune.exam import check_exam, exam_of
from groundling.commands.finetune.examples import Splits, read_splits, task_of, trained_on
from groundling.commands.finetune.model import head_of, student_of, text_encoder_of
from groundling.commands.finetune.result import about, mixed, summary
from groundling.commands.finetune.samples import (
    check_sees,
    lacking,
    learning_from,
    regions_of,
    samples_of,
    sizes_with_classes,
)
from groundling.core.batch import Example
from groundling.core.forms import Form
from groundling.core.keyed import seed_of
from groundling.data.regions.inputs import RegionInputs
from groundling.data.regions.stores import SeveralStores
from groundling.data.samples import Samples
from groundling.models.adapters import ClipAdapter
from groundling.models.folders import is_adapter
from groundling.models.kinds import Student
from groundling.models.loading import precision_note
from groundling.models.saved_heads import start_layer
from groundling.objectives import Given, Objective, Vocabulary
from groundling.objectives.making import (
    fewer_negatives,
    make_objectives,
    save_objectives,
    unread,
)
from groundling.objectives.supervised import Supervised
from groundling.runs.run import Part, Run, say_notes
from groundling.settings.training import TrainConfig
from groundling.stats.finished_runs import BASELINE
from groundling.tasks import Task
from groundling.tasks.beside import with_others
from groundling.tasks.table import OwnReader, own_notes
from groundling.teachers.dataset import TeacherSet
from groundling.teachers.loading import adapter_teacher_set, load_teacher_set
from groundling.training.evaluation import Scores, evaluate, scored, write_answers
from groundling.training.held_out import flattery
from groundling.training.inner_steps import inner_step
from groundling.training.loop import train
from groundling.training.watched import watched_terms
from groundling.vision_language.end_to_end import EndToEnd
from groundling.vision_language.loading import design_of
from groundling.vision_language.single_stream import SingleStream


def finetune(config: FinetuneConfig, training: TrainConfig, run: Run) -> dict[str, Any]:
    """Fine-tune once per seed in `seed-N`, evaluate, and return every seed's scores and medians.

    Beside the scores stands what the most common answer reaches, and with `config.baselines` what the texts alone do.
    """
    task = task_of(config)
    own = task.read
    task = with_others(task, config.also)
    learned = trained_on(task, config)
    check_exam(task, config)
    inputs = regions_of(config, task)
    run.note(*(own_notes(own) if isinstance(own, OwnReader) else []))
    run.note(*task.same_files(Path(config.data)))
    if config.save_model and not config.kind:
        run.note(*precision_note(config.model))
    if config.adapting.adapter == "none" and not is_adapter(config.model):
        groups = [config.masking, config.distilling, config.targeted, config.adversarial]
        run.note(*unread(groups, config.objectives, config.inner))
    run.note(*(f"{one} was learned from: its scores are not of held-out data" for one in learned))
    splits: dict[str, list[Example]] = {}
    teacher_set: TeacherSet | None = None  # its teachers are the same for all seeds

    def one_seed(part: Part, seed: int) -> dict[str, Any]:
        nonlocal splits, teacher_set
        splits = splits or read_splits(task, config)
        student = student_of(config, seed, inputs.learned)
        teacher_set = teacher_set or _teacher_set(
            student, task, config, run, training.seed, inputs.learned
        )
        return one_run(
            student, task, splits, replace(training, seed=seed), part, config, teacher_set, inputs
        )

    runs = [
        run.part(
            f"seed-{seed}", partial(one_seed, seed=seed), lambda done: summary(task, [done], config)
        )
        for seed in range(training.seed, training.seed + config.seeds)
    ]
    result = summary(task, runs, config)
    run.note(*all_alike(result), *beside_majority(task, result))
    if config.baselines:
        say_notes([f"--baselines: the same without the images, in {run.folder / BASELINE}"])
        other = without_images(config, task)
        result |= text_alone(COMMAND(other, training, run.folder / BASELINE))
    run.notes += [f"seed {one['seed']}: {note}" for one in runs for note in one.get("notes", ())]
    return result


def one_run(
    student: Student,
    task: Task,
    splits: Splits,
    training: TrainConfig,
    part: Part,
    config: FinetuneConfig,
    teacher_set: TeacherSet | None = None,
    inputs: RegionInputs | None = None,
) -> dict[str, Any]:
    """One seed: train, evaluate on every dev split, write predictions; returns scores by split and metric.

    `teacher_set`: the teachers of the objectives beside the task's own; without one there are none. `inputs`: the
    stores of regions, opened; without one those of `config` are opened.
    """
    teacher_set = teacher_set or TeacherSet()
    inputs = inputs or regions_of(config, task)
    check_sees(student, task, inputs, config.model)
    store = inputs.learned
    torch.manual_seed(seed_of(training.seed, "init", task.name))
    head = head_of(student, task, splits, config)
    loss = "" if config.head_loss == "paper" else config.head_loss
    objective = Supervised(student.sizes, form=task.form, head=head, loss=loss)
    student.word_embeddings().requires_grad_(not config.freeze_words)
    samples, teachers = samples_of(
        splits, head, student, task, inputs, teacher_set, config.max_length
    )
    given = _given(student, config, objective.form, store)
    given = replace(given, sizes=teacher_set.sizes(given.sizes))
    objectives = [objective, *_beside(student, task, given, config, training.seed)]
    if store is not None and isinstance(student, EndToEnd) and inputs.looks(student):
        part.note(*lacking(head, store))
    part.note(*fewer_negatives(objectives, training))
    if student.sizes.visual:
        for layer, name in [start for one in objectives for start in one.starts()]:
            start_layer(layer, config.model, name, "bert")
    inner = inner_step(config.inner, config.adversarial)
    learning = learning_from(samples[task.train], splits[task.train], objectives, config)
    exam = exam_of(student, objective, task, samples, config)
    trained = train(
        student,
        objectives,
        [learning],
        training,
        part.folder,
        teachers=teachers,
        inner=inner,
        exam=exam,
    )
    held_out = {split: some for split, some in samples.items() if split != task.train}
    answers = _evaluated(student, objective, task, held_out, part.folder)
    scores = {
        split: scored(some, task, split, Path(config.data))
        for split, some in answers.items()
        if some.labels is not None
    }
    majority = Majority(task, splits[task.train])
    for split, some in answers.items():
        majority.add(split, some)
    watched, remarks = watched_terms(objectives, part.folder, trained)
    part.note(*remarks)
    part.note(*(note for split, some in answers.items() for note in one_answer(task, split, some)))
    part.notes += flattery(trained)
    done = about(task, config, training.seed)
    done |= {"objectives": [one.name for one in objectives], "scores": scores, **trained}
    done |= majority.told()
    more = {
        "trained_on": trained_on(task, config),
        "watched": watched,
        "unlabelled": mixed(learning),
    }
    done |= {name: value for name, value in more.items() if value}

    def save(where: Path) -> None:
        if config.save_model:
            student.export(where / "model")
            save_objectives(where / "model", objectives)
            described_of(student, task, splits, config, store).write(where / "model")

    part.save(save)
    return done


def _evaluated(
    student: Student,
    objective: Supervised,
    task: Task,
    samples: Mapping[str, Samples],
    folder: Path,
) -> dict[str, Scores]:
    """Answers of every split, written to `folder`."""
    answers = {}
    for split, some in samples.items():
        answers[split] = evaluate(student, objective, task, some)
        if PartialState().is_main_process:
            write_answers(answers[split], task, split, folder)
    return answers


def _teacher_set(
    student: Student,
    task: Task,
    config: FinetuneConfig,
    run: Run,
    seed: int,
    store: SeveralStores | None,
) -> TeacherSet:
    """The teachers of the objectives beside the task's own, or the CLIP that an adapter stands on."""
    if isinstance(student, ClipAdapter):
        return adapter_teacher_set(student.base, config.targeted, run.state.device, run.folder)
    given = _given(student, config, task.form, store)
    return load_teacher_set(
        config.teacher, config.objectives, given, run.state.device, run.folder, seed
    )


def _given(
    student: Student, config: FinetuneConfig, form: Form, store: SeveralStores | None
) -> Given:
    """What the objectives beside the task's own are made from, but for the teachers' widths."""
    text = text_encoder_of(student)
    return Given(
        sizes_with_classes(student, store),
        Vocabulary.of(text.tokenizer) if text is not None and config.objectives else None,
        config.masking,
        distilling=config.distilling,
        targeted=config.targeted,
        form=form,
    )


def _beside(
    student: Student, task: Task, given: Given, config: FinetuneConfig, seed: int
) -> list[Objective]:
    """Objectives beside the task's own loss: those of the paper, where its head is used, and those asked for."""
    own: tuple[str, ...] = ()
    is_paper = config.beside and not config.plain_head and config.regions.regions
    if is_paper and isinstance(student, SingleStream):
        own = design_of(student, config.join).beside.get(task.name, ())
    names = tuple(dict.fromkeys([*own, *config.objectives]))
    return make_objectives(names, given, seed)
