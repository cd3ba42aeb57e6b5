"""Fine-tune a model on a task, over seeds, and report medians."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from groundling.commands.finetune import COMMAND, FinetuneConfig
from groundling.commands.finetune.data import (
    Splits,
    check_sees,
    lacking,
    learning_from,
    read_splits,
    regions_of,
    samples_of,
    sizes_with_classes,
    task_of,
    trained_on,
)
from groundling.commands.finetune.result import (
    Majority,
    about,
    all_alike,
    beside_majority,
    check_exam,
    exam_of,
    mixed,
    one_answer,
    summary,
    text_alone,
    without_images,
)
from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.output_types import OutputType
from groundling.core.registry import code_behind, is_outside, named
from groundling.core.rng import seed_of
from groundling.data.regions.inputs import RegionInputs
from groundling.data.regions.stores import SeveralStores
from groundling.data.samples import Samples
from groundling.models.adapters import ClipAdapter, load_base
from groundling.models.crossmodal import CrossModal
from groundling.models.formats import Encoder
from groundling.models.heads import start_layer
from groundling.models.hub import is_adapter
from groundling.models.loading import precision_note
from groundling.models.task_heads import TaskHead
from groundling.models.text import TextEncoder
from groundling.objectives import (
    Objective,
    ObjectiveContext,
    Vocabulary,
    fewer_negatives,
    make_objectives,
    save_objectives,
    unread,
)
from groundling.objectives.supervised import Supervised
from groundling.prediction.description import InputSpec, ModelDescription, facts_of
from groundling.runs.hashing import hashes_of
from groundling.runs.progress import say_notes
from groundling.runs.run import Run, RunPart
from groundling.settings.fields import refuse_given
from groundling.settings.objectives import ObjectiveSettings
from groundling.settings.training import TrainConfig
from groundling.stats.finished_runs import BASELINE
from groundling.tasks import Task, read_past
from groundling.tasks.splits import with_others
from groundling.tasks.table import OwnReader, own_notes
from groundling.teachers.dataset import TeacherSet
from groundling.teachers.loading import adapter_teacher_set, load_teacher_set
from groundling.training.evaluation import Scores, evaluate, scored, write_answers
from groundling.training.held_out import flattery, watched_terms
from groundling.training.inner_steps import inner_step
from groundling.training.loop import train
from groundling.vision_language import Architecture
from groundling.vision_language.end_to_end import BUILDS, EndToEnd, reading_pixels
from groundling.vision_language.loading import (
    ADAPTER,
    PLAIN,
    RAW,
    design_of,
    join_options,
    join_to,
    joining_flags,
    load_student,
    new_head,
)
from groundling.vision_language.single_stream import SingleStream

# The model that is fine-tuned, the head of its task, and what its folder says of itself.


def text_encoder_of(student: Encoder) -> TextEncoder | None:
    """The text encoder inside a model, whose pieces are masked; None if there is none."""
    if isinstance(student, TextEncoder):
        return student
    return student.text if isinstance(student, CrossModal | SingleStream) else None


def student_of(config: FinetuneConfig, seed: int, store: SeveralStores | None) -> Encoder:
    """The model, whose new join is as wide as the features of the `store` that it learns from, if there is one.

    Raises InputError if they do not fit.
    """
    if config.adapting.adapter != "none":
        torch.manual_seed(seed_of(seed, "init", "adapter"))
        return ClipAdapter(load_base(config.model), config.adapting)
    student = load_student(config.model, config.kind, config.join)
    if not config.join:
        about = "is about a new VisualBERT: pass --join visualbert with a BERT as --model, or leave it out"
        refuse_given(joining_flags(config.joining), about)
        looks = isinstance(student, EndToEnd)
        return reading_pixels(student, config.pixels) if looks else student
    if isinstance(student, SingleStream):
        kind = student.join.kind
        # A design of one's own is named again in order to load its model.
        if (
            not is_outside(config.join)
            or named("vision_language", Architecture, config.join).name != kind
        ):
            raise InputError(
                f"--join {config.join}: {config.model} is a {kind} model already; leave --join out"
            )
        return student
    torch.manual_seed(seed_of(seed, "init", "join"))
    if store is None:
        return join_to(student, config.join, 1)
    options = join_options(student, config.join, config.joining, store)
    if not config.regions.images:
        model = join_to(student, config.join, store.width, **options)
    elif config.join in BUILDS:
        model = reading_pixels(student, config.pixels, config.join, options)
    else:
        raise InputError(
            f"--images {config.regions.images}: {config.join} reads stored features, no pixels; leave it out"
        )
    model.regions_from = store.facts
    return model


def head_of(
    student: Encoder, task: Task, splits: Splits, name: str, join: str, ready: bool
) -> TaskHead:
    """The head that `head_name` names; the model is made ready for as many images as there are.

    `join` is the design as it was asked for, `ready` whether the model is made ready for the task as its paper has it.
    """
    if isinstance(student, SingleStream):
        student.see(most_images(splits))
        if ready:
            design_of(student, join).ready(student, splits[task.train], False)
    return new_head(student, task.form, name, join)


def head_name(student: Encoder, task: Task, config: FinetuneConfig) -> str:
    """Which head answers, as `groundling.vision_language.loading.new_head` calls it: the paper's, or a plain one."""
    if isinstance(student, ClipAdapter):
        return ADAPTER
    if config.raw_first:
        return RAW
    if config.plain_head or not isinstance(student, SingleStream):
        return PLAIN
    name = task.like or task.name
    kind = design_of(student, config.join).heads.get(name)
    if kind is None or (kind.apart and not config.regions.regions):
        return PLAIN
    return name


