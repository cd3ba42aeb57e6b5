"""A teacher returns features for every row; it is frozen, never saved, and reads equal inputs once."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeGuard, cast

import numpy as np
import torch
from torch import Tensor

from groundling.core.batch import Batch, Sample
from groundling.core.errors import InputError
from groundling.core.field_docs import with_field_docs
from groundling.core.registry import describe_value, require_kind, source_files
from groundling.data.samples import SampleDataset
from groundling.runs.hashing import hashes_of


@with_field_docs
class Teacher:
    """A frozen model whose features objectives read; `TeacherDataset` puts them beside samples. Abstract."""

    name: str = ""
    """Its key in a batch's `asides` where it runs in every step, and the beginning of its folder in a cache."""
    width: int = 0
    """Width E of its features of texts and words; 0 if it has none."""
    image_width: int = 0
    """Width of its features of images; 0 if it has none."""
    cacheable: Literal["always", "fixed", "never"] = "fixed"
    """When its features are worth caching.

    always: they are the same whatever text is drawn, as those of an image; fixed: where the data is the same in every
    epoch; never: they follow from other features in no time.
    """
    counts_truncated: bool = True
    """Whether what it truncates is counted; of several parts that read the same text, one counts."""
    display_name: str = "the teacher"
    """Its name in progress bars and messages."""

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        """What it reads of some rows, made from their `example`; equal inputs have equal ids, others different ones."""
        raise NotImplementedError

    def ids(self, rows: Sequence[Sample]) -> list[str]:
        """The ids of its inputs alone, for a teacher whose inputs take time to make; equal in every run."""
        return [one.id for one in read_inputs(self, rows)]

    def features(self, batch: Batch) -> Mapping[str, Tensor]:
        """Its features of a batch of its own inputs, by name: (U, ...) for U rows."""
        raise NotImplementedError

    def countable_features(
        self, batch: Batch, features: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Those of its features, of a batch of its inputs, by which objectives count, in the computer's own memory.

        By default these are all, and reading them waits for the accelerator they are on: a teacher that can tell
        from `batch`, which never left that memory, or of whose features none is counted by, overrides this.
        """
        return {name: value.cpu() for name, value in features.items()}

    def parts(self) -> Sequence[Teacher]:
        """Teachers that together have the same features, each of inputs of its own, for a cache.

        The features of an image are then cached once, however many texts go with it. A later part finds the earlier
        parts' features in its rows' `features`.
        """
        return (self,)

    def merge_uncached(self, parts: Sequence[Teacher]) -> Sequence[Teacher]:
        """What runs in every step in place of those of its parts that no cache has; by default each by itself."""
        return parts

    def key(self) -> dict[str, Any]:
        """What its features depend on beside its inputs, as JSON: its hash tells a teacher's cached features.

        By default its class and the hash of the file that defines it; a teacher with weights adds their hash.
        """
        return code_hash(type(self))

    def fit(self, samples: SampleDataset) -> object:
        """Whatever it must know of the data before it is asked, such as the features' spread; most need nothing."""
        return self

    def to(self, device: torch.device | str) -> object:
        """Move it, if it has anything to move."""
        return self

    def unbatch(self, features: Mapping[str, Tensor], batch: Batch) -> list[dict[str, np.ndarray]]:
        """The features of every row of that batch without its padding, as they are cached."""
        arrays = {name: value.cpu().numpy() for name, value in features.items()}
        return [{name: values[row] for name, values in arrays.items()} for row in range(batch.rows)]


def code_hash(kind: Any) -> dict[str, str]:
    """The name of a class or function, and the SHA-256 of the code that defines it, as JSON.

    That of the file; where the file imports modules of the user's own, that of the names and hashes of all of them.
    """
    name = f"{kind.__module__}.{kind.__qualname__}"
    files = source_files(kind.__module__)
    hashes = hashes_of(list(files.values()))
    if len(files) < 2:
        return {"name": name, "source": "".join(hashes)}
    lines = [f"{module}\t{sha256}\n" for module, sha256 in zip(files, hashes, strict=True)]
    return {"name": name, "source": hashlib.sha256("".join(lines).encode()).hexdigest()}


def read_inputs(teacher: Teacher, rows: Sequence[Sample]) -> list[Sample]:
    """What a teacher reads of some rows; raises InputError if that is not one sample for each."""
    inputs = teacher.inputs(rows)
    _check_rows(teacher, "inputs", inputs, len(rows), Sample)
    return inputs


def read_input_keys(teacher: Teacher, rows: Sequence[Sample]) -> list[str]:
    """The ids of what it reads of some rows; raises InputError if that is not one text for each."""
    ids = teacher.ids(rows)
    _check_rows(teacher, "ids", ids, len(rows), str)
    return ids


def compute_features(teacher: Teacher, batch: Batch) -> Mapping[str, Tensor]:
    """A teacher's features of a batch of its inputs, without a gradient.

    Raises InputError if that is no tensor by name, of as many rows as the batch has inputs.
    """
    with torch.no_grad():
        features: object = teacher.features(batch)
    _check_features(teacher, "features", features, len(batch))
    return cast(Mapping[str, Tensor], features)


def compute_feature_arrays(teacher: Teacher, batch: Batch) -> list[dict[str, np.ndarray]]:
    """A teacher's features of every input of a batch, as they are cached; raises InputError as `compute_features`."""
    arrays = teacher.unbatch(compute_features(teacher, batch), batch)
    _check_rows(teacher, "unbatch", arrays, len(batch), Mapping)
    return arrays


def _check_rows(teacher: Teacher, method: str, found: object, count: int, kind: type) -> None:
    """Raises InputError if a method's answer is no list of `count` objects of a kind."""
    who = f"the teacher {teacher.name or type(teacher).__name__}: `{method}` returned"
    what = f"expected a list of one {kind.__name__} for each of {count} rows"
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise InputError(f"{who} {describe_value(found)}; {what}")
    if len(found) != count:
        raise InputError(f"{who} {len(found)}; {what}")
    for one in found:
        if not isinstance(one, kind):
            raise InputError(f"{who} a list with {describe_value(one)} in it; {what}")


def _check_features(teacher: Teacher, method: str, found: object, count: int) -> None:
    """Raises InputError if a method's answer is no mapping to tensors of `count` rows."""
    who = f"the teacher {teacher.name or type(teacher).__name__}: `{method}`"
    if not isinstance(found, Mapping):
        raise InputError(f"{who} returned {describe_value(found)}; expected tensors by name")
    for name, value in found.items():
        tensor = require_kind(value, Tensor, f"{who}: {name!r} is")
        if tensor.ndim < 1 or len(tensor) != count:
            raise InputError(
                f"{who}: {name!r} is {tuple(tensor.shape)}; expected ({count}, ...), a row for each of {count} inputs"
            )


def is_teacher(value: object) -> TypeGuard[Teacher]:
    """Whether an object is a teacher."""
    return isinstance(value, Teacher)


@with_field_docs
@dataclass(frozen=True)
class FiniteCheck:
    """A number of a step that has to be finite; it is read when the device has computed it."""

    number: Tensor
    """() float."""
    message: Callable[[float], str]
    """The error, from the number that is not finite."""

    def raise_if_not_finite(self, number: float) -> None:
        """Raises InputError if the number, now known, is not finite."""
        if not math.isfinite(number):
            raise InputError(self.message(number))


def add_features(teacher: Teacher, batch: Batch) -> tuple[Batch, list[FiniteCheck]]:
    """The batch with the features of a teacher that runs in every step, by row; and whether they are finite.

    Different inputs are read once. A batch without inputs for this teacher, such as text beside captioned images,
    stays as it is.
    """
    aside = batch.teacher_inputs.get(teacher.name)
    if aside is None:
        return batch, []
    features = compute_features(teacher, aside.batch)
    checks = [_finite_check(teacher, name, value, batch) for name, value in features.items()]
    taught = _replace_inputs_by_features(teacher, batch, features)
    if batch.cpu_batch is not None:
        before = batch.cpu_batch.teacher_inputs[teacher.name].batch
        countable = teacher.countable_features(before, features)
        _check_features(teacher, "countable", countable, len(before))
        taught = replace(
            taught, cpu_batch=_replace_inputs_by_features(teacher, batch.cpu_batch, countable)
        )
    return taught, checks


def _finite_check(teacher: Teacher, name: str, values: Tensor, batch: Batch) -> FiniteCheck:
    """Whether a feature of a teacher is made of finite numbers."""
    sound = torch.isfinite(values).all()
    few = ", ".join(batch.ids[:3])
    return FiniteCheck(
        torch.where(sound, 0.0, math.nan),
        lambda _: f"{teacher.name}: its feature {name} of one of {few}, ... is not a finite number",
    )


def _replace_inputs_by_features(
    teacher: Teacher, batch: Batch, features: Mapping[str, Tensor]
) -> Batch:
    """The batch with features of its teacher's inputs in place of these."""
    row = batch.teacher_inputs[teacher.name].row_index
    by_row = {name: value.to(row.device)[row] for name, value in features.items()}
    rest = {name: one for name, one in batch.teacher_inputs.items() if name != teacher.name}
    return replace(batch, features={**batch.features, **by_row}, teacher_inputs=rest)
