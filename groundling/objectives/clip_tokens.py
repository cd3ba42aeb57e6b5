"""CLIP token classification."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from groundling.batch import IGNORE, Batch, Encoded, Sample, Sizes
from groundling.models.heads import LMHead
from groundling.objectives import Objective

RELEASED_SLOTS = 77
"""Window length to which the authors' code pads, and whose padding it then scores."""


class ClipTokens(Objective):
    """Recover CLIP pieces from their own states after the cross-modal encoder (XDBERT's CLIPTC, Section 2.3.3).

    CLIP has no mask token, so nothing is hidden; 15 % of the pieces are scored. Targets "real" leaves out start, end
    and padding, as the paper says; "released" draws from every slot, as the authors' code does (it tests the wrong
    tensor): start and end tokens are scored, and so is padding, whose label is 0. Padding is never stored here, so
    its share is drawn as so many extra scored positions with label 0 on the end token's state.
    """

    name = "clip_tokens"
    needs = ("clip", "labels.clip_tokens")

    def __init__(
        self,
        sizes: Sizes,
        *,
        rate: float = 0.15,
        targets: Literal["real", "released"] = "real",
        weight: float = 1.0,
        warmup: int = 0,
    ) -> None:
        """`rate`: share of the pieces that is scored."""
        super().__init__(sizes, weight=weight, warmup=warmup)
        self.rate, self.targets = rate, targets
        self.head = LMHead(sizes.visual, sizes.clip_table)

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, other: Callable[[], Sample]
    ) -> Sample:
        """Choose the pieces to score; the input stays as it is."""
        assert sample.clip is not None
        row = sample.clip
        allowed = ~row.special if self.targets == "real" else np.ones(len(row.ids), bool)
        draw = rng.random(len(row.ids))
        chosen = allowed & (draw < self.rate)
        if allowed.any() and not chosen.any():
            chosen = allowed & (draw == draw[allowed].min())
        sample = sample.with_label(self.name, np.where(chosen, row.ids, IGNORE))
        if self.targets == "released":
            assert row.window is not None
            padding = RELEASED_SLOTS * (int(row.window.max()) + 1) - len(row.ids)
            sample = sample.with_label(
                "clip_padding", np.array(rng.binomial(max(0, padding), self.rate))
            )
        return sample

    def count(self, batch: Batch) -> dict[str, int]:
        """Scored pieces."""
        extra = int(batch.labels["clip_padding"].sum()) if "clip_padding" in batch.labels else 0
        return {"clip_tokens": int((batch.labels[self.name] != IGNORE).sum()) + extra}

    def forward(self, encoded: Encoded, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy summed over scored pieces, as `clip_tokens`."""
        encoded.require(self.name, "joint_visual")
        assert (
            encoded.joint_visual is not None
            and encoded.clip_table is not None
            and batch.clip is not None
        )
        labels = batch.labels[self.name]
        chosen = labels != IGNORE
        logits = self.head(encoded.joint_visual[chosen], encoded.clip_table).float()
        loss = F.cross_entropy(logits, labels[chosen], reduction="sum")
        if "clip_padding" in batch.labels:
            ends = batch.clip.key_mask.sum(1) - 1  # the last end token of each sample
            states = encoded.joint_visual[range(len(ends)), ends]
            padding = self.head(states, encoded.clip_table).float()
            zero = labels.new_zeros(len(padding))
            loss = (
                loss
                + (
                    F.cross_entropy(padding, zero, reduction="none") * batch.labels["clip_padding"]
                ).sum()
            )
        return {"clip_tokens": loss}
