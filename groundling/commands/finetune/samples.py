"""A task's examples as the model sees them: texts, and the regions, pixels and teachers beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from groundling.commands.finetune import FinetuneConfig
from groundling.core.batch import Example, Sizes
from groundling.core.errors import InputError
from groundling.core.forms import Answer, Classify, Form
from groundling.core.keyed import generator
from groundling.data.regions.mirror import Mirror
from groundling.data.regions.paired import RegionSamples
from groundling.data.regions.pictures import Mirrored, Pictured
from groundling.data.regions.shelf import Shelf, check_images, check_regions
from groundling.data.regions.stores import SeveralStores
from groundling.data.samples import Samples, TextSamples
from groundling.data.unlabelled import Chosen, Unlabelled
from groundling.models.adapters import ClipAdapter
from groundling.models.kinds import Student
from groundling.models.task_heads import TaskHead
from groundling.objectives import Objective
from groundling.tasks import Task
from groundling.tasks.examples import Splits
from groundling.teachers import Teacher
from groundling.teachers.dataset import TeacherSet
from groundling.training.feed import Source
from groundling.vision_language.end_to_end import EndToEnd
from groundling.vision_language.loading import seeing_of
from groundling.vision_language.single_stream import SingleStream


def shelf_of(config: FinetuneConfig, task: Task) -> Shelf:
    """The stores of a run, which all seeds share; of those with --images, where to look is read and no more.

    Raises InputError for a store of a split that there is not.
    """
    splits = (task.train, *task.dev, *task.test)
    features = not config.regions.images
    return Shelf(config.regions.regions, splits, f"split of {task.name}", features)


def samples_of(
    splits: Splits,
    head: TaskHead,
    student: Student,
    task: Task,
    config: FinetuneConfig,
    teacher_set: TeacherSet,
    shelf: Shelf,
) -> tuple[dict[str, Samples], list[Teacher]]:
    """Every split as the model reads it and the head asks it, and the teachers to be asked in the loop."""
    asked = {split: [head.ask(example) for example in some] for split, some in splits.items()}
    samples, teachers = _taught(asked, student, task, config, teacher_set)
    samples = _with_regions(samples, student, task, config, shelf, head.apart)
    if config.pixels.flip and _looks(student, config):
        mirror = samples
        if head.turns_words:
            turned = {task.train: _of_mirrored(asked[task.train], task.form)}
            mirror, _ = _taught(turned, student, task, config, teacher_set)
            mirror = _with_regions(mirror, student, task, config, shelf, head.apart)
        samples[task.train] = Mirrored(samples[task.train], mirror[task.train])
    return samples, teachers


def _taught(
    splits: Splits, student: Student, task: Task, config: FinetuneConfig, teacher_set: TeacherSet
) -> tuple[dict[str, Samples], list[Teacher]]:
    """Texts of every split, and the teachers to be asked in the loop.

    A teacher stands beside the training split alone; the CLIP that an adapter stands on beside every split.
    """
    text, clip = student.inputs(config.max_length)
    samples: dict[str, Samples] = {
        split: TextSamples(examples, text, clip) for split, examples in splits.items()
    }
    taught = samples if isinstance(student, ClipAdapter) else [task.train]
    wrapped = {split: teacher_set.wrap(samples[split]) for split in taught}
    samples |= {split: some for split, (some, _) in wrapped.items()}
    _, teachers = wrapped[task.train]
    return samples, teachers


def _with_regions(
    samples: dict[str, Samples],
    student: Student,
    task: Task,
    config: FinetuneConfig,
    shelf: Shelf,
    apart: bool,
) -> dict[str, Samples]:
    """The same samples, seen if there are regions; raises InputError if the task cannot do without."""
    if config.regions.regions:
        return seen(samples, student, task, config, shelf, apart)
    if task.mark is not None:
        raise InputError(f"{task.name} asks for regions; pass --regions STORE")
    return samples


def seen(
    samples: Mapping[str, Samples],
    student: Student,
    task: Task,
    config: FinetuneConfig,
    shelf: Shelf,
    apart: bool = False,
) -> dict[str, Samples]:
    """The same samples with their images' regions, and pixels for a model that reads these.

    Raises InputError if the model reads no regions, or other ones, or if --images is missing or not wanted.
    """
    model = _reader(student, config)
    stores = {}
    for split, some in samples.items():
        stores[split] = shelf.of(split)
        if split == task.train:
            stores[split] = learned_from(shelf, task, config)
            _check_one_store(some, shelf, stores[split], config)
        check_images(some, stores[split])
        if not isinstance(model, EndToEnd):
            check_regions(stores[split], model, config.regions.other_regions)
    seeing = seeing_of(
        model,
        task.form,
        most=config.regions.most_regions,
        budget=config.regions.budget,
        apart=apart,
        mentioned=config.regions.mentioned,
        blind=config.blind,
    )
    seeing = replace(seeing, mark=task.mark)
    learning = replace(seeing, mark=task.mark_to_learn or task.mark)
    out: dict[str, Samples] = {
        split: RegionSamples(some, stores[split], learning if split == task.train else seeing)
        for split, some in samples.items()
    }
    # A blind model sees no pixels either: it reads the zeros that stand for its features.
    if isinstance(model, EndToEnd) and not config.blind:
        sides = (model.side, model.long_side)
        out = {split: Pictured(some, config.regions.images, *sides) for split, some in out.items()}
    return out


def _reader(student: Student, config: FinetuneConfig) -> SingleStream:
    """The model, if it reads regions, and pixels where --images has them; raises InputError if not."""
    if not isinstance(student, SingleStream):
        raise InputError(
            f"--regions {' '.join(config.regions.regions)}: this model reads no regions; --join uniter makes one that "
            "does of a BERT, and a CLIP sees whole photos with --adapter mlp --teacher-images FOLDER"
        )
    reads_pixels = isinstance(student, EndToEnd)
    if reads_pixels and not config.regions.images:
        raise InputError(
            f"{config.model}: this model reads pixels; pass --images FOLDER beside --regions"
        )
    if config.regions.images and not reads_pixels:
        refuse_images(config)
    return student


def refuse_images(config: FinetuneConfig) -> NoReturn:
    """Raises InputError: the model has no use for --images."""
    raise InputError(
        f"--images {config.regions.images}: this model reads stored features, no pixels; leave it out"
    )


def learned_from(shelf: Shelf, task: Task, config: FinetuneConfig) -> SeveralStores:
    """The stores of all splits that are learned from."""
    return shelf.of(*(config.train_splits or (task.train,)))


def _check_one_store(
    samples: Samples, shelf: Shelf, store: SeveralStores, config: FinetuneConfig
) -> None:
    """Raises InputError if two splits that are learned from have different regions of one image.

    Which of them an example means could not be told once the splits are one.
    """
    parts = [shelf.of(split) for split in config.train_splits]
    if len(parts) < 2:
        return
    for image in dict.fromkeys(image for images in samples.images for image in images):
        for split, part in zip(config.train_splits, parts, strict=True):
            if image in part and part.holder(image) is not store.holder(image):
                raise InputError(
                    f"--regions: image {image!r} is in {store.holder(image).folder}, but also in "
                    f"{part.holder(image).folder}, the store of {split}; splits that are learned from together need "
                    "stores that share no image, or one for all"
                )


def _looks(student: Student, config: FinetuneConfig) -> bool:
    """Whether the model sees pictures: a blind one reads the zeros that stand for their features."""
    return isinstance(student, EndToEnd) and bool(config.regions.regions) and not config.blind


def _of_mirrored(examples: Sequence[Example], form: Form) -> list[Example]:
    """Examples as they are asked of mirrored pictures, with other sides in their words and answers."""
    mirror = Mirror(form.labels if isinstance(form, Answer | Classify) else ())
    return [mirror(example) for example in examples]


def lacking(
    head: TaskHead, student: Student, task: Task, config: FinetuneConfig, shelf: Shelf
) -> list[str]:
    """What a reader must know of the run: what the head's paper sees and the stores do not hold."""
    if not head.segments or not _looks(student, config):
        return []
    stores = learned_from(shelf, task, config)
    if stores.covers:
        return []
    note = (
        f"{stores.name}: no segments of objects, so whole boxes are seen; the paper's model sees what "
        "objects fill of them, which `groundling regions --boxes vcr1images` stores"
    )
    return [note]


