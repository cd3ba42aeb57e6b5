"""How a run makes its objectives from their names, and what it must know of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from groundling.core.errors import InputError
from groundling.core.find import described, is_outside
from groundling.core.keyed import seed_of
from groundling.models.saved_heads import save_heads
from groundling.objectives import Given, Objective, part_named
from groundling.settings.fields import Settings
from groundling.settings.objectives import (
    Adversarial,
    CrossModalOptions,
    Distilling,
    Masking,
    Targeted,
)
from groundling.settings.training import TrainConfig


def make_objectives(names: Sequence[str], given: Given, seed: int) -> list[Objective]:
    """Objectives by name; each one's head is drawn by its own key, so it is the same in every run that has it."""
    objectives = []
    for name in names:
        torch.manual_seed(seed_of(seed, "init", name))
        made: object = part_named(name).make(given)
        if not isinstance(made, Objective):
            raise InputError(f"{name}: makes {described(made)}, expected an Objective")
        check_saved(made)
        objectives.append(made)
    return objectives


def check_saved(objective: Objective) -> None:
    """Raises InputError now for what could not be saved when all is trained."""
    saved: object = objective.saved()
    sound = isinstance(saved, Mapping) and all(
        isinstance(name, str) and isinstance(head, nn.Module) for name, head in saved.items()
    )
    if not sound:
        raise InputError(f"{objective.name}: `saved` returns no modules by name, expected a dict")


def save_objectives(folder: Path, objectives: Sequence[Objective]) -> None:
    """Write what objectives keep for a next run beside an exported model."""
    heads = {name: head for one in objectives for name, head in one.saved().items()}
    save_heads(folder, heads)


def features_needed(names: Sequence[str], given: Given) -> frozenset[str]:
    """Names of the features that objectives read of teachers."""
    # What an objective needs may follow from its settings, so that it must be made to be asked; any width will do.
    sizes = given.sizes._replace(teacher=1, teacher_image=1)
    taught = [name for name in names if part_named(name).taught]
    made = make_objectives(taught, replace(given, sizes=sizes), seed=0)
    parts = [need.partition(".") for objective in made for need in objective.needs]
    return frozenset(name for field, _, name in parts if field == "features")


def fewer_negatives(objectives: Sequence[Objective], training: TrainConfig) -> list[str]:
    """What is to be said where accumulation leaves objectives fewer in-batch negatives than the batch has samples."""
    names = [one.name for one in objectives if one.in_batch_negatives]
    if not names or training.accumulate == 1:
        return []
    size = f"{training.batch // training.accumulate} of a step's {training.batch} samples"
    if training.batch_tokens:
        size = f"one of a step's {training.accumulate} on each process"
    return [
        f"--accumulate {training.accumulate}: {', '.join(names)} takes its negatives from one micro-batch ({size}), so "
        "that the loss is another one than of the whole batch at once"
    ]


SILENT = frozenset({"cache_gb", "teacher_cache"})
"""Settings that say where something is kept, which need no reader."""


def unread(groups: Sequence[Settings], names: Sequence[str], inner: str) -> list[str]:
    """A line if settings were given that none of the objectives `names` reads, nor the inner step."""
    if any(is_outside(name) for name in (*names, inner)):
        return []  # which may read any of them
    kinds = [part_named(name) for name in names]
    crossing = any(kind.joint for kind in kinds)
    read = {
        Masking: bool({"mlm", "joint_mlm"} & set(names)),
        CrossModalOptions: crossing,
        Distilling: any(kind.taught for kind in kinds),
        Targeted: any(name.startswith("td_") for name in names),
        Adversarial: bool(inner),
    }
    # A cross-modal model reads as many windows as a teacher would.
    silent = SILENT | ({"max_windows"} if crossing else set())
    flags = []
    for group in groups:
        if read[type(group)]:
            continue
        usual = vars(type(group)())
        changed = [one for one in usual if vars(group)[one] != usual[one] and one not in silent]
        flags += [f"--{one.replace('_', '-')}" for one in changed]
    if not flags:
        return []
    trained = " and ".join(names) or "the task's own loss"
    return [f"nothing here reads {', '.join(flags)}: what is trained is {trained}"]
