"""Fine-tuning on a task's labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..batch import Batch, Encoded, Sizes
from ..models.heads import Pooler
from . import Objective

if TYPE_CHECKING:
    from ..tasks.forms import Form


HEAD = 64
"""Width of an attention head of every BERT."""


class Supervised(Objective):
    """A task's own loss on the first position (Devlin et al. 2019): the encoder's pooler if it has one, else a new one.

    A cross-modal model is read after its last cross-modal layer (XDBERT Appendix C.3).

    XDBERT's released script reads the raw first position without pooler or dropout; Section 2.4 says "follows BERT".
    """

    name = "supervised"
    needs = ("labels.label",)

    def __init__(self, sizes: Sizes, *, form: Form, dropout: float = 0.1, weight: float = 1.0, warmup: int = 0) -> None:
        """`form` gives the head's width and the loss."""
        super().__init__(sizes, weight=weight, warmup=warmup)
        self.form = form
        self.pooler = None if sizes.pooled or form.reads != "first" else Pooler(sizes.text)
        self.dropout = nn.Dropout(dropout)
        width = sizes.pooled or sizes.text
        # VisualBERT grounds phrases by one attention head of 64 dimensions, whose weights are the scores (code).
        self.query = nn.Linear(width, HEAD) if form.reads == "phrase" else None
        self.classify = nn.Linear(width, HEAD if form.reads == "phrase" else form.outputs)
        nn.init.normal_(self.classify.weight, std=0.02)
        nn.init.zeros_(self.classify.bias)

    def outputs(self, encoded: Encoded, batch: Batch) -> Tensor:
        """Outputs of the head: (B, outputs), (B, C) where every sample has C choices, (B, R) where it reads regions."""
        if self.form.reads != "first":
            encoded.require(self.name, "visual")
            assert encoded.visual is not None and encoded.text is not None and batch.regions is not None
            found = self.classify(self.dropout(encoded.visual))
            if self.query is not None:
                ends = encoded.text[torch.arange(len(batch), device=found.device), batch.labels["query"]]
                found = found @ self.query(self.dropout(ends)).unsqueeze(-1) / HEAD**0.5
            return found.squeeze(-1).float().masked_fill(~batch.regions.mask, -torch.inf)
        pooled = encoded.pooled
        if self.pooler is not None:
            states = encoded.joint_text if encoded.joint_text is not None else encoded.text
            assert states is not None
            pooled = self.pooler(states)
        assert pooled is not None
        return self.classify(self.dropout(pooled)).float().view(len(batch), -1)

    def count(self, batch: Batch) -> dict[str, int]:
        """Samples."""
        return {"task": len(batch)}

    def forward(self, encoded: Encoded, batch: Batch) -> dict[str, Tensor]:
        """The form's loss, summed over samples, as `task`."""
        return {"task": self.form.loss(self.outputs(encoded, batch), torch.as_tensor(batch.labels["label"]))}
