"""A teacher says of every row what it sees in it; frozen, never saved, and asked once for equal inputs."""

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
from groundling.core.documented import documented
from groundling.core.errors import InputError
from groundling.core.find import described
from groundling.core.own_code import code_of
from groundling.data.samples import Samples
from groundling.runs.hashing import hashes_of


@documented
class Teacher:
    """What a frozen teacher does; `Taught` puts it before a model, live or from a cache. Abstract."""

    name: str = ""
    """What it is called in a batch's `asides`, if it is live, and the folder of its features, if they are kept."""
    width: int = 0
    """Width E of its features of texts and words, 0 if it says nothing of these."""
    image_width: int = 0
    """Width of its features of images, if it sees any."""
    keeps: Literal["always", "fixed", "never"] = "fixed"
    """When its features are worth keeping.

    always: they are the same whatever text is drawn, as those of an image; fixed: where the data is the same in every
    epoch; never: they follow from other features in no time.
    """

    counts: bool = True
    """Whether pieces that it cuts off are counted for it; of several parts that read the same text, one counts."""
    called: str = "the teacher"
    """What progress and messages call it."""

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        """What it reads of some rows, made from their `example`; equal inputs have equal ids, others different ones."""
        raise NotImplementedError

    def ids(self, rows: Sequence[Sample]) -> list[str]:
        """The ids of its inputs alone, for a teacher whose inputs take time to make; equal in every run."""
        return [one.id for one in inputs_of(self, rows)]

    def features(self, batch: Batch) -> Mapping[str, Tensor]:
        """What it says of a batch of its own inputs, by name: (U, ...) for U rows."""
        raise NotImplementedError

    def known(self, batch: Batch, features: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Those of its features, of a batch of its inputs, by which objectives count, in the computer's own memory.

        As it stands these are all, and reading them waits for the accelerator they are on: a teacher that can tell
        from `batch`, which never left that memory, or of whose features none is counted by, says so here.
        """
        return {name: value.cpu() for name, value in features.items()}

    def parts(self) -> Sequence[Teacher]:
        """Teachers that together say the same, each of inputs of its own, where its features are to be kept.

        What an image is said to be is then kept once, however many texts go with it. A later one finds what the earlier
        ones said among its rows' `features`.
        """
        return (self,)

    def key(self) -> dict[str, Any]:
        """What its features depend on beside its inputs, as JSON: features kept by another teacher are refused.

        As it stands, its kind and the file that says what this does; a teacher with weights adds their hash.
        """
        return origin(type(self))

    def fit(self, samples: Samples) -> object:
        """Whatever it must know of the data before it is asked, such as the features' spread; most need nothing."""
        return self

    def to(self, device: torch.device | str) -> object:
        """Move it, if it has anything to move."""
        return self

    def kept(self, features: Mapping[str, Tensor], batch: Batch) -> list[dict[str, np.ndarray]]:
        """The features of every row of that batch without its padding, as they are kept."""
        arrays = {name: value.cpu().numpy() for name, value in features.items()}
        return [{name: values[row] for name, values in arrays.items()} for row in range(batch.rows)]


def origin(kind: Any) -> dict[str, str]:
    """The name of a class or function, and the SHA-256 of the code that defines it, as JSON.

    That of the file; where the file imports modules of the user's own, that of the names and hashes of all of them.
    """
    name = f"{kind.__module__}.{kind.__qualname__}"
    files = code_of(kind.__module__)
    hashes = hashes_of(list(files.values()))
    if len(files) < 2:
        return {"name": name, "source": "".join(hashes)}
    lines = [f"{module}\t{sha256}\n" for module, sha256 in zip(files, hashes, strict=True)]
    return {"name": name, "source": hashlib.sha256("".join(lines).encode()).hexdigest()}


def inputs_of(teacher: Teacher, rows: Sequence[Sample]) -> list[Sample]:
    """What a teacher reads of some rows; raises InputError if that is not one sample for each."""
    inputs = teacher.inputs(rows)
    _check_rows(teacher, "inputs", inputs, len(rows), Sample)
    return inputs


def ids_of(teacher: Teacher, rows: Sequence[Sample]) -> list[str]:
    """The ids of what it reads of some rows; raises InputError if that is not one text for each."""
    ids = teacher.ids(rows)
    _check_rows(teacher, "ids", ids, len(rows), str)
    return ids


def features_of(teacher: Teacher, batch: Batch) -> Mapping[str, Tensor]:
    """What a teacher says of a batch of its inputs, without a gradient.

    Raises InputError if that is no tensor by name, of as many rows as the batch has inputs.
    """
    with torch.no_grad():
        features: object = teacher.features(batch)
    _check_features(teacher, "features", features, len(batch))
    return cast(Mapping[str, Tensor], features)


def kept_of(
    teacher: Teacher, features: Mapping[str, Tensor], batch: Batch
) -> list[dict[str, np.ndarray]]:
    """The features of every input as they are kept; raises InputError if they are of more or fewer."""
    kept = teacher.kept(features, batch)
    _check_rows(teacher, "kept", kept, len(batch), Mapping)
    return kept


def _check_rows(teacher: Teacher, method: str, found: object, count: int, kind: type) -> None:
    """Raises InputError if a method's answer is no list of `count` objects of a kind."""
    who = f"the teacher {teacher.name or type(teacher).__name__}: `{method}` returned"
    what = f"expected a list of one {kind.__name__} for each of {count} rows"
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise InputError(f"{who} {described(found)}; {what}")
    if len(found) != count:
        raise InputError(f"{who} {len(found)}; {what}")
    for one in found:
        if not isinstance(one, kind):
            raise InputError(f"{who} a list with {described(one)} in it; {what}")


def _check_features(teacher: Teacher, method: str, found: object, count: int) -> None:
    """Raises InputError if a method's answer is no mapping to tensors of `count` rows."""
    who = f"the teacher {teacher.name or type(teacher).__name__}: `{method}`"
    if not isinstance(found, Mapping):
        raise InputError(f"{who} returned {described(found)}; expected tensors by name")
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise InputError(
                f"{who}: {name!r} is {described(value)}; expected a tensor ({count}, ...), a row for each input"
            )
        if value.ndim < 1 or len(value) != count:
            raise InputError(
                f"{who}: {name!r} is {tuple(value.shape)}; expected ({count}, ...), a row for each of {count} inputs"
            )


def is_teacher(value: object) -> TypeGuard[Teacher]:
    """Whether an object is a teacher."""
    return isinstance(value, Teacher)


@documented
@dataclass(frozen=True)
class Doubt:
    """A number of a step that has to be finite, looked at when the device has come to it."""

    number: Tensor
    """() float."""
    says: Callable[[float], str]
    """What an error says of it, if it is not."""

    def settle(self, number: float) -> None:
        """Raises InputError if the number, now known, is not finite."""
        if not math.isfinite(number):
            raise InputError(self.says(number))


def said(teacher: Teacher, batch: Batch) -> tuple[Batch, list[Doubt]]:
    """The batch with a live teacher's features, by row; different inputs are read once. And whether they are numbers.

    A batch of data that this teacher does not teach, such as text beside captioned images, stays as it is.
    """
    aside = batch.asides.get(teacher.name)
    if aside is None:
        return batch, []
    features = features_of(teacher, aside.batch)
    doubts = [_doubt(teacher, name, value, batch) for name, value in features.items()]
    taught = _with(teacher, batch, features)
    if batch.origin is not None:
        before = batch.origin.asides[teacher.name].batch
        known = teacher.known(before, features)
        _check_features(teacher, "known", known, len(before))
        origin = _with(teacher, batch.origin, known)
        taught = replace(taught, origin=origin)
    return taught, doubts


def _doubt(teacher: Teacher, name: str, values: Tensor, batch: Batch) -> Doubt:
    """Whether a feature of a teacher is made of numbers."""
    sound = torch.isfinite(values).all()
    few = ", ".join(batch.ids[:3])
    return Doubt(
        torch.where(sound, 0.0, math.nan),
        lambda _: f"{teacher.name}: its feature {name} of one of {few}, ... is not a finite number",
    )


def _with(teacher: Teacher, batch: Batch, features: Mapping[str, Tensor]) -> Batch:
    """The batch with features of its teacher's inputs in place of these."""
    row = batch.asides[teacher.name].row
    by_row = {name: value.to(row.device)[row] for name, value in features.items()}
    rest = {name: one for name, one in batch.asides.items() if name != teacher.name}
    return replace(batch, features={**batch.features, **by_row}, asides=rest)