def most_images(splits: Splits) -> int:
    """Images of the example that has most."""
    return max(len(example.images) for some in splits.values() for example in some)


def described_of(
    task: Task,
    splits: Splits,
    config: FinetuneConfig,
    head: str,
    store: SeveralStores | None,
) -> ModelDescription:
    """Task, head, columns, and how examples were put before the model; `store`: the regions that it learned from."""
    reads = InputSpec(
        max_length=config.max_length,
        images=most_images(splits),
        regions=store is not None,
        most_regions=config.regions.most_regions,
        budget=config.regions.budget,
        tags=config.regions.tags,
        mentioned=config.regions.mentioned,
        blind=config.blind,
    )
    return ModelDescription(
        task=config.task or task.name,
        form=task.form,
        version=task.version,
        head=head,
        loss="" if config.head_loss == "paper" else config.head_loss,
        reads=reads,
        ready=not config.plain_head,
        own=replace(config.own, dev="") if config.own.label else None,
        design=config.join if is_outside(config.join) else "",
        kind=config.kind,
        modules=_modules(config.task, config.join, config.kind),
        regions={} if store is None else facts_of(store),
    )


def _modules(*names: str) -> dict[str, str]:
    """The SHA-256 of the file of every module of the user's that is named, or imported by one that is."""
    files: dict[str, Path] = {}
    for name in names:
        if is_outside(name):
            files |= code_behind(name)
    return dict(zip(files, hashes_of(list(files.values())), strict=True))


def finetune(config: FinetuneConfig, training: TrainConfig, run: Run) -> dict[str, Any]:
    """Fine-tune once per seed in `seed-N`, evaluate, and return every seed's scores and medians.

    Beside the scores stands what the most common answer reaches, and with `config.baselines` what the texts alone do.
    """
    task = task_of(config.task, Path(config.data), config.own)
    own = task.read
    task = with_others(task, config.also)
    learned = trained_on(task, config.train_splits)
    check_exam(task, learned, config.examining)
    inputs = _regions(config, task)
    run.note(*(own_notes(own) if isinstance(own, OwnReader) else []))
    run.note(*task.same_files(Path(config.data)))
    if config.save_model and not config.kind:
        run.note(*precision_note(config.model))
    if config.adapting.adapter == "none" and not is_adapter(config.model):
        run.note(*unread(config.extra.objectives, config.settings, config.stepping.inner))
    run.note(*(f"{one} was learned from: its scores are not of held-out data" for one in learned))
    seeds = Seeds(task, config, training, run, inputs)

    def summed(runs: list[dict[str, Any]]) -> dict[str, Any]:
        return summary(task, runs, config.model, learned)

    runs = [
        run.part(f"seed-{seed}", partial(seeds.run, seed), lambda done: summed([done]))
        for seed in range(training.seed, training.seed + config.seeds)
    ]
    result = summed(runs)
    run.note(*all_alike(result), *beside_majority(task, result))
    if config.baselines:
        say_notes([f"--baselines: the same without the images, in {run.folder / BASELINE}"])
        other = without_images(config, task)
        result |= text_alone(COMMAND(other, training, run.folder / BASELINE))
    run.notes += [f"seed {one['seed']}: {note}" for one in runs for note in one.get("notes", ())]
    return result


