"""What keeps a sentence encoder where it was while it learns something else."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import Batch, EncoderOutput, require
from groundling.objectives import Objective


class EmbeddingRetention(Objective):
    """Keep a sentence encoder's vectors: 1 - cosine with what it said of the same text before training.

    The student as it was is its own teacher (`teachers/itself.py`), as in Learning without Forgetting (Li and Hoiem
    2016), but on features. A text may be masked; what it was compared with never is. Our own.
    """

    name = "retain"
    required_fields = ("text", "features.as_it_was")

    def count(self, batch: Batch) -> dict[str, int]:
        """Texts."""
        return {self.name: batch.rows}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The summed distance () of the student's pooled vectors (N, S) from those that it had (N, S)."""
        now = require(encoded.sentence_embedding, "sentence_embedding", self.name)
        before = batch.features["as_it_was"].to(now.dtype)
        return {self.name: (1 - F.cosine_similarity(now, before, dim=-1)).sum()}
