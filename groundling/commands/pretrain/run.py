"""Pre-train VisualBERT, VL-BERT or UNITER on captioned images, or on the texts and images of a
task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from groundling.commands.pretrain import PretrainConfig, TrainTexts
from groundling.commands.pretrain.data import (
    PretrainingReader,
    TaskAnswers,
    corpora_of,
    eval_data,
    eval_texts_of,
    sample_sources,
    sources_of,
    text_only_sources,
    versions_of,
)
from groundling.core.errors import InputError
from groundling.core.output_types import MultipleChoice, OpenAnswer
from groundling.core.registry import is_import_path, resolve
from groundling.core.rng import derive_seed
from groundling.data.corpora.token_stores import stores_folder
from groundling.data.regions.inputs import ImageSampleBuilder
from groundling.data.regions.samples import check_mentioned
from groundling.data.regions.store import RegionStore
from groundling.models.formats import Encoder
from groundling.models.heads import init_lm_head, load_head
from groundling.models.loading import precision_note
from groundling.models.text_encoder import TextEncoder
from groundling.objectives import (
    MaskingVocabulary,
    Objective,
    ObjectiveContext,
    check_saved_modules,
    in_batch_negatives_note,
    make_objectives,
    save_objective_heads,
    unused_settings_note,
)
from groundling.objectives.masked_lm import MaskedLM
from groundling.runs.run import Run
from groundling.settings.input_settings import parse_weighted_files
from groundling.settings.objectives import ObjectiveSettings, PretrainingVariantSettings
from groundling.settings.training import TrainingArguments
from groundling.tasks import Task
from groundling.teachers.loading import load_teacher_set
from groundling.training.held_out_loss import (
    HeldOutLoss,
    compare_with_baseline,
    report_held_out,
    selection_bias_note,
    summarize_monitored_terms,
    training_overlap_note,
)
from groundling.training.loop import train
from groundling.training.training_steps import load_training_step
from groundling.vision_language import Architecture, PretrainingPhase
from groundling.vision_language.end_to_end import BUILDS, EndToEndModel, prepare_end_to_end_model
from groundling.vision_language.loading import (
    embedding_options,
    find_architecture,
    load_encoder,
    make_vision_language_model,
)
from groundling.vision_language.single_stream import SingleStreamModel

GUESSING_ADVICE = "train longer (epochs, steps); fine-tuning would start from this state"
"""Advice for a model with an objective that is no better than guessing."""


def pretrain(config: PretrainConfig, training: TrainingArguments, run: Run) -> dict[str, Any]:
    """Pre-train and write `model`, from which `finetune` and further pre-training start; returns
    the result.
    """
    training_step = load_training_step(
        config.training_step.training_step, config.training_step.adversarial
    )
    train_texts = config.train_texts
    corpora = corpora_of(train_texts, config.eval_texts.eval_captions)
    eval_texts = eval_texts_of(train_texts, config.eval_texts)
    eval_corpora = corpora_of(eval_texts, train_texts.captions) if eval_texts else []
    inputs = ImageSampleBuilder(config.regions, flip=config.pixels.flip)
    store = inputs.store
    assert store is not None  # --regions is required
    model = _start_model(config, store, training.seed)
    inputs.check(model)
    model.regions_provenance = store.facts
    architecture = find_architecture(model, config.architecture)
    answers = config.pretraining_objectives.task_answers
    phase = _phase(architecture, bool(train_texts.task), answers, config.step_mix)
    tags = phase.keeps_object_tags and config.regions.object_tags
    task = (
        resolve("tasks", Task, train_texts.task).with_answers_of(Path(train_texts.data))
        if train_texts.task
        else None
    )
    versions = [] if task is None else versions_of(task, train_texts, answers, tags)
    if task is not None and config.regions.mentioned_objects_only:
        check_mentioned([texts[0] for texts in versions], task.name, config.regions.object_tags)
    architecture.prepare_model(model, [examples[0] for examples in versions], True)
    context = _objective_context(model, store, config.objective_settings)
    names = config.extra_objectives.objectives
    device, seed = run.state.device, training.seed
    teacher_set = load_teacher_set(
        config.extra_objectives.teacher, names, context, device, run.folder, seed
    )
    text, _ = model.inputs(config.max_length)
    reader = PretrainingReader(
        model, phase.has_caption_pairs, answers, tags, config.grounded, text, inputs, teacher_set
    )
    data = reader.data(train_texts, versions, corpora, mirrored=config.pixels.flip)
    own = _own_objectives(phase, context, config.pretraining_objectives, config.architecture, seed)
    if not config.random_init:
        _start_heads(own, config.model, has_task=task is not None)
    _check_grounded(own, config.architecture, config.grounded)
    auxiliary = make_objectives(
        names, replace(context, sizes=teacher_set.sizes(context.sizes)), seed
    )
    every = [*own, *auxiliary]
    sources = sources_of(data, phase, own, auxiliary)
    files = parse_weighted_files(config.text, "text")
    sources += text_only_sources(files, text, sources, stores_folder(run.folder))
    run.counts |= {"samples": sum(len(source.samples) for source in sources)}
    run.note(*precision_note(config.model), *data.notes, *_unused_settings_notes(config))
    run.note(*_read_labels_note(task, train_texts, answers))
    run.note(*_missing_steps(phase, own, config.pretraining_objectives.region_classes))
    run.note(*in_batch_negatives_note(every, training))
    held_out = None
    held_out_data = eval_data(reader, train_texts, eval_texts, eval_corpora, task)
    if held_out_data is not None:
        held_out_sources = sources_of(held_out_data, phase, own, auxiliary)
        held_out = HeldOutLoss(
            "texts", held_out_sources, model, every, held_out_data.teachers, training
        )
        run.note(
            *held_out_data.notes,
            *training_overlap_note(held_out_data.images(), data.images(), "images"),
        )
    evaluator = None if held_out is None else held_out.evaluator(config.examining)
    trained = train(
        model,
        every,
        sources,
        training,
        run.folder,
        teachers=data.teachers,
        training_step=training_step,
        evaluator=evaluator,
    )
    few_samples = sample_sources(sources, bool(config.regions.images))
    # Only the architecture's own objectives have a guessing baseline, and none of them needs a teacher.
    parts, left = compare_with_baseline(
        HeldOutLoss("samples", few_samples, model, own, (), training), GUESSING_ADVICE
    )
    run.note(*left)
    result = _result(trained, model, every, run)
    result |= {"left_out": data.left_out, "notes": run.notes, "guessing": parts}
    result |= {"epoch_unit": train_texts.epoch_unit} if train_texts.captions else {}
    result |= report_held_out(held_out)
    run.save(partial(_save, model, every))
    return result


def _result(
    trained: dict[str, Any], model: SingleStreamModel, objectives: Sequence[Objective], run: Run
) -> dict[str, Any]:
    """Result of the training, with notes."""
    watched, remarks = summarize_monitored_terms(objectives, run.folder, trained)
    run.note(*remarks, *selection_bias_note(trained))
    names = sorted(one.name for one in objectives)
    result = {**trained, "architecture": model.join.kind, "objectives": names}
    result["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    return result | ({"watched": watched} if watched else {})


def _save(model: SingleStreamModel, objectives: Sequence[Objective], folder: Path) -> None:
    model.export(folder / "model")
    save_objective_heads(folder / "model", objectives)


def _objective_context(
    model: SingleStreamModel, store: RegionStore, settings: ObjectiveSettings
) -> ObjectiveContext:
    """Context of the objectives, without the teachers' widths."""
    return ObjectiveContext(
        model.sizes._replace(classes=store.classes, background=store.background),
        MaskingVocabulary.of(model.text.tokenizer),
        settings,
    )


