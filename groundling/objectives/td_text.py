"""CLIP-TD's text term."""

from __future__ import annotations

from torch import Tensor

from groundling.core.batch import Batch, EncoderOutput, require
from groundling.objectives.targeted_distillation import TargetedDistillationTerm


class TargetedTextDistillation(TargetedDistillationTerm):
    """CLIP's text feature, at the end token, and the student's state at the first position (Eq. 4)."""

    name = "td_text"
    feature = "clip_text"
    required_fields = ("text", "features.clip_text")

    def distances(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Distance (N,) for each row's text."""
        states = require(encoded.text, "text", self.name)
        return self.distance(states[:, 0], batch.features[self.feature])
