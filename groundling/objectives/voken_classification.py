"""Voken classification: Vokenization's second stage, which trains the language model (Tan and Bansal 2020)."""

from __future__ import annotations

from typing import Any

import numpy as np
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
from groundling.objectives import LossTargets, NegativeSampler, Objective
from groundling.settings.objectives import VokenSettings

LABELLED = {"random", "shuffled", "reversed"}
"""Controls that give each token a voken, or the position of one, as a label."""


class VokenClassification(Objective):
    """Predict the voken of every token: the image that the vokenizer finds for it, among M images.

    Vokenization, Section 2 (the section is from the README of its code, not checked in the paper): with a head of
    Linear(D, D), GELU, LayerNorm and Linear(D, M), the cross-entropy to each token's voken, averaged over tokens.
    Every ordinary token is scored, masked or not, while the encoder reads the text that masked LM corrupted; special
    tokens and padding are not scored. The paper adds it to masked LM's loss with weight 1:
    `--arm mlm+voken_classification`.

    Needs the teacher's `voken` (N, T), computed from the uncorrupted text (`teachers/vokens.py`).

    `voken_control` replaces vokens as the authors' ablations do (airsplay/vokenization, vlm/data.py): "random" draws
    each anew in every epoch, "shuffled" permutes the vokens of a text among its ordinary tokens, anew in every epoch,
    "reversed" gives them to these tokens in reverse order. For "token_id" the teacher returns the token's own id. That
    code shuffles and reverses the vokens of a block of text; here a text is one sample.
    """

    name = "voken_classification"
    required_fields: tuple[str, ...] = ("text", "features.voken")
    Settings = VokenSettings
    settings: VokenSettings

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        """`sizes.teacher` is M, the number of different vokens."""
        super().__init__(sizes, **options)
        self.weight *= self.settings.voken_weight
        self.control = self.settings.voken_control
        self.vokens = sizes.teacher
        self.head = nn.Sequential(
            nn.Linear(sizes.text, sizes.text),
            nn.GELU(),
            nn.LayerNorm(sizes.text, eps=sizes.epsilon),
            nn.Linear(sizes.text, self.vokens),
        )
        if self.control in LABELLED:
            self.required_fields = (*self.required_fields, f"labels.{self.name}")

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, sample_negative: NegativeSampler
    ) -> Sample:
        """A copy with what its control gives each token as labels (T,); inputs are unchanged."""
        if self.control not in LABELLED:
            return sample
        return sample.each_row(
            lambda row: row.with_label(
                self.name, self._draw(require(row.text, "text", self.name), rng)
            )
        )

    def _draw(self, row: TextRow, rng: np.random.Generator) -> np.ndarray:
        """A random voken (T,), or the position (T,) whose voken each token gets; IGNORE at special tokens."""
        places = np.flatnonzero(~row.special_tokens_mask)
        labels = np.full(len(row.input_ids), IGNORE, np.int64)
        if self.control == "random":
            labels[places] = rng.integers(self.vokens, size=len(places))
        elif self.control == "reversed":
            labels[places] = places[::-1]
        else:
            labels[places] = rng.permutation(places)
        return labels

    def count(self, batch: Batch) -> dict[str, int]:
        """Ordinary tokens."""
        return {self.name: int(self._scored(batch).sum())}

    def _scored(self, batch: Batch) -> Tensor:
        """(N, T) bool: ordinary tokens."""
        tokens = require(batch.text, "text", self.name)
        return tokens.attention_mask & ~tokens.special_tokens_mask

    def _targets(self, batch: Batch) -> Tensor:
        """(n,) long: the voken of each ordinary token."""
        vokens = batch.features["voken"].long()
        if self.control in LABELLED:
            drawn = batch.labels[self.name]
            vokens = drawn if self.control == "random" else vokens.gather(1, drawn.clamp(min=0))
        return select(vokens, batch.flat_indices(self._scored))

    def loss_targets(self, batch: Batch) -> dict[str, LossTargets]:
        """The vokens; none if the teacher runs in every step, which this batch has not reached."""
        if "voken" not in batch.features:
            return {}
        return {self.name: LossTargets("class", self._targets(batch))}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy () summed over ordinary tokens, as `voken_classification`."""
        states = require(encoded.text, "text", self.name)
        logits = self.head(select(states, batch.flat_indices(self._scored)))
        loss = F.cross_entropy(logits.float(), self._targets(batch), reduction="sum")
        return {self.name: loss}
