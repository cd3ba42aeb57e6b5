"""Pre-train VisualBERT, VL-BERT, UNITER or LXMERT on captioned images, or on a task's texts and images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import PartialState

from groundling.commands.pretrain import EvalTexts, PretrainConfig, TrainTexts
from groundling.core.batch import Example, require
from groundling.core.errors import InputError, prefix_errors, raise_first
from groundling.core.output_types import Classification, MultipleChoice, OpenAnswer
from groundling.core.registry import is_import_path, resolve
from groundling.core.rng import derive_seed
from groundling.data.captions import (
    CaptionedImage,
    has_splits,
    images_in_store,
    keep_listed,
    read_captions,
    settings_by_file,
)
from groundling.data.corpora import corpus_samples, stores_folder
from groundling.data.regions import RegionStore
from groundling.data.regions.samples import (
    CaptionSampleDataset,
    ImageSampleBuilder,
    check_mentioned,
)
from groundling.data.samples import (
    MultiVersionTextDataset,
    SampleSubset,
    TextDataset,
    concatenate_splits,
    subsample,
    with_choice,
    without_region_tags,
)
from groundling.models.heads import init_lm_head
from groundling.models.loading import Encoder
from groundling.models.text_encoder import TextEncoder
from groundling.objectives import (
    Objective,
    ObjectiveContext,
    unused_settings_note,
)
from groundling.objectives.masked_lm import MaskedLM
from groundling.runs.run import Run
from groundling.settings.input_settings import (
    WeightedFile,
    parse_weighted_files,
)
from groundling.settings.training import TrainingArguments
from groundling.tasks import Task
from groundling.tasks.splits import hidden_versions, select_partition
from groundling.teachers import Teacher
from groundling.teachers.feature_cache import TeacherSet
from groundling.teachers.loading import load_teacher_set
from groundling.training.batch_sampler import DataSource, split_by_file
from groundling.training.fit import fit, save_trained, taught_objectives
from groundling.training.held_out_loss import (
    HeldOutLoss,
    compare_with_baseline,
    training_overlap_note,
)
from groundling.vision_language import Architecture, PretrainingPhase, RegionEncoder
from groundling.vision_language.loading import load_encoder, new_vision_language_model


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
        run.note(*unused_settings_note(names, config.objective_settings, step))
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
    run.save(lambda folder: save_trained(folder / "model", model, [*own, *auxiliary]))
    return result


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
    """The task whose texts are read, None for captions; raises InputError for a held-out split that is trained on."""
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
    """A task's texts with the answers and tags of the settings; none without a task."""
    tags = phase.keeps_object_tags and config.regions.object_tags
    answers = config.pretraining_objectives.task_answers
    return [] if task is None else task_texts(task, texts, answers, tags, phase.keeps_labels)


def _start_model(
    config: PretrainConfig, inputs: ImageSampleBuilder, seed: int
) -> tuple[RegionEncoder, RegionStore]:
    """The model to pre-train, made a vision-language model if it is not one, and the region store that it reads."""
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
    """The model's phase on captions or on a task's texts, with the step mix of the settings."""
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
    """Note if the run read labels that few-shot fine-tuning or evaluation hides."""
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


# -- data: captions or a task's texts, with regions, pixels and teachers ----------------------------------------------

TaskAnswers = Literal["right", "any", "judged"]
"""Which answers a task's texts contain."""


