"""A teacher is a frozen model that returns features for every row; it is not saved, and encodes equal inputs once."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Batch, Sample
from groundling.core.errors import InputError, convert_errors
from groundling.core.output_types import OutputType
from groundling.data.samples import SampleDataset
from groundling.runs.folder import sha256_of
from groundling.settings.objectives import ObjectiveSettings


class Teacher:
    """A frozen model whose features objectives read; `TeacherDataset` adds them to samples. Abstract."""

    name: str = ""
    """Its key in a batch's `teacher_inputs` if it runs in every step, and the prefix of its cache folder."""
    width: int = 0
    """Width E of its features of texts and words; 0 if it has none."""
    image_width: int = 0
    """Width of its features of images; 0 if it has none."""
    cacheable: Literal["always", "fixed", "never"] = "fixed"
    """When its features are cached.

    always: they do not depend on randomly drawn texts, as features of an image; fixed: if the data is the
    same in every epoch; never: they are cheap to compute from other features.
    """
    always_fits: bool = False
    """Whether its features are cached however many they are, as they are no larger than the texts' tokens."""
    counts_truncated: bool = True
    """Whether its truncated tokens are counted; of several parts that read the same text, only one counts them."""
    feature_names: Sequence[str] = ()
    """Names of its features, if it reads images."""
    reads_images: bool = False
    """Whether it reads a row's image; texts without images are then trained without its features."""
    reads_image_folder: bool = False
    """Whether it may read the images of --teacher-images, although it reads no row's image."""
    reads_student_input: bool = False
    """Whether `features` gets the student's own batch, with masked tokens and with the features of earlier teachers.

    It then has no `inputs`, runs in every step, and is never cached.
    """
    is_counted: bool = True
    """Whether an objective's `count` may read its features."""
    display_name: str = "the teacher"
    """Its name in progress bars and messages."""

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        """Its inputs for some rows, made from their `example`; ids are equal if and only if inputs are equal."""
        raise NotImplementedError

    def ids(self, rows: Sequence[Sample]) -> list[str]:
        """The ids of its inputs, equal in every run; override it if inputs are slow to make."""
        return [one.id for one in read_inputs(self, rows)]

    def features(self, batch: Batch) -> Mapping[str, Tensor]:
        """Features by name, (U, ...) each, of a batch of U of its inputs."""
        raise NotImplementedError

    def countable_features(
        self, batch: Batch, features: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """The features that `Objective.count` reads, in host memory, for a batch of its inputs.

        By default all of them, if it `is_counted`, and copying them synchronises with the GPU. Override it if
        they can be computed from `batch`, which is in host memory.
        """
        return {name: value.cpu() for name, value in features.items()} if self.is_counted else {}

    def parts(self) -> Sequence[Teacher]:
        """Teachers that together compute the same features, each from its own inputs, for a cache.

        An image's features are then cached once, however many texts it has. A later part finds the
        features of earlier parts in its rows' `features`.
        """
        return (self,)

    def merge_uncached(self, parts: Sequence[Teacher]) -> Sequence[Teacher]:
        """The teachers that run in every step for those of its parts that are not cached; by default the parts."""
        return parts

    def key(self) -> dict[str, Any]:
        """Everything its features depend on except its inputs, as JSON; its hash names the cache folder.

        By default its class and the hash of the code that defines it; a teacher with weights adds their hash.
        """
        return code_hash(type(self))

    def fit(self, samples: SampleDataset) -> object:
        """Compute statistics of the data that it needs, such as the features' mean; by default nothing."""
        return self

    def to(self, device: torch.device | str) -> Self:
        """Move its modules, which are attributes of it, to a device."""
        for part in vars(self).values():
            if isinstance(part, nn.Module):
                part.to(device)
        return self

    def unbatch(self, features: Mapping[str, Tensor], batch: Batch) -> list[dict[str, np.ndarray]]:
        """The features of each row of the batch, without padding, as they are cached."""
        arrays = {name: value.cpu().numpy() for name, value in features.items()}
        return [{name: values[row] for name, values in arrays.items()} for row in range(batch.rows)]


@dataclass(frozen=True)
class TeacherContext:
    """The source, the objectives' needs and the settings that a run's teachers are made for."""

    source: str
    """--teacher: hub id or folder of a CLIP-like model."""
    features: frozenset[str]
    """Names of the features that objectives read."""
    settings: ObjectiveSettings
    output_type: OutputType | None = None
    """The task's output type; None without a task."""
    tokenizer: PreTrainedTokenizerBase | None = None
    """The student's tokenizer; None for a student without one of its own."""


@dataclass(frozen=True)
class TeacherSpec:
    """Features that objectives may read, and how a run makes the teacher that computes them."""

    name: str
    """Its name in messages."""
    features: tuple[str, ...]
    """Names of its features; a run makes the teacher if an objective reads one of them."""
    make: Callable[[TeacherContext], Teacher]
    """Makes the teacher; raises InputError if a setting is missing."""
    reads: tuple[str, ...] = ()
    """Features of other teachers that it reads, which are then made too."""


def digest(data: bytes) -> str:
    """A hash of an input, as its id."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def code_hash(kind: Any) -> dict[str, str]:
    """The name of a class or function, and the SHA-256 of the file that defines it."""
    file = getattr(sys.modules[kind.__module__], "__file__", None)
    source = sha256_of(Path(file)) if file else ""
    return {"name": f"{kind.__module__}.{kind.__qualname__}", "source": source}


def read_inputs(teacher: Teacher, rows: Sequence[Sample]) -> list[Sample]:
    """A teacher's inputs for some rows; raises InputError unless there is one sample per row."""
    inputs = teacher.inputs(rows)
    _check_count(teacher, "inputs", inputs, len(rows))
    return inputs


def read_input_keys(teacher: Teacher, rows: Sequence[Sample]) -> list[str]:
    """The ids of a teacher's inputs for some rows; raises InputError unless there is one per row."""
    ids = teacher.ids(rows)
    _check_count(teacher, "ids", ids, len(rows))
    return ids


def compute_features(teacher: Teacher, batch: Batch) -> Mapping[str, Tensor]:
    """A teacher's features of a batch of its inputs, without gradient.

    Raises InputError unless they have one row per input.
    """
    with torch.no_grad():
        features = teacher.features(batch)
    rows = batch.rows if teacher.reads_student_input else len(batch)
    who = f"the teacher {teacher.name or type(teacher).__name__}"
    with convert_errors(f"{who}: expected tensors by name, one row per input"):
        counts = {name: value.shape[0] for name, value in features.items()}
    for name, count in counts.items():
        _check_count(teacher, name, range(count), rows)
    return features


def _check_count(teacher: Teacher, what: str, returned: Sized, rows: int) -> None:
    if len(returned) != rows:
        who = f"the teacher {teacher.name or type(teacher).__name__}"
        raise InputError(f"{who}: {what}: {len(returned)} rows, expected {rows}")


def is_teacher(value: object) -> TypeGuard[Teacher]:
    """Whether an object is a teacher."""
    return isinstance(value, Teacher)


def add_features(teacher: Teacher, batch: Batch) -> Batch:
    """The batch with the features of a teacher that runs in every step, by row.

    Equal inputs are encoded once. A batch without inputs for this teacher, such as text-only samples mixed
    with captioned images, is returned unchanged.
    """
    if teacher.reads_student_input:
        return replace(batch, features={**batch.features, **compute_features(teacher, batch)})
    teacher_input = batch.teacher_inputs.get(teacher.name)
    if teacher_input is None:
        return batch
    features = compute_features(teacher, teacher_input.batch)
    with_features = _replace_inputs_by_features(teacher, batch, features)
    if batch.cpu_batch is not None:
        cpu_inputs = batch.cpu_batch.teacher_inputs[teacher.name].batch
        countable = teacher.countable_features(cpu_inputs, features)
        with_features = replace(
            with_features,
            cpu_batch=_replace_inputs_by_features(teacher, batch.cpu_batch, countable),
        )
    return with_features


def _replace_inputs_by_features(
    teacher: Teacher, batch: Batch, features: Mapping[str, Tensor]
) -> Batch:
    row = batch.teacher_inputs[teacher.name].row_index
    by_row = {name: value.to(row.device)[row] for name, value in features.items()}
    remaining = {name: one for name, one in batch.teacher_inputs.items() if name != teacher.name}
    return replace(batch, features={**batch.features, **by_row}, teacher_inputs=remaining)