def sizes_with_classes(student: Student, task: Task, config: FinetuneConfig, shelf: Shelf) -> Sizes:
    """The model's sizes, and the classes of the regions it learns from."""
    if not config.regions.regions:
        return student.sizes
    store = learned_from(shelf, task, config)
    return student.sizes._replace(classes=store.classes, background=store.background)


def learning_from(
    samples: Samples,
    examples: Sequence[Example],
    objectives: Sequence[Objective],
    config: FinetuneConfig,
) -> Source:
    """What is learned from: training samples of these examples, those without labels beside the others.

    Raises InputError if there are some, and no objective that needs no label.
    """
    called = f"--data {config.data}" if config.data else "the data"
    if not config.unlabelled:
        return Source(samples, name=called)
    if all("labels.label" in objective.needs for objective in objectives):
        raise InputError(
            f"--unlabelled {config.unlabelled}: all of --objectives {' '.join(config.objectives)} need labels"
        )
    known = [number for number, one in enumerate(examples) if one.label is not None]
    others = [number for number, one in enumerate(examples) if one.label is None]
    labelled = Chosen(samples, known)
    (first,) = labelled.get([0], [generator(examples[0].id)])
    rest = Unlabelled(Chosen(samples, others), first.labels["label"])
    return Source(labelled, name=called, beside=rest, each=config.unlabelled)
