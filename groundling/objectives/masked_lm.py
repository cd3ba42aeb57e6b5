"""Masked language modelling, alone or through the cross-modal encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

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
from groundling.core.errors import InputError
from groundling.models.heads import JOINT_LM_HEAD, LM_HEAD, LMHead
from groundling.objectives import LossTargets, Objective, ObjectiveContext, ObjectiveSpec
from groundling.settings.objectives import CrossModalSettings, MaskingSettings


class MaskedLM(Objective):
    """Recover masked pieces of the text (BERT; XDBERT Section 2.3.1 with `joint`); only masked positions are scored.

    With `joint`, predictions are made from the text states after the cross-modal encoder, which has read the whole,
    unmasked CLIP side; without it, from the text encoder alone. Scheme "bert" masks 80 %, replaces 10 % and keeps
    10 % of the chosen pieces; "released" is what XDBERT's code does (81 / 9 / 10). With `whole_word` all pieces of a
    word are chosen, masked, replaced (each by a piece of its own) or kept together, and a text in which no word was
    drawn has none (jackroos/VL-BERT, pretrain/data/datasets/conceptual_captions.py). Otherwise a text has a masked
    piece, and of several parts each has one (UNITER's second stage on VCR: ChenRocks/UNITER, data/pretrain_vcr.py).
    """

    name = "masked_lm"
    required_fields = ("text", "labels.masked_lm")

    def __init__(
        self,
        sizes: OutputSizes,
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
        """`mask_id` and `replacements` (ids that may stand in, all by default) belong to the text's tokenizer.

        Raises InputError for a `rate` that is no share.
        """
        super().__init__(sizes, weight=weight, warmup=warmup)
        if not 0 < rate < 1:
            raise InputError(f"rate={rate}: the share of masked pieces must lie between 0 and 1")
        self.mask_id = mask_id
        self.rate = rate
        self.scheme = scheme
        self.whole_word = whole_word
        self.joint = joint
        every = np.arange(sizes.input_embeddings[0])
        self.replacements = every if replacements is None else np.asarray(replacements)
        self.head = LMHead(sizes.text, sizes.input_embeddings, sizes.activation, sizes.epsilon)

    @property
    def saved_name(self) -> str:
        """What its head is called beside an exported model: a joint head says nothing of the encoder alone."""
        return JOINT_LM_HEAD if self.joint else LM_HEAD

    @property
    def pretrained_names(self) -> tuple[str, ...]:
        """What an earlier run may have called a head that it can start from: a joint one also from the encoder's."""
        return (JOINT_LM_HEAD, LM_HEAD) if self.joint else (LM_HEAD,)

    def saved_modules(self) -> dict[str, nn.Module]:
        """The head, by `saved_as`."""
        return {self.saved_name: self.head}

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, sample_negative: Callable[[], Sample]
    ) -> Sample:
        """Mask pieces of every row's text; every text, or every part of it, has at least one, but for whole words."""
        return sample.each_row(lambda row: self._mask_row(row, rng))

    def _mask_row(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """A row with masked pieces, whose label (T,) says what stood there."""
        row = require(sample.text, "text", self.name)
        chosen = self._choose(row, rng)
        labels = np.where(chosen, row.input_ids, IGNORE)
        ids = row.input_ids.copy()
        fate = self._random_numbers(row, rng)
        random_share = 0.1 if self.scheme == "bert" else 0.09
        stand_in = rng.choice(self.replacements, len(ids))
        hidden = chosen & (fate >= 0.1)  # the rest is kept as it is
        ids[hidden] = self.mask_id
        swapped = hidden & (fate < 0.1 + random_share)
        ids[swapped] = stand_in[swapped]
        masked = replace(sample, text=replace(row, input_ids=ids))
        return masked.with_label(self.name, labels)

    def _choose(self, row: TextRow, rng: np.random.Generator) -> np.ndarray:
        """Which pieces (T,) are scored."""
        ordinary = ~row.special_tokens_mask
        if not ordinary.any():
            return np.zeros(len(row.input_ids), bool)
        draw = self._random_numbers(row, rng)
        chosen = ordinary & (draw < self.rate)
        if self.whole_word:
            return chosen
        for part in _part_masks(row, ordinary):
            if not (chosen & part).any():
                chosen = chosen | (part & (draw == draw[part].min()))
        return chosen

    def _random_numbers(self, row: TextRow, rng: np.random.Generator) -> np.ndarray:
        """A number (T,) from 0 to 1 for every piece; of a whole word every piece has its first one's."""
        draw = rng.random(len(row.input_ids))
        if not self.whole_word:
            return draw
        _, first, word = np.unique(row.word_ids, return_index=True, return_inverse=True)
        return np.where(row.word_ids >= 0, draw[first[word]], draw)

    def count(self, batch: Batch) -> dict[str, int]:
        """Masked pieces."""
        return {"mlm": int(self._scored(batch).sum())}

    def compute_logits(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Logits (masked pieces, vocabulary), in the order of rows and pieces."""
        if self.joint:
            states = require(encoded.joint_text, "joint_text", self.name)
        else:
            states = require(encoded.text, "text", self.name)
        table = require(encoded.input_embeddings, "input_embeddings", self.name)
        logits: Tensor = self.head(select(states, batch.flat_indices(self._scored)), table)
        return logits

    def _scored(self, batch: Batch) -> Tensor:
        """Which pieces (N, T) were masked."""
        return batch.labels[self.name] != IGNORE

    def loss_targets(self, batch: Batch) -> dict[str, LossTargets]:
        """All ordinary pieces as they stand in the texts, of which any may be masked."""
        text = require(batch.text, "text", self.name)
        labels = batch.labels[self.name]
        pieces = labels.where(labels != IGNORE, text.input_ids)
        return {
            "mlm": LossTargets("class", pieces[text.attention_mask & ~text.special_tokens_mask])
        }

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy () summed over masked pieces, as `mlm`."""
        labels = select(batch.labels[self.name], batch.flat_indices(self._scored))
        logits = self.cached_logits(encoded, batch).float()
        return {"mlm": F.cross_entropy(logits, labels, reduction="sum")}


def _part_masks(row: TextRow, ordinary: np.ndarray) -> list[np.ndarray]:
    """The ordinary pieces (T,) of each part of a text; of a text without parts, all of them."""
    if row.part_index is None:
        return [ordinary]
    return [ordinary & (row.part_index == number) for number in np.unique(row.part_index[ordinary])]


def masked_lm(
    given: ObjectiveContext, joint: bool = False, whole_word: bool | None = None
) -> MaskedLM:
    """Masked LM as a run's settings have it; `whole_word` overrides them. Raises InputError without a mask token."""
    vocabulary = require(given.vocabulary, "vocabulary", "masked_lm")
    masking = given.settings.masking
    return MaskedLM(
        given.sizes,
        mask_id=vocabulary.mask_id,
        replacements=vocabulary.replacement_ids,
        rate=masking.mask_rate,
        scheme=masking.mask_scheme,
        whole_word=masking.whole_word if whole_word is None else whole_word,
        joint=joint,
    )


MLM = ObjectiveSpec("mlm", masked_lm, settings_groups=(MaskingSettings,))
JOINT_MLM = ObjectiveSpec(
    "joint_mlm",
    lambda given: masked_lm(given, joint=True),
    needs_cross_modal=True,
    settings_groups=(MaskingSettings, CrossModalSettings),
)
