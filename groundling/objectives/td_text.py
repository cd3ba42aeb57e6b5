"""CLIP-TD's text term."""

from __future__ import annotations

from torch import Tensor

from groundling.core.batch import Batch, EncoderOutput, needed
from groundling.objectives import ObjectiveSpec
from groundling.objectives.targeted import TargetedTerm, of_settings
from groundling.settings.objectives import Distilling, Targeted


class TargetedText(TargetedTerm):
    """CLIP's feature of a text, at its end token, and the student's first position (Eq. 4)."""

    name = "td_text"
    feature = "clip_text"
    needs = ("text", "features.clip_text")

    def distances(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(N,), of each row's text."""
        states = needed(encoded.text, "text", self.name)
        return self.distance(states[:, 0], batch.features[self.feature])


TD_TEXT = ObjectiveSpec(
    "td_text", of_settings(TargetedText), taught=True, reads=(Distilling, Targeted)
)
