"""Pre-train VisualBERT, VL-BERT or UNITER on captioned images, or on the texts and images of a task."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from groundling.batch import Example
from groundling.config import PretrainConfig, TrainConfig, check_training, need
from groundling.data.captions import Captioned, keep_listed, read_captions, with_store_ids
from groundling.data.corpora import corpus
from groundling.data.paired import CaptionTexts, RegionSamples, Seeing
from groundling.data.pictures import Mirrored, Pictured
from groundling.data.regions import RegionStore, stem
from groundling.data.samples import DrawnTexts, Samples, TextInput, TextSamples, with_choice
from groundling.errors import InputError
from groundling.feed import Source
from groundling.find import named
from groundling.forms import Answer, Choose
from groundling.joins import Design, Phase
from groundling.joins.end_to_end import EndToEnd, reading_pixels
from groundling.keyed import seed_of
from groundling.load import design_of, join_to, load_student
from groundling.models.kinds import Student
from groundling.models.saved_heads import load_head, start_lm_head
from groundling.models.single_stream import SingleStream
from groundling.models.text import TextEncoder
from groundling.objectives import Given, Objective
from groundling.objectives.masked_lm import MaskedLM
from groundling.recipes.lifecycle import Run
from groundling.recipes.regions_of import check_regions, made_by
from groundling.recipes.teaching import (
    Classroom,
    check_parts,
    classroom,
    inner_step,
    make_objectives,
    save_objectives,
    teacher_inputs,
    vocabulary,
    watched_terms,
    with_teachers,
)
from groundling.shift.partitions import hidden_versions, taken
from groundling.tasks import Task
from groundling.teachers import Teacher
from groundling.train import train


def pretrain(config: PretrainConfig, training: TrainConfig, out: str | Path) -> dict[str, Any]:
    """Pre-train and write `out/model`, from which `finetune` and a next phase start, and `out/result.json`.

    Raises InputError for settings that do not fit.
    """
    need(config, "pretrain", "student", "regions")
    if bool(config.captions) == bool(config.task):
        raise InputError(
            "pretrain needs --captions FILE, or --task and --data for a task's own texts"
        )
    if config.task_answers != "right" and not config.task:
        raise InputError(f"--task-answers {config.task_answers}: captions have none; pass --task")
    if config.partition and not config.task:
        raise InputError(
            f"--partition {config.partition}: captions have none; pass --task and --data"
        )
    check_parts(config.objectives, config.teacher, "pretrain")
    check_training(training)
    inner = inner_step(config.inner, config.adversarial)
    settings = {**asdict(config), "train": asdict(training)}
    run = Run(out, "pretrain", settings, _inputs(config), training.cpu)
    if run.result is not None:
        return run.result

    store = RegionStore(config.regions.regions, features=not config.regions.images)
    torch.manual_seed(seed_of(training.seed, "init", "join"))
    model = _model(config, store)
    model.regions_from = made_by(store)
    design = design_of(model, config.model)
    phase = _phase(design, config)
    task = _task(config)
    versions = [] if task is None else _versions(task, config, phase)
    design.ready(model, [examples[0] for examples in versions], True)
    text, _ = model.inputs(config.max_length)
    sizes = model.sizes._replace(classes=store.classes, background=store.background)
    given = Given(
        sizes,
        vocabulary(model.text),
        config.masking,
        distilling=config.distilling,
        targeted=config.targeted,
    )
    names = config.objectives
    room = classroom(config.teacher, names, given, run.state.device, run.folder, training.seed)
    data = _data(config, phase, versions, model, store, text, room)

    torch.manual_seed(seed_of(training.seed, "init", "heads"))
    objectives = phase.objectives(given, config)
    if not config.random_start:
        _start_heads(objectives, config)
    beside = make_objectives(config.objectives, with_teachers(given, room), training.seed)
    sources = _sources(data.samples, phase, objectives, beside)
    if config.text:
        sources.append(_text_alone(config, model, text, sources))
    every = [*objectives, *beside]
    result = train(
        model,
        every,
        sources,
        training,
        run.folder,
        teachers=data.teachers,
        inner=inner,
    )
    result |= {"model": model.join.kind, "objectives": sorted(one.name for one in every)}
    watched, remarks = watched_terms(every, run.folder, result)
    notes = [*_notes(phase, objectives, task, config), *remarks]
    result |= {"left_out": data.left_out, "notes": notes}
    if watched:
        result["watched"] = watched
    result["parameters"] = sum(parameter.numel() for parameter in model.parameters())

    def save(folder: Path) -> None:
        model.export(folder / "model")
        save_objectives(folder / "model", every)

    result = run.finish(result, save)
    room.clear()
    return result


def _inputs(config: PretrainConfig) -> dict[str, str | Path]:
    inputs: dict[str, str | Path] = {
        "student": config.student,
        "regions": Path(config.regions.regions) / "manifest.json",
        "captions": config.captions,
        "data": "" if config.captions else config.data,
        "partition": config.partition,
        "images": config.regions.images,
        "backbone": config.pixels.backbone if config.regions.images else "",
        **teacher_inputs(config.teacher, config.targeted),
    }
    return inputs | {f"text:{number}": path for number, path in enumerate(config.text)}


def _model(config: PretrainConfig, store: RegionStore) -> SingleStream:
    """The student, made a vision-language model if it is none; raises InputError if store or images do not fit."""
    start: Student = load_student(config.student, design=config.model)
    if config.random_start and isinstance(start, TextEncoder):
        start = TextEncoder(type(start.encoder)(start.encoder.config), start.tokenizer)
    images = config.regions.images
    if isinstance(start, EndToEnd) and not images:
        raise InputError(f"{config.student}: this model reads pixels; pass --images FOLDER")
    is_new = config.model == "vlbert" and isinstance(start, TextEncoder)
    if images and (is_new or isinstance(start, EndToEnd)):
        return reading_pixels(start, config.pixels)
    if images:
        raise InputError(
            f"--images {images}: only VL-BERT learns from pixels; pass --model vlbert with a BERT "
            "or an end-to-end model as --student, or leave --images out"
        )
    options = {"early": config.early_fusion} if config.model == "visualbert" else {}
    model = join_to(start, config.model, store.width, **options)
    check_regions(store, model, config.regions.other_regions)
    return model


@dataclass(frozen=True)
class _Data:
    """What a model is pre-trained on."""

    samples: Samples
    left_out: int
    """Captioned images that the store lacks."""
    teachers: Sequence[Teacher] = ()
    """Those that the loop must ask."""


def _phase(design: Design, config: PretrainConfig) -> Phase:
    """The model's phase on captions or on a task's texts, its steps mixed as asked.

    Raises InputError for ratios that do not fit its kinds of steps.
    """
    phase = design.phase
    if config.task and design.task_phase is not None:
        phase = design.task_phase
    if not config.step_mix:
        return phase
    kinds = [names for _, names in phase.mix]
    if len(config.step_mix) != len(kinds) or min(config.step_mix) <= 0:
        told = ", ".join(" or ".join(names) for names in kinds) or "none, one step has all"
        given = " ".join(f"{ratio:g}" for ratio in config.step_mix)
        raise InputError(
            f"--step-mix {given}: expected a number above 0 for each of {design.name}'s kinds of steps here: {told}"
        )
    return replace(phase, mix=tuple(zip(config.step_mix, kinds, strict=True)))


def _task(config: PretrainConfig) -> Task | None:
    """The task whose texts are trained on; None for captions."""
    return named("tasks", Task, config.task).at(Path(config.data)) if config.task else None


def _versions(task: Task, config: PretrainConfig, phase: Phase) -> list[tuple[Example, ...]]:
    """What a task's training texts are, one version each or all that may be drawn."""
    folder = Path(config.data)
    if config.task_answers == "any":
        return unlabelled_texts(task, folder, phase.tags, config.partition)
    return [(text,) for text in task_texts(task, folder, phase.tags, config.partition)]


