"""What a pre-training reads: captions or a task's texts, with regions, pixels and teachers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from accelerate import PartialState

from groundling.commands.pretrain import EvalTexts, PretrainConfig, TrainTexts
from groundling.core.batch import Example, require
from groundling.core.errors import InputError, prefix_errors, raise_first
from groundling.core.output_types import Classification, MultipleChoice, OpenAnswer
from groundling.data.captions import (
    CaptionedImage,
    has_splits,
    images_in_store,
    keep_listed,
    read_captions,
    settings_by_file,
)
from groundling.data.corpora import corpus_samples, stores_folder
from groundling.data.regions.samples import CaptionSampleDataset, ImageSampleBuilder
from groundling.data.samples import (
    MultiVersionTextDataset,
    SampleSubset,
    TextDataset,
    concatenate_splits,
    subsample,
    with_choice,
    without_region_tags,
)
from groundling.objectives import Objective
from groundling.runs.run import Run
from groundling.settings.input_settings import WeightedFile, parse_weighted_files
from groundling.tasks import Task
from groundling.tasks.splits import hidden_versions, select_partition
from groundling.teachers import Teacher
from groundling.teachers.feature_cache import TeacherSet
from groundling.training.batch_sampler import DataSource, split_by_file
from groundling.vision_language import PretrainingPhase, RegionEncoder

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
    # A multiple choice (VCR), or true and false statements (NLVR2).
    are_two = isinstance(task.form, Classification) and len(task.form.labels) == 2
    is_judged = isinstance(task.form, MultipleChoice) or are_two
    if answers == "judged" and (not is_judged or task.label_regions is not None):
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


def _with_answer(example: Example, task: Task) -> Example:
    if example.choices:
        if not isinstance(example.label, int):
            raise InputError(f"{example.id}: no label, so its right choice is unknown")
        return with_choice(example, example.label)
    if isinstance(task.form, OpenAnswer):
        return replace(example, text_pair=task.form.best_answer(example.label) or None)
    return example


def _as_text(example: Example, tags: bool) -> Example:
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

    A step draws a corpus and a kind together, as UNITER's release does (ChenRocks/UNITER, data/loader.py).
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
