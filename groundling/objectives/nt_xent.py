"""The contrast of VidLanKD's code, which its paper does not have: in-batch NT-Xent, position by position."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import Batch, EncoderOutput, require
from groundling.objectives.crd import gather_positions
from groundling.objectives.state_distillation import StateDistillation


class NTXent(StateDistillation):
    """Find a token's other view, student's or teacher's, among both views of all sentences at its position.

    zinengtang/VidLanKD (vteacher/loss.py, vlm/model.py) trains this in place of CRD. Each of the 2B states at
    a position, s_1..s_B and t_1..t_B of unit length, is an anchor; its candidates are the 2B - 1 others:

        loss of an anchor z with its counterpart z' = -log e^(z.z'/tau) / sum_{y != z} e^(z.y/tau),  tau = 1

    averaged over anchors, without padding and special tokens, with the candidates of all processes. With
    `released`, padding and special tokens are included, the sum over a position's 2B anchors is divided by
    2B twice, positions are averaged, and candidates are the process's own.
    """

    name = "nt_xent"
    in_batch_negatives = True

    def count(self, batch: Batch) -> dict[str, int]:
        """Anchors: two per token; with `released` the padded length."""
        if self.settings.kd_variant == "released":
            return {"nt_xent": require(batch.text, "text", self.name).input_ids.shape[1]}
        return {"nt_xent": 2 * int(self.token_mask(batch).sum())}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The cross-entropy () summed over anchors, as `nt_xent`."""
        student, teacher = self.unit_states(encoded, batch)
        if self.settings.kd_variant == "released":
            everywhere = torch.ones(student.shape[:2], dtype=torch.bool, device=student.device)
            views = torch.stack([student, teacher.to(student)])
            total = self._cross_entropy(views, everywhere, views, everywhere, 0)
            return {"nt_xent": total / (2 * len(student)) ** 2}
        inside = self.token_mask(batch)
        students, insides, start = gather_positions(student, inside)
        teachers, _, _ = gather_positions(teacher.to(student), inside)
        views = torch.stack([student, teacher.to(student)])
        every = torch.stack([students, teachers])
        return {"nt_xent": self._cross_entropy(views, inside, every, insides, start)}

    def _cross_entropy(
        self, views: Tensor, inside: Tensor, every: Tensor, insides: Tensor, start: int
    ) -> Tensor:
        """Summed over the anchors `views` (2, N, T, E) with candidates `every` (2, M, T, E); masks (N, T), (M, T)."""
        rows, total = views.shape[1], every.shape[1]
        scores = torch.einsum("ate,bte->tab", views.flatten(0, 1), every.flatten(0, 1))
        own = torch.arange(rows, device=scores.device) + start
        anchor = torch.arange(2 * rows, device=scores.device)
        hidden = ~insides.T.repeat(1, 2)[:, None].expand_as(scores)
        hidden = hidden.clone()
        hidden[:, anchor, torch.cat([own, own + total])] = True
        target = torch.cat([own + total, own]).expand(len(scores), -1)
        scored = inside.T.repeat(1, 2)
        # An anchor in padding has no candidates: it gets a finite row and no weight.
        scores = scores.masked_fill(hidden & scored[..., None], float("-inf"))
        losses = F.cross_entropy(scores.transpose(1, 2), target, reduction="none")
        return (losses * scored).sum()
