"""What happens to a micro-batch between two optimizer steps: one forward and backward pass, or several that add up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeGuard

from torch import Tensor

from groundling.core.batch import Batch, OutputSizes
from groundling.core.field_docs import with_field_docs
from groundling.core.registry import instantiate, is_import_path, resolve
from groundling.settings.objectives import AdversarialSettings

Terms = Mapping[str, Tensor]


@with_field_docs
class ForwardOutput(NamedTuple):
    """What one forward pass gives."""

    terms: dict[str, Tensor]
    """Every active objective's summed losses, by term."""
    logits: dict[str, Tensor]
    """Logits (..., K) of what objectives' heads made of the batch, by objective, for an inner step that compares
    passes; see `Objective.comparison_logits`."""


class BackwardFunction(Protocol):
    """Adds a loss's gradient to that of the step, and to leaves such as a perturbation."""

    def __call__(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        """`retain_graph` if a later loss of the same micro-batch reaches back into this one's pass."""


@with_field_docs
@dataclass(frozen=True)
class MicroBatchContext:
    """One micro-batch of an optimizer step, as an inner step sees it."""

    batch: Batch
    """The micro-batch; an inner step may run changed copies, see `Batch.perturbation`."""
    forward: Callable[[Batch], ForwardOutput]
    """One pass over a batch."""
    loss: Callable[[Terms], Tensor]
    """Summed terms to the loss: each times its weight, divided by its count in the whole optimizer step."""
    backward: BackwardFunction
    """Adds a loss's gradient to that of the step; between two calls nothing is updated."""
    sizes: OutputSizes
    """Widths of the model, for `Perturbation.zeros`."""
    logit_counts: Mapping[str, Tensor]
    """By objective: items () that its head answers for in the whole optimizer step; see `Objective.count_logits`."""


@with_field_docs
class TrainingStep:
    """What happens to a micro-batch between two optimizer steps: any number of passes, whose gradients add up."""

    compares_logits: bool = False
    """Whether it reads `ForwardOutput.logits`."""

    def count(self, batch: Batch) -> dict[str, int]:
        """How many items each term of its own sums over, as `Objective.count`."""
        return {}

    def __call__(self, micro: MicroBatchContext) -> Terms:
        """Run forward and backward; the summed terms to be logged. Abstract."""
        raise NotImplementedError


def is_training_step(value: object) -> TypeGuard[TrainingStep]:
    """Whether an object is an inner step."""
    return isinstance(value, TrainingStep)


class PlainTrainingStep(TrainingStep):
    """The ordinary inner step: one forward, one backward."""

    def __call__(self, micro: MicroBatchContext) -> Terms:
        """The terms of that pass."""
        terms = micro.forward(micro.batch).terms
        micro.backward(micro.loss(terms))
        return terms


@with_field_docs
@dataclass(frozen=True)
class TrainingStepSpec:
    """An inner step by the name it has in `--training-step`, and how a run's settings make it."""

    name: str
    """What commands call it."""
    make: Callable[[AdversarialSettings], TrainingStep]
    """From a run's settings to a new inner step."""


def load_training_step(name: str, options: AdversarialSettings) -> TrainingStep | None:
    """An inner step by name, or your own, MODULE:NAME (an object, or what makes one); None without a name.

    Raises InputError for an unknown name, or if your own is none.
    """
    if name and not is_import_path(name):
        return resolve("training.training_steps", TrainingStepSpec, name).make(options)
    if not name:
        return None
    return instantiate(name, is_training_step, "an TrainingStep")