def _start_model(config: PretrainConfig, store: RegionStore, seed: int) -> SingleStreamModel:
    """The model to pre-train, made a vision-language model if it is not one; raises InputError if store or
    images do not fit.
    """
    torch.manual_seed(derive_seed(seed, "init", "join"))
    start: Encoder = load_encoder(config.model, architecture=config.architecture)
    if config.random_init and isinstance(start, TextEncoder):
        start = TextEncoder(type(start.encoder)(start.encoder.config), start.tokenizer)
    images = config.regions.images
    if isinstance(start, EndToEndModel) and not images:
        raise InputError(f"{config.model}: this model reads pixels; pass images=FOLDER")
    is_new = config.architecture in BUILDS and isinstance(start, TextEncoder)
    options = embedding_options(start, config.architecture, config.joining, store)
    if images and (is_new or isinstance(start, EndToEndModel)):
        return prepare_end_to_end_model(start, config.pixels, config.architecture, options)
    if images:
        raise InputError(
            f"images={images}: only VL-BERT and VisualBERT read pixels; pass "
            "architecture vlbert or visualbert with "
            "a BERT, or an end-to-end model as model, or leave images out"
        )
    return make_vision_language_model(start, config.architecture, store.width, **options)


def _phase(
    architecture: Architecture, has_task: bool, answers: TaskAnswers, step_mix: Sequence[float]
) -> PretrainingPhase:
    """The model's phase on captions or on a task's texts, with the step mix of the settings.

    Raises InputError for a step mix that does not fit, and for `judged` answers of a model without
    that objective.
    """
    phase = architecture.pretraining
    if has_task and architecture.task_pretraining is not None:
        phase = architecture.task_pretraining
    if answers == "judged" and not phase.can_judge_answers:
        raise InputError(
            f"task_answers=judged: only VisualBERT predicts what is right, not {architecture.name}; pass right or any"
        )
    if not step_mix:
        return phase
    kinds = [names for _, names in phase.step_mix]
    if len(step_mix) != len(kinds) or not all(0 < ratio < float("inf") for ratio in step_mix):
        steps = (
            ", ".join(" or ".join(names) for names in kinds)
            or "none, every step trains all objectives"
        )
        ratios = " ".join(f"{ratio:g}" for ratio in step_mix)
        raise InputError(
            f"step_mix={ratios}: expected a number above 0 for each kind of step of {architecture.name}: {steps}"
        )
    return replace(phase, step_mix=tuple(zip(step_mix, kinds, strict=True)))


