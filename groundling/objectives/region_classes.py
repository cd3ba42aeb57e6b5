"""Region classification: predict the class of every region, masked or not."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, Regions, require, select
from groundling.core.errors import InputError
from groundling.models.task_heads import make_transform
from groundling.objectives import LossTargets, Objective


class UnmaskedRegionClassification(Objective):
    """Cross-entropy with the class of each region, over all regions of all choices (VL-BERT on VCR).

    Head: Linear, GELU, Linear, over COCO's 80 classes and one for regions of none of them, such as the
    whole image. Source: release (jackroos/VL-BERT, vcr/modules/resnet_vlbert_for_vcr.py), with loss weight
    1 and no dropout; Section 4.2.1 of the paper's first version has masked regions only.
    """

    name = "region_classes"
    required_fields = ("regions",)

    def __init__(self, sizes: OutputSizes, *, weight: float = 1.0, warmup: int = 0) -> None:
        """Raises InputError if the regions have no classes."""
        super().__init__(sizes, weight=weight, warmup=warmup)
        if not sizes.classes:
            raise InputError("the regions have no classes; pass auxiliary_losses=False")
        width = sizes.visual or sizes.text
        # Class 0 is "none of them": added here, unless the store's first class is background.
        self.first_class = int(not sizes.background)
        self.between = make_transform(width, width, nn.GELU(), norm=False)
        self.classify = nn.Linear(width, self.first_class + sizes.classes)
        nn.init.normal_(self.classify.weight, std=0.02)
        nn.init.zeros_(self.classify.bias)

    def pretrained_layers(self) -> list[tuple[nn.Module, str]]:
        """The layer that `MaskedRegionModeling` trained, with soft or with hard labels (release)."""
        return [(self.between[0], f"{kind}_regions.head.0") for kind in ("masked", "hard")]

    def labels(self, regions: Regions) -> Tensor:
        """The most likely class (N, R) of each region; 0 for a region without classes."""
        classes = require(regions.classes, "regions.classes", self.name)
        best = classes.argmax(-1) + self.first_class
        return best.where(classes.sum(-1) > 0, 0)

    def count(self, batch: Batch) -> dict[str, int]:
        """Regions of all rows."""
        return {self.name: int(self._scored(batch).sum())}

    def _scored(self, batch: Batch) -> Tensor:
        """Mask (N, R) bool of the regions, without padding."""
        return require(batch.regions, "regions", self.name).mask

    def loss_targets(self, batch: Batch) -> dict[str, LossTargets]:
        """Every region's class."""
        regions = require(batch.regions, "regions", self.name)
        return {self.name: LossTargets("class", self.labels(regions)[self._scored(batch)])}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The cross-entropy () summed over regions."""
        regions = require(batch.regions, "regions", self.name)
        places = batch.flat_indices(self._scored)
        states = select(require(encoded.visual, "visual", self.name), places)
        logits = self.classify(self.between(states)).float()
        labels = select(self.labels(regions), places)
        return {self.name: F.cross_entropy(logits, labels, reduction="sum")}
