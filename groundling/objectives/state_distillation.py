"""What the distillations of a text encoder's token states share (VidLanKD, Tang et al. 2021, Section 3.3)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, require

FIELDS = ("text", "features.teacher_states")
"""The batch fields that they read."""


class StudentHead(nn.Module):
    """The student's distillation head: Linear, GELU, LayerNorm, Linear, and each token to unit length.

    Each objective has its own; the teacher has none (vlm/model.py at the last commit of
    zinengtang/VidLanKD; the paper's supplement, Table 1, removes the student's heads). The last Linear maps
    to the teacher's width, which is the student's in the paper.
    """

    def __init__(self, sizes: OutputSizes) -> None:
        """From the width of the text states to that of the teacher's."""
        super().__init__()
        self.dense = nn.Linear(sizes.text, sizes.text)
        self.norm = nn.LayerNorm(sizes.text, eps=sizes.epsilon)
        self.project = nn.Linear(sizes.text, sizes.teacher)

    def forward(self, states: Tensor) -> Tensor:
        """Unit-length states (N, T, E) from states (N, T, D)."""
        projected = self.project(self.norm(F.gelu(self.dense(states))))
        return F.normalize(projected.float(), dim=-1)


def token_mask(batch: Batch, who: str) -> Tensor:
    """Mask (N, T) of the distilled tokens: all but padding and special tokens.

    Masked tokens are distilled: the teacher reads the same mask.
    """
    text = require(batch.text, "text", who)
    return text.attention_mask & ~text.special_tokens_mask


def unit_states(
    encoded: EncoderOutput, batch: Batch, head: StudentHead, who: str
) -> tuple[Tensor, Tensor]:
    """Unit-length states (N, T, E) of the student, after its head, and of the teacher."""
    student = head(require(encoded.text, "text", who))
    teacher = F.normalize(batch.features["teacher_states"].float(), dim=-1)
    return student, teacher
