"""Fine-tune a model on a task, over seeds, and report medians."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from groundling.commands.finetune import FinetuneConfig, check
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
from groundling.commands.finetune.model import head_of, student_of, text_encoder_of
from groundling.commands.finetune.result import about, mixed, summary
from groundling.commands.finetune.samples import (
    lacking,
    learning_from,
    samples_of,
    shelf_of,
    sizes_with_classes,
)
from groundling.core.batch import Example
from groundling.core.forms import Form
from groundling.core.keyed import seed_of
from groundling.data.regions.shelf import Shelf, manifests
from groundling.data.samples import Samples
from groundling.models.adapters import ClipAdapter
from groundling.models.folders import is_adapter
from groundling.models.kinds import Student
from groundling.models.loading import precision_note
from groundling.models.saved_heads import start_layer
from groundling.objectives import Given, Objective, Vocabulary
from groundling.objectives.making import (
    Settings,
    fewer_negatives,
    make_objectives,
    save_objectives,
    unread,
)
from groundling.objectives.supervised import Supervised
from groundling.runs.run import Run, ended, say_notes, write_result
from groundling.settings.training import TrainConfig
from groundling.stats.finished_runs import BASELINE
from groundling.tasks import Task
from groundling.tasks.beside import with_others
from groundling.tasks.examples import Splits, read_splits, task_of, trained_on
from groundling.tasks.table import OwnReader, own_notes
from groundling.teachers.dataset import TeacherSet
from groundling.teachers.loading import adapter_teacher_set, load_teacher_set, teacher_inputs
from groundling.training.evaluation import Scores, evaluate, scored, write_answers
from groundling.training.held_out import flattery
from groundling.training.inner_steps import inner_step
from groundling.training.loop import train
from groundling.training.watched import watched_terms
from groundling.vision_language.loading import design_of
from groundling.vision_language.single_stream import SingleStream


def finetune(
    config: FinetuneConfig,
    training: TrainConfig,
    out: str | Path,
    task: Task | None = None,
) -> dict[str, Any]:
    """Fine-tune once per seed in `out/seed-N`, evaluate, and write medians to `out/result.json`; returns the result.

    Beside the scores stands what the most common answer reaches, and with `config.baselines` what the texts alone do.
    `task` is an object of your own in place of `config.task`. Raises InputError for settings that do not fit.
    """
    check(config, training, out, task)
    given = task
    if task is None:
        task = task_of(config)
    own = task.read
    task = with_others(task, config.also)
    learned = trained_on(task, config)
    check_exam(task, config)
    shelf = shelf_of(config, task)  # a mistake in --regions is told before any data is read
    run = Run(out, "finetune", _settings(config, training), _inputs(config), training.cpu)
    notes = own_notes(own) if isinstance(own, OwnReader) else []
    notes += task.same_files(Path(config.data))
    notes += precision_note(config.model) if config.save_model and not config.kind else []
    if config.adapting.adapter == "none" and not is_adapter(config.model):
        groups: list[Settings] = [
            config.masking,
            config.distilling,
            config.targeted,
            config.adversarial,
        ]
        notes += unread(groups, config.objectives, config.inner)
    notes += [f"{split} was learned from: its scores are not of held-out data" for split in learned]
    say_notes(notes)
    splits: dict[str, list[Example]] = {}
    teacher_set: TeacherSet | None = None  # its teachers are the same for all seeds
    runs = []
    for seed in range(training.seed, training.seed + config.seeds):
        folder = run.folder / f"seed-{seed}"
        folder.mkdir(exist_ok=True)
        done = ended(folder, lambda done: summary(task, [done], config))
        if done is None:
            splits = splits or read_splits(task, config)
            student = student_of(config, seed, task, shelf)
            teacher_set = teacher_set or _teacher_set(
                student, task, config, run, training.seed, shelf
            )
            training_of_seed = replace(training, seed=seed)
            done = one_run(
                student, task, splits, training_of_seed, folder, config, teacher_set, shelf
            )
        runs.append(done)
    if not splits:
        made = [run.folder / f"seed-{done['seed']}" / "model" for done in runs]
        run.say_finished(made if config.save_model else ())
    result = summary(task, runs, config)
    beside = [*all_alike(result), *beside_majority(task, result)]
    say_notes(beside)
    notes += beside
    if config.baselines:
        say_notes([f"--baselines: the same without the images, in {run.folder / BASELINE}"])
        other = without_images(config, task)
        result |= text_alone(finetune(other, training, run.folder / BASELINE, given))
    notes += [f"seed {run['seed']}: {note}" for run in runs for note in run.get("notes", ())]
    if notes:
        result["notes"] = notes
    return run.finish(result)


def _settings(config: FinetuneConfig, training: TrainConfig) -> dict[str, Any]:
    """What tells this run from others; more seeds later, and baselines, are the same run, continued."""
    settings = {**asdict(config), "train": asdict(training)}
    settings.pop("seeds")
    settings.pop("baselines")  # which may be asked for later
    settings["train"].pop("seed")
    return settings


def _inputs(config: FinetuneConfig) -> dict[str, str | Path]:
    return {
        "model": config.model,
        "data": config.data,
        "dev": config.own.dev,
        "partition": config.partition,
        **{f"also {other}": other.partition("=")[2] for other in config.also},
        **manifests(config.regions.regions),
        "images": config.regions.images,
        "backbone": config.pixels.backbone if config.regions.images and config.join else "",
        **teacher_inputs(config.teacher, config.targeted),
    }


def one_run(
    student: Student,
    task: Task,
    splits: Splits,
    training: TrainConfig,
    folder: Path,
    config: FinetuneConfig,
    teacher_set: TeacherSet | None = None,
    shelf: Shelf | None = None,
) -> dict[str, Any]:
    """One seed: train, evaluate on every dev split, write predictions; returns scores by split and metric.

    `teacher_set`: the teachers of the objectives beside the task's own; without one there are none. `shelf`: the stores
    of regions, opened; without one those of `config` are opened.
    """
    teacher_set = teacher_set or TeacherSet()
    shelf = shelf or shelf_of(config, task)
    torch.manual_seed(seed_of(training.seed, "init", task.name))
    head = head_of(student, task, splits, config)
    loss = "" if config.head_loss == "paper" else config.head_loss
    objective = Supervised(student.sizes, form=task.form, head=head, loss=loss)
    student.word_embeddings().requires_grad_(not config.freeze_words)
    samples, teachers = samples_of(splits, head, student, task, config, teacher_set, shelf)
    given = _given(student, task, config, objective.form, shelf)
    given = replace(given, sizes=teacher_set.sizes(given.sizes))
    objectives = [objective, *_beside(student, task, given, config, training.seed)]
    notes = lacking(head, student, task, config, shelf) + fewer_negatives(objectives, training)
    say_notes(notes)
    if student.sizes.visual:
        for layer, name in [start for one in objectives for start in one.starts()]:
            start_layer(layer, config.model, name, "bert")
    inner = inner_step(config.inner, config.adversarial)
    learning = learning_from(samples[task.train], splits[task.train], objectives, config)
    exam = exam_of(student, objective, task, samples, config)
    trained = train(
        student, objectives, [learning], training, folder, teachers=teachers, inner=inner, exam=exam
    )
    held_out = {split: some for split, some in samples.items() if split != task.train}
    answers = _evaluated(student, objective, task, held_out, folder)
    scores = {
        split: scored(some, task, split, Path(config.data))
        for split, some in answers.items()
        if some.labels is not None
    }
    majority = Majority(task, splits[task.train])
    for split, some in answers.items():
        majority.add(split, some)
    watched, remarks = watched_terms(objectives, folder, trained)
    remarks += [note for split, some in answers.items() for note in one_answer(task, split, some)]
    say_notes(remarks)
    remarks += flattery(trained)
    done = about(task, config, training.seed)
    done |= {"objectives": [one.name for one in objectives], "scores": scores, **trained}
    done |= majority.told()
    more = {
        "trained_on": trained_on(task, config),
        "watched": watched,
        "unlabelled": mixed(learning),
        "notes": [*notes, *remarks],
    }
    done |= {name: value for name, value in more.items() if value}

    def save(where: Path) -> None:
        if config.save_model:
            student.export(where / "model")
            save_objectives(where / "model", objectives)
            described_of(student, task, splits, config, shelf).write(where / "model")

    write_result(folder, done, save)
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
    student: Student, task: Task, config: FinetuneConfig, run: Run, seed: int, shelf: Shelf
) -> TeacherSet:
    """The teachers of the objectives beside the task's own, or the CLIP that an adapter stands on."""
    if isinstance(student, ClipAdapter):
        return adapter_teacher_set(student.base, config.targeted, run.state.device, run.folder)
    given = _given(student, task, config, task.form, shelf)
    return load_teacher_set(
        config.teacher, config.objectives, given, run.state.device, run.folder, seed
    )


def _given(student: Student, task: Task, config: FinetuneConfig, form: Form, shelf: Shelf) -> Given:
    """What the objectives beside the task's own are made from, but for the teachers' widths."""
    text = text_encoder_of(student)
    return Given(
        sizes_with_classes(student, task, config, shelf),
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
