"""Distillation of masked-LM predictions from a teacher that sees the image (ViComTe, Zhang et al. 2022)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import IGNORE, Batch, EncoderOutput, require, select
from groundling.objectives import LossTargets
from groundling.objectives.masked_lm import MaskedLM
from groundling.settings.objectives import MaskedLMDistillationSettings


class MaskedLMDistillation(MaskedLM):
    """KL(teacher ‖ student) of the masked-LM distributions over the vocabulary, at temperature 1, without a hard loss.

    Sum over positions i of Σ_w p_i(w) (log p_i(w) − log q_i(w)), with the teacher's softmax p and the
    student's q. Teacher and student read the same masked caption, the teacher also its image (ViComTe's
    "Distilled", 2205.01850). The paper was not read; that it names no positions is from memory. `positions`:
    all tokens except special ones and padding, masked or not, with a mean over them (tokens, ours); the
    masked ones, with a mean (masked); or, as in its code (ChenyuHeidiZhang/VL-commonsense,
    Oscar/oscar/run_distillation.py: KLDivLoss with `batchmean` on logits of all positions), every position,
    special tokens and padding included, summed and divided by the number of texts (released). There, all
    texts are padded to 35 tokens; here, to the longest of the batch.
    """

    name = "mlm_distillation"
    arm_name = None
    required_fields = ("text", "labels.masked_lm", "features.mlm_logits")
    Settings = MaskedLMDistillationSettings
    settings: MaskedLMDistillationSettings

    @property
    def positions(self) -> str:
        """The setting `mlm_distillation_positions`."""
        return self.settings.mlm_distillation_positions

    def _scored(self, batch: Batch) -> Tensor:
        """Mask (N, T) of the positions in the loss."""
        text = require(batch.text, "text", self.name)
        if self.positions == "masked":
            return batch.labels[self.label_name] != IGNORE
        if self.positions == "released":
            return torch.ones_like(text.attention_mask)
        return text.attention_mask & ~text.special_tokens_mask

    def count(self, batch: Batch) -> dict[str, int]:
        """Positions; texts for `released`."""
        number = batch.rows if self.positions == "released" else self.count_logits(batch)
        return {self.name: number}

    def count_logits(self, batch: Batch) -> int:
        """Positions in the loss."""
        return int(self._scored(batch).sum())

    def loss_targets(self, batch: Batch) -> dict[str, LossTargets]:
        """Empty: the targets are the teacher's."""
        return {}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The summed divergence (), as `mlm_distillation`."""
        student = self.cached_logits(encoded, batch)
        teacher = batch.features["mlm_logits"]
        target = select(teacher, batch.flat_indices(self._scored)).float().log_softmax(-1)
        said = student.float().log_softmax(-1)
        return {self.name: F.kl_div(said, target, log_target=True, reduction="sum")}
