"""Masked language modelling, alone or through the cross-modal encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from groundling.batch import IGNORE, Batch, Encoded, Sample, Sizes
from groundling.errors import InputError
from groundling.models.heads import LMHead
from groundling.objectives import Objective


class MaskedLM(Objective):
    """Recover masked pieces of the text (BERT; XDBERT Section 2.3.1 with `joint`); only masked positions are scored.

    With `joint`, predictions are made from the text states after the cross-modal encoder, which has read the whole,
    unmasked CLIP side; without it, from the text encoder alone. Scheme "bert" masks 80 %, replaces 10 % and keeps
    10 % of the chosen pieces; "released" is what XDBERT's code does (81 / 9 / 10). With `whole_word` all pieces of a
    chosen word are masked together.
    """

    name = "masked_lm"
    needs = ("text", "labels.masked_lm")

    def __init__(
        self,
        sizes: Sizes,
        *,
        mask_id: int = 103,
        replacements: Sequence[int] | None = None,
        rate: float = 0.15,
        scheme: Literal["bert", "released"] = "bert",
        whole_word: bool = False,
        joint: bool = False,
        weight: float = 1.0,
        warmup: int = 0,
    ) -> None:
        """`mask_id` and `replacements` (ids that may stand in, all by default) belong to the text's tokenizer."""
        super().__init__(sizes, weight=weight, warmup=warmup)
        if not 0 < rate < 1:
            raise InputError(f"rate={rate}: the share of masked pieces must lie between 0 and 1")
        self.mask_id, self.rate, self.scheme, self.whole_word, self.joint = (
            mask_id,
            rate,
            scheme,
            whole_word,
            joint,
        )
        self.replacements = (
            np.arange(sizes.word_table[0]) if replacements is None else np.asarray(replacements)
        )
        self.head = LMHead(sizes.text, sizes.word_table)

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, other: Callable[[], Sample]
    ) -> Sample:
        """Mask pieces of `sample.text`; every text has at least one masked piece."""
        assert sample.text is not None
        row = sample.text
        ids, chosen = row.ids.copy(), self._choose(sample, rng)
        labels = np.where(chosen, row.ids, IGNORE)
        fate = rng.random(len(ids))
        random_share = 0.1 if self.scheme == "bert" else 0.09
        stand_in = rng.choice(self.replacements, len(ids))
        ids[chosen & (fate >= 0.1)] = self.mask_id  # fate < .1: kept as it is
        swapped = chosen & (fate >= 0.1) & (fate < 0.1 + random_share)
        ids[swapped] = stand_in[swapped]
        return replace(sample, text=replace(row, ids=ids)).with_label(self.name, labels)

    def _choose(self, sample: Sample, rng: np.random.Generator) -> np.ndarray:
        assert sample.text is not None
        candidates = np.flatnonzero(~sample.text.special)
        if not len(candidates):
            return np.zeros(len(sample.text.ids), bool)
        draw = rng.random(len(sample.text.ids))
        if self.whole_word:
            per_word = rng.random(int(sample.text.word.max(initial=0)) + 1)
            draw = np.where(sample.text.word >= 0, per_word[np.maximum(sample.text.word, 0)], draw)
        chosen = ~sample.text.special & (draw < self.rate)
        if not chosen.any():
            lowest = draw[candidates].min()
            chosen = ~sample.text.special & (draw == lowest)
        return chosen

    def count(self, batch: Batch) -> dict[str, int]:
        """Masked pieces."""
        return {"mlm": int((batch.labels[self.name] != IGNORE).sum())}

    def forward(self, encoded: Encoded, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy summed over masked pieces, as `mlm`."""
        states = encoded.joint_text if self.joint else encoded.text
        encoded.require(self.name, "joint_text" if self.joint else "text")
        assert states is not None and encoded.word_table is not None
        labels = batch.labels[self.name]
        masked = labels != IGNORE
        logits = self.head(states[masked], encoded.word_table)  # (masked, vocabulary)
        return {"mlm": F.cross_entropy(logits.float(), labels[masked], reduction="sum")}