class Seeds:
    """The seeds of a run, which share examples and teachers; both are read when a seed first asks for them."""

    def __init__(
        self,
        task: Task,
        config: FinetuneConfig,
        training: TrainConfig,
        run: Run,
        inputs: RegionInputs,
    ) -> None:
        self.task = task
        self.config = config
        self.training = training
        self.place = run
        self.inputs = inputs
        self.teachers: TeacherSet | None = None

    @cached_property
    def splits(self) -> Splits:
        """The task's examples."""
        config = self.config
        return read_splits(
            self.task,
            config.data,
            config.regions,
            train_splits=config.train_splits,
            submit=config.submit,
            partition=config.partition,
            max_train=config.max_train,
            unlabelled=config.unlabelled,
        )

    def run(self, seed: int, part: RunPart) -> dict[str, Any]:
        """Fine-tune and evaluate with one seed."""
        splits = self.splits
        student = student_of(self.config, seed, self.inputs.learned)
        if self.teachers is None:
            self.teachers = self._teachers(student)
        training = replace(self.training, seed=seed)
        return one_run(
            student, self.task, splits, training, part, self.config, self.teachers, self.inputs
        )

    def _teachers(self, student: Encoder) -> TeacherSet:
        """The teachers of the objectives beside the task's own, or the CLIP that an adapter stands on."""
        config, device, folder = self.config, self.place.state.device, self.place.folder
        if isinstance(student, ClipAdapter):
            return adapter_teacher_set(student.base, config.settings.targeted, device, folder)
        names, teacher = config.extra.objectives, config.extra.teacher
        form, store = self.task.form, self.inputs.learned
        given = _given(student, names, config.settings, form, store)
        return load_teacher_set(teacher, names, given, device, folder, self.training.seed)


def _regions(config: FinetuneConfig, task: Task) -> RegionInputs:
    return regions_of(
        config.regions, task, config.train_splits, blind=config.blind, flip=config.pixels.flip
    )


def one_run(
    student: Encoder,
    task: Task,
    splits: Splits,
    training: TrainConfig,
    part: RunPart,
    config: FinetuneConfig,
    teacher_set: TeacherSet | None = None,
    inputs: RegionInputs | None = None,
) -> dict[str, Any]:
    """One seed: train, evaluate on every dev split, write predictions; returns scores by split and metric.

    `teacher_set`: the teachers of the objectives beside the task's own; without one there are none. `inputs`: the
    stores of regions, opened; without one those of `config` are opened.
    """
    teacher_set = teacher_set or TeacherSet()
    inputs = inputs or _regions(config, task)
    check_sees(student, task, inputs, config.model)
    store = inputs.learned
    torch.manual_seed(seed_of(training.seed, "init", task.name))
    name = head_name(student, task, config)
    head = head_of(student, task, splits, name, config.join, not config.plain_head)
    student.word_embeddings().requires_grad_(not config.freeze_words)
    samples, teachers = samples_of(
        splits, head, student, task, inputs, teacher_set, config.max_length
    )
    supervised, beside = _objectives(student, task, head, teacher_set, store, config, training.seed)
    objectives = [supervised, *beside]
    if store is not None and isinstance(student, EndToEnd) and inputs.looks(student):
        part.note(*lacking(head, store))
    part.note(*fewer_negatives(objectives, training))
    files = {split: task.file(Path(config.data), split) for split in splits}
    part.note(*(note for split in splits for note in read_past(files[split], splits[split])))
    learning = learning_from(
        samples[task.train], splits[task.train], objectives, config.data, config.unlabelled
    )
    trained = train(
        student,
        objectives,
        [learning],
        training,
        part.folder,
        teachers=teachers,
        inner=inner_step(config.stepping.inner, config.stepping.adversarial),
        exam=exam_of(student, supervised, task, samples, config.examining),
    )
    watched, remarks = watched_terms(objectives, part.folder, trained)
    part.note(*remarks)
    answers = _evaluated(student, supervised, task, samples, part)
    part.notes += flattery(trained)
    done = about(task, config.task, config.called, training.seed)
    done |= {"objectives": [one.name for one in objectives]}
    done |= {**_scores(task, answers, splits[task.train], Path(config.data)), **trained}
    learned = trained_on(task, config.train_splits)
    more = {"trained_on": learned, "watched": watched, "unlabelled": mixed(learning)}
    done |= {name: value for name, value in more.items() if value}
    if config.save_model:
        described = described_of(task, splits, config, name, store)
        part.save(partial(_save, student, objectives, described))
    return done


