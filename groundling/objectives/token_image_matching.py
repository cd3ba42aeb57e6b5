"""Token-image matching: Vokenization's first stage, which trains the vokenizer (Tan and Bansal 2020)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, Sample, require, select
from groundling.core.rng import derive_seed
from groundling.models.heads import (
    MATCHING_HEADS,
    TokenImageMatchingHeads,
    concatenated_layers,
)
from groundling.objectives import NegativeSampler, Objective
from groundling.objectives.clip_contrastive import gather_across_processes
from groundling.settings.objectives import VokenizerSettings

IMAGE = "token_image_matching_image"
"""Label: a number that is equal for equal images."""
DRAW = "token_image_matching_draw"
"""Label: the random number that chooses the negative image."""
FLAG = "vokenizer_layers"


class TokenImageMatching(Objective):
    """A hinge that pulls each token of a caption towards its image and away from one other image.

    Vokenization, Section 3.2 (the section is from the README of its code, not checked in the paper): with unit
    vectors t_bi of token i of caption b, v_b of its image and v_n of a negative image, the loss is the mean over
    tokens of max(0, m - t_bi . v_b + t_bi . v_n). t is a head on the text encoder's last layers, concatenated; v is
    a head on an image feature. The image feature is the teacher's `clip_image`, where the paper has a frozen ResNeXt's.

    `vokenizer_hinge="paper"`: the negative is a random image among the others of the micro-batch of all processes
    (the paper draws one at random; that it comes from the batch is ours); other captions of the same image are no
    candidates, a caption without a candidate adds 0, and special tokens are not scored. `vokenizer_hinge="released"` is
    airsplay/vokenization (xmatching/loss.py): the negative is the item half a batch away, whatever its image, and
    special tokens are scored as well (for an odd batch, which that code refuses, half is rounded down). Padding is
    never scored. A token that masked LM hides is scored from its context, as in VidLanKD's teacher.

    With `vokenizer_frozen`, as in the paper, only the heads are trained.
    """

    name = MATCHING_HEADS
    required_fields = ("text", "features.clip_image", f"labels.{IMAGE}", f"labels.{DRAW}")
    in_batch_negatives = True
    reads_layers = True
    Settings = VokenizerSettings
    settings: VokenizerSettings

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        """`options`: settings and those of `Objective`."""
        super().__init__(sizes, **options)
        self.heads = TokenImageMatchingHeads(
            sizes.text * self.settings.vokenizer_layers,
            sizes.teacher_image,
            width=self.settings.vokenizer_width,
            has_text_head=self.settings.vokenizer_head == "mlp",
        )

    def saved_modules(self) -> dict[str, torch.nn.Module]:
        """Both heads, from which `voken_classification` computes vokens."""
        return {self.name: self.heads}

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, sample_negative: NegativeSampler
    ) -> Sample:
        """A copy with the number of its image and a random number as labels; inputs are unchanged."""
        rows = sample.rows
        images = rows[0].example.images if rows[0].example is not None else ()
        # A sample that does not tell its image has one of its own.
        key = ("image", *images) if images else ("sample", sample.id)
        sample = sample.with_label(IMAGE, np.array(derive_seed(*key)))
        return sample.with_label(DRAW, np.array(rng.integers(1 << 62)))

    def count(self, batch: Batch) -> dict[str, int]:
        """Scored tokens."""
        return {self.name: int(self._scored(batch).sum())}

    def _scored(self, batch: Batch) -> Tensor:
        """(N, T) bool: tokens in the loss."""
        tokens = require(batch.text, "text", self.name)
        if self.settings.vokenizer_hinge == "released":
            return tokens.attention_mask
        return tokens.attention_mask & ~tokens.special_tokens_mask

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The hinge () summed over tokens, as `token_image_matching`."""
        states = concatenated_layers(encoded, self.settings.vokenizer_layers, FLAG)
        if self.settings.vokenizer_frozen:
            states = states.detach()
        places = batch.flat_indices(self._scored)
        row = places // states.shape[1]
        tokens = self.heads.token_vectors(select(states, places))
        own = self.heads.image_vectors(batch.features["clip_image"])
        every, start = gather_across_processes(own)
        negative, has_negative = self._negatives(batch, len(every), start)
        near = (tokens * own[row]).sum(-1)
        far = (tokens * every[negative][row]).sum(-1)
        loss = (self.settings.vokenizer_margin - near + far).clamp(min=0) * has_negative[row]
        return {self.name: loss.sum()}

    def _negatives(self, batch: Batch, images: int, start: int) -> tuple[Tensor, Tensor]:
        """Index (N,) of each row's negative among all processes' `images`, and whether it has one (N,) bool.

        `start`: index of this process's first row.
        """
        number = torch.arange(batch.rows, device=batch.device)
        if self.settings.vokenizer_hinge == "released":
            return (number + start + images // 2) % images, torch.ones_like(
                number, dtype=torch.bool
            )
        own = batch.labels[IMAGE].repeat_interleave(batch.choices)
        draw = batch.labels[DRAW].repeat_interleave(batch.choices)
        every, _ = gather_across_processes(own)
        is_other = own[:, None] != every[None]
        candidates = is_other.sum(1)
        # The number of the chosen one among the candidates, and its place among all images.
        chosen = draw % candidates.clamp(min=1)
        is_chosen = is_other & (is_other.cumsum(1) == chosen[:, None] + 1)
        return is_chosen.int().argmax(1), candidates > 0
