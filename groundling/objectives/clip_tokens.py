"""CLIP token classification."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import IGNORE, Batch, EncoderOutput, OutputSizes, Sample, require, select
from groundling.models.heads import LMHead
from groundling.objectives import Objective, ObjectiveSpec
from groundling.settings.objectives import CrossModalSettings

RELEASED_SLOTS = 9 * 77
"""Nine windows of 77, to which the authors' code pads every text of adaptation, and whose padding it then scores."""


class ClipTokenClassification(Objective):
    """Recover CLIP pieces from their own states after the cross-modal encoder (XDBERT's CLIPTC, Section 2.3.3).

    CLIP has no mask token, so nothing is hidden; 15 % of the pieces are scored. Targets "real" leaves out start, end
    and padding, as the paper says; "released" draws from every slot, as the authors' code does (Splend1d/XDBERT: it
    tests the wrong tensor): start and end tokens are scored, and so is the padding of 9 x 77 slots, whose label is 0.
    Padding is never stored here: its share is drawn as so many more positions, of label 0, on the end token's state.
    """

    name = "clip_tokens"
    required_fields = ("clip", "labels.clip_tokens")

    def __init__(
        self,
        sizes: OutputSizes,
        *,
        rate: float = 0.15,
        targets: Literal["real", "released"] = "real",
        weight: float = 1.0,
        warmup: int = 0,
    ) -> None:
        """`rate`: share of the pieces that is scored."""
        super().__init__(sizes, weight=weight, warmup=warmup)
        self.rate = rate
        self.targets = targets
        self.head = LMHead(sizes.visual, sizes.clip_input_embeddings)

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, sample_negative: Callable[[], Sample]
    ) -> Sample:
        """Choose the pieces to score; the input stays as it is."""
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
        """Scored pieces."""
        pieces = int(self._scored(batch).sum())
        if "clip_padding" in batch.labels:
            pieces += int(batch.labels["clip_padding"].sum())
        return {"clip_tokens": pieces}

    def _scored(self, batch: Batch) -> Tensor:
        """Which pieces (N, V) were chosen."""
        return batch.labels[self.name] != IGNORE

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy () summed over scored pieces, as `clip_tokens`."""
        states = require(encoded.joint_visual, "joint_visual", self.name)
        table = require(encoded.clip_input_embeddings, "clip_input_embeddings", self.name)
        places = batch.flat_indices(self._scored)
        labels = select(batch.labels[self.name], places)
        logits = self.head(select(states, places), table).float()
        loss = F.cross_entropy(logits, labels, reduction="sum")
        if "clip_padding" in batch.labels:
            # The last end token of each sample stands for its padding.
            ends = require(batch.clip, "clip", self.name).key_mask.sum(1) - 1
            number = torch.arange(len(ends), device=ends.device)
            padding = self.head(states[number, ends], table).float()
            zero = labels.new_zeros(len(padding))
            each = F.cross_entropy(padding, zero, reduction="none")
            loss = loss + (each * batch.labels["clip_padding"]).sum()
        return {"clip_tokens": loss}


CLIP_TOKENS = ObjectiveSpec(
    "clip_tokens",
    lambda given: ClipTokenClassification(given.sizes, targets=given.cross_modal.clip_targets),
    needs_cross_modal=True,
    settings_groups=(CrossModalSettings,),
)