def task_texts(
    task: Task,
    texts: TrainTexts,
    answers: TaskAnswers = "right",
    tags: bool = False,
    labels: bool = False,
) -> list[tuple[Example, ...]]:
    """A task's training texts with such answers: one version each, or with `any` all that need no label.

    With `right`, a question is followed by its best answer (the release splits the answer into letters), a choice by
    the right one; a statement stands alone (VisualBERT, Appendix A). With `tags`, texts keep their object tags.
    With `labels`, an open question stands alone and keeps its answers as label (LXMERT).
    """
    if answers == "judged" and not _is_judged(task):
        raise InputError(f"task_answers=judged: {task.name} has no right and wrong texts")
    folder = Path(texts.data)
    splits = task.splits_to_train(texts.train_splits)
    examples = concatenate_splits({split: task.read(folder, split) for split in splits})
    chosen: Sequence[Example] = examples
    if texts.partition:
        chosen = select_partition(examples, Path(texts.partition), task, folder)
    if answers == "judged":
        unlabelled = [example.id for example in chosen if example.label is None]
        raise_first([f"{name}: no label, expected right or wrong" for name in unlabelled])
        return [(replace(_as_text(one, tags), label=one.label),) for one in chosen]
    if answers == "any":
        inside = {example.id for example in chosen}
        pairs = zip(examples, hidden_versions(examples, task, folder, splits), strict=True)
        selected = [versions for example, versions in pairs if example.id in inside]
    elif labels and isinstance(task.form, OpenAnswer):
        return [(replace(_as_text(one, tags), label=one.label),) for one in chosen]
    else:
        selected = [(_with_answer(example, task),) for example in chosen]
    found = [tuple(_as_text(one, tags) for one in versions) for versions in selected]
    if task.form.head_input != "phrase":
        return found
    # Examples are phrases of captions, and every caption is read once (release: Flickr30k).
    first = {(one[0].text, one[0].images): one for one in reversed(found)}
    if answers == "right":
        return list(first.values())[::-1]
    ids = {one[0].id for one in first.values()}
    return [one for one in found if one[0].id in ids]


def _is_judged(task: Task) -> bool:
    """Whether texts are right or wrong: a multiple choice (VCR), or true and false statements (NLVR2)."""
    is_choice = isinstance(task.form, MultipleChoice)
    is_pair = isinstance(task.form, Classification) and len(task.form.labels) == 2
    return (is_choice or is_pair) and task.label_regions is None


def _with_answer(example: Example, task: Task) -> Example:
    if example.choices:
        if not isinstance(example.label, int):
            raise InputError(f"{example.id}: no label, so its right choice is unknown")
        return with_choice(example, example.label)
    if isinstance(task.form, OpenAnswer):
        return replace(example, text_pair=task.form.best_answer(example.label) or None)
    return example


def _as_text(example: Example, tags: bool) -> Example:
    """The example without its label and, without `tags`, without object and phrase tags."""
    text = replace(example, label=None, gold_boxes=None, official_id="")
    if tags and example.object_count:
        return text
    return replace(without_region_tags(text), region_tags=())  # a phrase's tag names no object


BASELINE_SAMPLES = 256
"""Samples per source in the check whether an objective is better than guessing."""
BASELINE_PIXEL_SAMPLES = 32
"""The same for a model that reads pixels, which takes a hundred times as long."""


def read_data(
    config: PretrainConfig,
    run: Run,
    model: RegionEncoder,
    phase: PretrainingPhase,
    inputs: ImageSampleBuilder,
    teacher_set: TeacherSet,
    texts: TrainTexts,
    versions: Sequence[Sequence[Example]],
    mirrored: bool = False,
) -> tuple[list[DataSource], list[Teacher], int]:
    """A source of every caption file, or of a task, with regions or pixels, the teachers that the training loop runs,
    and the number of captioned images that the store lacks.

    `versions`: the texts of a task, empty for captions. `mirrored`: mirror half of the images (`flip`).
    """
    rows = require(model.inputs(config.max_length)[0], "text", "pre-training")
    sources = []
    left_out = 0
    answers = config.pretraining_objectives.task_answers
    if texts.task and answers == "right":
        samples = TextDataset([examples[0] for examples in versions], rows)
        sources.append(DataSource(samples, len(samples), name=texts.task))
    elif texts.task:
        several = MultiVersionTextDataset(versions, rows, labels_correctness=answers == "judged")
        sources.append(DataSource(several, len(several), name=texts.task))
    else:
        pairs, every_caption = phase.has_caption_pairs, texts.epoch_unit == "captions"
        for file, images, lacking in _captioned_images(texts, inputs, run):
            captions = CaptionSampleDataset(images, rows, pairs, every_caption)
            sources.append(DataSource(captions, file.weight or len(captions), name=file.file))
            left_out += lacking
            earlier = set(images_of(sources[:-1]))
            shared = [image for image in images_of(sources[-1:]) if image in earlier]
            if shared:  # other images, if the files number theirs alike
                some = f"{len(shared):,} images of {file.file}, such as {shared[0]}"
                run.note(f"{some}, are also in an earlier file and share its regions")
    teachers: list[Teacher] = []
    for number, source in enumerate(sources):
        # Features of texts that change in every epoch cannot be cached: the loop runs their teacher.
        is_fixed = isinstance(source.samples, TextDataset)
        taught, teachers = teacher_set.wrap(source.samples, fixed=is_fixed)
        if config.grounded:
            # The release does not change captions of mirrored images.
            mirror = taught if mirrored else None
            taught = inputs.samples(taught, model, inputs.all_images(), mirror=mirror)
        sources[number] = replace(source, samples=taught)
    return sources, teachers, left_out


