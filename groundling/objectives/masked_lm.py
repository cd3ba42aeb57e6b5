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
    Sample,
    Sizes,
    TextRow,
    needed,
    picked,
)
from groundling.core.errors import InputError
from groundling.models.heads import JOINT_LM_HEAD, LM_HEAD, LMHead
from groundling.objectives import Objective, ObjectiveContext, ObjectiveSpec, Targets
from groundling.settings.objectives import CrossModalOptions, Masking


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
        every = np.arange(sizes.word_table[0])
        self.replacements = every if replacements is None else np.asarray(replacements)
        self.head = LMHead(sizes.text, sizes.word_table, sizes.activation, sizes.epsilon)

    @property
    def saved_as(self) -> str:
        """What its head is called beside an exported model: a joint head says nothing of the encoder alone."""
        return JOINT_LM_HEAD if self.joint else LM_HEAD

    @property
    def starts_from(self) -> tuple[str, ...]:
        """What an earlier run may have called a head that it can start from: a joint one also from the encoder's."""
        return (JOINT_LM_HEAD, LM_HEAD) if self.joint else (LM_HEAD,)

    def saved(self) -> dict[str, nn.Module]:
        """The head, by `saved_as`."""
        return {self.saved_as: self.head}

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, other: Callable[[], Sample]
    ) -> Sample:
        """Mask pieces of every row's text; every text, or every part of it, has at least one, but for whole words."""
        return sample.each_row(lambda row: self._masked(row, rng))

    def _masked(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """A row with masked pieces, whose label (T,) says what stood there."""
        row = needed(sample.text, "text", self.name)
        chosen = self._choose(row, rng)
        labels = np.where(chosen, row.ids, IGNORE)
        ids = row.ids.copy()
        fate = self._draw(row, rng)
        random_share = 0.1 if self.scheme == "bert" else 0.09
        stand_in = rng.choice(self.replacements, len(ids))
        hidden = chosen & (fate >= 0.1)  # the rest is kept as it is
        ids[hidden] = self.mask_id
        swapped = hidden & (fate < 0.1 + random_share)
        ids[swapped] = stand_in[swapped]
        masked = replace(sample, text=replace(row, ids=ids))
        return masked.with_label(self.name, labels)

    def _choose(self, row: TextRow, rng: np.random.Generator) -> np.ndarray:
        """Which pieces (T,) are scored."""
        ordinary = ~row.special
        if not ordinary.any():
            return np.zeros(len(row.ids), bool)
        draw = self._draw(row, rng)
        chosen = ordinary & (draw < self.rate)
        if self.whole_word:
            return chosen
        for part in _parts(row, ordinary):
            if not (chosen & part).any():
                chosen = chosen | (part & (draw == draw[part].min()))
        return chosen

    def _draw(self, row: TextRow, rng: np.random.Generator) -> np.ndarray:
        """A number (T,) from 0 to 1 for every piece; of a whole word every piece has its first one's."""
        draw = rng.random(len(row.ids))
        if not self.whole_word:
            return draw
        _, first, word = np.unique(row.word, return_index=True, return_inverse=True)
        return np.where(row.word >= 0, draw[first[word]], draw)

    def count(self, batch: Batch) -> dict[str, int]:
        """Masked pieces."""
        return {"mlm": int(self._scored(batch).sum())}

    def read(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Logits (masked pieces, vocabulary), in the order of rows and pieces."""
        if self.joint:
            states = needed(encoded.joint_text, "joint_text", self.name)
        else:
            states = needed(encoded.text, "text", self.name)
        table = needed(encoded.word_table, "word_table", self.name)
        logits: Tensor = self.head(picked(states, batch.places(self._scored)), table)
        return logits

    def _scored(self, batch: Batch) -> Tensor:
        """Which pieces (N, T) were masked."""
        return batch.labels[self.name] != IGNORE

    def scored_against(self, batch: Batch) -> dict[str, Targets]:
        """All ordinary pieces as they stand in the texts, of which any may be masked."""
        text = needed(batch.text, "text", self.name)
        labels = batch.labels[self.name]
        pieces = labels.where(labels != IGNORE, text.ids)
        return {"mlm": Targets("class", pieces[text.mask & ~text.special])}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy () summed over masked pieces, as `mlm`."""
        labels = picked(batch.labels[self.name], batch.places(self._scored))
        logits = self.answer(encoded, batch).float()
        return {"mlm": F.cross_entropy(logits, labels, reduction="sum")}


def _parts(row: TextRow, ordinary: np.ndarray) -> list[np.ndarray]:
    """The ordinary pieces (T,) of each part of a text; of a text without parts, all of them."""
    if row.part is None:
        return [ordinary]
    return [ordinary & (row.part == number) for number in np.unique(row.part[ordinary])]


def masked_lm(
    given: ObjectiveContext, joint: bool = False, whole_word: bool | None = None
) -> MaskedLM:
    """Masked LM as a run's settings have it; `whole_word` overrides them. Raises InputError without a mask token."""
    vocabulary = needed(given.vocabulary, "vocabulary", "masked_lm")
    masking = given.settings.masking
    return MaskedLM(
        given.sizes,
        mask_id=vocabulary.mask_id,
        replacements=vocabulary.ordinary,
        rate=masking.mask_rate,
        scheme=masking.mask_scheme,
        whole_word=masking.whole_word if whole_word is None else whole_word,
        joint=joint,
    )


MLM = ObjectiveSpec("mlm", masked_lm, reads=(Masking,))
JOINT_MLM = ObjectiveSpec(
    "joint_mlm",
    lambda given: masked_lm(given, joint=True),
    joint=True,
    reads=(Masking, CrossModalOptions),
)
