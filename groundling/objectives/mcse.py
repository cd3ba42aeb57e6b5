"""SimCSE, in which two passes of a text are each other's positives, and MCSE, which contrasts them with images."""

from __future__ import annotations

from math import log
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, require
from groundling.core.errors import InputError
from groundling.objectives import Objective
from groundling.objectives.contrastive import (
    gather_across_processes,
    info_nce,
    pool_sentences,
    pool_states,
    sentence_width,
)
from groundling.settings.objectives import MCSESettings, SimCSESettings


class TwoPassObjective(Objective):
    """Base of the objectives that read each text twice, with different dropout."""

    required_fields: tuple[str, ...] = ("text",)
    reads_layers = True
    in_batch_negatives = True

    def count(self, batch: Batch) -> dict[str, int]:
        """Texts."""
        return {self.name: batch.rows}

    def guessing_losses(self, rows: int) -> dict[str, float]:
        """Each text's positive among all of the batch."""
        return {self.name: log(rows)}

    def first_pass(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """The sentence vectors (N, D) of the run's own pass."""
        return pool_sentences(encoded, batch, self.sizes, self.settings.pooling, self.name)

    def second_pass(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """The sentence vectors (N, D) of another pass over the same text; SimCSE's, if it is trained too."""
        shared = encoded.heads.get(SimCSE.name)
        if shared is not None:
            return shared
        states = require(encoded.encode_again, "encode_again", self.name)()
        if self.settings.pooling == "own" and encoded.pool_states is not None:
            return encoded.pool_states(states)
        return pool_states(states, batch, self.settings.pooling, self.name, self.sizes.causal)


class SimCSE(TwoPassObjective):
    """InfoNCE between two passes of each text that differ in their dropout (Gao et al. 2021, Equation 4).

    With z = tanh(W x + b), as wide as the encoder, of the pooled states x of a pass:
    -log e^{cos(z_i, z'_i) / t} / sum_j e^{cos(z_i, z'_j) / t}, over all texts j of the batch. This is also
    MCSE's term for texts without images. The layer W is for training only: the encoder's own states are
    the sentence vectors afterwards, as in uds-lsv/MCSE (src/model.py; `cls_before_pooler` in its scripts).

    The first pass is the run's own. With masked LM in the same run, both passes read its masked text. In
    evaluation, both passes are equal, since there is no dropout. The mean leaves out special tokens.
    """

    name = "simcse"
    Settings = SimCSESettings
    settings: SimCSESettings

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        super().__init__(sizes, **options)
        width = sentence_width(sizes, self.settings.pooling)
        self.project = nn.Linear(width, width)
        self._has_dropout = False

    compute_logits = TwoPassObjective.second_pass

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The InfoNCE loss summed over texts, (), as `simcse`; raises InputError for an encoder without dropout."""
        one = self.first_pass(encoded, batch)
        two = self.second_pass(encoded, batch)
        # Only the first step looks, as it waits for a GPU.
        if self.training and not self._has_dropout:
            if torch.equal(one, two):
                raise InputError(f"{self.name}: the student has no dropout; pass dropout=0.1")
            self._has_dropout = True
        anchors = _embed(self.project, one)
        others, start = gather_across_processes(_embed(self.project, two))
        scale = 1 / self.settings.simcse_temperature
        return {self.name: info_nce(anchors, others, start, scale)}


WIDTH = 256
"""Width of the space that sentences and images share."""


class MCSE(TwoPassObjective):
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
    Settings = MCSESettings
    settings: MCSESettings

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        super().__init__(sizes, **options)
        self.weight *= self.settings.mcse_weight
        self.project_text = nn.Linear(sentence_width(sizes, self.settings.pooling), WIDTH)
        self.project_image = nn.Linear(sizes.teacher_image, WIDTH)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The mean of both passes' InfoNCE loss, summed over captions, (), as `mcse`."""
        one = self.first_pass(encoded, batch)
        two = self.second_pass(encoded, batch)
        features = batch.features["clip_image"].to(one.dtype)
        images, start = gather_across_processes(_embed(self.project_image, features))
        scale = 1 / self.settings.mcse_temperature
        losses = [
            info_nce(_embed(self.project_text, each), images, start, scale) for each in (one, two)
        ]
        return {self.name: (losses[0] + losses[1]) / 2}


def _embed(layer: nn.Linear, features: Tensor) -> Tensor:
    return F.normalize(torch.tanh(layer(features)), dim=-1)