def _captioned_images(
    texts: TrainTexts, inputs: ImageSampleBuilder, run: Run
) -> Iterator[tuple[WeightedFile, list[CaptionedImage], int]]:
    store = inputs.store
    assert store is not None  # `regions` is required
    files = parse_weighted_files(texts.captions, "captions")
    selections = settings_by_file([each.file for each in files], texts.caption_settings)
    for each, own in zip(files, selections, strict=True):
        captions = read_captions(each.file, own)
        run.note(*captions.notes)
        images = keep_listed(captions.images, texts.image_list)
        with prefix_errors(each.file):
            found, missing = images_in_store(images, store, store.folder, texts.skip_missing)
        yield each, found, missing


def images_of(sources: Sequence[DataSource]) -> list[str]:
    """Ids of all images."""
    every = (image for one in sources for images in one.samples.images for image in images)
    return list(dict.fromkeys(every))


def eval_texts_of(train_texts: TrainTexts, eval_texts: EvalTexts) -> TrainTexts | None:
    """The held-out texts as `TrainTexts`, with the settings of the training texts; None if there are none."""
    if eval_texts == EvalTexts():
        return None
    if train_texts.task:
        return replace(train_texts, train_splits=eval_texts.eval_splits, partition="")
    captions = eval_texts.eval_captions or train_texts.captions
    files = parse_weighted_files(captions, "eval_captions")
    settings = train_texts.caption_settings
    splits = eval_texts.eval_splits
    if settings.caption_splits and not splits and any(has_splits(each.file) for each in files):
        splits = settings.caption_splits
    return replace(
        train_texts,
        captions=captions,
        caption_settings=replace(settings, caption_splits=splits),
        image_list=eval_texts.eval_image_list,
    )


def sources_of(
    corpora: Sequence[DataSource],
    phase: PretrainingPhase,
    objectives: Sequence[Objective],
    auxiliary: Sequence[Objective],
) -> list[DataSource]:
    """Every corpus once for each kind of step; auxiliary objectives take part in every step.

    A step draws a corpus and a kind together, as UNITER's release does (ChenRocks/UNITER,
    data/loader.py).
    """
    names = {objective.name for objective in objectives}
    always = tuple(objective.name for objective in auxiliary)
    sources = []
    for corpus in corpora:
        for ratio, mixed in phase.step_mix or [(1.0, tuple(sorted(names)))]:
            present = tuple(name for name in mixed if name in names)
            if present:
                name = f"{corpus.name}: {'+'.join(present)}"
                own = (*present, *always)
                sources.append(
                    replace(corpus, ratio=ratio * corpus.ratio, objectives=own, name=name)
                )
    return sources


def sample_sources(sources: Sequence[DataSource], pixels: bool) -> list[DataSource]:
    """A few samples of every source, evenly spaced; fewer with `pixels`."""
    limit = BASELINE_PIXEL_SAMPLES if pixels else BASELINE_SAMPLES
    world = PartialState().num_processes  # each process gets a share
    return [
        replace(one, samples=SampleSubset(one.samples, subsample(range(len(one.samples)), limit)))
        for one in sources
        if len(one.samples) >= world
    ]


def text_only_sources(
    config: PretrainConfig, model: RegionEncoder, sources: Sequence[DataSource], run: Run
) -> list[DataSource]:
    """Texts without images, drawn as often as all captions (VL-BERT, final version, Section 3.3), outside of epochs."""
    files = parse_weighted_files(config.text, "text")
    if not files:
        return []
    share = sum(source.ratio for source in sources)
    rows = require(model.inputs(config.max_length)[0], "text", "pre-training")
    folder = stores_folder(run.folder)
    texts = corpus_samples([each.file for each in files], "blocks", rows, folder)
    source = DataSource(texts, share, ("masked_lm",), "text alone", counts_towards_epoch=False)
    return split_by_file(source, texts.bounds, files)
