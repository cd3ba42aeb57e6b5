"""CLIP-TD's image term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, require
from groundling.core.errors import InputError
from groundling.objectives.targeted_distillation import TargetedDistillationTerm


def image_states(encoded: EncoderOutput, batch: Batch, reader: str) -> Tensor:
    """State (N, D) of each row's first image: of its whole-image region or, without one, the mean of its regions.

    `reader`: name of the objective, for errors.
    """
    states = require(encoded.visual, "visual", reader)
    regions = require(batch.regions, "regions", reader)
    first = regions.mask & (regions.image_index == regions.image_index[:, :1])
    whole = first & regions.is_whole_image
    chosen = whole.where(whole.any(1, keepdim=True), first).unsqueeze(-1)
    return (states * chosen).sum(1) / chosen.sum(1).clamp(min=1)


class TargetedImageDistillation(TargetedDistillationTerm):
    """CLIP's image feature, and the student's state of the region that is the whole image (Eq. 3).

    Without such a region (the paper's UNITER and VILLA have none, and it does not say what replaces it),
    the mean state of the regions of the row's first image. Excluded are rows without regions, and rows
    whose image may be a negative by their label `sentence_image`.
    """

    name = "td_image"
    feature = "clip_image"
    required_fields: Sequence[str] = ("regions", "features.clip_image")
    monitored_terms: Sequence[str] = ("td_image_mean",)

    @property
    def _mean_term(self) -> str:
        """Name of the term that counts rows whose image state is the mean of the regions."""
        return f"{self.name}_mean"

    def widths(self, sizes: OutputSizes) -> tuple[int, int]:
        """Widths of a region's state and of CLIP's image feature; raises InputError for a model without regions."""
        if not sizes.regions:
            raise InputError(f"{self.name}: this model reads no regions; use td_text")
        return sizes.visual, sizes.teacher_image

    def distilled_rows(self, batch: Batch) -> Tensor:
        """Mask (N,) bool of the distilled rows that have regions of their own image."""
        rows = super().distilled_rows(batch) & require(
            batch.regions, "regions", self.name
        ).mask.any(1)
        if "sentence_image" in batch.labels:
            rows &= (batch.labels["sentence_image"] != 0).repeat_interleave(batch.choices)
        return rows

    def distances(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Distance (N,) for each row's first image."""
        states = image_states(encoded, batch, self.name)
        return self.distance(states, batch.features[self.feature])

    def count(self, batch: Batch) -> dict[str, int]:
        """Rows, and gates."""
        counts = super().count(batch)
        return {**counts, self._mean_term: counts[self.name]}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The summed distance (), by the term's name, and the number of rows that use the mean, as `NAME_mean`."""
        regions = require(batch.regions, "regions", self.name)
        has_whole = (regions.is_whole_image & regions.mask).any(1)
        without_whole = (self.distilled_rows(batch) & ~has_whole).float().sum()
        return {**super().forward(encoded, batch), self._mean_term: without_whole}

    def notes(self, means: Mapping[str, Sequence[float]]) -> list[str]:
        """Notes on the gate, and on images without a whole-image region."""
        lines = super().notes(means)
        most = max(means.get(self._mean_term, ()), default=0.0)
        if most > 0:
            lines.append(
                f"{self.name}: {most:.0%} of the rows had no whole-image region (the store has none, or this model "
                "does not read it); there the mean of all regions was used"
            )
        return lines
