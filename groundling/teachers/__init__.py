"""A teacher says of every row what it sees in it; frozen, never saved, and asked once for equal inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor

from groundling.batch import Batch, Sample
from groundling.data.samples import Samples


class Teacher:
    """What a frozen teacher does; `Taught` puts it before a model, live or from a cache. Abstract."""

    name: str = ""
    """What it is called in a batch's `asides`, if it is live; every teacher needs one."""
    width: int = 0
    """Width E of its features; every teacher has one."""

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        """What it reads of some rows, made from their `example`; equal inputs have equal ids, others different ones."""
        raise NotImplementedError

    def features(self, batch: Batch) -> Mapping[str, Tensor]:
        """What it says of a batch of its own inputs, by name: (U, ...) for U rows."""
        raise NotImplementedError

    def fit(self, samples: Samples) -> object:
        """Whatever it must know of the data before it is asked, such as the features' spread; most need nothing."""
        return self

    def to(self, device: torch.device | str) -> object:
        """Move it, if it has anything to move."""
        return self

    def kept(self, features: Mapping[str, Tensor], batch: Batch) -> list[dict[str, np.ndarray]]:
        """The features of every row of that batch without its padding, as a cache keeps them."""
        arrays = {name: value.cpu().numpy() for name, value in features.items()}
        return [{name: values[row] for name, values in arrays.items()} for row in range(batch.rows)]


def is_teacher(value: object) -> TypeGuard[Teacher]:
    """Whether an object is a teacher."""
    return isinstance(value, Teacher)


def said(teacher: Teacher, batch: Batch) -> Batch:
    """The batch with a live teacher's features, by row; different inputs are read once.

    A batch of data that this teacher does not teach, such as text beside captioned images, stays as it is.
    """
    aside = batch.asides.get(teacher.name)
    if aside is None:
        return batch
    with torch.no_grad():
        features = teacher.features(aside.batch)
    device = aside.row.device
    by_row = {name: value.to(device)[aside.row] for name, value in features.items()}
    rest = {name: one for name, one in batch.asides.items() if name != teacher.name}
    return replace(batch, features={**batch.features, **by_row}, asides=rest)
