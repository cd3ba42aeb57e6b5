"""Pre-train VisualBERT, VL-BERT or UNITER on captioned images, or on the texts and images of a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from groundling.commands.pretrain import LearnedTexts, PretrainConfig
from groundling.commands.pretrain.data import (
    Corpus,
    Reading,
    TaskAnswers,
    corpora_of,
    held_data,
    held_texts,
    names_of,
    some_of,
    sources_of,
    text_alone,
    versions_of,
)
from groundling.core.errors import InputError
from groundling.core.output_types import MultipleChoice, OpenAnswer
from groundling.core.registry import is_outside, named
from groundling.core.rng import seed_of
from groundling.data.corpora.prepared import place_of_stores
from groundling.data.regions.inputs import UNTIED, RegionInputs
from groundling.data.regions.samples import check_mentioned
from groundling.data.regions.stores import SeveralStores
from groundling.models.formats import Encoder
from groundling.models.heads import load_head, start_lm_head
from groundling.models.loading import precision_note
from groundling.models.text import TextEncoder
from groundling.objectives import (
    Objective,
    ObjectiveContext,
    Vocabulary,
    check_saved,
    fewer_negatives,
    make_objectives,
    save_objectives,
    unread,
)
from groundling.objectives.masked_lm import MaskedLM
from groundling.runs.run import Run
from groundling.settings.inputs import RegionInput, weighted_files
from groundling.settings.objectives import ObjectiveSettings, PhaseOptions
from groundling.settings.training import TrainConfig
from groundling.tasks import Task
from groundling.teachers.loading import load_teacher_set
from groundling.training.held_out import (
    HeldOut,
    flattery,
    held_report,
    learned_too,
    still_guessing,
    watched_terms,
)
from groundling.training.inner_steps import inner_step
from groundling.training.loop import train
from groundling.vision_language import Architecture, Phase
from groundling.vision_language.end_to_end import BUILDS, EndToEnd, reading_pixels
from groundling.vision_language.loading import design_of, join_options, join_to, load_student
from groundling.vision_language.single_stream import SingleStream

GUESSING = "train longer (--epochs, --steps), or do without this model: what is fine-tuned from it starts there"
"""What to do about a model whose parts guess."""


def pretrain(config: PretrainConfig, training: TrainConfig, run: Run) -> dict[str, Any]:
    """Pre-train and write `model`, from which `finetune` and a next phase start; returns the result."""
    inner = inner_step(config.stepping.inner, config.stepping.adversarial)
    learned = config.learned
    corpora = corpora_of(learned, config.held.eval_captions)
    held = held_texts(learned, config.held)
    held_corpora = corpora_of(held, learned.captions) if held else []
    inputs = _regions(config.regions, config.pixels.flip, corpora, held_corpora)
    store = inputs.stores(*inputs.learns)
    model = _fitting(_started(config, store, training.seed), inputs, store)
    design = design_of(model, config.model)
    answers = config.phase.task_answers
    phase = _phase(design, bool(learned.task), answers, config.step_mix)
    tags = phase.tags and config.regions.tags
    task = named("tasks", Task, learned.task).at(Path(learned.data)) if learned.task else None
    versions = [] if task is None else versions_of(task, learned, answers, tags)
    if task is not None and config.regions.mentioned:
        check_mentioned([texts[0] for texts in versions], task.name, config.regions.tags)
    design.ready(model, [examples[0] for examples in versions], True)
    given = _given(model, store, config.settings)
    asked = config.extra.objectives
    device, seed = run.state.device, training.seed
    teacher_set = load_teacher_set(config.extra.teacher, asked, given, device, run.folder, seed)
    text, _ = model.inputs(config.max_length)
    reading = Reading(model, phase.pairs, answers, tags, config.grounded, text, inputs, teacher_set)
    data = reading.data(learned, versions, corpora, mirrored=config.pixels.flip)
    own = _own_objectives(phase, given, config.phase, config.model, seed)
    if not config.random_start:
        _start_heads(own, config.student, regions=task is not None)
    _check_grounded(own, config.model, config.grounded)
    beside = make_objectives(asked, replace(given, sizes=teacher_set.sizes(given.sizes)), seed)
    every = [*own, *beside]
    sources = sources_of(data, phase, own, beside)
    files = weighted_files(config.text, "--text")
    sources += text_alone(files, text, sources, place_of_stores(run.folder))
    run.note(*precision_note(config.student), *data.notes, *_unread(config))
    run.note(*_told(task, learned, answers))
    run.note(*_missing_steps(phase, own, config.phase.region_classes))
    run.note(*fewer_negatives(every, training))
    held_out = None
    measured = held_data(reading, learned, held, held_corpora, task)
    if measured is not None:
        seen = sources_of(measured, phase, own, beside)
        held_out = HeldOut("texts", seen, model, every, measured.teachers, training)
        run.note(*measured.notes, *learned_too(measured.places(), data.places(), "images"))
    exam = None if held_out is None else held_out.exam(config.examining)
    trained = train(
        model, every, sources, training, run.folder, teachers=data.teachers, inner=inner, exam=exam
    )
    some = some_of(sources, bool(config.regions.images))
    # Only the design's own parts can be told from guessing, and none of them asks a teacher.
    parts, left = still_guessing(HeldOut("samples", some, model, own, (), training), GUESSING)
    run.note(*left)
    result = _result(trained, model, every, run)
    result |= {"left_out": data.left_out, "notes": run.notes, "guessing": parts}
    result |= {"epoch_of": learned.epoch_of} if learned.captions else {}
    result |= held_report(held_out)
    run.save(partial(_save, model, every))
    return result


def _result(
    trained: dict[str, Any], model: SingleStream, objectives: Sequence[Objective], run: Run
) -> dict[str, Any]:
    """What a training was of and came to, with notes on what it learned."""
    watched, remarks = watched_terms(objectives, run.folder, trained)
    run.note(*remarks, *flattery(trained))
    names = sorted(one.name for one in objectives)
    result = {**trained, "model": model.join.kind, "objectives": names}
    result["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    return result | ({"watched": watched} if watched else {})


def _save(model: SingleStream, objectives: Sequence[Objective], folder: Path) -> None:
    model.export(folder / "model")
    save_objectives(folder / "model", objectives)


def _given(
    model: SingleStream, store: SeveralStores, settings: ObjectiveSettings
) -> ObjectiveContext:
    """What objectives are made from, but for the teachers' widths."""
    return ObjectiveContext(
        model.sizes._replace(classes=store.classes, background=store.background),
        Vocabulary.of(model.text.tokenizer),
        settings,
    )


