"""Does the text belong to the image?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.batch import Batch, Encoded, Sample, Sizes
from groundling.models.heads import Pooler
from groundling.objectives import Objective


class SentenceImage(Objective):
    """Two-way classification of the first position; label 1 = they belong together.

    With `swap` the regions of a sample are exchanged for another sample's in half of the cases: UNITER's image-text
    matching, and VL-BERT's sentence-image relationship (Task 1 of its first version; its released code trains
    without it). Without, the label comes with the data: VisualBERT, whose second caption is another one of the image
    or of a random one. `alignment` > 0 adds UNITER's word-region alignment by optimal transport, whose distance is
    drawn down for matching pairs and up for others, as in its code.
    """

    name = "sentence_image"
    needs = ("regions", "labels.sentence_image")
    swaps = True

    def __init__(
        self,
        sizes: Sizes,
        *,
        swap: bool = True,
        negatives: float = 0.5,
        alignment: float = 0.0,
        weight: float = 1.0,
        warmup: int = 0,
    ) -> None:
        """`negatives`: share of exchanged samples; `alignment`: weight of the transport term (UNITER: 0.1)."""
        super().__init__(sizes, weight=weight, warmup=warmup)
        self.swap, self.negatives, self.alignment = swap, negatives, alignment
        self.pooler = None if sizes.pooled else Pooler(sizes.text)
        self.classify = nn.Linear(sizes.text, 2)

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, other: Callable[[], Sample]
    ) -> Sample:
        """Exchange the regions of some samples."""
        if not self.swap:
            return sample
        if rng.random() < self.negatives:
            stranger = other()
            if stranger.id != sample.id and stranger.regions is not None:
                return replace(sample, regions=stranger.regions).with_label(self.name, np.array(0))
        return sample.with_label(self.name, np.array(1))

    def count(self, batch: Batch) -> dict[str, int]:
        """Samples."""
        counts = {self.name: len(batch)}
        return counts | {"word_region": len(batch)} if self.alignment else counts

    def forward(self, encoded: Encoded, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy as `sentence_image`, and the signed transport distance as `word_region`."""
        assert encoded.text is not None
        pooled = encoded.pooled if self.pooler is None else self.pooler(encoded.text)
        assert pooled is not None
        labels = batch.labels[self.name]
        terms = {self.name: F.cross_entropy(self.classify(pooled).float(), labels, reduction="sum")}
        if self.alignment:
            assert (
                encoded.visual is not None and batch.text is not None and batch.regions is not None
            )
            distance = transport_distance(
                encoded.text, encoded.visual, batch.text.mask, batch.regions.mask
            )
            terms["word_region"] = self.alignment * (distance * (2 * labels - 1)).sum()
        return terms


def transport_distance(
    words: Tensor,
    regions: Tensor,
    words_mask: Tensor,
    regions_mask: Tensor,
    beta: float = 0.5,
    rounds: int = 50,
) -> Tensor:
    """Optimal-transport distance (B,) between words (B, T, D) and regions (B, R, D) under cosine cost.

    The plan comes from the inexact proximal point method (Xie et al. 2019; UNITER: beta 0.5, 50 rounds, one inner step)
    between uniform distributions, in fp32 and without gradient; the cost carries the gradient.
    """
    cost = 1 - F.normalize(words.float(), dim=-1) @ F.normalize(regions.float(), dim=-1).transpose(
        1, 2
    )
    inside = words_mask[:, :, None] & regions_mask[:, None, :]
    cost = cost.masked_fill(~inside, 0)
    with torch.no_grad():
        a = words_mask / words_mask.sum(1, keepdim=True)  # (B, T)
        b = regions_mask / regions_mask.sum(1, keepdim=True).clamp(min=1)  # (B, R)
        kernel = torch.exp(-cost / beta) * inside
        plan = inside.float()
        sigma = b
        for _ in range(rounds):
            q = kernel * plan
            delta = a / (q @ sigma[..., None]).squeeze(-1).clamp(min=1e-12)
            sigma = b / (q.transpose(1, 2) @ delta[..., None]).squeeze(-1).clamp(min=1e-12)
            plan = delta[..., None] * q * sigma[:, None]
    return (plan * cost).sum((1, 2))
