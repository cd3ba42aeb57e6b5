"""Region modelling: predict classes or features of masked regions, or the class of every region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import (
    IGNORE,
    Batch,
    EncoderOutput,
    OutputSizes,
    RegionRow,
    Regions,
    Sample,
    require,
    select,
)
from groundling.core.errors import InputError
from groundling.models.heads import init_linears
from groundling.models.task_heads import make_transform
from groundling.objectives import LossTargets, NegativeSampler, Objective


class MaskedRegionModeling(Objective):
    """Predict masked regions from the text and the other regions.

    The kind "soft" is cross-entropy with the detector's class distribution, background included (VL-BERT's release; up
    to a constant UNITER's MRC-KL, whose release also averages over classes). The kind "hard" is cross-entropy with the
    most likely class that is not background (UNITER's MRC, model/pretrain.py; the hard label of VL-BERT's paper,
    Section 3.3). The kind "regress" is the squared error of the features, summed over dimensions (UNITER's MRFR). 15 %
    of the boxes are chosen, never the whole image; of these a share `keep_ratio` is scored without being masked
    (VL-BERT: 0.1; UNITER: 0). With `min_masked` = 1 every sample has at least one chosen box (UNITER).
    """

    name = "masked_regions"
    arm_name = ""
    required_fields: Sequence[str] = ("regions",)

    def __init__(
        self,
        sizes: OutputSizes,
        *,
        kind: Literal["soft", "hard", "regress"] = "soft",
        rate: float = 0.15,
        keep_ratio: float = 0.1,
        min_masked: int = 0,
        norm: bool = False,
        tied: bool = False,
        weight: float = 1.0,
    ) -> None:
        """`norm`: a LayerNorm in the head (UNITER); VL-BERT's head is Linear, GELU, Linear.

        `tied`: the last Linear is the transpose of the feature projection, with its own bias (UNITER, regress).
        """
        super().__init__(sizes, weight=weight)
        if kind != "soft":  # two kinds in one run have different names
            self.name = f"{kind}_regions"
        self.required_fields = ("regions", f"labels.{self.name}", f"labels.{self.name}_targets")
        self.kind = kind
        self.rate = rate
        self.keep_ratio = keep_ratio
        self.min_masked = min_masked
        self.first_class = int(sizes.background)  # the first class that is not background
        outputs = sizes.regions if kind == "regress" else sizes.classes
        width = sizes.visual or sizes.text
        layers: list[nn.Module] = [nn.Linear(width, width), nn.GELU()]
        if norm:
            layers.append(nn.LayerNorm(width, eps=1e-12))
        if not tied:
            layers.append(nn.Linear(width, max(1, outputs)))
        self.head = nn.Sequential(*layers)
        init_linears(self.head)
        self.bias = nn.Parameter(torch.zeros(outputs)) if tied else None

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, sample_negative: NegativeSampler
    ) -> Sample:
        """Mask the features of chosen regions; labels are 1 where a region is scored."""
        return sample.each_row(lambda row: self._mask_row(row, rng))

    def _mask_row(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """A row with masked regions, their labels (R,) and targets (R, ...)."""
        row = require(sample.regions, "regions", self.name)
        maskable = ~row.is_whole_image
        draw = rng.random(len(row))
        chosen = maskable & (draw < self.rate)
        if self.min_masked and not chosen.any() and maskable.any():
            chosen = draw == draw[maskable].min()
        masked = chosen & (rng.random(len(row)) >= self.keep_ratio)
        regions = replace(row, features=_mask_features(row, masked), masked=masked)
        sample = sample.with_label(self.name, np.where(chosen, 1, IGNORE))
        sample = sample.with_label(f"{self.name}_targets", self._targets(row, sample.id))
        return replace(sample, regions=regions)

    def _targets(self, row: RegionRow, sample: str) -> np.ndarray:
        """Features (R, D) or class distributions (R, C); raises InputError without class distributions."""
        if self.kind == "regress":
            return row.features.astype(np.float32)
        return require(row.classes, "classes", sample).astype(np.float32)

    def scored(self, batch: Batch) -> Tensor:
        """Mask (N, R) of the scored regions."""
        return batch.labels[self.name] == 1

    def compute_logits(self, encoded: EncoderOutput, batch: Batch) -> Tensor | None:
        """Logits (scored regions, classes), ordered by row and region; None for kind "regress"."""
        return None if self.kind == "regress" else self._predictions(encoded, batch)

    def _predictions(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Class logits (scored regions, C), or features (scored regions, D)."""
        states = require(encoded.visual, "visual", self.name)
        predictions: Tensor = self.head(self.select_scored(states, batch))
        if self.bias is None:
            return predictions
        table = require(encoded.region_embedding_weight, "region_embedding_weight", self.name)
        return F.linear(predictions, table.T, self.bias)

    def loss_targets(self, batch: Batch) -> dict[str, LossTargets]:
        """Classes, class distributions, or features of the scored regions."""
        values = batch.labels[f"{self.name}_targets"][self.scored(batch)]
        if self.kind == "regress":
            return {self.name: LossTargets("number", values)}
        if self.kind == "hard":
            return {self.name: LossTargets("class", self._top_class(values))}
        return {self.name: LossTargets("share", values)}

    def _top_class(self, shares: Tensor) -> Tensor:
        """The most likely class (n,) except background."""
        return shares[:, self.first_class :].argmax(-1) + self.first_class

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The summed loss () over scored regions, by the objective's name."""
        if self.kind == "regress":
            predictions = self._predictions(encoded, batch).float()
        else:
            predictions = self.cached_logits(encoded, batch).float()
        stored = batch.labels[f"{self.name}_targets"]
        targets = self.select_scored(stored, batch).to(predictions.dtype)
        if self.kind == "regress":
            return {self.name: F.mse_loss(predictions, targets, reduction="sum")}
        if self.kind == "hard":
            top = self._top_class(targets)
            return {self.name: F.cross_entropy(predictions, top, reduction="sum")}
        return {self.name: -(targets * predictions.log_softmax(-1)).sum()}


def _mask_features(row: RegionRow, masked: np.ndarray) -> np.ndarray:
    """Features (R, D), zero where `masked` (R,).

    The whole image's feature is the mean of its regions and would leak the masked ones: it becomes the
    mean of the visible ones (VL-BERT's release, pre-computed features).
    """
    features = np.where(masked[:, None], 0, row.features)
    for place in np.flatnonzero(row.is_whole_image):
        visible = ~row.is_whole_image & ~masked & (row.image_index == row.image_index[place])
        features[place] = features[visible].mean(0) if visible.any() else 0
    return features


class UnmaskedRegionClassification(Objective):
    """Cross-entropy with the class of each region, over all regions of all choices (VL-BERT on VCR).

    Head: Linear, GELU, Linear, over COCO's 80 classes and one for regions of none of them, such as the
    whole image. Source: release (jackroos/VL-BERT, vcr/modules/resnet_vlbert_for_vcr.py), with loss weight
    1 and no dropout; Section 4.2.1 of the paper's first version has masked regions only.
    """

    name = "region_classes"
    required_fields = ("regions",)

    def __init__(self, sizes: OutputSizes, *, weight: float = 1.0) -> None:
        """Raises InputError if the regions have no classes."""
        super().__init__(sizes, weight=weight)
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

    def scored(self, batch: Batch) -> Tensor:
        """Mask (N, R) bool of the regions, without padding."""
        return require(batch.regions, "regions", self.name).mask

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The cross-entropy () summed over regions."""
        regions = require(batch.regions, "regions", self.name)
        places = batch.flat_indices(self.scored)
        states = select(require(encoded.visual, "visual", self.name), places)
        logits = self.classify(self.between(states)).float()
        labels = select(self.labels(regions), places)
        return {self.name: F.cross_entropy(logits, labels, reduction="sum")}
