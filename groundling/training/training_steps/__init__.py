"""Training steps: the forward and backward passes of a micro-batch, one or several whose gradients add up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard

from torch import Tensor

from groundling.core.batch import Batch, OutputSizes
from groundling.core.registry import import_object, instantiate
from groundling.settings.objectives import TrainingStepSettings

Terms = Mapping[str, Tensor]


class ForwardOutput(NamedTuple):
    """The outputs of one forward pass."""

    terms: dict[str, Tensor]
    """The summed losses of all active objectives, by term."""
    logits: dict[str, Tensor]
    """Logits (..., K) of the objectives' heads, by objective, for a training step that compares passes; see
    `Objective.comparison_logits`."""


@dataclass(frozen=True)
class MicroBatchContext:
    """One micro-batch of an optimizer step, and the functions a training step runs on it."""

    batch: Batch
    """The micro-batch; a training step may also run changed copies, see `Batch.perturbation`."""
    forward: Callable[[Batch], ForwardOutput]
    """Runs one forward pass."""
    loss: Callable[[Terms], Tensor]
    """Loss from summed terms: each times its weight, divided by its count in the whole optimizer step."""
    backward: Callable[..., None]
    """Accumulates the gradient of a loss in the parameters, and in leaves such as a perturbation; with
    `retain_graph=True` a later loss of the same micro-batch may use this pass's graph again.
    """
    sizes: OutputSizes
    """Widths of the model, and so of perturbations."""
    logit_counts: Mapping[str, Tensor]
    """Number of items () of each objective's head in the whole optimizer step; see `Objective.count_logits`."""


class TrainingStep:
    """A training step: any number of forward and backward passes of a micro-batch, whose gradients add up."""

    compares_logits: bool = False
    """Whether it reads `ForwardOutput.logits`."""

    def count(self, batch: Batch) -> dict[str, int]:
        """Number of items in each of its own terms, as `Objective.count`."""
        return {}

    def __call__(self, micro: MicroBatchContext) -> Terms:
        """Run forward and backward passes; returns the summed terms to log. Abstract."""
        raise NotImplementedError


def is_training_step(value: object) -> TypeGuard[TrainingStep]:
    """Whether an object is a `TrainingStep`."""
    return isinstance(value, TrainingStep)


class PlainTrainingStep(TrainingStep):
    """The ordinary training step: one forward and one backward pass."""

    def __call__(self, micro: MicroBatchContext) -> Terms:
        """Run it; returns its terms."""
        terms = micro.forward(micro.batch).terms
        micro.backward(micro.loss(terms))
        return terms


TRAINING_STEPS = {"villa": "groundling.training.training_steps.villa:VillaStep"}
"""Built-in training steps by name; each is made from a run's `TrainingStepSettings`."""


def load_training_step(settings: TrainingStepSettings) -> TrainingStep | None:
    """Make a training step by name, or load your own, MODULE:NAME (an object or its maker); None without a name."""
    name = settings.training_step
    if name in TRAINING_STEPS:
        step: TrainingStep = import_object(TRAINING_STEPS[name], type)(settings)
        return step
    return instantiate(name, is_training_step, "a TrainingStep") if name else None
