"""LexiContrastive Grounding: the tokens of an early layer are contrasted with the images of the captions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, Sample, require, select
from groundling.core.errors import prefix_errors
from groundling.objectives import NegativeSampler, Objective, masked_tokens
from groundling.objectives.contrastive import gather_across_processes
from groundling.settings.objectives import LexiContrastiveSettings

WIDTH = 512
"""Width of the space that tokens and images share."""
SCALE = math.log(1 / 0.07)
"""Logarithm of CLIP's first inverse temperature, which is learned; unlike CLIP's, it has no upper bound."""
DRAWS = 2**62
"""Each token draws a number below this; the tokens with the lowest are compared with images."""


class LexiContrastiveGrounding(Objective):
    """Contrasts every token of a caption with images after the first layer (LCG: Zhuang et al. 2024, 2403.14551).

    With the output h of layer `lcg_layer` for token j of caption i, and the image feature f of caption k: u_ij = W_t
    h_ij and v_k = W_v tanh(A f_k + a), both of unit length and 512 wide, and s(ij, k) = exp(scale) u_ij . v_k. The two
    terms are text to image: -log e^s(ij,i) / sum_k e^s(ij,k), and image to text: -log e^s(ij,i) / (e^s(ij,i) + sum over
    all tokens pq of the other captions p of e^s(pq,i)). They are averaged over the same tokens, at most `lcg_positions`
    of a micro-batch, and added.

    The formulas, sizes, initial scale and weight are those of the released code (EvLab-MIT/LexiContrastiveGrd,
    src/llm_devo/models/flexible_clip.py); the paper's equations could not be checked. As there, special
    tokens take part and padding does not. Tokens chosen by masked LM take no part (LCG masks none).

    The paper's model is causal, and the layer with its window is part of the language model. Here a second
    pass computes the layer under a window: itself and the previous token ("causal"), also the next one
    ("bidirectional"), or the encoder's own mask ("full"). The exported encoder reads the whole text.

    The code differs in two points. It keeps padding as negatives of the image (`lcg_negatives="released"`). In
    image to text, it compares position r of the B captions of T positions, which belongs to caption r // T,
    with image r mod B, which is the caption's own only once in B times (`lcg_image_to_text="released"`). It
    draws positions with padding, which it then does not compare; here only tokens are drawn.
    """

    name = "lexi_contrastive"
    required_fields = ("text", "labels.lexi_contrastive", "features.clip_image")
    reads_layers = True
    in_batch_negatives = True
    Settings = LexiContrastiveSettings
    settings: LexiContrastiveSettings

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        super().__init__(sizes, **options)
        self.weight *= self.settings.lcg_weight
        self.pool_image = nn.Linear(sizes.teacher_image, sizes.teacher_image)
        self.project_image = nn.Linear(sizes.teacher_image, WIDTH, bias=False)
        self.project_text = nn.Linear(sizes.text, WIDTH, bias=False)
        self.scale = nn.Parameter(torch.tensor(SCALE))

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, sample_negative: NegativeSampler
    ) -> Sample:
        """A number for each token (T,), by which the compared tokens are drawn."""

        def draw(row: Sample) -> Sample:
            count = len(require(row.text, "text", self.name).input_ids)
            return row.with_label(self.name, rng.integers(DRAWS, size=count))

        return sample.each_row(draw)

    def count(self, batch: Batch) -> dict[str, int]:
        """Compared tokens, for each direction."""
        tokens = int(self._compared(batch).sum())
        return {f"{self.name}_to_image": tokens, f"{self.name}_to_text": tokens}

    def _tokens(self, batch: Batch) -> Tensor:
        """Mask (N, T) of the tokens that take part: neither padding nor masked."""
        mask = require(batch.text, "text", self.name).attention_mask
        return mask & ~masked_tokens(batch, self.name)

    def _compared(self, batch: Batch) -> Tensor:
        """Mask (N, T) of the tokens that are compared with images: those with the lowest draws."""
        tokens = self._tokens(batch)
        drawn = batch.labels[self.name].where(tokens, DRAWS).flatten()
        lowest = drawn.argsort(stable=True)[: self.settings.lcg_positions]
        chosen = torch.zeros_like(drawn, dtype=torch.bool)
        chosen[lowest] = True
        return chosen.view_as(tokens) & tokens

    def _negative_positions(self, batch: Batch) -> Tensor:
        """Mask (N, T) of the positions that are negatives of other captions' images."""
        if self.settings.lcg_negatives == "released":
            return ~masked_tokens(batch, self.name)
        return self._tokens(batch)

    def _window(self, batch: Batch) -> Tensor | None:
        """Mask (N, T, T) of the positions (columns) that each position (row) reads; None: all but padding."""
        if self.settings.lcg_attention == "full":
            return None
        mask = require(batch.text, "text", self.name).attention_mask
        place = torch.arange(mask.shape[1], device=mask.device)
        back = place[:, None] - place[None]
        first = -1 if self.settings.lcg_attention == "bidirectional" else 0
        window = (back >= first) & (back <= 1)
        return window & mask[:, None]

    def _images(self, batch: Batch, states: Tensor) -> Tensor:
        """The images (N, 512) in the shared space, of unit length."""
        features = batch.features["clip_image"].to(states.dtype)
        pooled = torch.tanh(self.pool_image(features))
        return F.normalize(self.project_image(pooled), dim=-1)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The summed losses () `lexi_contrastive_to_image` and `lexi_contrastive_to_text`.

        Raises InputError if the encoder has fewer layers than `lcg_layer`.
        """
        again = require(encoded.encode_again, "encode_again", self.name)
        with prefix_errors(f"{self.name}, lcg_layer"):
            states = again(self._window(batch), self.settings.lcg_layer)
        table = F.normalize(self.project_text(states), dim=-1)  # (N, T, 512)
        images = self._images(batch, states)
        length = table.shape[1]
        compared = batch.flat_indices(self._compared)
        tokens = select(table, compared)
        caption = compared // length
        every_image, start = gather_across_processes(images)
        scale = self.scale.exp()
        similarities = (scale * tokens @ every_image.T).float()
        to_image = F.cross_entropy(similarities, caption + start, reduction="sum")
        rest = batch.flat_indices(self._negative_positions)
        others, _ = gather_across_processes(select(table, rest))
        captions, _ = gather_across_processes(rest // length + start)
        is_released = self.settings.lcg_image_to_text == "released"
        image = images[compared % len(images) if is_released else caption]
        same = (caption + start)[:, None] == captions[None]
        anchors = scale * image
        positive = (anchors * tokens).sum(-1, keepdim=True).float()
        negative = (anchors @ others.T).float().masked_fill(same, float("-inf"))
        logits = torch.cat([positive, negative], 1)
        to_text = F.cross_entropy(logits, torch.zeros_like(caption), reduction="sum")
        return {f"{self.name}_to_image": to_image, f"{self.name}_to_text": to_text}
