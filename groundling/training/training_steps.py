"""Training steps, the passes of a micro-batch whose gradients add up: the ordinary one, and VILLA's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import Batch, OutputSizes
from groundling.core.errors import InputError
from groundling.core.registry import instantiate
from groundling.runs.progress import print_notes
from groundling.settings.objectives import TrainingStepSettings

Terms = Mapping[str, Tensor]


class ForwardOutput(NamedTuple):
    """The outputs of one forward pass."""

    terms: dict[str, Tensor]
    """The summed losses of all active objectives, by term."""
    logits: dict[str, Tensor]
    """Logits (..., K) of the objectives' heads, by objective, for a training step that compares passes; see
    `Objective.comparison_logits`."""
    zero: Tensor | None = None
    """Without terms: a loss of 0 that depends on all parameters, for DDP, which looks for them in outputs."""
    rows: Sequence[Tensor] = ()
    """What objectives gathered in joined passes, for DDP too: their gradients are cached, apart from the loss's."""


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


# VILLA (Gan et al. 2020, Section 3), as in its release.

MODALITIES = {
    "both": (("text", "regions"),),
    "text": (("text",),),
    "image": (("regions",),),
    "alternate": (("text",), ("regions",)),
}
"""The perturbed modalities in each pass of an ascent step."""
MIN_NORM = 1e-8
"""Minimum norm by which a gradient is divided."""
MIN_LOGIT = -1e4
"""Minimum logit, in place of the -inf of padding such as missing regions."""
NO_LOGITS = "in some steps no objective returns logits; there training_step=villa has no divergence"


class VillaStep(TrainingStep):
    """A clean pass, then passes with a perturbation updated by gradient ascent on their loss.

    The gradients of the perturbed passes add up. The clean pass has no task loss; a symmetric KL divergence
    of softmaxes, also for heads trained with sigmoids, keeps the perturbed logits close to the clean ones,
    with gradient through both. The perturbation starts at zero, so the first perturbed pass differs from
    the clean one only in its dropout mask: every pass has its own. It is added to word embeddings and region
    features (`Batch.perturbation`), padding and special tokens included. The ascent step is normalised per row,
    whatever its length; the choices of a multiple choice, and the two images of NLVR2, are separate rows.
    Source: zhegan27/VILLA, train_vcr_adv.py, train_vqa_adv.py.

    In pre-training this applies to every objective whose head returns logits (the authors did not release
    this code); without logits there is no divergence.
    """

    compares_logits = True

    def __init__(self, options: TrainingStepSettings) -> None:
        self.options = options
        self.weight = options.adversarial_kl_weight
        self.has_noted = False

    def __call__(self, micro: MicroBatchContext) -> Terms:
        """Terms averaged over the perturbed passes, and the weighted `divergence` of their logits."""
        clean: Mapping[str, Tensor] = {}
        if self.weight:
            clean = micro.forward(micro.batch).logits
            if not clean and not self.has_noted:
                print_notes([NO_LOGITS])
                self.has_noted = True
        perturbation = zero_perturbation(micro.batch, micro.sizes)
        parts = self._parts(perturbation)
        number_of_passes = self.options.adversarial_steps * len(parts)
        logged: dict[str, Tensor] = {}
        for number in range(number_of_passes):
            turn = number % len(parts)
            if turn == 0:
                for part in perturbation.values():
                    part.requires_grad_()
            changed = {name: perturbation[name] for name in sorted(parts[turn])}
            terms, heads, *_ = micro.forward(replace(micro.batch, perturbation=changed))
            if clean:
                terms["divergence"] = self.weight * self._divergence(
                    clean, heads, micro.logit_counts
                )
            terms = {term: value / number_of_passes for term, value in terms.items()}
            is_last = number + 1 == number_of_passes
            micro.backward(micro.loss(terms), retain_graph=bool(clean) and not is_last)
            for term, value in terms.items():
                logged[term] = logged.get(term, torch.zeros_like(value)) + value.detach()
            if turn + 1 == len(parts) and not is_last:
                perturbation = {name: self._ascend(part) for name, part in perturbation.items()}
        return logged

    def _parts(self, perturbation: Mapping[str, Tensor]) -> list[set[str]]:
        modality = self.options.adversarial_modality
        parts = [perturbation.keys() & one for one in MODALITIES[modality]]
        if not any(parts):
            raise InputError(
                f"adversarial_modality={modality}: this data or model has only {', '.join(perturbation)} to perturb"
            )
        return [part for part in parts if part]

    def _divergence(
        self,
        clean: Mapping[str, Tensor],
        heads: Mapping[str, Tensor],
        logit_counts: Mapping[str, Tensor],
    ) -> Tensor:
        """Symmetric KL divergence () summed over heads, each averaged over its items in the optimizer step."""
        divergences = []
        for name, logits in clean.items():
            first = F.log_softmax(logits.float().clamp(min=MIN_LOGIT), -1)
            second = F.log_softmax(heads[name].float().clamp(min=MIN_LOGIT), -1)
            forth = F.kl_div(second, first, reduction="sum", log_target=True)
            divergence = forth + F.kl_div(first, second, reduction="sum", log_target=True)
            if self.options.adversarial_kl_reduction == "mean":
                divergence = divergence / logits.shape[-1]
            divergences.append(divergence / logit_counts[name].clamp(min=1))
        return torch.stack(divergences).sum()

    def _ascend(self, part: Tensor) -> Tensor:
        """A perturbation (N, S, E) after an ascent step with a gradient normalised per row."""
        if part.grad is None:
            return part
        gradient = part.grad
        norm = 2.0 if self.options.adversarial_norm == "l2" else math.inf
        length = torch.linalg.vector_norm(gradient, norm, dim=(1, 2), keepdim=True)
        return part.detach() + self.options.adversarial_lr * gradient / length.clamp(min=MIN_NORM)


def zero_perturbation(batch: Batch, sizes: OutputSizes) -> dict[str, Tensor]:
    """A zero `Batch.perturbation`, in the shapes for a model of these sizes and this batch."""
    found: dict[str, Tensor] = {}
    if batch.text is not None:
        shape = (*batch.text.input_ids.shape, sizes.input_embeddings[1])
        found["text"] = torch.zeros(shape, device=batch.device)
    if batch.regions is not None:
        shape = (*batch.regions.mask.shape, sizes.regions)
        found["regions"] = torch.zeros(shape, device=batch.device)
    if not found:  # it would change nothing, in silence
        raise InputError("a perturbation needs texts or regions, and this model reads neither")
    return found


# By name.

TRAINING_STEPS = {"villa": VillaStep}
"""Built-in training steps by name; each is made from a run's `TrainingStepSettings`."""


def load_training_step(settings: TrainingStepSettings) -> TrainingStep | None:
    """Make a training step by name, or load your own, MODULE:NAME (an object or its maker); None without a name."""
    name = settings.training_step
    if name in TRAINING_STEPS:
        return TRAINING_STEPS[name](settings)
    return instantiate(name, is_training_step, "a TrainingStep") if name else None
