"""The model that is fine-tuned, the head of its task, and what its folder says of itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from groundling.commands.finetune import FinetuneConfig
from groundling.commands.finetune.data import Splits
from groundling.core.errors import InputError
from groundling.core.find import code_behind, is_outside, named
from groundling.core.keyed import seed_of
from groundling.data.regions.stores import SeveralStores
from groundling.models.adapters import ClipAdapter, load_base
from groundling.models.crossmodal import CrossModal
from groundling.models.kinds import Student
from groundling.models.task_heads import TaskHead
from groundling.models.text import TextEncoder
from groundling.prediction.description import Described, Reads, facts_of
from groundling.runs.hashing import hashes_of
from groundling.settings.inputs import Joining
from groundling.tasks import Task
from groundling.vision_language import Design
from groundling.vision_language.end_to_end import BUILDS, EndToEnd, reading_pixels
from groundling.vision_language.loading import (
    ADAPTER,
    PLAIN,
    RAW,
    design_of,
    join_options,
    join_to,
    load_student,
    new_head,
)
from groundling.vision_language.single_stream import SingleStream


def text_encoder_of(student: Student) -> TextEncoder | None:
    """The text encoder inside a model, whose pieces are masked; None if there is none."""
    if isinstance(student, TextEncoder):
        return student
    return student.text if isinstance(student, CrossModal | SingleStream) else None


def student_of(config: FinetuneConfig, seed: int, store: SeveralStores | None) -> Student:
    """The model, whose new join is as wide as the features of the `store` that it learns from, if there is one.

    Raises InputError if they do not fit.
    """
    if config.adapting.adapter != "none":
        torch.manual_seed(seed_of(seed, "init", "adapter"))
        return ClipAdapter(load_base(config.model), config.adapting)
    student = load_student(config.model, config.kind, config.join)
    if not config.join:
        if config.joining != Joining():
            raise InputError(
                "--no-early-fusion, --region-boxes and --object-classes are about a new VisualBERT: pass --join "
                "visualbert with a BERT as --model, or leave them out"
            )
        looks = isinstance(student, EndToEnd)
        return reading_pixels(student, config.pixels) if looks else student
    if isinstance(student, SingleStream):
        kind = student.join.kind
        # A design of one's own is named again in order to load its model.
        if (
            not is_outside(config.join)
            or named("vision_language", Design, config.join).name != kind
        ):
            raise InputError(
                f"--join {config.join}: {config.model} is a {kind} model already; leave --join out"
            )
        return student
    torch.manual_seed(seed_of(seed, "init", "join"))
    if store is None:
        return join_to(student, config.join, 1)
    options = join_options(student, config.join, config.joining, store)
    if not config.regions.images:
        model = join_to(student, config.join, store.width, **options)
    elif config.join in BUILDS:
        model = reading_pixels(student, config.pixels, config.join, options)
    else:
        raise InputError(
            f"--images {config.regions.images}: {config.join} reads stored features, no pixels; leave it out"
        )
    model.regions_from = store.facts
    return model


def head_of(
    student: Student, task: Task, splits: Splits, name: str, join: str, ready: bool
) -> TaskHead:
    """The head that `head_name` names; the model is made ready for as many images as there are.

    `join` is the design as it was asked for, `ready` whether the model is made ready for the task as its paper has it.
    """
    if isinstance(student, SingleStream):
        student.see(most_images(splits))
        if ready:
            design_of(student, join).ready(student, splits[task.train], False)
    return new_head(student, task.form, name, join)


def head_name(student: Student, task: Task, config: FinetuneConfig) -> str:
    """Which head answers, as `groundling.vision_language.loading.new_head` calls it: the paper's, or a plain one."""
    if isinstance(student, ClipAdapter):
        return ADAPTER
    if config.raw_first:
        return RAW
    if config.plain_head or not isinstance(student, SingleStream):
        return PLAIN
    name = task.like or task.name
    kind = design_of(student, config.join).heads.get(name)
    if kind is None or (kind.apart and not config.regions.regions):
        return PLAIN
    return name


def most_images(splits: Splits) -> int:
    """Images of the example that has most."""
    return max(len(example.images) for some in splits.values() for example in some)


def described_of(
    task: Task,
    splits: Splits,
    config: FinetuneConfig,
    head: str,
    store: SeveralStores | None,
) -> Described:
    """Task, head, columns, and how examples were put before the model; `store`: the regions that it learned from."""
    reads = Reads(
        max_length=config.max_length,
        images=most_images(splits),
        regions=store is not None,
        most_regions=config.regions.most_regions,
        budget=config.regions.budget,
        tags=config.regions.tags,
        mentioned=config.regions.mentioned,
        blind=config.blind,
    )
    return Described(
        task=config.task or task.name,
        form=task.form,
        version=task.version,
        head=head,
        loss="" if config.head_loss == "paper" else config.head_loss,
        reads=reads,
        ready=not config.plain_head,
        own=replace(config.own, dev="") if config.own.label else None,
        design=config.join if is_outside(config.join) else "",
        kind=config.kind,
        modules=_modules(config.task, config.join, config.kind),
        regions={} if store is None else facts_of(store),
    )


def _modules(*names: str) -> dict[str, str]:
    """The SHA-256 of the file of every module of the user's that is named, or imported by one that is."""
    files: dict[str, Path] = {}
    for name in names:
        if is_outside(name):
            files |= code_behind(name)
    return dict(zip(files, hashes_of(list(files.values())), strict=True))