def _own_objectives(
    phase: PretrainingPhase,
    context: ObjectiveContext,
    options: PretrainingVariantSettings,
    name: str,
    seed: int,
) -> list[Objective]:
    """The objectives of the phase of the model `name`, with new heads."""
    torch.manual_seed(derive_seed(seed, "init", "heads"))
    objectives = phase.objectives(context, options)
    if not all(isinstance(one, Objective) for one in objectives):
        raise InputError(f"{name}: its phase must return objectives")
    for objective in objectives:
        check_saved_modules(objective)
    return objectives


def _check_grounded(objectives: Sequence[Objective], model: str, grounded: bool) -> None:
    """Raises InputError for captions without images and an objective that needs images."""
    need_images = [one.name for one in objectives if "regions" in one.required_fields]
    if need_images and not grounded:
        raise InputError(
            f"grounded=False: {need_images[0]} of {model} needs images; only VisualBERT learns from captions alone"
        )


def _start_heads(objectives: Sequence[Objective], model: str, has_task: bool) -> None:
    """Load heads from the folder of `model`: the masked-LM head, and on a task's texts (`has_task`) all
    others too.
    """
    for objective in objectives:
        if isinstance(objective, MaskedLM):
            init_lm_head(objective.head, model, "bert", objective.pretrained_names)
        elif has_task:
            for name, head in objective.saved_modules().items():
                load_head(Path(model), head, name)


def _unused_settings_notes(config: PretrainConfig) -> list[str]:
    """Notes on settings that no objective uses; a user's own architecture may use any."""
    if is_import_path(config.architecture):
        return []
    # Every architecture of this library masks words.
    return unused_settings_note(
        ("mlm", *config.extra_objectives.objectives),
        config.objective_settings,
        config.training_step.training_step,
    )


def _missing_steps(
    phase: PretrainingPhase, objectives: Sequence[Objective], region_classes: str
) -> list[str]:
    """Notes on kinds of steps that a run does not have, and why."""
    names = {objective.name for objective in objectives}
    reason = "the store's regions have no classes"
    if region_classes == "none":
        reason = "region_classes=none"
    return [
        f"no step trained {' or '.join(mixed)}: {reason}"
        for _, mixed in phase.step_mix
        if not names & set(mixed)
    ]


def _read_labels_note(
    task: Task | None, train_texts: TrainTexts, answers: TaskAnswers
) -> list[str]:
    """Note if the run read labels that few-shot fine-tuning or evaluation hides."""
    if task is None or answers == "any":
        return []
    if not (isinstance(task.form, OpenAnswer | MultipleChoice) or answers == "judged"):
        return []
    eval_splits = [split for split in task.dev if split in train_texts.train_splits]
    if eval_splits:
        return [
            f"this model has read the right answers of {' and '.join(eval_splits)} of {task.name}, so these "
            "splits are not held out for models fine-tuned from it"
        ]
    if train_texts.partition:
        return []
    return [
        f"this model has read the right answers of all training examples of {task.name}, as in CLIP-TD: "
        "few-shot fine-tuning from it is not few-shot; task_answers=any or partition=FILE avoids this"
    ]
