"""How much of a step's gradient comes from each term of the loss (`--gradient-shares`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn


class GradientShare(NamedTuple):
    """A term's gradient in the model's parameters, in one optimizer step, before clipping."""

    norm: float
    """Norm of the gradient of the weighted term."""
    share: float
    """The norm as a share of the sum of all terms' norms; NaN if all are 0."""


class TermGradients:
    """The gradients of the weighted terms in a model's parameters, summed over one optimizer step.

    Heads and projections of objectives are not among these parameters. Norms of gradients do not add up to
    the norm of their sum, because terms may agree or disagree. No gradient is stored in the parameters, so
    training does not change.
    """

    def __init__(self, model: nn.Module, accelerator: Accelerator) -> None:
        self.parameters = [one for one in model.parameters() if one.requires_grad]
        self.accelerator = accelerator
        # As the ordinary backward pass: small gradients are 0 in fp16.
        scaler = accelerator.scaler
        self.scale = 1.0 if scaler is None else float(scaler.get_scale())
        self.sums: dict[str, Tensor] = {}

    def add(self, parts: Mapping[str, Tensor]) -> None:
        """Add the gradients of a pass's weighted and divided terms (), whose graph is kept."""
        for term, part in parts.items():
            if not (part.requires_grad and self.parameters):
                continue
            found = torch.autograd.grad(
                part * self.scale, self.parameters, retain_graph=True, allow_unused=True
            )
            flat = torch.cat(
                [
                    (torch.zeros_like(one) if gradient is None else gradient).flatten()
                    for one, gradient in zip(self.parameters, found, strict=True)
                ]
            )
            self.sums[term] = self.sums[term] + flat if term in self.sums else flat

    def shares(self) -> dict[str, GradientShare]:
        """Each term's norm and share, of the sum over all processes, which all call this."""
        terms = sorted(self.sums)
        if self.accelerator.num_processes > 1:
            terms = sorted(set(gather_object(terms)))
        norms = {}
        for term in terms:
            own = self.sums.get(term)
            if own is None:  # this process had no such term
                count = sum(one.numel() for one in self.parameters)
                own = torch.zeros(count, device=self.accelerator.device)
            total: Tensor = self.accelerator.reduce(own, "sum")
            norms[term] = float(total.norm()) / self.scale
        every = sum(norms.values())
        return {
            term: GradientShare(norm, norm / every if every else float("nan"))
            for term, norm in norms.items()
        }


def describe_shares(shares: Mapping[str, GradientShare]) -> str:
    """The terms' norms and shares in one line."""
    return ", ".join(f"{term} {one.norm:.3g} ({one.share:.0%})" for term, one in shares.items())
