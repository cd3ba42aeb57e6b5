"""VidLanKD's first distillation: neuron selectivity transfer."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import Batch, EncoderOutput, require
from groundling.objectives.state_distillation import StateDistillation


class NeuronSelectivityTransfer(StateDistillation):
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

    def count(self, batch: Batch) -> dict[str, int]:
        """Sentences with a token; with `released` the padded length."""
        if self.settings.kd_variant == "released":
            return {"nst": require(batch.text, "text", self.name).input_ids.shape[1]}
        return {"nst": int(self.token_mask(batch).any(1).sum())}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The squared discrepancy () summed over sentences, as `nst`."""
        student, teacher = self.unit_states(encoded, batch)
        if self.settings.kd_variant == "released":
            own, other = _token_products(student), _token_products(teacher)
            return {"nst": (own.square() - 2 * own * other).sum()}
        inside = self.token_mask(batch).unsqueeze(-1)
        gap = _token_products(student * inside) - _token_products(teacher * inside)
        return {"nst": gap.square().sum()}


def _token_products(states: Tensor) -> Tensor:
    """Products (N, T, T) of tokens, averaged over the channels of states (N, T, D), each of unit length."""
    channels = F.normalize(states, dim=1)
    return channels @ channels.transpose(1, 2) / states.shape[-1]
