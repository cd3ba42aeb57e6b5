"""VidLanKD's first distillation: neuron selectivity transfer."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, require
from groundling.objectives import Objective, ObjectiveContext, ObjectiveSpec
from groundling.objectives.state_distillation import FIELDS, StudentHead, token_mask, unit_states
from groundling.settings.objectives import StateDistillationSettings


class NeuronSelectivityTransfer(Objective):
    """Match which tokens of a sentence excite the teacher's and the student's channels (Huang & Wang 2017).

    Channel c of the student is a vector s_c over the sentence's tokens, of unit length; t_c is the teacher's.
    The loss of a sentence is the squared maximum mean discrepancy of both sets of channels, with the
    polynomial kernel k(x, y) = (x.y)^2:

        MMD^2 = mean_{c,c'} (s_c.s_c')^2 + mean_{c,c'} (t_c.t_c')^2 - 2 mean_{c,c'} (s_c.t_c')^2

    averaged over sentences. It is computed as |S S^T - T T^T|^2 / E^2, where the E columns of S and T
    (tokens, E) are the channels: the same number, without E x E kernels. Which positions count, the paper's
    body may say, but it was not read: padding and special tokens are excluded here, masked tokens are not.
    With `released` it is as in zinengtang/VidLanKD (vteacher/loss.py, vlm/model.py): no teacher term, over
    all positions of the micro-batch, padding included, summed over its B sentences and divided by their
    padded length.
    """

    name = "nst"
    required_fields = FIELDS

    def __init__(
        self,
        sizes: OutputSizes,
        *,
        variant: Literal["paper", "released"] = "paper",
        weight: float = 1.0,
        warmup: int = 0,
    ) -> None:
        """`variant`: the paper's loss, or that of its code."""
        super().__init__(sizes, weight=weight, warmup=warmup)
        self.variant = variant
        self.head = StudentHead(sizes)

    def count(self, batch: Batch) -> dict[str, int]:
        """Sentences with a token; with `released` the padded length."""
        if self.variant == "released":
            return {"nst": require(batch.text, "text", self.name).input_ids.shape[1]}
        return {"nst": int(token_mask(batch, self.name).any(1).sum())}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The squared discrepancy () summed over sentences, as `nst`."""
        student, teacher = unit_states(encoded, batch, self.head, self.name)
        if self.variant == "released":
            own, other = _token_products(student), _token_products(teacher)
            return {"nst": (own.square() - 2 * own * other).sum()}
        inside = token_mask(batch, self.name).unsqueeze(-1)
        gap = _token_products(student * inside) - _token_products(teacher * inside)
        return {"nst": gap.square().sum()}


def _token_products(states: Tensor) -> Tensor:
    """Products (N, T, T) of tokens, averaged over the channels of states (N, T, D), each of unit length."""
    channels = F.normalize(states, dim=1)
    return channels @ channels.transpose(1, 2) / states.shape[-1]


def _make(given: ObjectiveContext) -> NeuronSelectivityTransfer:
    options = given.settings.state_distillation
    return NeuronSelectivityTransfer(
        given.sizes, variant=options.kd_variant, weight=options.kd_weight
    )


NST = ObjectiveSpec(
    "nst",
    _make,
    teacher_setting="kd_teacher",
    settings_groups=(StateDistillationSettings,),
)
