"""Feature distillation into a text encoder: from a frozen CLIP text tower, or from itself before training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import log
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, require, select
from groundling.objectives import Objective, ObjectiveContext, masked_tokens, read_words
from groundling.objectives.contrastive import (
    gather_across_processes,
    hash_rows,
    info_nce,
    pool_sentences,
    sentence_width,
)
from groundling.settings.objectives import DistillationSettings


class FeatureDistillation(Objective, ABC):
    """Distil a frozen teacher's features into the text encoder's states, through projections that are not saved.

    Needs a teacher (`TeacherDataset`) with features `sentence` (N, E) and `words` (N, K, E). The student's
    sentence feature is its first position, the mean, or with `pooling="own"` its own sentence-transformers
    pooling, if it has one; its word feature is the mean of the word's tokens, in a causal student the last one. Words
    with a masked token are excluded, and so are special tokens, unless the student's own pooling includes them.
    """

    required_fields: tuple[str, ...] = (
        "text",
        "word_type_ids",
        "features.sentence",
        "features.words",
        "features.has",
    )
    Settings = DistillationSettings
    settings: DistillationSettings

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        super().__init__(sizes, **options)
        self.weight *= self.settings.distill_weight
        if not self.settings.word_weight:
            self.required_fields = self.required_fields[:3]
        self.part_weights = {
            "sentence": self.settings.sentence_weight,
            "word": self.settings.word_weight,
        }
        widths = {"sentence": sentence_width(sizes, self.settings.pooling), "word": sizes.text}
        self.project = nn.ModuleDict(
            {part: nn.Linear(width, sizes.teacher) for part, width in widths.items()}
        )

    @classmethod
    def features(cls, context: ObjectiveContext | None = None) -> frozenset[str]:
        """Without those of words if their term has no weight."""
        features = super().features(context)
        has_words = context is None or context.settings.distillation.word_weight
        return features if has_words else features - {"words", "has"}

    def count(self, batch: Batch) -> dict[str, int]:
        """Sentences and words in the loss."""
        counts = {}
        if self.part_weights["sentence"]:
            counts[f"{self.name}_sentence"] = batch.rows
        if self.part_weights["word"]:
            counts[f"{self.name}_word"] = int(self._distilled_words(batch).sum())
        return counts

    def _distilled_words(self, batch: Batch) -> Tensor:
        """(N, K) bool: words with a teacher feature that the student reads without a masked token."""
        word = require(batch.text, "text", self.name).word_ids
        words = require(batch.word_type_ids, "word_type_ids", self.name)
        tokens = _count_per_word(word >= 0, word, words.shape[1])
        masked = _count_per_word(masked_tokens(batch, self.name), word, words.shape[1])
        return (tokens > 0) & (masked == 0) & batch.features["has"].bool() & (words >= 0)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The summed losses () `NAME_sentence` and `NAME_word`."""
        states = require(encoded.text, "text", self.name)
        numbers = require(batch.word_type_ids, "word_type_ids", self.name)
        terms = {}
        if self.part_weights["sentence"]:
            student = pool_sentences(encoded, batch, self.sizes, self.settings.pooling, self.name)
            teacher = batch.features["sentence"]
            student = self.project["sentence"](student)
            terms["sentence"] = self.compare(student, teacher, hash_rows(numbers + 1))
        if self.part_weights["word"]:
            places = batch.flat_indices(self._distilled_words)
            student = select(self._words(states, batch, numbers.shape[1]), places)
            teacher = select(batch.features["words"], places)
            student = self.project["word"](student)
            terms["word"] = self.compare(student, teacher, select(numbers, places))
        return {
            f"{self.name}_{part}": self.part_weights[part] * loss for part, loss in terms.items()
        }

    def _words(self, states: Tensor, batch: Batch, width: int) -> Tensor:
        """The student's feature (N, K, D) of each word: the mean of its tokens, or its last in a causal student."""
        word = read_words(batch, self.sizes, self.name)
        places = F.one_hot(word + 1, width + 1)[..., 1:].to(states.dtype)  # (N, T, K)
        tokens = places.sum(1).clamp(min=1).unsqueeze(-1)
        return places.transpose(1, 2) @ states / tokens

    @abstractmethod
    def compare(self, student: Tensor, teacher: Tensor, number: Tensor) -> Tensor:
        """Summed loss () between features (n, E) of both; items of equal `number` (n,) are the same."""


class ContrastiveDistillation(FeatureDistillation):
    """InfoNCE against the teacher's features of other sentences and words in the micro-batch of all processes.

    Equal words and equal texts are not negatives.
    """

    name = "contrastive"
    in_batch_negatives = True

    def compare(self, student: Tensor, teacher: Tensor, number: Tensor) -> Tensor:
        """Summed InfoNCE () of the students' unit-length features among the teacher's."""
        keys, start = gather_across_processes(F.normalize(teacher, dim=-1))
        numbers, _ = gather_across_processes(number)
        same = number[:, None] == numbers[None]
        anchors = F.normalize(student, dim=-1)
        return info_nce(anchors, keys, start, 1 / self.settings.temperature, same)

    def guessing_losses(self, rows: int) -> dict[str, float]:
        """Of sentences: each text among all of the batch. The number of words varies."""
        share = self.part_weights["sentence"]
        return {"contrastive_sentence": share * log(rows)} if share else {}


class L1Distillation(FeatureDistillation):
    """The distance of CLIP-TD's naive text term (Eq. 3-4): summed over dimensions, averaged over items.

    Either with the teacher's standardised features, or of unit-length features of both (`l1_targets="unit"`).
    """

    name = "l1"

    def compare(self, student: Tensor, teacher: Tensor, number: Tensor) -> Tensor:
        """Summed absolute differences ()."""
        if self.settings.l1_targets == "unit":
            student = F.normalize(student, dim=-1)
            teacher = F.normalize(teacher, dim=-1)
        return (student - teacher).abs().sum()


def _count_per_word(flags: Tensor, word: Tensor, width: int) -> Tensor:
    """Number of flagged tokens (N, T) per word: (N, K)."""
    counts = torch.zeros(len(flags), width + 1, dtype=torch.long, device=flags.device)
    return counts.scatter_add(1, word + 1, flags.long())[:, 1:]


class EmbeddingRetention(Objective):
    """Sentence vectors stay close to those before training: 1 - cosine of both, for the same text.

    The teacher is a frozen copy of the student (`FrozenCopy`), as in Learning without Forgetting (Li and
    Hoiem 2016), but on features. The student's text may be masked; the copy's is not. Not from a paper.
    """

    name = "retain"
    arm_name = ""
    required_fields = ("text", "features.initial_sentence_embedding")

    def count(self, batch: Batch) -> dict[str, int]:
        """Texts."""
        return {self.name: batch.rows}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """Summed cosine distance () between the student's pooled vectors (N, S) and the frozen copy's (N, S)."""
        now = require(encoded.sentence_embedding, "sentence_embedding", self.name)
        before = batch.features["initial_sentence_embedding"].to(now.dtype)
        return {self.name: (1 - F.cosine_similarity(now, before, dim=-1)).sum()}
