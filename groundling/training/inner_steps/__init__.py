"""What happens to a micro-batch between two optimizer steps: one forward and backward pass, or several that add up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeGuard

from torch import Tensor

from groundling.core.batch import Batch, Sizes
from groundling.core.documented import documented
from groundling.core.registry import built, is_outside, named
from groundling.settings.objectives import Adversarial

Terms = Mapping[str, Tensor]


@documented
class ForwardOutput(NamedTuple):
    """What one forward pass gives."""

    terms: dict[str, Tensor]
    """Every active objective's summed losses, by term."""
    heads: dict[str, Tensor]
    """Logits (..., K) of what objectives' heads made of the batch, by objective, for an inner step that compares
    passes; see `Objective.distributions`."""


class Backward(Protocol):
    """Adds a loss's gradient to that of the step, and to leaves such as a perturbation."""

    def __call__(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        """`retain_graph` if a later loss of the same micro-batch reaches back into this one's pass."""


@documented
@dataclass(frozen=True)
class MicroStep:
    """One micro-batch of an optimizer step, as an inner step sees it."""

    batch: Batch
    """The micro-batch; an inner step may run changed copies, see `Batch.perturbation`."""
    forward: Callable[[Batch], ForwardOutput]
    """One pass over a batch."""
    loss: Callable[[Terms], Tensor]
    """Summed terms to the loss: each times its weight, divided by its count in the whole optimizer step."""
    backward: Backward
    """Adds a loss's gradient to that of the step; between two calls nothing is updated."""
    sizes: Sizes
    """Widths of the model, for `Perturbation.zeros`."""
    answered: Mapping[str, Tensor]
    """By objective: items () that its head answers for in the whole optimizer step; see `Objective.answered`."""


@documented
class InnerStep:
    """What happens to a micro-batch between two optimizer steps: any number of passes, whose gradients add up."""

    compares: bool = False
    """Whether it reads `ForwardOutput.heads`."""

    def count(self, batch: Batch) -> dict[str, int]:
        """How many items each term of its own sums over, as `Objective.count`."""
        return {}

    def __call__(self, micro: MicroStep) -> Terms:
        """Run forward and backward; the summed terms to be logged. Abstract."""
        raise NotImplementedError


def is_inner_step(value: object) -> TypeGuard[InnerStep]:
    """Whether an object is an inner step."""
    return isinstance(value, InnerStep)


class PlainStep(InnerStep):
    """The ordinary inner step: one forward, one backward."""

    def __call__(self, micro: MicroStep) -> Terms:
        """The terms of that pass."""
        terms = micro.forward(micro.batch).terms
        micro.backward(micro.loss(terms))
        return terms


@documented
@dataclass(frozen=True)
class InnerPart:
    """An inner step by the name it has in `--inner`, and how a run's settings make it."""

    name: str
    """What commands call it."""
    make: Callable[[Adversarial], InnerStep]
    """From a run's settings to a new inner step."""


def inner_step(name: str, options: Adversarial) -> InnerStep | None:
    """An inner step by name, or your own, MODULE:NAME (an object, or what makes one); None without a name.

    Raises InputError for an unknown name, or if your own is none.
    """
    if name and not is_outside(name):
        return named("training.inner_steps", InnerPart, name).make(options)
    if not name:
        return None
    return built(name, is_inner_step, "an InnerStep")
