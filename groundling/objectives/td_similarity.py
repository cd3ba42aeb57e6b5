"""Distillation of a CLIP's similarities of image and choices: ours, beside CLIP-TD's terms."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, require
from groundling.core.errors import InputError
from groundling.core.output_types import MultipleChoice, OutputType
from groundling.objectives import Objective, ObjectiveContext
from groundling.objectives.td_image import image_states
from groundling.settings.objectives import SimilarityDistillationSettings

INITIAL_SCALE, LARGEST_SCALE = 1 / 0.07, 100.0
"""Scale of the cosine, learned as a logarithm, as in CLIP (Radford et al. 2021, Section 2.5)."""


class SimilarityDistillation(Objective):
    """Divergence of a student's distribution over a question's choices from a frozen CLIP's.

    The student's distribution is the softmax of scaled cosines between the projected state of the image and
    that of each choice's text (the first position); CLIP's is the softmax of its scaled similarities, as
    in CLIP-TD's gate. KL(CLIP, student) is averaged over questions. Projections are trained and not exported.
    Unlike CLIP-TD's terms, it compares image and text with each other, and each choice has its own target.
    """

    name = "td_similarity"
    required_fields = ("text", "regions", "features.clip_similarity")
    Settings = SimilarityDistillationSettings
    settings: SimilarityDistillationSettings

    def __init__(
        self, sizes: OutputSizes, *, output_type: OutputType | None = None, **options: Any
    ) -> None:
        """Raises InputError for a task without choices, and for a model without regions."""
        super().__init__(sizes, **options)
        self.weight *= self.settings.td_similarity_weight
        if not isinstance(output_type, MultipleChoice):
            raise InputError("td_similarity: only for a task of multiple choice")
        if not sizes.regions:
            raise InputError("td_similarity: this model reads no regions; use td_text")
        self.image = nn.Linear(sizes.visual, sizes.teacher)
        self.text = nn.Linear(sizes.text, sizes.teacher)
        self.log_scale = nn.Parameter(torch.tensor(math.log(INITIAL_SCALE)))

    @classmethod
    def from_context(cls, context: ObjectiveContext) -> Self:
        """With a run's settings, for the task's output type."""
        values = context.values(cls.Settings)
        return cls(context.sizes, output_type=context.output_type, **values)

    def saved_modules(self) -> dict[str, nn.Module]:
        """Nothing: the projections are not saved."""
        return {}

    def _has_image(self, batch: Batch) -> Tensor:
        """Mask (B,) bool of the questions whose choices all have regions."""
        regions = require(batch.regions, "regions", self.name)
        return regions.mask.any(1).view(len(batch), -1).all(1)

    def count(self, batch: Batch) -> dict[str, int]:
        """Questions with an image."""
        return {self.name: int(self._has_image(batch).sum())}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The summed divergence (), in nats, as `td_similarity`."""
        states = require(encoded.text, "text", self.name)
        image = self.image(image_states(encoded, batch, self.name)).float()
        cosines = F.cosine_similarity(image, self.text(states[:, 0]).float(), dim=-1)
        scale = self.log_scale.exp().clamp(max=LARGEST_SCALE)
        student = (scale * cosines).view(len(batch), -1).log_softmax(-1)
        teacher = batch.features["clip_similarity"].detach().float().view(len(batch), -1)
        divergences = F.kl_div(
            student, teacher.log_softmax(-1), reduction="none", log_target=True
        ).sum(-1)
        return {self.name: (divergences * self._has_image(batch)).sum()}
