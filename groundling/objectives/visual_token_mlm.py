"""CLIP-BERT's objective: masked LM on captions through a visual token (Norlund et al. 2021)."""

from __future__ import annotations

from groundling.core.batch import OutputSizes
from groundling.models.text_encoder import TextEncoder
from groundling.models.visual_token import FEATURE, VisualTokenEncoder
from groundling.objectives.masked_lm import MaskedLM


class VisualTokenMaskedLM(MaskedLM):
    """Masked LM whose encoder reads a caption's image, if a file has images; else the slot is empty.

    The loss is the mean cross-entropy of the masked caption tokens (2109.11321; the authors' code,
    models/src/clip_bert/modeling_bert.py, scores text positions alone). Masks are those of the control
    `mlm`, so that only the visual token differs. As there, and unlike in the authors' code, every text
    has at least one masked token.
    """

    arm_name = "visual_token_mlm"
    wraps_encoder = True
    optional_fields = (f"features.{FEATURE}",)

    @staticmethod
    def wrap_encoder(text: TextEncoder, sizes: OutputSizes) -> VisualTokenEncoder:
        """The text encoder with a slot for the teacher's image vectors."""
        return VisualTokenEncoder(text, sizes.teacher_image)
