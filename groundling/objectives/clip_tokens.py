"""CLIP token classification."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import IGNORE, Batch, EncoderOutput, OutputSizes, Sample, require, select
from groundling.models.heads import LMHead
from groundling.objectives import Objective
from groundling.settings.objectives import CrossModalEncoderSettings

RELEASED_SLOTS = 9 * 77
"""Nine windows of 77 tokens, to which the authors' code pads every text, and whose padding it scores."""


class ClipTokenClassification(Objective):
    """CLIP token classification: predict CLIP tokens from their states after the cross-modal encoder (CLIPTC).

    XDBERT Section 2.3.3. CLIP has no mask token, so no input is masked; 15 % of the tokens are scored.
    `clip_targets="real"` excludes start, end and padding, as in the paper. `clip_targets="released"` scores any
    position, as in the authors' code (Splend1d/XDBERT, which tests the wrong tensor): start and end
    tokens too, and the padding of 9 x 77 positions, with label 0. Padding is not stored here: its number
    of scored positions is drawn, and each is scored with label 0 on the end token's state.
    """

    name = "clip_tokens"
    required_fields = ("clip", "labels.clip_tokens")
    needs_cross_modal = True
    Settings = CrossModalEncoderSettings
    settings: CrossModalEncoderSettings

    def __init__(self, sizes: OutputSizes, *, rate: float = 0.15, **options: Any) -> None:
        """`rate`: share of tokens that are scored."""
        super().__init__(sizes, **options)
        self.rate = rate
        self.targets = self.settings.clip_targets
        self.head = LMHead(sizes.visual, sizes.clip_input_embeddings)

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, sample_negative: Callable[[], Sample]
    ) -> Sample:
        """Choose the tokens to score; the input is not changed."""
        row = require(sample.clip, "clip", self.name)
        allowed = (
            ~row.special_tokens_mask
            if self.targets == "real"
            else np.ones(len(row.input_ids), bool)
        )
        draw = rng.random(len(row.input_ids))
        chosen = allowed & (draw < self.rate)
        if allowed.any() and not chosen.any():
            chosen = allowed & (draw == draw[allowed].min())
        sample = sample.with_label(self.name, np.where(chosen, row.input_ids, IGNORE))
        if self.targets == "real":
            return sample
        padding = max(0, RELEASED_SLOTS - len(row.input_ids))
        return sample.with_label("clip_padding", np.array(rng.binomial(padding, self.rate)))

    def count(self, batch: Batch) -> dict[str, int]:
        """Scored tokens."""
        tokens = int(self._scored(batch).sum())
        if "clip_padding" in batch.labels:
            tokens += int(batch.labels["clip_padding"].sum())
        return {"clip_tokens": tokens}

    def _scored(self, batch: Batch) -> Tensor:
        """Mask (N, V) of the scored tokens."""
        return batch.labels[self.name] != IGNORE

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy () summed over scored tokens, as `clip_tokens`."""
        states = require(encoded.joint_visual, "joint_visual", self.name)
        table = require(encoded.clip_input_embeddings, "clip_input_embeddings", self.name)
        places = batch.flat_indices(self._scored)
        labels = select(batch.labels[self.name], places)
        logits = self.head(select(states, places), table).float()
        loss = F.cross_entropy(logits, labels, reduction="sum")
        if "clip_padding" in batch.labels:
            # Scored padding uses the state of each sample's last end token.
            ends = require(batch.clip, "clip", self.name).key_mask.sum(1) - 1
            number = torch.arange(len(ends), device=ends.device)
            padding = self.head(states[number, ends], table).float()
            zero = labels.new_zeros(len(padding))
            each = F.cross_entropy(padding, zero, reduction="none")
            loss = loss + (each * batch.labels["clip_padding"]).sum()
        return {"clip_tokens": loss}
