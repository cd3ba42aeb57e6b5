"""CLIP-TD's term of selected words."""

from __future__ import annotations

from torch import Tensor

from groundling.core.batch import IGNORE, Batch, EncoderOutput, require
from groundling.objectives.targeted_distillation import TargetedDistillationTerm

USED = "td_words_used"
"""Term: distilled words."""
SHORT = "td_words_short"
"""Term: rows with fewer distilled words than `--num-words`."""


class TargetedWordDistillation(TargetedDistillationTerm):
    """CLIP's features of a row's selected words, and the mean state of the student's tokens of each (Eq. 7).

    The teacher selects the words: `clip_word` has their numbers, as in `Tokens.word_ids`. A word without a
    token of the student, or with a masked one, is excluded; a row without words has loss 0. The loss is
    averaged over a row's words; the formula, read literally, sums them.
    """

    name = "td_words"
    feature = "clip_words"
    required_fields = ("text", "features.clip_words", "features.clip_word")
    monitored_terms = (USED, SHORT)

    def distances(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Distance (N,) for each row's selected words."""
        states = require(encoded.text, "text", self.name)
        tokens = self._tokens(batch)
        count = tokens.sum(-1, keepdim=True).clamp(min=1)
        words = tokens.to(states.dtype) @ states / count  # (N, M, D)
        used = self._distilled_words(batch)
        distances = (self.distance(words, batch.features[self.feature]) * used).sum(1)
        if self.settings.td_words_reduction == "sum":
            return distances
        return distances / used.sum(1).clamp(min=1)

    def _tokens(self, batch: Batch) -> Tensor:
        """Mask (N, M, T) bool of each selected word's tokens."""
        word = require(batch.text, "text", self.name).word_ids
        selected = batch.features["clip_word"].unsqueeze(-1)
        return (word.unsqueeze(1) == selected) & (selected >= 0)

    def _distilled_words(self, batch: Batch) -> Tensor:
        """Mask (N, M) bool of the selected words that are distilled."""
        tokens = self._tokens(batch)
        used = tokens.any(-1)
        if "masked_lm" in batch.labels:
            is_masked = batch.labels["masked_lm"] != IGNORE
            used &= ~(tokens & is_masked.unsqueeze(1)).any(-1)
        return used

    def count(self, batch: Batch) -> dict[str, int]:
        """Rows, and gates."""
        return {**super().count(batch), USED: batch.rows, SHORT: batch.rows}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The summed distance (), as `td_words`, distilled words, and rows with fewer than `num_words`."""
        used = self._distilled_words(batch).sum(1)
        short = used < self.settings.num_words
        monitored = {USED: used.float().sum(), SHORT: short.float().sum()}
        return {**super().forward(encoded, batch), **monitored}
