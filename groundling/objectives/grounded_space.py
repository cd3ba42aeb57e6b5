"""Sentences in a grounded space: captions of an image are close, and similarities follow those of the images."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import Batch, EncoderOutput, OutputSizes
from groundling.data.captions import IS_PAIR
from groundling.objectives import Objective
from groundling.objectives.caption_to_image import cosine_table, number_images
from groundling.objectives.contrastive import (
    gather_across_processes,
    pool_sentences,
    sentence_width,
)
from groundling.settings.objectives import GroundedSpaceSettings


class GroundedSpace(Objective):
    """Cluster and perceptual losses on g = MLP(sentence vector) (Bordes et al. 2019, arXiv 2002.02734).

    The cluster loss of a caption is the mean over its negatives of max(0, margin - cos(g, g+) + cos(g, g-)): g+
    is another caption of the same image, drawn anew in every epoch, and the negatives are all captions of other
    images in the micro-batch of all processes, so the loss is the expected one of the paper's randomly drawn
    negative (one random negative: from memory, not checked). A caption without another one is not counted, though
    it is a negative. The perceptual loss is minus the Pearson correlation, over all pairs i < j of the
    micro-batch's captions (of all processes), of cos(g_i, g_j) with cos(v_i, v_j), v the frozen image vectors. It
    is repeated for every caption in the sum, and 0 for fewer than three captions, which have no correlation.

    From memory, not checked: the margin, and that the MLP is small; here it has one hidden layer with ReLU, and
    both terms share it. The paper trains SkipThought's loss on other text beside these; here it is masked LM, and
    the sentence vector is that of the masked text. Special tokens and padding follow the pooling. Both captions
    of a pair are rows of the batch, and masked LM trains on both; only the first one is in the perceptual
    loss, which is therefore the same with and without the cluster loss. No code was released.
    """

    name = "grounded_space"
    required_fields: Sequence[str] = ("text", "features.clip_image", f"labels.{IS_PAIR}")
    in_batch_negatives = True
    parts: ClassVar[Collection[str]] = ("cluster", "perceptual")
    """Its terms."""
    Settings = GroundedSpaceSettings
    settings: GroundedSpaceSettings

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        super().__init__(sizes, **options)
        self.part_weights = {
            "visual_cluster": self.settings.cluster_weight,
            "visual_perceptual": self.settings.perceptual_weight,
        }
        width = self.settings.grounded_size
        self.project = nn.Sequential(
            nn.Linear(sentence_width(sizes, self.settings.pooling), width),
            nn.ReLU(),
            nn.Linear(width, width),
        )

    def weight_of(self, term: str) -> float:
        """Weight of a term: its own weight times that of the objective."""
        return self.part_weights[term] * self.weight

    def count(self, batch: Batch) -> dict[str, int]:
        """Captions with another caption of their image, and all captions, each pair counted once."""
        counts = {"visual_perceptual": len(batch)} if "perceptual" in self.parts else {}
        if "cluster" in self.parts:
            counts["visual_cluster"] = int(batch.labels[IS_PAIR].sum())
        return counts

    def guessing_losses(self, rows: int) -> dict[str, float]:
        """No correlation."""
        return {"visual_perceptual": 0.0} if "perceptual" in self.parts else {}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The summed losses () `visual_cluster` and `visual_perceptual`."""
        sentences = pool_sentences(encoded, batch, self.sizes, self.settings.pooling, self.name)
        grounded = self.project(sentences)
        images = batch.features["clip_image"]
        terms = {}
        if "cluster" in self.parts:
            terms["visual_cluster"] = self._cluster(grounded, images, batch.labels[IS_PAIR] == 1)
        if "perceptual" in self.parts:
            first = slice(None, None, batch.choices)
            terms["visual_perceptual"] = -len(batch) * correlate_similarities(
                gather_across_processes(grounded[first])[0],
                gather_across_processes(images[first])[0],
            )
        return terms

    def _cluster(self, grounded: Tensor, images: Tensor, is_pair: Tensor) -> Tensor:
        """Summed hinge () of vectors (2B, G) of pairs with images (2B, E); `is_pair` (B,) as `IS_PAIR`."""
        anchors, positives = grounded[0::2], grounded[1::2]
        numbers = number_images(images)
        counted = torch.stack([torch.ones_like(is_pair), is_pair], 1).flatten()
        others, _ = gather_across_processes(grounded)
        other_numbers, _ = gather_across_processes(numbers)
        other_counted, _ = gather_across_processes(counted.long())
        negative = (numbers[0::2, None] != other_numbers) & (other_counted == 1)
        right = F.cosine_similarity(anchors.float(), positives.float(), dim=-1).unsqueeze(-1)
        hinges = (self.settings.cluster_margin - right + cosine_table(anchors, others)).clamp(min=0)
        means = (hinges * negative).sum(1) / negative.sum(1).clamp(min=1)
        return (means * is_pair).sum()


class VisualCluster(GroundedSpace):
    """The cluster loss alone."""

    arm_name = "visual_cluster"
    parts = ("cluster",)


class VisualPerceptual(GroundedSpace):
    """The perceptual loss alone."""

    arm_name = "visual_perceptual"
    required_fields = ("text", "features.clip_image")
    parts = ("perceptual",)


def correlate_similarities(one: Tensor, other: Tensor) -> Tensor:
    """Pearson correlation () of the pairwise cosines of vectors (n, G) with those of vectors (n, E).

    0 where it is undefined: for fewer than three vectors, or if all cosines of one side are equal.
    """
    row, column = torch.triu_indices(len(one), len(one), offset=1, device=one.device)
    if len(row) < 2:
        return 0 * one.sum()
    centred = []
    for vectors in (one, other):
        cosines = cosine_table(vectors, vectors)[row, column]
        centred.append(F.normalize(cosines - cosines.mean(), dim=0, eps=1e-5))
    return (centred[0] * centred[1]).sum()