def _regions(
    settings: RegionInput, flip: bool, learned: Sequence[Corpus], held: Sequence[Corpus]
) -> RegionInputs:
    """The stores and photos of all captions; raises InputError if they do not go together."""
    names = names_of(learned)
    every = dict.fromkeys([*names, *names_of(held)])
    inputs = RegionInputs(
        settings,
        every,
        "file of captions",
        learned=names,
        flip=flip,
        called=UNTIED,
    )
    inputs.stores(*every)
    return inputs


def _fitting(model: SingleStream, inputs: RegionInputs, store: SeveralStores) -> SingleStream:
    """The model, which now knows what made the regions that it is trained with; InputError if they do not fit it."""
    inputs.check(model, *inputs.learns)
    model.regions_from = store.facts
    return model


def _started(config: PretrainConfig, store: SeveralStores, seed: int) -> SingleStream:
    """The student, made a vision-language model if it is none; raises InputError if store or images do not fit."""
    torch.manual_seed(seed_of(seed, "init", "join"))
    start: Encoder = load_student(config.student, design=config.model)
    if config.random_start and isinstance(start, TextEncoder):
        start = TextEncoder(type(start.encoder)(start.encoder.config), start.tokenizer)
    images = config.regions.images
    if isinstance(start, EndToEnd) and not images:
        raise InputError(f"{config.student}: this model reads pixels; pass --images FOLDER")
    is_new = config.model in BUILDS and isinstance(start, TextEncoder)
    options = join_options(start, config.model, config.joining, store)
    if images and (is_new or isinstance(start, EndToEnd)):
        return reading_pixels(start, config.pixels, config.model, options)
    if images:
        raise InputError(
            f"--images {images}: only VL-BERT and VisualBERT learn from pixels; pass --model vlbert or visualbert with "
            "a BERT, or an end-to-end model as --student, or leave --images out"
        )
    return join_to(start, config.model, store.width, **options)


