"""CLIP-TD's image and text terms with one projection for both: ours, not the paper's."""

from __future__ import annotations

from torch import Tensor

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, require
from groundling.core.errors import InputError
from groundling.objectives.td_image import TargetedImageDistillation


class SharedProjectionDistillation(TargetedImageDistillation):
    """The sum of CLIP-TD's distances of image and text (Eq. 3 and 4), where one Linear projects both states.

    With a Linear of its own on each side, as published, states of image and text can fit CLIP's features
    without being comparable with each other. With a shared one, their cosine is CLIP's.
    """

    name = "td_image_text"
    required_fields = ("text", "regions", "features.clip_image", "features.clip_text")
    monitored_terms = ("td_image_text_mean",)

    def widths(self, sizes: OutputSizes) -> tuple[int, int]:
        """Widths of a state and of a feature; raises InputError if image and text differ in one of them."""
        super().widths(sizes)
        if sizes.visual != sizes.text or sizes.teacher_image != sizes.teacher:
            raise InputError(
                f"{self.name}: image and text have two widths; use td_image and td_text"
            )
        return sizes.text, sizes.teacher

    def distances(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Distance (N,) for each row's first image and its text, summed."""
        states = require(encoded.text, "text", self.name)
        text = self.distance(states[:, 0], batch.features["clip_text"])
        return super().distances(encoded, batch) + text
