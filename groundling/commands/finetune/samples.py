"""A task's examples as the model sees them: texts, and the regions, pixels and teachers beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from groundling.commands.finetune import FinetuneConfig
from groundling.commands.finetune.examples import Splits
from groundling.core.batch import Example, Sizes
from groundling.core.errors import InputError
from groundling.core.forms import Answer, Classify, Form
from groundling.core.keyed import generator
from groundling.data.regions.inputs import UNTIED, RegionInputs
from groundling.data.regions.mirror import Mirror
from groundling.data.regions.paired import Seeing
from groundling.data.regions.stores import SeveralStores
from groundling.data.samples import Samples, TextSamples
from groundling.data.unlabelled import Chosen, Unlabelled
from groundling.models.adapters import ClipAdapter
from groundling.models.kinds import Student
from groundling.models.task_heads import TaskHead
from groundling.objectives import Objective
from groundling.tasks import Task
from groundling.teachers import Teacher
from groundling.teachers.dataset import TeacherSet
from groundling.training.feed import Source
from groundling.vision_language.single_stream import SingleStream


def regions_of(config: FinetuneConfig, task: Task) -> RegionInputs:
    """The stores and photos of a run, which all seeds share; of those with --images, where to look is read and no more.

    Raises InputError for a store of a split that there is not.
    """
    splits = (task.train, *task.dev, *task.test)
    return RegionInputs(
        config.regions,
        splits,
        f"split of {task.name}",
        learned=config.train_splits or (task.train,),
        blind=config.blind,
        flip=config.pixels.flip,
        called=UNTIED,
    )


def check_sees(student: Student, task: Task, inputs: RegionInputs, source: str) -> None:
    """Raises InputError if the task asks for regions and there are none, or the model of `source` reads no such."""
    if not inputs.settings.regions:
        if task.mark is not None:
            raise InputError(f"{task.name} asks for regions; pass --regions STORE")
        return
    if not isinstance(student, SingleStream):
        raise InputError(
            f"--regions {' '.join(inputs.settings.regions)}: this model reads no regions; --join uniter makes one that "
            "does of a BERT, and a CLIP sees whole photos with --adapter mlp --teacher-images FOLDER"
        )
    inputs.check_pixels(student, source)


def samples_of(
    splits: Splits,
    head: TaskHead,
    student: Student,
    task: Task,
    inputs: RegionInputs,
    teacher_set: TeacherSet,
    max_length: int,
) -> tuple[dict[str, Samples], list[Teacher]]:
    """Every split as the model reads it and the head asks it, and the teachers to be asked in the loop."""
    asked = {split: [head.ask(example) for example in some] for split, some in splits.items()}
    texts, teachers = _taught(asked, student, task.train, teacher_set, max_length)
    if not (inputs.settings.regions and isinstance(student, SingleStream)):
        return texts, teachers
    mirror = texts[task.train]
    if head.turns_words and inputs.flip and inputs.looks(student):
        turned = {task.train: _of_mirrored(asked[task.train], task.form)}
        mirror = _taught(turned, student, task.train, teacher_set, max_length)[0][task.train]
    return seen(texts, student, task, inputs, head.apart, mirror), teachers


def seen(
    texts: Mapping[str, Samples],
    model: SingleStream,
    task: Task,
    inputs: RegionInputs,
    apart: bool = False,
    mirror: Samples | None = None,
) -> dict[str, Samples]:
    """Texts of every split with what the model sees of their images; the training split is all that is learned from.

    `apart` and `mirror` as `TaskHead` and `RegionInputs.samples` have them. Raises InputError for other regions.
    """
    samples = {}
    for split, some in texts.items():
        learns = split == task.train
        if learns:
            inputs.check_together(some)
        names = inputs.learns if learns else (split,)
        inputs.check(model, *names)
        mark = task.mark_to_learn or task.mark if learns else task.mark
        asks = Seeing(mark=mark, phrases=task.form.reads == "phrase", apart=apart)
        images = inputs.at(*names)
        samples[split] = inputs.samples(some, model, images, asks, mirror if learns else None)
    return samples


def _taught(
    splits: Splits, student: Student, train: str, teacher_set: TeacherSet, max_length: int
) -> tuple[dict[str, Samples], list[Teacher]]:
    """Texts of every split, and the teachers to be asked in the loop.

    A teacher stands beside the split `train` alone; the CLIP that an adapter stands on beside every split.
    """
    text, clip = student.inputs(max_length)
    samples: dict[str, Samples] = {
        split: TextSamples(examples, text, clip) for split, examples in splits.items()
    }
    taught = samples if isinstance(student, ClipAdapter) else [train]
    wrapped = {split: teacher_set.wrap(samples[split]) for split in taught}
    samples |= {split: some for split, (some, _) in wrapped.items()}
    _, teachers = wrapped[train]
    return samples, teachers


def _of_mirrored(examples: Sequence[Example], form: Form) -> list[Example]:
    """Examples as they are asked of mirrored pictures, with other sides in their words and answers."""
    mirror = Mirror(form.labels if isinstance(form, Answer | Classify) else ())
    return [mirror(example) for example in examples]


def lacking(head: TaskHead, store: SeveralStores) -> list[str]:
    """What a reader must know of a model that looks: what its head's paper sees and the stores do not hold."""
    if not head.segments or store.covers:
        return []
    note = (
        f"{store.name}: no segments of objects, so whole boxes are seen; the paper's model sees what "
        "objects fill of them, which `groundling regions --boxes vcr1images` stores"
    )
    return [note]


def sizes_with_classes(student: Student, store: SeveralStores | None) -> Sizes:
    """The model's sizes, and the classes of the regions it learns from."""
    if store is None:
        return student.sizes
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
