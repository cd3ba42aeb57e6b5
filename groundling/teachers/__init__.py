"""A teacher says of every row what it sees in it; frozen, never saved, and asked once for equal inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from groundling.batch import Batch, Sample


class Teacher(Protocol):
    """What a frozen teacher must be able to do; `Taught` puts it before a model, live or from a cache."""

    name: str
    """What it is called in a batch's `asides`, if it is live."""

    @property
    def width(self) -> int:
        """Width E of its features."""
        ...

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        """What it reads of some rows, made from their `example`; equal inputs have equal ids, others different ones."""
        ...

    def to(self, device: torch.device | str) -> object:
        """Move it."""
        ...

    def features(self, batch: Batch) -> Mapping[str, Tensor]:
        """What it says of a batch of its own inputs, by name: (U, ...) for U rows."""
        ...

    def kept(self, features: Mapping[str, Tensor], batch: Batch) -> list[dict[str, np.ndarray]]:
        """The features of every row of that batch without its padding, as a cache keeps them."""
        ...


def said(teacher: Teacher, batch: Batch) -> Batch:
    """The batch with a live teacher's features, by row; different inputs are read once.

    A batch of data that this teacher does not teach, such as text beside captioned images, stays as it is.
    """
    aside = batch.asides.get(teacher.name)
    if aside is None:
        return batch
    with torch.no_grad():
        features = teacher.features(aside.batch)
    by_row = {name: value[aside.row] for name, value in features.items()}
    rest = {name: one for name, one in batch.asides.items() if name != teacher.name}
    return replace(batch, features={**batch.features, **by_row}, asides=rest)