def _save(
    student: Encoder, objectives: Sequence[Objective], described: ModelDescription, folder: Path
) -> None:
    """Write a fine-tuned model, its heads, and what it answers, as `model` of a seed's folder."""
    student.export(folder / "model")
    save_objectives(folder / "model", objectives)
    described.write(folder / "model")


def _objectives(
    student: Encoder,
    task: Task,
    head: TaskHead,
    teacher_set: TeacherSet,
    store: SeveralStores | None,
    config: FinetuneConfig,
    seed: int,
) -> tuple[Supervised, list[Objective]]:
    """The task's own loss; and those of the paper, where its head is used, and those asked for."""
    loss = "" if config.head_loss == "paper" else config.head_loss
    supervised = Supervised(student.sizes, form=task.form, head=head, loss=loss)
    given = _given(student, config.extra.objectives, config.settings, supervised.form, store)
    given = replace(given, sizes=teacher_set.sizes(given.sizes))
    own: tuple[str, ...] = ()
    is_paper = config.beside and not config.plain_head and config.regions.regions
    if is_paper and isinstance(student, SingleStream):
        own = design_of(student, config.join).beside.get(task.name, ())
    names = tuple(dict.fromkeys([*own, *config.extra.objectives]))
    beside = make_objectives(names, given, seed)
    if student.sizes.visual:
        for layer, name in [start for one in (supervised, *beside) for start in one.starts()]:
            start_layer(layer, config.model, name, "bert")
    return supervised, beside


def _scores(
    task: Task, answers: Mapping[str, Scores], learned: Sequence[Example], data: Path
) -> dict[str, Any]:
    """Scores of every split whose labels are known, and those of the most common answer among those learned from."""
    known = {split: some for split, some in answers.items() if some.labels is not None}
    majority = Majority(task, learned)
    for split, some in answers.items():
        majority.add(split, some)
    scores = {split: scored(some, task, split, data) for split, some in known.items()}
    return {"scores": scores, **majority.told()}


def _evaluated(
    student: Encoder,
    objective: Supervised,
    task: Task,
    samples: Mapping[str, Samples],
    part: RunPart,
) -> dict[str, Scores]:
    """Answers of every split that is not learned from, written to the seed's folder, which notes where all are one."""
    answers = {}
    for split, some in samples.items():
        if split == task.train:
            continue
        answers[split] = evaluate(student, objective, task, some)
        if PartialState().is_main_process:
            write_answers(answers[split], task, split, part.folder)
    part.note(*(note for split, some in answers.items() for note in one_answer(task, split, some)))
    return answers


def _given(
    student: Encoder,
    names: Sequence[str],
    settings: ObjectiveSettings,
    form: OutputType,
    store: SeveralStores | None,
) -> ObjectiveContext:
    """What the objectives `names` beside the task's own are made from, but for the teachers' widths."""
    text = text_encoder_of(student)
    return ObjectiveContext(
        sizes_with_classes(student, store),
        Vocabulary.of(text.tokenizer) if text is not None and names else None,
        settings,
        form=form,
    )
