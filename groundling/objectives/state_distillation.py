"""What the distillations of a text encoder's token states share (VidLanKD, Tang et al. 2021, Section 3.3)."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, require
from groundling.objectives import Objective
from groundling.settings.objectives import StateDistillationSettings


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


class StateDistillation(Objective):
    """Base of the objectives that compare a student's token states with those of another text encoder."""

    required_fields = ("text", "features.teacher_states")
    teacher_setting = "kd_teacher"
    Settings = StateDistillationSettings
    settings: StateDistillationSettings

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        """`options`: settings and those of `Objective`."""
        super().__init__(sizes, **options)
        self.weight *= self.settings.kd_weight
        self.head = StudentHead(sizes)

    def token_mask(self, batch: Batch) -> Tensor:
        """Mask (N, T) of the distilled tokens: all but padding and special tokens.

        Masked tokens are distilled: the teacher reads the same mask.
        """
        text = require(batch.text, "text", self.name)
        return text.attention_mask & ~text.special_tokens_mask

    def unit_states(self, encoded: EncoderOutput, batch: Batch) -> tuple[Tensor, Tensor]:
        """Unit-length states (N, T, E) of the student, after its head, and of the teacher."""
        student = self.head(require(encoded.text, "text", self.name))
        teacher = F.normalize(batch.features["teacher_states"].float(), dim=-1)
        return student, teacher
