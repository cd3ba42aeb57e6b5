"""Feature distillation from a frozen CLIP text tower into a text encoder."""

from __future__ import annotations

from math import log
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import IGNORE, Batch, EncoderOutput, OutputSizes, require, select
from groundling.objectives import Objective, ObjectiveContext, ObjectiveSpec
from groundling.objectives.clip_contrastive import gather_across_processes, info_nce
from groundling.objectives.sentence_pooling import PoolingMode, pool_sentences, sentence_width
from groundling.settings.objectives import DistillationSettings


class FeatureDistillation(Objective):
    """Distil a frozen teacher's features into the text encoder's states, through projections that are not saved.

    Needs a teacher (`TeacherDataset`) with features `sentence` (N, E) and `words` (N, K, E). The kind "l1" has
    the distance of CLIP-TD's naive text term (Eq. 3-4): summed over dimensions, averaged over items, either of
    unit-length features of both (`targets="unit"`), or with the teacher's standardised features. The kind "contrastive"
    is InfoNCE against the teacher's features of other sentences and words in the micro-batch of all
    processes; equal words are not negatives. The student's sentence feature is its first position, the
    mean, or with `pooling="own"` its own sentence-transformers pooling, if it has one; its word feature is
    the mean of the word's tokens. Words with a masked token are excluded, and so are special tokens,
    unless the student's own pooling includes them.
    """

    name = "distill"
    required_fields = (
        "text",
        "word_type_ids",
        "features.sentence",
        "features.words",
        "features.has",
    )

    def __init__(
        self,
        sizes: OutputSizes,
        *,
        kind: Literal["contrastive", "l1"] = "contrastive",
        sentence_weight: float = 1.0,
        word_weight: float = 1.0,
        temperature: float = 0.07,
        pooling: PoolingMode = "cls",
        targets: Literal["standard", "unit"] = "standard",
        weight: float = 1.0,
        warmup: int = 0,
    ) -> None:
        """`sentence_weight`, `word_weight`: weights of the two terms; `temperature` of the contrastive kind."""
        super().__init__(sizes, weight=weight, warmup=warmup)
        self.name = kind  # both kinds in one run have different names
        self.kind = kind
        self.in_batch_negatives = kind == "contrastive"
        self.part_weights = {"sentence": sentence_weight, "word": word_weight}
        self.temperature = temperature
        self.targets = targets
        self.pooling: PoolingMode = pooling
        widths = {"sentence": sentence_width(sizes, pooling), "word": sizes.text}
        self.project = nn.ModuleDict(
            {part: nn.Linear(width, sizes.teacher) for part, width in widths.items()}
        )

    def count(self, batch: Batch) -> dict[str, int]:
        """Sentences and words in the loss."""
        counts = {"sentence": batch.rows, "word": int(self._distilled_words(batch).sum())}
        return {
            f"{self.kind}_{part}": counts[part]
            for part, share in self.part_weights.items()
            if share
        }

    def guessing_losses(self, rows: int) -> dict[str, float]:
        """Of contrastive sentences: each text among all of the batch. The number of words varies."""
        if self.kind != "contrastive" or not self.part_weights["sentence"]:
            return {}
        return {"contrastive_sentence": self.part_weights["sentence"] * log(rows)}

    def _distilled_words(self, batch: Batch) -> Tensor:
        """(N, K) bool: words with a teacher feature that the student reads without a masked token."""
        word = require(batch.text, "text", self.name).word_ids
        words = require(batch.word_type_ids, "word_type_ids", self.name)
        width = words.shape[1]
        token_counts = _count_per_word(word >= 0, word, width)
        masked = torch.zeros_like(token_counts)
        if "masked_lm" in batch.labels:
            masked = _count_per_word(batch.labels["masked_lm"] != IGNORE, word, width)
        return (token_counts > 0) & (masked == 0) & batch.features["has"].bool() & (words >= 0)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The summed losses () `contrastive_sentence` and `contrastive_word`, or `l1_sentence` and `l1_word`."""
        states = require(encoded.text, "text", self.name)
        numbers = require(batch.word_type_ids, "word_type_ids", self.name)
        terms = {}
        if self.part_weights["sentence"]:
            student = pool_sentences(encoded, batch, self.sizes, self.pooling, self.name)
            teacher = batch.features["sentence"]
            terms["sentence"] = self._compare("sentence", student, teacher, _hash_texts(numbers))
        if self.part_weights["word"]:
            places = batch.flat_indices(self._distilled_words)
            student = select(self._words(states, batch, numbers.shape[1]), places)
            teacher = select(batch.features["words"], places)
            terms["word"] = self._compare("word", student, teacher, select(numbers, places))
        return {
            f"{self.kind}_{part}": self.part_weights[part] * loss for part, loss in terms.items()
        }

    def _words(self, states: Tensor, batch: Batch, width: int) -> Tensor:
        """The student's feature (N, K, D) of each word: the mean of its tokens."""
        word = require(batch.text, "text", self.name).word_ids
        places = F.one_hot(word + 1, width + 1)[..., 1:].to(states.dtype)  # (N, T, K)
        tokens = places.sum(1).clamp(min=1).unsqueeze(-1)
        return places.transpose(1, 2) @ states / tokens

    def _compare(self, part: str, student: Tensor, teacher: Tensor, number: Tensor) -> Tensor:
        """Summed loss between student (n, D) and teacher (n, E) features; items of equal `number` (n,) are the same."""
        student = self.project[part](student)
        if self.kind == "contrastive":
            keys, start = gather_across_processes(F.normalize(teacher, dim=-1))
            numbers, _ = gather_across_processes(number)
            same = number[:, None] == numbers[None]
            anchors = F.normalize(student, dim=-1)
            return info_nce(anchors, keys, same, start, 1 / self.temperature)
        if self.targets == "unit":
            student = F.normalize(student, dim=-1)
            teacher = F.normalize(teacher, dim=-1)
        return (student - teacher).abs().sum()


def _count_per_word(flags: Tensor, word: Tensor, width: int) -> Tensor:
    """Number of flagged tokens (N, T) per word: (N, K)."""
    counts = torch.zeros(len(flags), width + 1, dtype=torch.long, device=flags.device)
    return counts.scatter_add(1, word + 1, flags.long())[:, 1:]


def _hash_texts(words: Tensor) -> Tensor:
    """Hash (N,) of each text from the numbers of its words (N, K); equal for equal texts."""
    place = torch.arange(1, words.shape[1] + 1, device=words.device)
    mixed = (words + 1) * (place * 0x9E3779B1 % 0x7FFFFFFF)  # padding is -1, so it adds 0
    return mixed.sum(1)


def _make_feature_distillation(
    context: ObjectiveContext, kind: Literal["contrastive", "l1"]
) -> FeatureDistillation:
    options = context.settings.distillation
    return FeatureDistillation(
        context.sizes,
        kind=kind,
        sentence_weight=options.sentence_weight,
        word_weight=options.word_weight,
        temperature=options.temperature,
        pooling=options.pooling,
        targets=options.l1_targets,
        weight=options.distill_weight,
    )


CONTRASTIVE = ObjectiveSpec(
    "contrastive",
    lambda context: _make_feature_distillation(context, "contrastive"),
    teacher_setting="teacher",
    settings_groups=(DistillationSettings,),
)
L1 = ObjectiveSpec(
    "l1",
    lambda context: _make_feature_distillation(context, "l1"),
    teacher_setting="teacher",
    settings_groups=(DistillationSettings,),
)
