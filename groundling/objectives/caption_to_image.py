"""Cap2Img: a projection of the sentence vector predicts the frozen vector of the caption's image."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import Batch, EncoderOutput, OutputSizes
from groundling.objectives import Objective
from groundling.objectives.contrastive import (
    gather_across_processes,
    hash_rows,
    pool_sentences,
    sentence_width,
)
from groundling.settings.objectives import Cap2ImgSettings


class Cap2Img(Objective):
    """Predict the image of a caption, with a hinge on cosines both ways (Cap2Img: Kiela et al. 2018, 1707.06320).

    For a caption's projected sentence vector x and its frozen image vector v, the loss is the sum over the other
    captions x' with images v' in the micro-batch of all processes of max(0, alpha - cos(x, v) + cos(x', v)) + max(0,
    alpha - cos(x, v) + cos(x, v')). Captions of the same image, which have equal image vectors, are no negatives.

    The formula and alpha = 0.2 are from memory, not checked; here the projection is one Linear, and the
    paper's may be deeper. The paper's encoder is a BiLSTM with max pooling, its vectors are of a ResNet, and it
    concatenates a text-only vector at inference; here the student is any text encoder, pooled as `pooling` says, and
    the projection is not part of the exported encoder. Beside masked LM, the sentence vector is that of the masked
    text. Special tokens and padding follow the pooling.
    """

    name = "caption_to_image"
    required_fields = ("text", "features.clip_image")
    in_batch_negatives = True
    Settings = Cap2ImgSettings
    settings: Cap2ImgSettings

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        super().__init__(sizes, **options)
        self.weight *= self.settings.caption_to_image_weight
        self.margin = self.settings.caption_to_image_margin
        self.project = nn.Linear(sentence_width(sizes, self.settings.pooling), sizes.teacher_image)

    def count(self, batch: Batch) -> dict[str, int]:
        """Captions."""
        return {"caption_to_image": batch.rows}

    def guessing_losses(self, rows: int) -> dict[str, float]:
        """Equal cosines everywhere leave the margin, in both directions, for every other row of the batch."""
        return {"caption_to_image": 2 * self.margin * (rows - 1)}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The hinges () summed over captions, their negatives and both directions, as `caption_to_image`."""
        sentences = pool_sentences(encoded, batch, self.sizes, self.settings.pooling, self.name)
        captions, _ = gather_across_processes(own := self.project(sentences))
        features = batch.features["clip_image"]
        images, _ = gather_across_processes(features)
        numbers = number_images(features)
        other = numbers[:, None] != gather_across_processes(numbers)[0]
        right = F.cosine_similarity(own.float(), features.float(), dim=-1).unsqueeze(-1)
        to_caption = (self.margin - right + cosine_table(features, captions)).clamp(min=0)
        to_image = (self.margin - right + cosine_table(own, images)).clamp(min=0)
        return {"caption_to_image": ((to_caption + to_image) * other).sum()}


def cosine_table(one: Tensor, other: Tensor) -> Tensor:
    """Cosines (n, m) of vectors (n, E) and (m, E), in float32 also under mixed precision."""
    with torch.autocast(one.device.type, enabled=False):
        return F.normalize(one.float(), dim=-1) @ F.normalize(other.float(), dim=-1).T


def number_images(features: Tensor) -> Tensor:
    """A number (N,) of each image from its frozen features (N, E); equal for equal features."""
    return hash_rows(features.detach().float().contiguous().view(torch.int32).long())
