"""MCSE: the sentence vectors of captions are contrasted with images, beside SimCSE."""

from __future__ import annotations

from math import log
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import Batch, EncoderOutput, OutputSizes
from groundling.core.errors import InputError
from groundling.objectives import Objective
from groundling.objectives.clip_contrastive import gather_across_processes, info_nce
from groundling.objectives.sentence_pooling import pool_sentences, sentence_width
from groundling.objectives.simcse import SimCSE, pool_again
from groundling.settings.objectives import (
    MCSESettings,
)

WIDTH = 256
"""Width of the space that sentences and images share."""


class MCSE(Objective):
    """InfoNCE from sentences to the images of their captions, in both passes (MCSE: Zhang et al. 2022, 2204.10931).

    With the pooled states x and x' of two passes and the image feature f: p = tanh(W x + b),
    p' = tanh(W x' + b) and v = tanh(V f + c), 256 wide. The loss is the mean of
    -log e^{cos(p_i, v_i) / t} / sum_j e^{cos(p_i, v_j) / t} and the same of p', from text to image only.
    Both passes are those of `simcse` if it is trained too, as in the paper; the weight 0.01 is relative to it.

    Follows uds-lsv/MCSE (src/model.py), which reads one caption per image; with several in a batch, the same
    image is also a negative. The paper's image features are those of a frozen ResNet, 2048 wide.
    """

    name = "mcse"
    required_fields = ("text", "features.clip_image")
    reads_layers = True
    in_batch_negatives = True
    Settings = MCSESettings
    settings: MCSESettings

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        """Raises InputError for a teacher that reads no images."""
        super().__init__(sizes, **options)
        self.weight *= self.settings.mcse_weight
        if not sizes.teacher_image:
            raise InputError(f"{self.name}: the teacher reads no images")
        self.project_text = nn.Linear(sentence_width(sizes, self.settings.pooling), WIDTH)
        self.project_image = nn.Linear(sizes.teacher_image, WIDTH)

    def count(self, batch: Batch) -> dict[str, int]:
        """Captions."""
        return {self.name: batch.rows}

    def guessing_losses(self, rows: int) -> dict[str, float]:
        """Each caption's image among all of the batch."""
        return {self.name: log(rows)}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The mean of both passes' InfoNCE loss, summed over captions, (), as `mcse`."""
        one = pool_sentences(encoded, batch, self.sizes, self.settings.pooling, self.name)
        two = encoded.heads.get(SimCSE.name)
        if two is None:
            two = pool_again(encoded, batch, self.settings.pooling, self.name)
        features = batch.features["clip_image"].to(one.dtype)
        images, start = gather_across_processes(_embed(self.project_image, features))
        same = torch.zeros(len(one), len(images), dtype=torch.bool, device=one.device)
        scale = 1 / self.settings.mcse_temperature
        losses = [
            info_nce(_embed(self.project_text, each), images, same, start, scale)
            for each in (one, two)
        ]
        return {self.name: (losses[0] + losses[1]) / 2}


def _embed(layer: nn.Linear, features: Tensor) -> Tensor:
    """Vectors (N, 256) of unit length from features (N, D)."""
    return F.normalize(torch.tanh(layer(features)), dim=-1)
