"""Data of a pre-training: captions or a task's texts, with regions, pixels and teachers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from accelerate import PartialState

from groundling.commands.pretrain import EvalTexts, PretrainConfig, TrainTexts
from groundling.core.batch import Example
from groundling.core.errors import InputError, prefix_errors, raise_first
from groundling.core.output_types import Classification, MultipleChoice, OpenAnswer
from groundling.data.captions.captions import (
    CaptionedImage,
    has_splits,
    images_in_store,
    keep_listed,
    read_captions,
    settings_by_file,
)
from groundling.data.corpora.token_stores import corpus_samples, stores_folder
from groundling.data.regions.inputs import ImageSampleBuilder
from groundling.data.regions.samples import CaptionSampleDataset
from groundling.data.samples import (
    MultiVersionTextDataset,
    SampleDataset,
    SampleSubset,
    TextDataset,
    concatenate_splits,
    subsample,
    with_choice,
)
from groundling.objectives import Objective
from groundling.runs.run import Run
from groundling.settings.input_settings import (
    WeightedFile,
    parse_weighted_file,
    parse_weighted_files,
)
from groundling.tasks import Task
from groundling.tasks.splits import hidden_versions, select_partition
from groundling.teachers import Teacher
from groundling.teachers.feature_cache import TeacherSet
from groundling.training.batch_sampler import DataSource, split_by_file
from groundling.vision_language import PretrainingPhase
from groundling.vision_language.single_stream import SingleStreamModel

TaskAnswers = Literal["right", "any", "judged"]
"""Which answers a task's texts contain."""


def task_texts(
    task: Task, texts: TrainTexts, answers: TaskAnswers = "right", tags: bool = False
) -> list[tuple[Example, ...]]:
    """A task's training texts with such answers: one version each, or with `any` all that need no label.

    With `right`, a question is followed by its best answer (the release splits the answer into letters), a choice by
    the right one; a statement stands alone (VisualBERT, Appendix A). With `tags`, texts keep their object tags.
    """
    if answers == "judged":
        _check_judged(task)
    folder = Path(texts.data)
    splits = task.splits_to_train(texts.train_splits)
    examples = concatenate_splits({split: task.read(folder, split) for split in splits})
    chosen: Sequence[Example] = examples
    if texts.partition:
        chosen = select_partition(examples, Path(texts.partition), task, folder)
    if answers == "judged":
        without = [example.id for example in chosen if example.label is None]
        raise_first([f"{name}: no label, expected right or wrong" for name in without])
        return [(replace(_as_text(one, tags), label=one.label),) for one in chosen]
    if answers == "any":
        inside = {example.id for example in chosen}
        pairs = zip(examples, hidden_versions(examples, task, folder, splits), strict=True)
        selected = [versions for example, versions in pairs if example.id in inside]
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
    """The example followed by its right answer."""
    if example.choices:
        if not isinstance(example.label, int):
            raise InputError(
                f"{example.id}: a multiple choice without a label cannot be used for pre-training"
            )
        return with_choice(example, example.label)
    if isinstance(task.form, OpenAnswer):
        return replace(example, text_pair=task.form.best_answer(example.label) or None)
    return example


def _check_judged(task: Task) -> None:
    """Raises InputError for a task without right and wrong texts, which VisualBERT's code reads (VCR, NLVR2)."""
    form = task.form
    has_right_and_wrong = isinstance(form, MultipleChoice) or (
        isinstance(form, Classification) and len(form.labels) == 2
    )
    if not has_right_and_wrong or task.label_regions is not None:
        raise InputError(
            f"task_answers=judged: {task.name} has no right and wrong texts; expected a multiple choice "
            "(vcr) or true and false statements (nlvr2)"
        )


def _as_text(example: Example, tags: bool) -> Example:
    """The example without its label and, without `tags`, without object and phrase tags."""
    text = replace(example, label=None, gold_boxes=None, official_id="")
    if tags and example.object_count:
        return text
    return replace(
        text,
        region_tags=(),
        choice_region_tags=(),
        object_count=0,
        object_names=(),
        mentioned_objects=(),
    )


BASELINE_SAMPLES = 256
"""Samples per source in the check whether an objective is better than guessing."""
BASELINE_PIXEL_SAMPLES = 32
"""The same for a model that reads pixels, which takes a hundred times as long."""


def corpora_of(texts: TrainTexts, other_captions: Sequence[str]) -> dict[str, WeightedFile]:
    """The caption files by their names in messages; a task's own texts are one corpus without a file.

    `other_captions`: the held-out files if these are for training, and vice versa; if two of all files
    share a name, corpora are named by their paths.
    """
    if not texts.captions:
        return {texts.task: WeightedFile("")}
    files = parse_weighted_files(texts.captions, "captions")
    every = dict.fromkeys([*(each.file for each in files), *_eval_files(other_captions)])
    alike = len({Path(file).stem for file in every}) < len(every)
    return {each.file if alike else Path(each.file).stem: each for each in files}


def _eval_files(captions: Sequence[str]) -> list[str]:
    """Held-out caption files, without weights."""
    return [parse_weighted_file(word, "eval_captions").file for word in captions]


