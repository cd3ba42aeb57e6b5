"""XDBERT's objectives: same-sentence prediction and CLIP token classification; its masked LM is `JointMaskedLM`."""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import (
    IGNORE,
    Batch,
    EncoderOutput,
    OutputSizes,
    Sample,
    TextRow,
    require,
    select,
)
from groundling.models.heads import LMHead, Pooler
from groundling.objectives import NegativeSampler, Objective
from groundling.settings.objectives import CrossModalEncoderSettings

NEAREST = 8
"""Number of texts of about the same length to draw; the one nearest in its number of CLIP tokens is used."""


class SameSentencePrediction(Objective):
    """Same-sentence prediction: do the text encoder and CLIP's text tower read the same text? (label 1 = same)

    XDBERT Section 2.3.2. With probability `negatives` the CLIP side is another text of the corpus. With
    `hard_negatives` > 0, that many candidates are drawn and the one sharing most CLIP tokens is used, so that no
    single word gives the answer away. With `match_negatives="length"` it is a text of nearly the same length (the
    paper's blocks all have the same length). The words and the teacher's inputs stay those of the sample's text.
    """

    name = "match"
    required_fields = ("text", "clip", "labels.match")
    swaps_inputs = True
    needs_cross_modal = True
    Settings = CrossModalEncoderSettings
    settings: CrossModalEncoderSettings

    def __init__(self, sizes: OutputSizes, *, negatives: float = 0.5, **options: Any) -> None:
        """`negatives`: share of texts that are exchanged."""
        super().__init__(sizes, **options)
        self.negatives = negatives
        self.hard_candidates = self.settings.hard_negatives
        self.similar_length = self.settings.match_negatives == "length"
        self.pooler = Pooler(sizes.text)
        self.classify = nn.Linear(sizes.text, 2)

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, sample_negative: NegativeSampler
    ) -> Sample:
        """Exchange the CLIP side of some samples."""
        same = sample.with_label(self.name, np.array(1))
        if rng.random() >= self.negatives:
            return same
        clip = require(sample.clip, "clip", self.name)
        count = max(NEAREST if self.similar_length else 1, self.hard_candidates)
        by_length = {"similar_length": True} if self.similar_length else {}
        candidates = [sample_negative(**by_length) for _ in range(count)]
        negatives = [one.clip for one in candidates if one.clip is not None and one.id != sample.id]
        if not negatives:  # a corpus of one text has no negatives
            return same
        chosen = negatives[0]
        if self.hard_candidates:
            chosen = max(negatives, key=lambda one: _token_overlap(one, clip))
        elif self.similar_length:
            chosen = min(negatives, key=lambda one: abs(len(one.input_ids) - len(clip.input_ids)))
        label = int(np.array_equal(chosen.input_ids, clip.input_ids))
        return replace(sample, clip=chosen).with_label(self.name, np.array(label))

    def count(self, batch: Batch) -> dict[str, int]:
        """Samples."""
        return {"match": len(batch)}

    def guessing_losses(self, rows: int) -> dict[str, float]:
        """Half of the pairs match, whatever the batch."""
        return {"match": log(2)}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy () on the pooled first position after the cross-modal encoder, as `match`."""
        labels = batch.labels[self.name]
        return {"match": F.cross_entropy(self.logits(encoded), labels, reduction="sum")}

    def logits(self, encoded: EncoderOutput) -> Tensor:
        """Logits (B, 2): other text, same text."""
        states = require(encoded.joint_text, "joint_text", self.name)
        logits: Tensor = self.classify(self.pooler(states)).float()
        return logits


def _token_overlap(one: TextRow, other: TextRow) -> float:
    """Jaccard similarity of two texts' CLIP tokens; -1 for equal texts."""
    if np.array_equal(one.input_ids, other.input_ids):
        return -1.0
    shared = np.intersect1d(one.input_ids, other.input_ids)
    return len(shared) / len(np.union1d(one.input_ids, other.input_ids))


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
        self, sample: Sample, rng: np.random.Generator, sample_negative: NegativeSampler
    ) -> Sample:
        """Choose the tokens to score; the input is not changed."""
        row = require(sample.clip, "clip", self.name)
        allowed = ~row.special_tokens_mask | (self.targets == "released")
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
        tokens = int(self.scored(batch).sum())
        if "clip_padding" in batch.labels:
            tokens += int(batch.labels["clip_padding"].sum())
        return {"clip_tokens": tokens}

    def scored(self, batch: Batch) -> Tensor:
        """Mask (N, V) of the scored tokens."""
        return batch.labels[self.name] != IGNORE

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy () summed over scored tokens, as `clip_tokens`."""
        states = require(encoded.joint_visual, "joint_visual", self.name)
        table = require(encoded.clip_input_embeddings, "clip_input_embeddings", self.name)
        places = batch.flat_indices(self.scored)
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