def _start_heads(objectives: Sequence[Objective], config: PretrainConfig) -> None:
    """Heads from the checkpoint or the earlier run: masked LM's, and on a task's texts those of regions, too."""
    for objective in objectives:
        if isinstance(objective, MaskedLM):
            start_lm_head(objective.head, config.student, "bert", objective.starts_from)
        elif config.task:
            for name, head in objective.saved().items():
                load_head(Path(config.student), head, name)


def _data(
    config: PretrainConfig,
    phase: Phase,
    versions: Sequence[Sequence[Example]],
    model: SingleStream,
    store: RegionStore,
    text: TextInput,
    room: Classroom,
) -> _Data:
    """Samples with regions, and pixels for a model that reads them, and a teacher beside their texts."""
    left_out = 0
    samples: Samples
    if not config.task:
        images, left_out = _captioned(config, store)
        samples = CaptionTexts(images, text, phase.pairs)
    elif config.task_answers == "any":
        samples = DrawnTexts(versions, text)
    else:
        samples = TextSamples([examples[0] for examples in versions], text)
    # Texts that are drawn anew in every epoch have a teacher that is asked in the loop.
    samples, teachers = room.wrap(samples, fixed=isinstance(samples, TextSamples))
    seeing = Seeing(
        whole=model.join.whole,
        last_pixel=model.join.last_pixel,
        most=config.regions.most_regions,
        budget=config.regions.budget,
    )
    samples = RegionSamples(samples, store, seeing)
    if isinstance(model, EndToEnd):
        samples = Pictured(samples, config.regions.images, model.side, model.long_side)
        if config.pixels.flip:
            samples = Mirrored(samples, samples)  # the release leaves captions as they are
    return _Data(samples, left_out, teachers)