def _phase(
    design: Architecture, of_task: bool, answers: TaskAnswers, step_mix: Sequence[float]
) -> Phase:
    """The model's phase on captions or on a task's texts, its steps mixed as asked.

    Raises InputError for ratios that do not fit its kinds of steps, and for answers that it does not judge.
    """
    phase = design.phase
    if of_task and design.task_phase is not None:
        phase = design.task_phase
    if answers == "judged" and not phase.judged:
        raise InputError(
            f"--task-answers judged: only VisualBERT predicts what is right, not {design.name}; pass right or any"
        )
    if not step_mix:
        return phase
    kinds = [names for _, names in phase.mix]
    if len(step_mix) != len(kinds) or not all(0 < ratio < float("inf") for ratio in step_mix):
        told = ", ".join(" or ".join(names) for names in kinds) or "none, one step has all"
        given = " ".join(f"{ratio:g}" for ratio in step_mix)
        raise InputError(
            f"--step-mix {given}: expected a number above 0 for each of {design.name}'s kinds of steps here: {told}"
        )
    return replace(phase, mix=tuple(zip(step_mix, kinds, strict=True)))


def _own_objectives(
    phase: Phase, given: ObjectiveContext, options: PhaseOptions, name: str, seed: int
) -> list[Objective]:
    """The objectives of the phase of the model called `name`, with new heads."""
    torch.manual_seed(seed_of(seed, "init", "heads"))
    objectives = phase.objectives(given, options)
    if not all(isinstance(one, Objective) for one in objectives):
        raise InputError(f"{name}: its phase makes something else than objectives")
    for objective in objectives:
        check_saved(objective)
    return objectives


def _check_grounded(objectives: Sequence[Objective], model: str, grounded: bool) -> None:
    """Raises InputError if captions are to be read without images by an objective that scores these."""
    blind = [one.name for one in objectives if "regions" in one.needs]
    if blind and not grounded:
        raise InputError(
            f"--no-grounded: {blind[0]} of {model} reads the image; VisualBERT alone learns from captions"
        )


def _start_heads(objectives: Sequence[Objective], student: str, regions: bool) -> None:
    """Heads from the checkpoint or the earlier run: masked LM's, and where a task's texts are read, `regions`', too."""
    for objective in objectives:
        if isinstance(objective, MaskedLM):
            start_lm_head(objective.head, student, "bert", objective.starts_from)
        elif regions:
            for name, head in objective.saved().items():
                load_head(Path(student), head, name)


def _unread(config: PretrainConfig) -> list[str]:
    """What was given and has no reader; a design of the user's own may read anything."""
    if is_outside(config.model):
        return []
    # Every design of ours hides words.
    return unread(("mlm", *config.extra.objectives), config.settings, config.stepping.inner)


def _missing_steps(phase: Phase, objectives: Sequence[Objective], region_classes: str) -> list[str]:
    """Which kinds of steps of its phase a run has none of, and why."""
    names = {objective.name for objective in objectives}
    reason = "the store's regions have no classes"
    if region_classes == "none":
        reason = "--region-classes none"
    return [
        f"no step trained {' or '.join(mixed)}: {reason}"
        for _, mixed in phase.mix
        if not names & set(mixed)
    ]


def _told(task: Task | None, learned: LearnedTexts, answers: TaskAnswers) -> list[str]:
    """Whether the run told the labels of examples that fine-tuning does not know, or is scored on."""
    if task is None or answers == "any":
        return []
    if not (isinstance(task.form, OpenAnswer | MultipleChoice) or answers == "judged"):
        return []
    held = [split for split in task.dev if split in learned.train_splits]
    if held:
        return [
            f"this model has read the right answers of {' and '.join(held)} of {task.name}: scores there after it are "
            "of examples that it knows"
        ]
    if learned.partition:
        return []
    return [
        f"this model has read the right answers of all training examples of {task.name}, as CLIP-TD's has: scores of "
        "few-shot fine-tuning after it do not count as few-shot; --task-answers any or --partition FILE tells none"
    ]
