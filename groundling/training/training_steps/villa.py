"""Adversarial training on text and regions: VILLA (Gan et al. 2020, Section 3), as in its release."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import Batch, OutputSizes
from groundling.core.errors import InputError
from groundling.runs.progress import print_notes
from groundling.settings.objectives import TrainingStepSettings
from groundling.training.training_steps import MicroBatchContext, Terms, TrainingStep

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
            terms, heads = micro.forward(replace(micro.batch, perturbation=changed))
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
            divergence = _symmetric_kl(logits, heads[name])
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


def _symmetric_kl(one: Tensor, other: Tensor) -> Tensor:
    """KL divergences () in both directions, of softmaxes over the last axis, summed."""
    first = F.log_softmax(one.float().clamp(min=MIN_LOGIT), -1)
    second = F.log_softmax(other.float().clamp(min=MIN_LOGIT), -1)
    forth = F.kl_div(second, first, reduction="sum", log_target=True)
    back = F.kl_div(first, second, reduction="sum", log_target=True)
    return forth + back
