"""Masked LM: of a text encoder, after the cross-modal encoder, beside an image, and distilled from a teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

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
)
from groundling.data.samples import mask_id_of
from groundling.models.heads import JOINT_LM_HEAD, LM_HEAD, LMHead
from groundling.models.text_encoder import TextEncoder
from groundling.models.visual_token import FEATURE, VisualTokenEncoder
from groundling.objectives import LossTargets, NegativeSampler, Objective, ObjectiveContext
from groundling.settings.objectives import MaskedLMDistillationSettings, MaskingSettings


class LanguageModelling(Objective):
    """Base of the objectives that predict tokens with the text encoder's own head."""

    joint = False
    """Whether it reads the text states after the cross-modal encoder."""

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        super().__init__(sizes, **options)
        self.head = LMHead(sizes.text, sizes.input_embeddings, sizes.config)

    @property
    def pretrained_names(self) -> tuple[str, ...]:
        """Names of heads it can start from: its own and, for a joint one, the encoder's, which it does not fit."""
        return (JOINT_LM_HEAD, LM_HEAD) if self.joint else (LM_HEAD,)

    def saved_modules(self) -> dict[str, nn.Module]:
        """The head, by its own name in the file of heads."""
        return {self.pretrained_names[0]: self.head}

    def compute_logits(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Logits (scored tokens, vocabulary), ordered by row and token."""
        if self.joint:
            states = require(encoded.joint_text, "joint_text", self.name)
        else:
            states = require(encoded.text, "text", self.name)
        table = require(encoded.input_embeddings, "input_embeddings", self.name)
        logits: Tensor = self.head(self.select_scored(states, batch), table)
        return logits


class MaskedLM(LanguageModelling):
    """Predict masked tokens (BERT; with `joint` XDBERT Section 2.3.1); only masked positions are scored.

    With `joint`, predictions use the text states after the cross-modal encoder, which reads the unmasked
    text on the CLIP side; without it, the text encoder's states. Scheme "bert" masks 80 %, replaces 10 %
    and keeps 10 % of the chosen tokens; "released" is XDBERT's code (81 / 9 / 10). With `whole_word`, all
    tokens of a word are chosen, masked, replaced (each by its own random token) or kept together, and a
    text may have no chosen word (jackroos/VL-BERT, pretrain/data/datasets/conceptual_captions.py).
    Otherwise every text has at least one chosen token, and if it has several parts, every part has one
    (UNITER's second stage on VCR: ChenRocks/UNITER, data/pretrain_vcr.py).
    """

    name = "masked_lm"
    label_name = "masked_lm"
    """Name of its labels, also in sub-classes: other objectives leave masked tokens out."""
    arm_name: ClassVar[str | None] = "mlm"
    required_fields: Sequence[str] = ("text", "labels.masked_lm")
    masks_text = True
    Settings: ClassVar[type[MaskingSettings]] = MaskingSettings
    settings: MaskingSettings

    def __init__(
        self,
        sizes: OutputSizes,
        *,
        mask_id: int = 103,
        replacements: Sequence[int] | None = None,
        joint: bool = False,
        **options: Any,
    ) -> None:
        """`mask_id` and `replacements` (ids of random tokens, by default all) are those of the text's tokenizer.

        `options`: settings and those of `Objective`.
        """
        super().__init__(sizes, **options)
        self.mask_id = mask_id
        self.joint = joint
        every = np.arange(sizes.input_embeddings[0])
        self.replacements = every if replacements is None else np.asarray(replacements)

    @classmethod
    def from_context(cls, context: ObjectiveContext, **options: Any) -> Self:
        """Masked LM with a run's settings, except for `options`; raises InputError without a mask token."""
        tokenizer = require(context.tokenizer, "tokenizer", cls.name)
        special = set(tokenizer.all_special_ids)
        return cls(
            context.sizes,
            mask_id=mask_id_of(tokenizer, ", so masked LM is not possible"),
            replacements=[number for number in range(len(tokenizer)) if number not in special],
            **{**context.values(cls.Settings), **options},
        )

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, sample_negative: NegativeSampler
    ) -> Sample:
        """Mask tokens of every row's text; at least one in every text or part, except with `whole_word`."""
        return sample.each_row(lambda row: self._mask_row(row, rng))

    def _mask_row(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """A row with masked tokens, and the original ids as labels (T,)."""
        row = require(sample.text, "text", self.name)
        chosen = self._choose(row, rng)
        labels = np.where(chosen, row.input_ids, IGNORE)
        ids = row.input_ids.copy()
        action = self._random_numbers(row, rng)
        random_share = 0.1 if self.settings.mask_scheme == "bert" else 0.09
        random_ids = rng.choice(self.replacements, len(ids))
        hidden = chosen & (action >= 0.1)  # the rest is kept
        ids[hidden] = self.mask_id
        swapped = hidden & (action < 0.1 + random_share)
        ids[swapped] = random_ids[swapped]
        masked = replace(sample, text=replace(row, input_ids=ids))
        return masked.with_label(self.label_name, labels)

    def _choose(self, row: TextRow, rng: np.random.Generator) -> np.ndarray:
        """Mask (T,) of the scored tokens."""
        ordinary = ~row.special_tokens_mask
        if not ordinary.any():
            return np.zeros(len(row.input_ids), bool)
        draw = self._random_numbers(row, rng)
        chosen = ordinary & (draw < self.settings.mask_rate)
        if self.settings.whole_word:
            return chosen
        parts = np.zeros_like(row.input_ids) if row.part_index is None else row.part_index
        for number in np.unique(parts[ordinary]):
            part = ordinary & (parts == number)
            if not (chosen & part).any():
                chosen = chosen | (part & (draw == draw[part].min()))
        return chosen

    def _random_numbers(self, row: TextRow, rng: np.random.Generator) -> np.ndarray:
        """A random number (T,) in 0..1 per token; with `whole_word`, one per word."""
        draw = rng.random(len(row.input_ids))
        if not self.settings.whole_word:
            return draw
        _, first, word = np.unique(row.word_ids, return_index=True, return_inverse=True)
        return np.where(row.word_ids >= 0, draw[first[word]], draw)

    def count(self, batch: Batch) -> dict[str, int]:
        """Masked tokens."""
        return {"mlm": int(self.scored(batch).sum())}

    def scored(self, batch: Batch) -> Tensor:
        """Mask (N, T) of the scored tokens."""
        return batch.labels[self.label_name] != IGNORE

    def loss_targets(self, batch: Batch) -> dict[str, LossTargets]:
        """The original ids of all non-special tokens, any of which may be masked."""
        text = require(batch.text, "text", self.name)
        labels = batch.labels[self.label_name]
        tokens = labels.where(labels != IGNORE, text.input_ids)
        return {"mlm": LossTargets("class", tokens[text.ordinary])}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy () summed over masked tokens, as `mlm`."""
        labels = self.select_scored(batch.labels[self.label_name], batch)
        logits = self.cached_logits(encoded, batch).float()
        return {"mlm": F.cross_entropy(logits, labels, reduction="sum")}


class JointMaskedLM(MaskedLM):
    """Masked LM after the cross-modal encoder."""

    arm_name = "joint_mlm"
    needs_cross_modal = True

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        super().__init__(sizes, joint=True, **options)


class VisualTokenMaskedLM(MaskedLM):
    """Masked LM whose encoder reads a caption's image, if a file has images; else the slot is empty.

    The loss is the mean cross-entropy of the masked caption tokens (2109.11321; the authors' code,
    models/src/clip_bert/modeling_bert.py, scores text positions alone). Masks are those of the control `mlm`, so that
    only the visual token differs. As there, and unlike in the authors' code, every text has at least one masked token.
    """

    arm_name = "visual_token_mlm"
    optional_fields = (f"features.{FEATURE}",)

    @staticmethod
    def wrap_encoder(text: TextEncoder, sizes: OutputSizes) -> VisualTokenEncoder:
        """The text encoder with a slot for the teacher's image vectors."""
        return VisualTokenEncoder(text, sizes.teacher_image)


class MaskedLMDistillation(MaskedLM):
    """KL(teacher ‖ student) of the masked-LM distributions over the vocabulary, at temperature 1, without a hard loss.

    Sum over positions i of Σ_w p_i(w) (log p_i(w) − log q_i(w)), with the teacher's softmax p and the student's q.
    Teacher and student read the same masked caption, the teacher also its image (ViComTe's "Distilled", 2205.01850).
    The paper was not read; that it names no positions is from memory. `positions`: all tokens except special ones and
    padding, masked or not, with a mean over them (tokens, ours); the masked ones, with a mean (masked); or, as in its
    code (ChenyuHeidiZhang/VL-commonsense, Oscar/oscar/run_distillation.py: KLDivLoss with `batchmean` on logits of all
    positions), every position, special tokens and padding included, summed and divided by the number of texts
    (released). There, all texts are padded to 35 tokens; here, to the longest of the batch.
    """

    name = "mlm_distillation"
    arm_name = None
    required_fields = ("text", "labels.masked_lm", "features.mlm_logits")
    Settings = MaskedLMDistillationSettings
    settings: MaskedLMDistillationSettings

    def scored(self, batch: Batch) -> Tensor:
        """Mask (N, T) of the positions in the loss."""
        text = require(batch.text, "text", self.name)
        positions = self.settings.mlm_distillation_positions
        if positions == "masked":
            return super().scored(batch)
        if positions == "released":
            return torch.ones_like(text.attention_mask)
        return text.ordinary

    def count(self, batch: Batch) -> dict[str, int]:
        """Positions; texts for `released`."""
        is_released = self.settings.mlm_distillation_positions == "released"
        return {self.name: batch.rows if is_released else self.count_logits(batch)}

    def count_logits(self, batch: Batch) -> int:
        """Positions in the loss."""
        return int(self.scored(batch).sum())

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The summed divergence (), as `mlm_distillation`."""
        student = self.cached_logits(encoded, batch)
        teacher = batch.features["mlm_logits"]
        target = self.select_scored(teacher, batch).float().log_softmax(-1)
        said = student.float().log_softmax(-1)
        return {self.name: F.kl_div(said, target, log_target=True, reduction="sum")}
