"""Pre-train VisualBERT, VL-BERT, UNITER or LXMERT on captioned images, or on a task's texts and images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from groundling.commands.pretrain import PretrainConfig, TrainTexts
from groundling.commands.pretrain.data import (
    eval_texts_of,
    images_of,
    read_data,
    sample_sources,
    sources_of,
    task_texts,
    text_only_sources,
)
from groundling.core.batch import Example, require
from groundling.core.errors import InputError
from groundling.core.output_types import MultipleChoice, OpenAnswer
from groundling.core.registry import is_import_path, resolve
from groundling.core.rng import derive_seed
from groundling.data.regions import RegionStore
from groundling.data.regions.samples import ImageSampleBuilder, check_mentioned
from groundling.models.heads import init_lm_head
from groundling.models.loading import Encoder
from groundling.models.text_encoder import TextEncoder
from groundling.objectives import Objective, ObjectiveContext, unused_settings_note
from groundling.objectives.masked_lm import MaskedLM
from groundling.runs.run import Run
from groundling.runs.run_report import training_card
from groundling.settings.training import TrainingArguments
from groundling.tasks import Task
from groundling.teachers.loading import load_teacher_set
from groundling.training.batch_sampler import DataSource
from groundling.training.fit import (
    HeldOutLoss,
    compare_with_baseline,
    fit,
    save_trained,
    taught_objectives,
    training_overlap_note,
)
from groundling.vision_language import Architecture, PretrainingPhase, RegionEncoder
from groundling.vision_language.loading import load_encoder, new_vision_language_model

CARD_PARTS = (
    "architecture",
    "parameters",
    "objectives",
    "steps",
    "epochs",
    "train_metrics",
    "held",
)
"""What a model card says of a result."""


def pretrain(config: PretrainConfig, training: TrainingArguments, run: Run) -> dict[str, Any]:
    """Pre-train and write `model`, from which `finetune` and further pre-training start; returns the result."""
    texts, seed = config.train_texts, training.seed
    inputs = ImageSampleBuilder(config.regions, flip=config.pixels.flip)
    model, store = _start_model(config, inputs, seed)
    phase = _phase(model.architecture, config)
    task = _task(config)
    versions = _versions(config, phase, task, texts)
    if task is not None and config.regions.mentioned_objects_only:
        check_mentioned([one[0] for one in versions], task.name, config.regions.object_tags)
    model.prepare([one[0] for one in versions], True)
    sizes = model.sizes._replace(classes=store.classes, background=store.background)
    tokenizer = require(model.text_tokenizer, "tokenizer", "masked LM")
    form = task.form if task is not None and phase.keeps_labels else None
    context = ObjectiveContext(sizes, tokenizer, config.objective_settings, output_type=form)
    extra = config.extra_objectives
    teacher_set = load_teacher_set(
        extra.teacher, extra.objectives, context, run.state.device, run.folder, seed
    )
    own = _own_objectives(model, phase, context, config, seed)
    auxiliary = taught_objectives(extra.objectives, context, teacher_set, seed)
    if not is_import_path(config.architecture):  # a user's own may use any; all others mask words
        names, step = ("mlm", *extra.objectives), config.training_step.training_step
        settings = config.objective_settings
        run.note(*unused_settings_note(names, settings, step, teacher=extra.teacher))
    run.note(*_read_labels_note(task, config), *_missing_steps(phase, own))
    read = partial(read_data, config, run, model, phase, inputs, teacher_set)
    corpora, teachers, left_out = read(texts, versions, mirrored=config.pixels.flip)
    sources = sources_of(corpora, phase, own, auxiliary)
    sources += text_only_sources(config, model, sources, run)
    run.counts |= {"samples": sum(len(source.samples) for source in sources)}
    held_out = None
    eval_texts = eval_texts_of(texts, config.eval_texts)
    if eval_texts is not None:
        held, live, _ = read(eval_texts, _versions(config, phase, task, eval_texts))
        run.note(*training_overlap_note(images_of(held), images_of(corpora), "images"))
        held_out = sources_of(held, phase, own, auxiliary), live
    result = fit(
        model,
        [*own, *auxiliary],
        (sources, teachers),
        training,
        run,
        training_step=config.training_step,
        evaluation=config.examining,
        held_out=held_out,
    )
    result["guessing"] = _compare_with_guessing(config, training, run, model, own, sources)
    result |= {"architecture": model.architecture_name, "left_out": left_out}
    result |= {"objectives": sorted(one.name for one in [*own, *auxiliary])}
    result |= {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    result |= {"epoch_unit": texts.epoch_unit} if texts.captions else {}
    card = _card(config, training, result)

    def save(folder: Path) -> None:
        save_trained(folder / "model", model, [*own, *auxiliary])
        (folder / "model" / "README.md").write_text(card, encoding="utf-8")

    run.save(save)
    return result


def _card(config: PretrainConfig, training: TrainingArguments, result: Mapping[str, Any]) -> str:
    start = 'groundling.finetune(model="FOLDER", task="vqa", data="...", regions="...")'
    return training_card(
        f"{result['architecture']}, pre-trained with groundling",
        "groundling",
        f"import groundling\n\nresult = {start}",
        {
            "started from": "new weights" if config.random_init else Path(config.model).name,
            "captions": ", ".join(Path(one).name for one in config.train_texts.captions),
            "task": config.train_texts.task,
            **{name: result.get(name) for name in CARD_PARTS},
            "learning rate": training.lr,
            "seed": training.seed,
        },
    )


def _compare_with_guessing(
    config: PretrainConfig,
    training: TrainingArguments,
    run: Run,
    model: RegionEncoder,
    objectives: Sequence[Objective],
    sources: Sequence[DataSource],
) -> dict[str, Any]:
    """Losses of the architecture's own objectives beside those of guessing, which read no teacher's features."""
    few_samples = sample_sources(sources, bool(config.regions.images))
    loss = HeldOutLoss("samples", few_samples, model, objectives, (), training)
    comparison, notes = compare_with_baseline(loss, "train longer")
    run.note(*notes)
    return comparison


def _task(config: PretrainConfig) -> Task | None:
    texts = config.train_texts
    if not texts.task:
        return None
    task = resolve("tasks", Task, texts.task).with_answers_of(Path(texts.data))
    for split in config.eval_texts.eval_splits:
        task.check_labelled(split, "eval_splits")
        if split in task.splits_to_train(texts.train_splits):
            raise InputError(f"eval_splits={split}: is also a training split; leave it out")
    return task


def _versions(
    config: PretrainConfig, phase: PretrainingPhase, task: Task | None, texts: TrainTexts
) -> list[tuple[Example, ...]]:
    tags = phase.keeps_object_tags and config.regions.object_tags
    answers = config.pretraining_objectives.task_answers
    return [] if task is None else task_texts(task, texts, answers, tags, phase.keeps_labels)


def _start_model(
    config: PretrainConfig, inputs: ImageSampleBuilder, seed: int
) -> tuple[RegionEncoder, RegionStore]:
    store = inputs.store
    assert store is not None  # `regions` is required
    torch.manual_seed(derive_seed(seed, "init", "join"))
    start: Encoder = load_encoder(config.model, architecture=config.architecture)
    if config.random_init and isinstance(start, TextEncoder):
        start = TextEncoder(type(start.encoder)(start.encoder.config), start.tokenizer)
    model = new_vision_language_model(
        start, config.architecture, store, config.regions.images, config.pixels, config.joining
    )
    inputs.check_pixels(model, config.model)
    inputs.check(model)  # of regions that an earlier run has read
    model.regions_provenance = store.provenance
    return model, store


def _phase(architecture: Architecture, config: PretrainConfig) -> PretrainingPhase:
    phase = architecture.pretraining
    if config.train_texts.task and architecture.task_pretraining is not None:
        phase = architecture.task_pretraining
    if config.pretraining_objectives.task_answers == "judged" and not phase.can_judge_answers:
        raise InputError(f"task_answers=judged: only VisualBERT's phase, not {architecture.name}'s")
    if not config.step_mix:
        return phase
    kinds = [names for _, names in phase.step_mix]
    if len(config.step_mix) != len(kinds):
        steps = ", ".join(map(" or ".join, kinds)) or "none, every step trains all objectives"
        raise InputError(f"step_mix: expected a number for each kind of step: {steps}")
    return replace(phase, step_mix=tuple(zip(config.step_mix, kinds, strict=True)))


def _own_objectives(
    model: RegionEncoder,
    phase: PretrainingPhase,
    context: ObjectiveContext,
    config: PretrainConfig,
    seed: int,
) -> list[Objective]:
    """The objectives of the phase, with new heads or the model's: masked LM, and on a task's texts all others too."""
    torch.manual_seed(derive_seed(seed, "init", "heads"))
    objectives = phase.objectives(context, config.pretraining_objectives)
    for objective in objectives:
        if config.random_init:
            continue
        if isinstance(objective, MaskedLM):
            init_lm_head(objective.head, config.model, objective.pretrained_names)
        elif config.train_texts.task:
            model.load_heads(objective, config.model)
    return objectives


def _missing_steps(phase: PretrainingPhase, objectives: Sequence[Objective]) -> list[str]:
    names = {objective.name for objective in objectives}
    return [
        f"no step trains {' or '.join(mixed)}: the store's regions have no classes, or region_classes=none"
        for _, mixed in phase.step_mix
        if not names & set(mixed)
    ]


def _read_labels_note(task: Task | None, config: PretrainConfig) -> list[str]:
    texts, answers = config.train_texts, config.pretraining_objectives.task_answers
    if task is None or answers == "any":
        return []
    if not (isinstance(task.form, OpenAnswer | MultipleChoice) or answers == "judged"):
        return []
    read = f"this model has read the right answers of {task.name}"
    eval_splits = [split for split in task.dev if split in texts.train_splits]
    if eval_splits:
        return [f"{read}, {' and '.join(eval_splits)} included, which are no longer held out"]
    if texts.partition:
        return []
    return [f"{read}, as in CLIP-TD: few-shot fine-tuning from it is not few-shot"]