def _captioned(config: PretrainConfig, store: RegionStore) -> tuple[list[Captioned], int]:
    """The captioned images that the store holds, by their ids there, and how many it lacks."""
    images = read_captions(config.captions)
    if config.listing:
        images = keep_listed(images, config.listing)
    there = [image for image in images if stem(image.file) in store]
    lacking = [image for image in images if stem(image.file) not in store]
    if lacking and not (config.skip_missing and there):
        raise InputError(
            f"{config.regions.regions}: {len(lacking)} of {len(images)} captioned images are not in the store, "
            f"the first is {stem(lacking[0].file)!r}; add them or pass --skip-missing"
        )
    return with_store_ids(there), len(lacking)


def _sources(
    samples: Samples,
    phase: Phase,
    objectives: Sequence[Objective],
    beside: Sequence[Objective],
) -> list[Source]:
    """The samples once for each kind of step; objectives beside the model's own score every step."""
    names = {objective.name for objective in objectives}
    always = tuple(objective.name for objective in beside)
    if not phase.mix:
        return [Source(samples, 1.0, (*sorted(names), *always), "image and text")]
    sources = []
    for ratio, mixed in phase.mix:
        present = tuple(name for name in mixed if name in names)
        if present:
            sources.append(Source(samples, ratio, (*present, *always), "+".join(present)))
    return sources


def _text_alone(
    config: PretrainConfig, model: SingleStream, text: TextInput, sources: Sequence[Source]
) -> Source:
    """Texts without images, drawn as often as all the rest (VL-BERT Section 3.3); an epoch is one of the images."""
    blocks = corpus(config.text, "blocks", model.text.tokenizer, text.max_length)
    share = sum(source.ratio for source in sources)
    return Source(TextSamples(blocks, text), share, ("masked_lm",), "text alone", counts=False)


def _notes(
    phase: Phase, objectives: Sequence[Objective], task: Task | None, config: PretrainConfig
) -> list[str]:
    """What a reader must know of this run: labels that were told, and kinds of steps that it has none of."""
    names = {objective.name for objective in objectives}
    reason = "the store's regions have no classes"
    if config.region_classes == "none":
        reason = "--region-classes none"
    notes = []
    if task is not None:
        notes += _told(task, config)
    for _, mixed in phase.mix:
        if not names & set(mixed):
            notes.append(f"no step trained {' or '.join(mixed)}: {reason}")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return notes


def _told(task: Task, config: PretrainConfig) -> list[str]:
    """Whether the texts told the labels of examples that few-shot fine-tuning does not know."""
    if config.task_answers == "any" or config.partition:
        return []
    if not isinstance(task.form, Answer | Choose):
        return []
    return [
        f"this model has read the right answers of all training examples of {task.name}, as CLIP-TD's has: scores of "
        "few-shot fine-tuning after it do not count as few-shot; --task-answers any or --partition FILE tells none"
    ]


def task_texts(task: Task, folder: Path, tags: bool = False, partition: str = "") -> list[Example]:
    """A task's training texts with what is right, for masked LM on its own images (VisualBERT Appendix A).

    A question is followed by its best answer (the release takes the answer apart into letters), a choice by the right
    one, a statement stands alone. With `tags` texts keep the places that name objects, and what these are; with
    `partition` they are those of that file's examples. Raises InputError if a multiple choice has no label.
    """
    texts = []
    for example in _within(task, folder, partition, task.read(folder, task.train)):
        if example.choices and not isinstance(example.label, int):
            raise InputError(
                f"{example.id}: a multiple choice without a label cannot be pre-trained on"
            )
        if isinstance(example.label, int) and example.choices:
            example = with_choice(example, example.label)
        elif isinstance(task.form, Answer):
            example = replace(example, pair=task.form.best(example.label) or None)
        texts.append(_as_text(example, tags))
    return texts


def unlabelled_texts(
    task: Task, folder: Path, tags: bool = False, partition: str = ""
) -> list[tuple[Example, ...]]:
    """All versions of each of a task's training texts that somebody could write who has not seen the labels.

    A question with choices is an example with all of them; a question without stands alone. With `partition` they are
    those of that file's examples.
    """
    examples = task.read(folder, task.train)
    inside = {example.id for example in _within(task, folder, partition, examples)}
    pairs = zip(examples, hidden_versions(examples, task, folder), strict=True)
    kept = [versions for example, versions in pairs if example.id in inside]
    return [tuple(_as_text(example, tags) for example in versions) for versions in kept]


def _within(
    task: Task, folder: Path, partition: str, examples: Sequence[Example]
) -> Sequence[Example]:
    return taken(examples, Path(partition), task, folder) if partition else examples


def _as_text(example: Example, tags: bool) -> Example:
    """The example without its label, and, but with `tags`, without the places that name objects or phrases."""
    text = replace(example, label=None, gold=None, official="")
    if tags and example.objects:
        return text
    return replace(text, tags=(), choice_tags=(), objects=0, names=())
