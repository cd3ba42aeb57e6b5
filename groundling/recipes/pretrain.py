"""Pre-train VisualBERT, VL-BERT or UNITER on captioned images, or on the texts and images of a task."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from groundling.batch import Example
from groundling.config import PretrainConfig, TrainConfig, need
from groundling.data.captions import Captioned, keep_listed, read_captions, with_store_ids
from groundling.data.corpora import corpus
from groundling.data.paired import CaptionTexts, RegionSamples, Seeing
from groundling.data.pictures import Pictured
from groundling.data.regions import RegionStore, stem
from groundling.data.samples import Samples, TextInput, TextSamples
from groundling.errors import InputError
from groundling.feed import Source
from groundling.find import named
from groundling.forms import Answer
from groundling.joins import Design
from groundling.joins.end_to_end import EndToEnd, end_to_end
from groundling.keyed import seed_of
from groundling.load import design_of, join_to, load_student
from groundling.models.kinds import Student
from groundling.models.saved_heads import save_heads, start_lm_head
from groundling.models.single_stream import SingleStream, bert_of
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
    teacher_inputs,
    vocabulary,
    with_teachers,
)
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
    check_parts(config.objectives, config.teacher, "pretrain")
    settings = {**asdict(config), "train": asdict(training)}
    run = Run(out, "pretrain", settings, _inputs(config), training.cpu)
    if run.result is not None:
        return run.result

    store = RegionStore(config.regions.regions, features=not config.regions.images)
    torch.manual_seed(seed_of(training.seed, "init", "join"))
    model = _model(config, store)
    model.regions_from = made_by(store)
    design = design_of(model, config.model)
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
    data = _data(config, design, model, store, text, room)

    torch.manual_seed(seed_of(training.seed, "init", "heads"))
    objectives = design.phase.objectives(given, config)
    if not config.random_start:
        for objective in objectives:
            if isinstance(objective, MaskedLM):
                start_lm_head(objective.head, config.student, "bert", objective.starts_from)
    beside = make_objectives(config.objectives, with_teachers(given, room), training.seed)
    sources = _sources(data.samples, design, objectives, beside)
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
        inner=inner_step(config.inner),
    )
    result |= {"model": model.join.kind, "objectives": sorted(one.name for one in every)}
    result |= {"left_out": data.left_out, "notes": _notes(design, objectives, config)}
    result["parameters"] = sum(parameter.numel() for parameter in model.parameters())

    def save(folder: Path) -> None:
        model.export(folder / "model")
        saved = {name: head for one in every for name, head in one.saved().items()}
        save_heads(folder / "model", saved)

    result = run.finish(result, save)
    room.clear()
    return result


def _inputs(config: PretrainConfig) -> dict[str, str | Path]:
    inputs: dict[str, str | Path] = {
        "student": config.student,
        "regions": Path(config.regions.regions) / "manifest.json",
        "captions": config.captions,
        "data": "" if config.captions else config.data,
        "images": config.regions.images,
        "backbone": config.backbone if config.regions.images else "",
        **teacher_inputs(config.teacher, config.targeted),
    }
    return inputs | {f"text:{number}": path for number, path in enumerate(config.text)}


def _model(config: PretrainConfig, store: RegionStore) -> SingleStream:
    """The student, made a vision-language model if it is none; raises InputError if store or images do not fit."""
    start: Student = load_student(config.student, design=config.model)
    if config.random_start and isinstance(start, TextEncoder):
        start = TextEncoder(type(start.encoder)(start.encoder.config), start.tokenizer)
    images = config.regions.images
    if images and config.model == "vlbert" and isinstance(start, TextEncoder):
        start = end_to_end(bert_of(start), start.tokenizer, config.backbone, config.side)
    if isinstance(start, EndToEnd):
        if not images:
            raise InputError(f"{config.student}: this model reads pixels; pass --images FOLDER")
        return start
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


def _data(
    config: PretrainConfig,
    design: Design,
    model: SingleStream,
    store: RegionStore,
    text: TextInput,
    room: Classroom,
) -> _Data:
    """Samples with regions, and pixels for a model that reads them, and a teacher beside their texts."""
    left_out = 0
    samples: Samples
    if config.task:
        task = named("tasks", Task, config.task).at(Path(config.data))
        samples = TextSamples(task_texts(task, Path(config.data)), text)
    else:
        images, left_out = _captioned(config, store)
        samples = CaptionTexts(images, text, design.phase.pairs)
    # Captions are drawn anew in every epoch: a teacher of theirs is asked in the loop.
    samples, teachers = room.wrap(samples, fixed=bool(config.task))
    seeing = Seeing(
        whole=model.join.whole,
        last_pixel=model.join.last_pixel,
        most=config.regions.most_regions,
    )
    samples = RegionSamples(samples, store, seeing)
    if isinstance(model, EndToEnd):
        samples = Pictured(samples, config.regions.images, model.side)
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
    design: Design,
    objectives: Sequence[Objective],
    beside: Sequence[Objective],
) -> list[Source]:
    """The samples once for each kind of step; objectives beside the model's own score every step."""
    names = {objective.name for objective in objectives}
    always = tuple(objective.name for objective in beside)
    if not design.phase.mix:
        return [Source(samples, 1.0, (*sorted(names), *always), "image and text")]
    sources = []
    for ratio, mixed in design.phase.mix:
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


def _notes(design: Design, objectives: Sequence[Objective], config: PretrainConfig) -> list[str]:
    """What a reader must know of this run: kinds of steps of the paper's mix that it has none of."""
    names = {objective.name for objective in objectives}
    reason = "the store's regions have no classes"
    if config.region_classes == "none":
        reason = "--region-classes none"
    notes = []
    for _, mixed in design.phase.mix:
        if not names & set(mixed):
            notes.append(f"no step trained {' or '.join(mixed)}: {reason}")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return notes


def task_texts(task: Task, folder: Path) -> list[Example]:
    """A task's training texts with what is right, for masked LM on its own images (VisualBERT Appendix A).

    A question is followed by its best answer (the release takes the answer apart into letters), a choice by the right
    one, a statement stands alone. Raises InputError if a multiple choice has no label.
    """
    texts = []
    for example in task.read(folder, task.train):
        pair = example.pair
        if example.choices:
            if not isinstance(example.label, int):
                raise InputError(
                    f"{example.id}: a multiple choice without a label cannot be pre-trained on"
                )
            pair = example.choices[example.label]
        elif isinstance(task.form, Answer):
            pair = task.form.best(example.label) or None
        texts.append(Example(example.id, example.text, pair, images=example.images))
    return texts
