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
from groundling.commands.finetune.examples import Splits, read_splits, task_of, trained_on
from groundling.commands.finetune.model import head_of, student_of
from groundling.commands.finetune.result import about, mixed, summary
from groundling.commands.finetune.samples import (
    lacking,
    learned_from,
    learning_from,
    regions_of,
    samples_of,
    sizes_with_classes,
)
from groundling.core.batch import Example
from groundling.core.forms import Form
from groundling.core.keyed import seed_of
from groundling.data.regions.inputs import RegionInputs, manifests
from groundling.data.regions.stores import SeveralStores
from groundling.data.samples import Samples
from groundling.models.adapters import ClipAdapter
from groundling.models.folders import is_adapter
from groundling.models.kinds import Student
from groundling.models.loading import precision_note
from groundling.models.saved_heads import start_layer
from groundling.objectives import Given, Objective
from groundling.objectives.supervised import Supervised
from groundling.runs.run import Run, ended, say_notes, write_result
from groundling.settings.training import TrainConfig
from groundling.stats.finished_runs import BASELINE
from groundling.tasks import Task
from groundling.tasks.beside import with_others
from groundling.tasks.table import OwnReader, own_notes
from groundling.training.evaluation import Scores, evaluate, scored, write_answers
from groundling.training.held_out import flattery
from groundling.training.loop import train
from groundling.training.teaching import (
    Classroom,
    base_room,
    classroom,
    fewer_negatives,
    inner_step,
    make_objectives,
    save_objectives,
    teacher_inputs,
    text_encoder_of,
    unread,
    vocabulary,
    watched_terms,
    with_teachers,
)
from groundling.vision_language.end_to_end import EndToEnd
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
    inputs = regions_of(config, task)  # a mistake in --regions is told before any data is read
    run = Run(out, "finetune", _settings(config, training), _inputs(config), training.cpu)
    notes = own_notes(own) if isinstance(own, OwnReader) else []
    notes += task.same_files(Path(config.data))
    notes += precision_note(config.model) if config.save_model and not config.kind else []
    if config.adapting.adapter == "none" and not is_adapter(config.model):
        notes += unread(config, config.objectives, config.inner)
    notes += [f"{split} was learned from: its scores are not of held-out data" for split in learned]
    say_notes(notes)
    splits: dict[str, list[Example]] = {}
    room: Classroom | None = None  # its teachers are the same for all seeds
    runs = []
    for seed in range(training.seed, training.seed + config.seeds):
        folder = run.folder / f"seed-{seed}"
        folder.mkdir(exist_ok=True)
        done = ended(folder, lambda done: summary(task, [done], config))
        if done is None:
            splits = splits or read_splits(task, config)
            student = student_of(config, seed, task, inputs)
            room = room or _room(student, task, config, run, training.seed, inputs)
            training_of_seed = replace(training, seed=seed)
            done = one_run(student, task, splits, training_of_seed, folder, config, room, inputs)
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
    room: Classroom | None = None,
    inputs: RegionInputs | None = None,
) -> dict[str, Any]:
    """One seed: train, evaluate on every dev split, write predictions; returns scores by split and metric.

    `room`: the teachers of the objectives beside the task's own; without one there are none. `inputs`: the stores of
    regions, opened; without one those of `config` are opened.
    """
    room = room or Classroom()
    inputs = inputs or regions_of(config, task)
    store = learned_from(inputs, task, config)
    torch.manual_seed(seed_of(training.seed, "init", task.name))
    head = head_of(student, task, splits, config)
    loss = "" if config.head_loss == "paper" else config.head_loss
    objective = Supervised(student.sizes, form=task.form, head=head, loss=loss)
    student.word_embeddings().requires_grad_(not config.freeze_words)
    samples, teachers = samples_of(splits, head, student, task, config, room, inputs)
    given = with_teachers(_given(student, config, objective.form, store), room)
    objectives = [objective, *_beside(student, task, given, config, training.seed)]
    notes = fewer_negatives(objectives, training)
    if store is not None and isinstance(student, EndToEnd) and inputs.looks(student):
        notes = lacking(head, store) + notes
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
            described_of(student, task, splits, config, store).write(where / "model")

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


def _room(
    student: Student, task: Task, config: FinetuneConfig, run: Run, seed: int, inputs: RegionInputs
) -> Classroom:
    """The teachers of the objectives beside the task's own, or the CLIP that an adapter stands on."""
    if isinstance(student, ClipAdapter):
        return base_room(student.base, config.targeted, run.state.device, run.folder)
    given = _given(student, config, task.form, learned_from(inputs, task, config))
    return classroom(config.teacher, config.objectives, given, run.state.device, run.folder, seed)


def _given(
    student: Student, config: FinetuneConfig, form: Form, store: SeveralStores | None
) -> Given:
    """What the objectives beside the task's own are made from, but for the teachers' widths."""
    text = text_encoder_of(student)
    return Given(
        sizes_with_classes(student, store),
        vocabulary(text) if text is not None and config.objectives else None,
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
