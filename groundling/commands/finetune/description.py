"""What a fine-tuned model's folder says of itself, for `predict` and `evaluate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from groundling.commands.finetune import FinetuneConfig
from groundling.commands.finetune.examples import Splits
from groundling.commands.finetune.model import head_name, most_images
from groundling.core.find import code_behind, is_outside
from groundling.data.regions.stores import SeveralStores
from groundling.models.kinds import Student
from groundling.prediction.description import Described, Reads, facts_of
from groundling.runs.hashing import hashes_of
from groundling.tasks import Task


def described_of(
    student: Student,
    task: Task,
    splits: Splits,
    config: FinetuneConfig,
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
        head=head_name(student, task, config),
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
