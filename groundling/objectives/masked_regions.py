"""Masked region modelling: what is in a box whose features are hidden?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.batch import IGNORE, Batch, Encoded, Sample, Sizes
from groundling.errors import InputError
from groundling.objectives import Objective


class MaskedRegions(Objective):
    """Recover hidden regions from the text and the other regions.

    Kinds: "soft" is cross-entropy against the detector's distribution over classes, background included (VL-BERT's
    code; its paper implies the hard label; up to a constant UNITER's MRC-KL, whose code averages over classes, too);
    "hard" is cross-entropy with the most likely class, background excluded where there is one (UNITER's MRC);
    "regress" is the squared error of the features themselves (UNITER's MRFR, summed over dimensions). 15 % of the boxes
    are chosen, never the whole image; of these a share `keep` stays visible but is scored all the same (VL-BERT: 0.1;
    UNITER: 0). With `least` = 1 every sample has a chosen box (UNITER).
    """

    name = "masked_regions"
    needs = ("regions",)

    def __init__(
        self,
        sizes: Sizes,
        *,
        kind: Literal["soft", "hard", "regress"] = "soft",
        rate: float = 0.15,
        keep: float = 0.1,
        least: int = 0,
        norm: bool = False,
        tied: bool = False,
        weight: float = 1.0,
        warmup: int = 0,
    ) -> None:
        """`norm`: a LayerNorm in the head (UNITER); VL-BERT's head is Linear, GELU, Linear.

        `tied`: the last Linear is the transpose of the one that embeds features, with its own bias (UNITER, regress).
        """
        super().__init__(sizes, weight=weight, warmup=warmup)
        if kind != "soft":  # two kinds in one run have two heads
            self.name = f"{kind}_regions"  # type: ignore[misc]
        self.needs = ("regions", f"labels.{self.name}", f"labels.{self.name}_targets")  # type: ignore[misc,assignment]
        if not 0 < rate < 1 or not 0 <= keep < 1:
            raise InputError(f"rate={rate}, keep={keep}: shares of regions lie between 0 and 1")
        self.kind, self.rate, self.keep, self.least = kind, rate, keep, least
        self.first = int(sizes.background)  # class that "hard" begins with
        outputs = sizes.regions if kind == "regress" else sizes.classes
        width = sizes.visual or sizes.text
        self.head = nn.Sequential(
            nn.Linear(width, width),
            nn.GELU(),
            *((nn.LayerNorm(width, eps=1e-12),) if norm else ()),
            *(() if tied else (nn.Linear(width, max(1, outputs)),)),
        )
        self.bias = nn.Parameter(torch.zeros(outputs)) if tied else None

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, other: Callable[[], Sample]
    ) -> Sample:
        """Hide the features of chosen regions; labels are 1 where a region is scored."""
        row = sample.regions
        assert row is not None, "masked regions need a sample with regions"
        draw = rng.random(len(row.boxes))
        chosen = ~row.whole & (draw < self.rate)
        if self.least and not chosen.any() and (~row.whole).any():
            chosen = draw == draw[~row.whole].min()
        hidden = chosen & (rng.random(len(draw)) >= self.keep)
        features = np.where(hidden[:, None], 0, row.features)
        for place in np.flatnonzero(
            row.whole
        ):  # a mean of regions, which would give the hidden ones away (VL-BERT's code)
            visible = ~row.whole & ~hidden & (row.image == row.image[place])
            features[place] = features[visible].mean(0) if visible.any() else 0
        sample = sample.with_label(self.name, np.where(chosen, 1, IGNORE))
        sample = sample.with_label(f"{self.name}_targets", self._targets(sample))
        return replace(sample, regions=replace(row, features=features, masked=hidden))

    def _targets(self, sample: Sample) -> np.ndarray:
        row = sample.regions
        assert row is not None
        if self.kind == "regress":
            return row.features.astype(np.float32)
        if row.classes is None:
            raise InputError(
                f"{sample.id}: its regions have no class distribution; use kind regress"
            )
        return row.classes.astype(np.float32)

    def count(self, batch: Batch) -> dict[str, int]:
        """Scored regions."""
        return {self.name: int((batch.labels[self.name] == 1).sum())}

    def forward(self, encoded: Encoded, batch: Batch) -> dict[str, Tensor]:
        """The summed loss over scored regions, as `masked_regions`."""
        encoded.require(self.name, "visual")
        assert encoded.visual is not None
        chosen = batch.labels[self.name] == 1
        found = self.head(encoded.visual[chosen])
        if self.bias is not None:
            encoded.require(self.name, "region_table")
            assert encoded.region_table is not None
            found = F.linear(found, encoded.region_table.T, self.bias)
        found = found.float()
        targets = batch.labels[f"{self.name}_targets"][chosen].to(found.dtype)
        if self.kind == "regress":
            return {self.name: F.mse_loss(found, targets, reduction="sum")}
        if self.kind == "hard":
            best = targets[:, self.first :].argmax(-1)
            return {self.name: F.cross_entropy(found[:, self.first :], best, reduction="sum")}
        return {self.name: -(targets * found.log_softmax(-1)).sum()}
