"""A task's examples as model input: splits, regions, pixels and teachers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from groundling.commands.finetune import FinetuneConfig
from groundling.core.batch import Example
from groundling.core.errors import InputError, require_nonempty
from groundling.core.output_types import Classification, OpenAnswer
from groundling.core.registry import resolve
from groundling.core.rng import generator
from groundling.data.image_samples import LeftRightWordSwap
from groundling.data.regions.samples import ImageSampleBuilder, RegionOptions, check_mentioned
from groundling.data.samples import (
    SampleDataset,
    SampleSubset,
    TextDataset,
    concatenate_splits,
    subsample,
    without_region_tags,
)
from groundling.models.loading import Encoder
from groundling.models.task_heads import TaskHead
from groundling.objectives import Objective
from groundling.settings.input_settings import RegionSettings
from groundling.tasks import Task
from groundling.tasks.splits import UnlabelledDataset, examples_outside, select_partition
from groundling.tasks.table import table_task
from groundling.tasks.texts import from_hub
from groundling.teachers import Teacher
from groundling.teachers.feature_cache import TeacherSet
from groundling.training.batch_sampler import DataSource
from groundling.vision_language import RegionEncoder

Splits = Mapping[str, Sequence[Example]]
"""Examples by split."""


def task_of(config: FinetuneConfig) -> Task:
    """The task of this name, or the one made of the user's own file."""
    data = Path(config.data)
    if config.own.label:
        return table_task(data, config.own)
    return resolve("tasks", Task, config.task).with_answers_of(data)


def dev_splits_trained_on(task: Task, train_splits: Sequence[str]) -> list[str]:
    """The evaluated splits that are also training splits; raises InputError for an unknown split."""
    splits = task.splits_to_train(train_splits)
    return [split for split in task.dev if split in splits]


def read_splits(task: Task, config: FinetuneConfig) -> dict[str, list[Example]]:
    """Examples of the training, dev and, with `submit`, test splits."""
    folder = Path(config.data)
    train_splits = config.train_splits or (task.train,)
    splits = [*train_splits, *task.dev, *(task.test if config.submit else ())]
    parts = {}
    for split in dict.fromkeys(splits):
        read = from_hub(task, split) if config.data == "hub" else task.read(folder, split)
        classes = range(len(task.form.labels) if isinstance(task.form, Classification) else 0)
        for example in read if classes else ():
            if example.label is not None and example.label not in classes:
                raise InputError(
                    f"{task.name}: {example.id} of {split!r} has the label {example.label!r}, "
                    f"expected a number from 0 to {classes[-1]}, or None"
                )
        parts[split] = read
    examples = concatenate_splits({split: parts[split] for split in train_splits})
    labelled: Sequence[Example] = examples
    if config.partition:
        labelled = select_partition(examples, Path(config.partition), task, folder)
    parts[task.train] = list(subsample(labelled, config.limit_train))
    if config.unlabelled_per_labelled:
        if task.label_regions is not None:  # whose labels come with the regions
            raise InputError(f"unlabelled_per_labelled: labels of {task.name} cannot be withheld")
        rest = examples_outside(examples, labelled, task, folder)
        require_nonempty(rest, f"unlabelled_per_labelled: no example of {task.name} is left")
        parts[task.train] += rest
    if config.regions.mentioned_objects_only:
        check_mentioned(parts[task.train], task.name, config.regions.object_tags)
    if config.regions.object_tags:
        return parts
    return {
        split: [without_region_tags(example) for example in some] for split, some in parts.items()
    }


def readable_photos(splits: Splits, folder: str, skip_bad: bool) -> tuple[Splits, dict[str, str]]:
    """The examples whose photos can be read, by split, and the faults of the others' photos.

    Raises InputError for a missing photo unless `skip_bad`, which also decodes all of them.
    """
    names = list(
        dict.fromkeys(image for some in splits.values() for one in some for image in one.images)
    )
    photos = ImageSampleBuilder(replace(RegionSettings(), images=folder), decode=skip_bad)
    faults = dict(photos.image_sources(names).faults)
    if not faults:
        return splits, faults
    if not skip_bad:
        image, fault = next(iter(faults.items()))
        share = f"{len(faults):,} of {len(names):,} photos"
        raise InputError(f"{image}: {fault} ({share}); correct it, or set skip_bad")
    kept = {
        split: [one for one in some if not faults.keys() & set(one.images)]
        for split, some in splits.items()
    }
    for split, some in kept.items():
        require_nonempty(some, f"{folder}: no photo of {split!r} can be read")
    return kept, faults


def bad_photos_note(faults: Mapping[str, str]) -> list[str]:
    """A note with the number of photos that were skipped, and the first."""
    first = next((f"{image}: {fault}" for image, fault in faults.items()), "")
    return [f"skipped {len(faults)} photo(s) with their rows; the first: {first}"] if faults else []


def region_inputs(config: FinetuneConfig) -> ImageSampleBuilder:
    """Region stores and photos of a run; with `images`, only boxes, classes and segments of the stores are read."""
    return ImageSampleBuilder(
        config.regions,
        train_regions=config.train_regions,
        zero_features=config.zero_region_features,
        flip=config.pixels.flip,
    )


