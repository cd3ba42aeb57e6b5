"""A teacher is a frozen model that returns features for every row; it is not saved, and encodes equal inputs once."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Batch, Sample, collate, require
from groundling.core.errors import InputError
from groundling.core.output_types import OutputType
from groundling.core.rng import generator
from groundling.data.samples import SampleDataset
from groundling.runs.folder import sha256_of
from groundling.settings.objectives import ObjectiveSettings

SIZE_SAMPLES = 64
"""Number of samples from which the size of all features is estimated."""


class Teacher:
    """A frozen model whose features objectives read; `TeacherDataset` adds them to samples. Abstract."""

    name: str = ""
    """Its name in messages, its key in a batch's `teacher_inputs`, and the prefix of its cache folder."""
    width: int = 0
    """Width E of its features of texts and words; 0 if it has none."""
    image_width: int = 0
    """Width of its features of images; 0 if it has none."""
    image_features: Sequence[str] = ()
    """Names of its features if it reads a row's image; texts without images are then trained without them."""

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        """Its inputs for some rows, made from their `example`; equal ids mean equal inputs.

        If an objective's `count` reads a feature, it is best among the inputs' `features`, from where `features`
        returns it: then no step waits for the device. A teacher without this method reads the student's own batch,
        see `reads_student_batch`.
        """
        raise NotImplementedError

    @property
    def reads_student_batch(self) -> bool:
        """Whether `features` gets the student's batch, with masked tokens and the features of earlier teachers.

        It then has no `inputs`, runs in every step, and is never cached.
        """
        return type(self).inputs is Teacher.inputs

    def ids(self, rows: Sequence[Sample]) -> list[str]:
        """The ids of its inputs, equal in every run; override it if inputs are slow to make."""
        return [one.id for one in self.inputs(rows)]

    def features(self, batch: Batch) -> Mapping[str, Tensor]:
        """Features by name, (U, ...) each, of a batch of U of its inputs."""
        raise NotImplementedError

    def split(self, fixed: bool) -> tuple[Sequence[Teacher], Sequence[Teacher]]:
        """Teachers whose features are cached, and those that run in every step; together they have its features.

        `fixed`: the data is the same in every epoch. By default the teacher itself, cached if it is. Override it if
        a part reads less, such as the image alone, whose features are then cached once, however many texts it has.
        A later part finds the features of earlier parts in its rows' `features`.
        """
        return ([self], []) if fixed else ([], [self])

    def size_gb(self, samples: SampleDataset) -> float:
        """Size in GiB of its features of all samples, from some of them; not cached above the run's limit."""
        count = min(SIZE_SAMPLES, len(samples))
        some = get_fixed(samples, [len(samples) * number // count for number in range(count)])
        batch = collate(self.inputs([row for sample in some for row in sample.rows]))
        features = self.unbatch(compute_features(self, batch), batch)
        measured = sum(values.nbytes for row in features for values in row.values())
        return measured / count * len(samples) / 2**30

    def key(self) -> dict[str, Any]:
        """What its features depend on except its code and its inputs, such as its weights' hash, as JSON.

        A hash of it and of the class's file names the cache folder: after an edit, features are computed anew.
        """
        return {}

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


def get_fixed(samples: SampleDataset, indices: Sequence[int]) -> list[Sample]:
    """Some samples, with random generators that are the same at every call."""
    return samples.get(indices, [generator("once", samples.ids[index]) for index in indices])


def token_inputs(rows: Sequence[Sample], who: str) -> list[Sample]:
    """Inputs of a teacher that reads each row's own tokens before masking; equal ones have equal ids."""
    texts = [require(row.text, "text", who) for row in rows]
    keys = [text.input_ids.tobytes() + text.token_type_ids.tobytes() for text in texts]
    return [Sample(digest(key), text=text) for key, text in zip(keys, texts, strict=True)]


def check_same_tokens(
    own: PreTrainedTokenizerBase, student: PreTrainedTokenizerBase, source: str
) -> None:
    """Raises InputError unless the teacher `source` has the student's tokens."""
    same_special = set(own.all_special_ids) == set(student.all_special_ids)
    if own.get_vocab() != student.get_vocab() or not same_special:
        raise InputError(f"{source}: its tokenizer differs from the student's")


def digest(data: bytes) -> str:
    """A hash of an input, as its id."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def code_hash(kind: Any) -> dict[str, str]:
    """The name of a class or function, and the SHA-256 of the file that defines it."""
    file = getattr(sys.modules[kind.__module__], "__file__", None)
    source = sha256_of(Path(file)) if file else ""
    return {"name": f"{kind.__module__}.{kind.__qualname__}", "source": source}


def compute_features(teacher: Teacher, batch: Batch) -> Mapping[str, Tensor]:
    """A teacher's features of a batch of its inputs, without gradient.

    Raises InputError unless they have one row per input.
    """
    with torch.no_grad():
        features = teacher.features(batch)
    for name, value in features.items():
        if len(value) != batch.rows:
            raise InputError(
                f"{name_of(teacher)}: {name}: {len(value)} rows, expected {batch.rows}"
            )
    return features


def name_of(teacher: Teacher) -> str:
    """A teacher in messages and progress bars."""
    return f"the teacher {teacher.name or type(teacher).__name__}"


def is_teacher(value: object) -> TypeGuard[Teacher]:
    """Whether an object is a teacher."""
    return isinstance(value, Teacher)


class HostFeatures(dict[str, Tensor]):
    """Features in host memory; one that is only on a device is copied when it is read, which waits for the device."""

    def __init__(self, on_host: Mapping[str, Tensor], on_device: Mapping[str, Tensor]) -> None:
        super().__init__(on_host)
        self.on_device = on_device

    def __missing__(self, name: str) -> Tensor:
        return self.on_device[name].cpu()


def add_features(teacher: Teacher, batch: Batch) -> Batch:
    """The batch with the features of a teacher that runs in every step, by row.

    Equal inputs are encoded once. A batch without inputs for this teacher, such as text-only samples mixed
    with captioned images, is returned unchanged. What the teacher returns as its inputs carry it stays readable in
    host memory (`Batch.cpu_copy`) without waiting for the device.
    """
    by_row: Mapping[str, Tensor]
    carried: dict[str, Tensor] = {}
    teacher_input = batch.teacher_inputs.get(teacher.name)
    if teacher.reads_student_batch:
        by_row = compute_features(teacher, batch)
    elif teacher_input is None:
        return batch
    else:
        features = compute_features(teacher, teacher_input.batch)
        by_row = {name: value[teacher_input.row_index] for name, value in features.items()}
        on_host = batch.cpu_copy.teacher_inputs[teacher.name]
        for name, value in on_host.batch.features.items():
            if features.get(name) is teacher_input.batch.features[name]:
                carried[name] = value[on_host.row_index]
    every = {**batch.features, **by_row}
    cpu_batch = batch.cpu_batch
    if cpu_batch is not None:
        host_features = HostFeatures({**cpu_batch.features, **carried}, every)
        cpu_batch = replace(cpu_batch, features=host_features)
    return replace(batch, features=every, cpu_batch=cpu_batch)