def read_data(
    config: PretrainConfig,
    run: Run,
    model: SingleStreamModel,
    phase: PretrainingPhase,
    inputs: ImageSampleBuilder,
    teacher_set: TeacherSet,
    texts: TrainTexts,
    versions: Sequence[Sequence[Example]],
    corpora: Mapping[str, WeightedFile],
    mirrored: bool = False,
) -> tuple[dict[str, SampleDataset], list[Teacher], int]:
    """Samples of every corpus with regions or pixels, the teachers that the training loop runs, and the number of
    captioned images that the store lacks.

    `versions`: the texts of a task, empty for captions. `mirrored`: mirror half of the images (`flip`).
    """
    rows, _ = model.inputs(config.max_length)
    samples: dict[str, SampleDataset] = {}
    left_out = 0
    if texts.task:
        answers = config.pretraining_objectives.task_answers
        (name,) = corpora
        if answers == "right":
            samples[name] = TextDataset([examples[0] for examples in versions], rows)
        else:
            judged = answers == "judged"
            samples[name] = MultiVersionTextDataset(versions, rows, labels_correctness=judged)
    else:
        pairs, every_caption = phase.has_caption_pairs, texts.epoch_unit == "captions"
        for name, images, lacking in _captioned_images(texts, corpora, inputs, run):
            samples[name] = CaptionSampleDataset(images, rows, pairs, every_caption)
            left_out += lacking
        run.note(*_shared_images(samples))
    teachers: list[Teacher] = []
    for name, some in samples.items():
        # Features of texts that change in every epoch cannot be cached: the loop runs their teacher.
        taught, teachers = teacher_set.wrap(some, fixed=isinstance(some, TextDataset))
        if config.grounded:
            # The release does not change captions of mirrored images.
            mirror = taught if mirrored else None
            taught = inputs.samples(taught, model, inputs.all_images(), mirror=mirror)
        samples[name] = taught
    return samples, teachers, left_out


def images_of(samples: Mapping[str, SampleDataset]) -> list[str]:
    """Ids of all images."""
    every = (image for some in samples.values() for images in some.images for image in images)
    return list(dict.fromkeys(every))


def eval_texts_of(train_texts: TrainTexts, eval_texts: EvalTexts) -> TrainTexts | None:
    """The held-out texts as `TrainTexts`, with the settings of the training texts; None if there are none."""
    if eval_texts == EvalTexts():
        return None
    if train_texts.task:
        return replace(train_texts, train_splits=eval_texts.eval_splits, partition="")
    captions = eval_texts.eval_captions or train_texts.captions
    splits = eval_texts.eval_splits
    train_splits = train_texts.caption_settings.caption_splits
    if train_splits and not splits and any(map(has_splits, _eval_files(captions))):
        splits = train_splits
    return replace(
        train_texts,
        captions=captions,
        caption_settings=replace(train_texts.caption_settings, caption_splits=splits),
        image_list=eval_texts.eval_image_list,
    )


def _captioned_images(
    texts: TrainTexts, corpora: Mapping[str, WeightedFile], inputs: ImageSampleBuilder, run: Run
) -> Iterator[tuple[str, list[CaptionedImage], int]]:
    """For each file: its name, the captioned images in the store, and the number that the store lacks."""
    store = inputs.store
    assert store is not None  # `regions` is required
    selections = settings_by_file([each.file for each in corpora.values()], texts.caption_settings)
    for (name, each), own in zip(corpora.items(), selections, strict=True):
        captions = read_captions(each.file, own.caption_splits, own.columns)
        run.note(*captions.notes)
        images = captions.images
        if texts.image_list:
            images = keep_listed(images, texts.image_list)
        with prefix_errors(each.file):
            found, missing = images_in_store(images, store, store.folder, texts.skip_missing)
        yield name, found, missing


def _shared_images(samples: Mapping[str, SampleDataset]) -> list[str]:
    """Notes on image ids of several corpora, which are one image only if their names say so."""
    notes = []
    earlier: set[str] = set()
    for name, some in samples.items():
        images = images_of({name: some})
        shared = [image for image in images if image in earlier]
        if shared:
            notes.append(
                f"{len(shared):,} images of {name}, such as {shared[0]!r}, are also in an earlier file and share "
                "its regions"
            )
        earlier.update(images)
    return notes


def sources_of(
    samples: Mapping[str, SampleDataset],
    corpora: Mapping[str, WeightedFile],
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
    mix = phase.step_mix or [(1.0, tuple(sorted(names)))]
    sources = []
    for corpus, some in samples.items():
        weight = corpora[corpus].weight or float(len(some))
        for ratio, mixed in mix:
            present = tuple(name for name in mixed if name in names)
            if present:
                name = f"{corpus}: {'+'.join(present)}"
                sources.append(DataSource(some, ratio * weight, (*present, *always), name))
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
    config: PretrainConfig, model: SingleStreamModel, sources: Sequence[DataSource], run: Run
) -> list[DataSource]:
    """Texts without images, drawn as often as all captions (VL-BERT, final version, Section 3.3), outside of epochs."""
    files = parse_weighted_files(config.text, "text")
    if not files:
        return []
    share = sum(source.ratio for source in sources)
    rows, _ = model.inputs(config.max_length)
    folder = stores_folder(run.folder)
    texts = corpus_samples([each.file for each in files], "blocks", rows, folder)
    source = DataSource(texts, share, ("masked_lm",), "text alone", counts_towards_epoch=False)
    return split_by_file(source, texts.bounds, files)