def check_regions_read(
    student: Encoder, task: Task, inputs: ImageSampleBuilder, source: str
) -> None:
    """Raises InputError if the task needs regions and has none, or if the model of `source` does not read them."""
    regions = inputs.settings.regions
    if regions and isinstance(student, RegionEncoder) and student.region_source != "patches":
        inputs.check_pixels(student, source)
    elif regions:
        raise InputError(f"regions={regions}: this model reads none; set architecture for a BERT")
    elif task.label_regions is not None:
        raise InputError(f"{task.name} needs regions; pass regions=STORE")


def samples_of(
    splits: Splits,
    head: TaskHead,
    student: Encoder,
    task: Task,
    inputs: ImageSampleBuilder,
    teacher_set: TeacherSet,
    max_length: int,
) -> tuple[dict[str, SampleDataset], list[Teacher]]:
    """Samples of every split for the model and head, and the teachers that the training loop runs."""
    prepared = {
        split: [head.prepare_example(example) for example in some] for split, some in splits.items()
    }
    texts, teachers = _with_teachers(prepared, student, task.train, teacher_set, max_length)
    if not (inputs.settings.regions and isinstance(student, RegionEncoder)):
        return texts, teachers
    mirror = texts[task.train]
    if head.swaps_left_right and inputs.flip and inputs.reads_images(student):
        labels = task.form.labels if isinstance(task.form, OpenAnswer | Classification) else ()
        mirrored = {task.train: list(map(LeftRightWordSwap(labels), prepared[task.train]))}
        mirrors, _ = _with_teachers(mirrored, student, task.train, teacher_set, max_length)
        mirror = mirrors[task.train]
    return add_regions(texts, student, task, inputs, head.separates_images, mirror), teachers


def add_regions(
    texts: Mapping[str, SampleDataset],
    model: RegionEncoder,
    task: Task,
    inputs: ImageSampleBuilder,
    separate_images: bool = False,
    mirror: SampleDataset | None = None,
) -> dict[str, SampleDataset]:
    """Samples of every split with the images' regions or pixels.

    `separate_images` as in `RegionOptions`, `mirror` as in `ImageSampleBuilder.samples`. Raises
    InputError for regions of another kind.
    """
    samples = {}
    phrases = task.form.head_input == "phrase"
    for split, some in texts.items():
        is_training = split == task.train
        inputs.check(model, inputs.training_store if is_training else inputs.store)
        mark = task.label_train_regions or task.label_regions if is_training else task.label_regions
        options = RegionOptions(
            label_regions=mark, phrases=phrases, separate_images=separate_images
        )
        images = inputs.all_images(is_training)
        samples[split] = inputs.samples(
            some, model, images, options, mirror if is_training else None
        )
    return samples


def _with_teachers(
    splits: Splits, student: Encoder, train: str, teacher_set: TeacherSet, max_length: int
) -> tuple[dict[str, SampleDataset], list[Teacher]]:
    """Texts, with teachers on the training split (a CLIP adapter's: on all), and those that the training loop runs."""
    text, clip = student.inputs(max_length)
    samples: dict[str, SampleDataset] = {
        split: TextDataset(examples, text, clip) for split, examples in splits.items()
    }
    taught_splits = samples if student.clip_backbone is not None else [train]
    wrapped = {split: teacher_set.wrap(samples[split]) for split in taught_splits}
    samples |= {split: some for split, (some, _) in wrapped.items()}
    _, teachers = wrapped[train]
    return samples, teachers


def missing_segments_note(
    student: Encoder, head: TaskHead, inputs: ImageSampleBuilder
) -> list[str]:
    """Note if the head's paper uses segments, which the model reads with pixels, and the store has none."""
    store = inputs.training_store
    if not (head.uses_segments and isinstance(student, RegionEncoder)):
        return []
    if store is None or store.has_segmentations or not inputs.reads_images(student):
        return []
    return [
        f"{store.folder}: whole boxes are used, since the store has no segments (the paper's has)"
    ]


def training_source(
    samples: SampleDataset,
    examples: Sequence[Example],
    objectives: Sequence[Objective],
    config: FinetuneConfig,
) -> DataSource:
    """The training data: labelled samples, each with `unlabelled_per_labelled` unlabelled ones."""
    name = f"data={config.data}" if config.data else "the data"
    count = config.unlabelled_per_labelled
    if not count:
        return DataSource(samples, name=name)
    if all("labels.label" in objective.required_fields for objective in objectives):
        raise InputError(f"unlabelled_per_labelled={count}: every objective needs labels")
    is_labelled = np.array([one.label is not None for one in examples])
    labelled = SampleSubset(samples, np.flatnonzero(is_labelled).tolist())
    (first,) = labelled.get([0], [generator(examples[0].id)])
    unlabelled = SampleSubset(samples, np.flatnonzero(~is_labelled).tolist())
    rest = UnlabelledDataset(unlabelled, first.labels["label"])
    return DataSource(labelled, name=name, extra_samples=rest, extra_per_sample=count)
