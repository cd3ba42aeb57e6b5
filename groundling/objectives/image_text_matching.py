"""Image-text matching: does the text belong to the image?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, Sample, require
from groundling.models.heads import Pooler
from groundling.models.task_heads import make_output_layer
from groundling.objectives import LossTargets, NegativeSampler, Objective

ATTEMPTS = 20
"""Draws for a negative; without another image after these the sample stays a positive."""


class ImageTextMatching(Objective):
    """Binary classification of the first position; label 1 = image and text belong together.

    With `swap_images`, a sample's image (regions and pixels) is replaced by another one in half of the cases:
    UNITER's image-text matching, and VL-BERT's sentence-image relationship (Task 1 of its first version;
    its release trains without it). A negative is never another text of the same image. Without it, the
    label comes with the data: VisualBERT, whose second caption is of the same image or of a random one.
    `alignment` > 0 adds UNITER's word-region alignment by optimal transport: it minimises the distance of
    matching pairs and maximises that of others (ChenRocks/UNITER, model/pretrain.py).
    """

    name = "sentence_image"
    arm_name = ""
    required_fields: tuple[str, ...] = ("regions", "labels.sentence_image")
    swaps_inputs = True

    def __init__(
        self,
        sizes: OutputSizes,
        *,
        swap_images: bool = True,
        negatives: float = 0.5,
        alignment: float = 0.0,
        weight: float = 1.0,
    ) -> None:
        """`negatives`: share of swapped samples; `alignment`: weight of word-region alignment (UNITER: 0.1)."""
        super().__init__(sizes, weight=weight)
        self.swap_images = swap_images
        if not swap_images:  # captions can be compared without regions
            self.required_fields = (f"labels.{self.name}",)
        self.negatives = negatives
        self.alignment = alignment
        self.pooler = None if sizes.pooler_output else Pooler(sizes.text)
        self.classify = make_output_layer(sizes.text, 2)

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, sample_negative: NegativeSampler
    ) -> Sample:
        """Swap the image of some samples."""
        if not self.swap_images:
            return sample
        if rng.random() < self.negatives:
            for _ in range(ATTEMPTS):
                negative = sample_negative()
                if _shows_other_image(sample, negative):
                    swapped = replace(sample, regions=negative.regions, pixels=negative.pixels)
                    return swapped.with_label(self.name, np.array(0))
        return sample.with_label(self.name, np.array(1))

    def count(self, batch: Batch) -> dict[str, int]:
        """Samples."""
        counts = {self.name: len(batch)}
        if self.alignment:
            counts["word_region"] = len(batch)
        return counts

    def loss_targets(self, batch: Batch) -> dict[str, LossTargets]:
        """The labels: 1 for matching pairs."""
        return {self.name: LossTargets("class", batch.labels[self.name])}

    def compute_logits(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Logits (N, 2): no match, match."""
        if self.pooler is None:
            pooled = require(encoded.pooler_output, "pooler_output", self.name)
        else:
            pooled = self.pooler(require(encoded.text, "text", self.name))
        logits: Tensor = self.classify(pooled)
        return logits

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy () as `sentence_image`, and the signed transport distance () as `word_region`."""
        labels = batch.labels[self.name]
        logits = self.cached_logits(encoded, batch).float()
        terms = {self.name: F.cross_entropy(logits, labels, reduction="sum")}
        if self.alignment:
            text = require(encoded.text, "text", self.name)
            visual = require(encoded.visual, "visual", self.name)
            text_mask = require(batch.text, "text", self.name).attention_mask
            region_mask = require(batch.regions, "regions", self.name).mask
            distance = transport_distance(text, visual, text_mask, region_mask)
            sign = 2 * labels - 1
            terms["word_region"] = self.alignment * (distance * sign).sum()
        return terms


def _shows_other_image(sample: Sample, negative: Sample) -> bool:
    if negative.id == sample.id or negative.regions is None:
        return False
    if sample.example is None or negative.example is None:
        return True
    return sample.example.images != negative.example.images


def transport_distance(
    words: Tensor,
    regions: Tensor,
    words_mask: Tensor,
    regions_mask: Tensor,
    beta: float = 0.5,
    rounds: int = 50,
) -> Tensor:
    """Optimal-transport distance (N,) between words (N, T, D) and regions (N, R, D) under cosine cost.

    The plan is computed with the inexact proximal point method (Xie et al. 2019; UNITER: beta 0.5, 50 rounds, one inner
    iteration) between uniform distributions, without gradient, in UNITER's order (model/ot.py); the gradient flows
    through the cost. In fp32, under autocast too: half precision has errors of 1e-3.
    """
    with torch.autocast(words.device.type, enabled=False):
        words = F.normalize(words.float(), dim=-1)
        regions = F.normalize(regions.float(), dim=-1)
        inside = words_mask[:, :, None] & regions_mask[:, None, :]
        cost = (1 - words @ regions.transpose(1, 2)).masked_fill(~inside, 0)
        with torch.no_grad():
            plan = _transport_plan(cost, inside, words_mask, regions_mask, beta, rounds)
        return (plan * cost).sum((1, 2))


def _transport_plan(
    cost: Tensor, inside: Tensor, words_mask: Tensor, regions_mask: Tensor, beta: float, rounds: int
) -> Tensor:
    """Transport plan (N, T, R): mass from each word to each region."""
    words_share = words_mask / words_mask.sum(1, keepdim=True)  # (N, T)
    regions_share = regions_mask / regions_mask.sum(1, keepdim=True).clamp(min=1)  # (N, R)
    kernel = torch.exp(-cost / beta) * inside
    plan = inside.float()
    words_scale = words_share
    for _ in range(rounds):
        product = kernel * plan
        reached = (product.transpose(1, 2) @ words_scale[..., None]).squeeze(-1)
        regions_scale = regions_share / reached.clamp(min=1e-12)
        reached = (product @ regions_scale[..., None]).squeeze(-1)
        words_scale = words_share / reached.clamp(min=1e-12)
        plan = words_scale[..., None] * product * regions_scale[:, None]
    return plan
