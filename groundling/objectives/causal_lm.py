"""Causal LM: a decoder predicts each token from those before it; the control of causal students."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import Batch, EncoderOutput, require
from groundling.objectives import LossTargets
from groundling.objectives.masked_lm import LanguageModelling


class CausalLM(LanguageModelling):
    """Predict every token but a text's first from the state before it (GPT; Radford et al. 2018, Eq. 1).

    A token that the tokenizer adds at the end, such as an end of text, is predicted too; padding is not. The head is
    the student's own, as masked LM's is.
    """

    name = "causal_lm"
    arm_name = "clm"
    required_fields = ("text",)

    def count(self, batch: Batch) -> dict[str, int]:
        """Predicted tokens."""
        return {"clm": int(self.scored(batch).sum())}

    def scored(self, batch: Batch) -> Tensor:
        """Mask (N, T) of the positions whose next token is no padding."""
        return F.pad(require(batch.text, "text", self.name).attention_mask[:, 1:], (0, 1))

    def _next_tokens(self, batch: Batch) -> Tensor:
        """(n,) long: the token after each scored position."""
        ids = require(batch.text, "text", self.name).input_ids
        return self.select_scored(F.pad(ids[:, 1:], (0, 1)), batch)

    def loss_targets(self, batch: Batch) -> dict[str, LossTargets]:
        """The predicted tokens."""
        return {"clm": LossTargets("class", self._next_tokens(batch))}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy () summed over predicted tokens, as `clm`."""
        logits = self.cached_logits(encoded, batch).float()
        return {"clm": F.cross_entropy(logits, self._next_tokens(batch), reduction="sum")}
