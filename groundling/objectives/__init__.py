"""An objective corrupts a sample, owns its head, and scores what a model said; a run makes them from their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, Sample, require
from groundling.core.errors import InputError
from groundling.core.field_docs import with_field_docs
from groundling.core.output_types import OutputType
from groundling.core.registry import (
    describe_value,
    import_object,
    is_import_path,
    require_kind,
    resolve,
)
from groundling.core.rng import derive_seed
from groundling.data.samples import mask_id_of
from groundling.models.heads import save_heads
from groundling.settings.fields import Settings, flag_name, flatten_settings
from groundling.settings.objectives import CrossModalSettings, ObjectiveSettings
from groundling.settings.training import TrainConfig


class NegativeSampler(Protocol):
    """Draws another sample of the same data, with the objective's own generator."""

    def __call__(self, similar_length: bool = False) -> Sample:
        """Any sample, or with `near` one about as long as the sample that is corrupted; it may be that one itself."""
        ...


@with_field_docs
class Objective(nn.Module):
    """Corrupt + head + loss.

    `forward` returns *sums* by term name and `count` how many items each sum covers, both from one micro-batch; the
    loop divides by the count of the whole step, over accumulation and processes, so that splitting a batch changes
    nothing, but for in-batch negatives. A term that has no items in a step, or none that is counted, is divided by 1.
    Sub-classes take `OutputSizes` first and keyword options after it.
    """

    name: str = ""
    """Prefix of the terms in the log, and the key of the objective's own random stream; every objective needs one."""
    required_fields: Sequence[str] = ()
    """Fields of the batch that must be there, e.g. `text` or `features.sentence`."""
    monitored_terms: Sequence[str] = ()
    """Terms that are logged and not trained on, such as how often a gate is open."""
    in_batch_negatives: bool = False
    """True if an item's loss depends on the others of its micro-batch, which accumulation makes smaller: a run says so.

    Those of other processes are there only if the objective gathers them, as the package's own do.
    """
    swaps_inputs: ClassVar[bool] = False
    """True if `corrupt` exchanges whole inputs; such objectives go before those that mask inside them."""

    def __init__(self, sizes: OutputSizes, *, weight: float = 1.0, warmup: int = 0) -> None:
        """`weight` of the terms in the total; it grows linearly from 0 over the first `warmup` optimizer steps."""
        super().__init__()
        self.sizes = sizes
        self.weight = weight
        self.warmup = warmup

    def weight_at(self, step: int) -> float:
        """Weight of this objective's terms at an optimizer step (0-based)."""
        if not self.warmup:
            return self.weight
        return self.weight * min(1.0, (step + 1) / self.warmup)

    def weight_of(self, term: str, step: int) -> float:
        """Weight of one of its terms at an optimizer step: 0 of one that is only watched."""
        return 0.0 if term in self.monitored_terms else self.weight_at(step)

    def notes(self, means: Mapping[str, Sequence[float]]) -> list[str]:
        """What a user should know of its watched terms, a line each, after a run.

        `means` holds the mean of every watched term in each epoch; terms that were never logged are missing.
        """
        return []

    def pretrained_layers(self) -> list[tuple[nn.Module, str]]:
        """Layers that an earlier run may have trained, and what its file of heads calls them, for `finetune`."""
        return []

    def saved_modules(self) -> dict[str, nn.Module]:
        """What is kept beside an exported model for a next run to start from, by name."""
        return {self.name: self}

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, sample_negative: NegativeSampler
    ) -> Sample:
        """A copy with inputs changed and labels set; `other()` draws another sample of the same data with `rng`."""
        return sample

    def count(self, batch: Batch) -> dict[str, int]:
        """How many items each term of `forward` sums over, from the batch alone; 0 where it has none. Abstract."""
        raise InputError(f"{type(self).__name__}: this objective has no method `count`")

    def loss_targets(self, batch: Batch) -> Mapping[str, LossTargets]:
        """What its terms are scored against, from the batch alone: of those for which one can guess.

        By it, a run tells whether a term has left guessing.
        """
        return {}

    def compute_logits(self, encoded: EncoderOutput, batch: Batch) -> Tensor | None:
        """What the head makes of it, such as logits (B, outputs), which others find in `encoded.heads[self.name]`.

        All active objectives read before any of them scores: a gate or a divergence finds the task's logits there.
        """
        return None

    def cached_logits(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """What `read` gave in this pass, or gives now if nobody asked; for an objective that implements it."""
        answer = encoded.heads.get(self.name)
        return require(
            self.compute_logits(encoded, batch) if answer is None else answer, "read", self.name
        )

    def count_logits(self, batch: Batch) -> int:
        """How many items `read` answers for, from the batch alone: as many as the first term sums over."""
        return next(iter(self.count(batch).values()), 0)

    def comparison_logits(self, answer: Tensor) -> Tensor:
        """What `read` gave as logits (..., K) of one softmax each, by which an inner step compares two passes."""
        return answer

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Mapping[str, Tensor]:
        """The summed loss of each term, a scalar () by name. Abstract."""
        raise InputError(f"{type(self).__name__}: this objective has no method `forward`")


@with_field_docs
class LossTargets(NamedTuple):
    """What a term's items are scored against, where its loss is a cross-entropy or a squared error."""

    kind: Literal["class", "share", "number"]
    """How `values` are to be read."""
    values: Tensor
    """(n,) classes; (n, K) shares of classes; (n, D) numbers."""


@with_field_docs
@dataclass(frozen=True)
class MaskingVocabulary:
    """What masking needs to know of a tokenizer."""

    mask_id: int
    """Id of its mask token."""
    replacement_ids: Sequence[int]
    """Ids that may stand in for a masked piece: all but special tokens."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> MaskingVocabulary:
        """That of a tokenizer; raises InputError if it has no mask token."""
        mask_id = mask_id_of(tokenizer, ", so masked LM is not possible")
        special = set(tokenizer.all_special_ids)
        ordinary = [number for number in range(len(tokenizer)) if number not in special]
        return cls(int(mask_id), ordinary)


@with_field_docs
@dataclass(frozen=True)
class ObjectiveContext:
    """What a run knows when it makes its objectives."""

    sizes: OutputSizes
    vocabulary: MaskingVocabulary | None = None
    """The text encoder's; None where nothing is masked."""
    settings: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    cross_modal: CrossModalSettings = field(default_factory=CrossModalSettings)
    output_type: OutputType | None = None
    """The form of the task's answers, as its head is trained; None where there is no task."""


@with_field_docs
@dataclass(frozen=True)
class ObjectiveSpec:
    """An objective by the name it has in `--arm` and `--objectives`, and how a run makes it."""

    name: str
    """What commands call it."""
    make: Callable[[ObjectiveContext], Objective]
    """From what a run knows to a new objective."""
    needs_cross_modal: bool = False
    """It reads states after the cross-modal encoder."""
    needs_teacher: bool = False
    """It reads a teacher's features."""
    settings_groups: tuple[type[Settings], ...] = ()
    """The groups of settings that it reads, of `ObjectiveContext`: a run says of others that nothing reads them."""


def find_objective(name: str) -> ObjectiveSpec:
    """The part called `name`: one of this package's, or `MODULE:NAME`, a `ObjectiveSpec` or `Objective` of yours.

    An objective class is made from the sizes alone; its `needs` tell whether it wants a teacher. Raises InputError if
    there is no such part.
    """
    if not is_import_path(name):
        return resolve("objectives", ObjectiveSpec, name)
    value = import_object(name, object)
    if isinstance(value, ObjectiveSpec):
        return value
    if not isinstance(value, type) or not issubclass(value, Objective):
        raise InputError(
            f"{name}: expected an ObjectiveSpec or a sub-class of Objective, found {describe_value(value)}"
        )
    objective = value
    taught = any(need.startswith("features.") for need in objective.required_fields)
    return ObjectiveSpec(name, lambda given: objective(given.sizes), needs_teacher=taught)


def order_for_corruption(objectives: Sequence[Objective]) -> list[Objective]:
    """Objectives in the order their `corrupt` must run: whole-input swaps first."""
    return sorted(objectives, key=lambda objective: not objective.swaps_inputs)


# How a run makes its objectives from their names, and what it must know of them.


def make_objectives(names: Sequence[str], context: ObjectiveContext, seed: int) -> list[Objective]:
    """Objectives by name; each one's head is drawn by its own key, so it is the same in every run that has it."""
    objectives = []
    for name in names:
        torch.manual_seed(derive_seed(seed, "init", name))
        made: object = find_objective(name).make(context)
        made = require_kind(made, Objective, f"{name}: makes")
        check_saved_modules(made)
        objectives.append(made)
    return objectives


def check_saved_modules(objective: Objective) -> None:
    """Raises InputError now for what could not be saved when all is trained."""
    saved: object = objective.saved_modules()
    sound = isinstance(saved, Mapping) and all(
        isinstance(name, str) and isinstance(head, nn.Module) for name, head in saved.items()
    )
    if not sound:
        raise InputError(f"{objective.name}: `saved` returns no modules by name, expected a dict")


def save_objective_heads(folder: Path, objectives: Sequence[Objective]) -> None:
    """Write what objectives keep for a next run beside an exported model."""
    heads = {name: head for one in objectives for name, head in one.saved_modules().items()}
    save_heads(folder, heads)


def required_features(names: Sequence[str], context: ObjectiveContext) -> frozenset[str]:
    """Names of the features that objectives read of teachers."""
    # What an objective needs may follow from its settings, so that it must be made to be asked; any width will do.
    sizes = context.sizes._replace(teacher=1, teacher_image=1)
    taught = [name for name in names if find_objective(name).needs_teacher]
    made = make_objectives(taught, replace(context, sizes=sizes), seed=0)
    parts = [need.partition(".") for objective in made for need in objective.required_fields]
    return frozenset(name for field, _, name in parts if field == "features")


def in_batch_negatives_note(objectives: Sequence[Objective], training: TrainConfig) -> list[str]:
    """What is to be said where accumulation leaves objectives fewer in-batch negatives than the batch has samples."""
    names = [one.name for one in objectives if one.in_batch_negatives]
    if not names or training.gradient_accumulation_steps == 1:
        return []
    size = f"{training.batch // training.gradient_accumulation_steps} of a step's {training.batch} samples"
    if training.batch_tokens:
        size = f"one of a step's {training.gradient_accumulation_steps} on each process"
    return [
        f"--gradient-accumulation-steps {training.gradient_accumulation_steps}: {', '.join(names)} takes its negatives from one micro-batch ({size}), so "
        "that the loss is another one than of the whole batch at once"
    ]


SILENT = frozenset({"cache_gb", "teacher_cache"})
"""Settings that say where something is kept, which need no reader."""


def unused_settings_note(
    names: Sequence[str],
    settings: ObjectiveSettings,
    training_step: str,
    cross_modal: CrossModalSettings | None = None,
) -> list[str]:
    """A line if settings were given that none of the objectives `names` reads.

    `crossing` are those of the cross-modal encoder, in a command that may train one.
    """
    if any(is_import_path(name) for name in (*names, training_step)):
        return []  # which may read any of them
    parts = [find_objective(name) for name in names]
    read = {group for part in parts for group in part.settings_groups}
    # A cross-modal model reads as many windows as a teacher would.
    silent = SILENT | ({"max_windows"} if CrossModalSettings in read else set())
    flags = [
        f"--{flag_name(one.name)}"
        for group, one in [*flatten_settings(settings), *flatten_settings(cross_modal)]
        if type(group) not in read and one.name not in silent
        if vars(group)[one.name] != vars(type(group)())[one.name]
    ]
    if not flags:
        return []
    trained = " and ".join(names) or "the task's own loss"
    return [f"nothing here reads {', '.join(flags)}: what is trained is {trained}"]
