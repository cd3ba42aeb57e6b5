"""Keeps a sentence encoder's embeddings close to those before training."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import Batch, EncoderOutput, require
from groundling.objectives import Objective


class EmbeddingRetention(Objective):
    """Sentence vectors stay close to those before training: 1 - cosine of both, for the same text.

    The teacher is a frozen copy of the student (`FrozenCopy`), as in Learning without Forgetting (Li and
    Hoiem 2016), but on features. The student's text may be masked; the copy's is not. Not from a paper.
    """

    name = "retain"
    arm_name = ""
    required_fields = ("text", "features.initial_sentence_embedding")

    def count(self, batch: Batch) -> dict[str, int]:
        """Texts."""
        return {self.name: batch.rows}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """Summed cosine distance () between the student's pooled vectors (N, S) and the frozen copy's (N, S)."""
        now = require(encoded.sentence_embedding, "sentence_embedding", self.name)
        before = batch.features["initial_sentence_embedding"].to(now.dtype)
        return {self.name: (1 - F.cosine_similarity(now, before, dim=-1)).sum()}
