"""SigLIP's sigmoid loss between a caption's sentence vector and its image (Zhai et al. 2023)."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Gt
from torch import Tensor, nn

from groundling.core.batch import Batch, EncoderOutput, OutputSizes
from groundling.objectives.caption_to_image import number_images
from groundling.objectives.clip_kd import ProjectedSentence
from groundling.objectives.contrastive import gather_across_processes, sigmoid_pairs
from groundling.settings.fields import settings
from groundling.settings.objectives import PoolingSettings
from groundling.studies.bench.methods import CAPTIONS, GRID, IMAGES, BenchMethod, Stage


@settings
class SigmoidSettings(PoolingSettings):
    """SigLIP's loss between texts and images (objective sigmoid)."""

    sigmoid_weight: Annotated[float, Gt(0)] = 1.0
    """sigmoid: weight of its term."""


class SigmoidContrast(ProjectedSentence):
    """Each text and image of the batch are a pair or not (SigLIP: Zhai et al. 2023, 2303.15343, Section 3.2).

    -log sigmoid(z (t x y + b)), with z = 1 for a pair and -1 otherwise, summed over the images of all processes; x is
    the projected sentence vector, y the teacher's image, both of unit length. The scale t starts at 10 and the bias b
    at -10, as there; t is learned as its logarithm (open_clip, src/open_clip/loss.py, `SigLipLoss`, is the same sum).
    Captions of the same image, which have equal vectors, are no negatives.
    """

    name = "sigmoid"
    required_fields = ("text", "features.clip_image")
    Settings = SigmoidSettings
    settings: SigmoidSettings

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        super().__init__(sizes, **options)
        self.weight *= self.settings.sigmoid_weight
        self.log_scale = nn.Parameter(torch.tensor(math.log(10)))
        self.bias = nn.Parameter(torch.tensor(-10.0))

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The losses of all pairs, summed over texts to ()."""
        images = batch.features["clip_image"].float()
        every, start = gather_across_processes(images)
        numbers = number_images(images)
        same = numbers[:, None] == gather_across_processes(numbers)[0][None]
        texts = F.normalize(self.sentences(encoded, batch), dim=-1)
        logits = self.log_scale.exp() * texts @ every.T + self.bias
        return {self.name: sigmoid_pairs(logits, start, same)}


METHOD = BenchMethod(
    name="sigmoid",
    paper="SigLIP's loss (Zhai et al. 2023) beside masked LM, with a frozen image tower",
    data=IMAGES,
    stages=(Stage("mlm+sigmoid", (CAPTIONS,)),),
    weight="option:sigmoid_weight",
    grid=GRID,
)
