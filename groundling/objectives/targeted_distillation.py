"""CLIP Targeted Distillation (CLIP-TD: Wang et al. 2022): its confidence gate and its terms, and two of ours."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, require
from groundling.core.errors import InputError
from groundling.core.output_types import MultipleChoice, OutputType
from groundling.objectives import Objective, ObjectiveContext, masked_tokens, read_words
from groundling.objectives.contrastive import pool_states
from groundling.objectives.supervised import SupervisedObjective
from groundling.settings.objectives import (
    SimilarityDistillationSettings,
    TargetedDistillationSettings,
)

# The confidence gate: distil only where the teacher is more confident than the student (CLIP-TD Eq. 9 and 10).


@dataclass(frozen=True)
class ConfidenceGate:
    """Open where T times the teacher's confidence exceeds the student's; without gradient.

    Confidence is the largest softmax probability over the answers, whatever the head's loss (the paper's sigma may be
    softmax or sigmoid). The teacher's softmax is over its scaled similarities with the choices; if the answers are not
    texts of the example, its feature `clip_confidence` is used. Per pair (not in the paper), each choice's probability
    is compared instead of the largest; for a head with two outputs per choice, the softmax is over these two.
    """

    output_type: OutputType
    """The task's output type, with the loss of its head."""
    scope: Literal["question", "pair"] = "question"
    temperature: float = 1.0
    """T; the paper gives no value."""

    def __post_init__(self) -> None:
        """Raises InputError for a task without answers to choose from."""
        if not self._is_multiple_choice and self.output_type.head_width < 2:
            raise InputError("td_gate: this task has no answers to choose from; omit it")

    @property
    def _is_multiple_choice(self) -> bool:
        return isinstance(self.output_type, MultipleChoice)

    @property
    def feature(self) -> str:
        """The teacher's feature that it reads."""
        return "clip_similarity" if self._is_multiple_choice else "clip_confidence"

    @property
    def is_per_pair(self) -> bool:
        """Whether there is one gate per row instead of one per sample."""
        return self.scope == "pair" and self._is_multiple_choice

    def confidence_ratio(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """The ratio r of each gate, (B,) or (N,)."""
        with torch.no_grad():
            teacher = batch.features[self.feature].float().view(len(batch), -1)
            if self._is_multiple_choice:
                teacher = teacher.softmax(-1)
            student = self._student(encoded, batch)
            if not self.is_per_pair:
                teacher = teacher.amax(-1)
                student = student.amax(-1)
            return (self.temperature * teacher / student).flatten()

    def open_gates(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Mask (B,) or (N,) bool of the open gates."""
        return self.confidence_ratio(encoded, batch) > 1

    def _student(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """The student's probabilities (B, C), or (B, answers)."""
        answers = encoded.heads.get(SupervisedObjective.name)
        outputs = require(answers, "heads.supervised", "a gate on the task's answers").float()
        if isinstance(self.output_type, MultipleChoice) and self.output_type.kind == "each":
            wrong_or_right = outputs.view(len(batch), -1, 2)
            if self.is_per_pair:
                return wrong_or_right.softmax(-1)[..., 1]
            outputs = wrong_or_right[..., 1]
        return outputs.softmax(-1)


def _make_gate(
    settings: TargetedDistillationSettings, output_type: OutputType | None
) -> ConfidenceGate | None:
    if settings.td_gate == "none":
        return None
    if output_type is None:
        raise InputError(f"td_gate={settings.td_gate}: only for a task; omit it")
    return ConfidenceGate(output_type, settings.td_gate, settings.td_temperature)


class TaskDistillation(Objective, ABC):
    """Base of the objectives for a task's output type, whose projections are not saved."""

    @classmethod
    def from_context(cls, context: ObjectiveContext) -> Self:
        """With a run's settings, for the task's output type."""
        values = context.values(cls.Settings)
        return cls(context.sizes, output_type=context.output_type, **values)

    def saved_modules(self) -> dict[str, nn.Module]:
        """Nothing: the projections are not saved."""
        return {}


class TargetedDistillationTerm(TaskDistillation):
    """L1 distance between projected states of the student and features of a frozen CLIP, in every row.

    Sub-classes define what is compared (`feature`, `distances`) and its widths (`widths`). L1 is summed over dimensions
    and averaged over rows (Eq. 3, 4, 7); each choice of an example is a row (Table 8). With `td_distance = l2` (not in
    the paper) differences are squared. Rows with a closed gate have loss 0 but are counted (Eq. 10). The projection is
    on the student's side (the paper mentions none, although the widths differ), is trained, and is not exported.
    """

    feature: ClassVar[str]
    """The teacher's feature that it reads."""

    Settings = TargetedDistillationSettings
    settings: TargetedDistillationSettings

    def __init__(
        self, sizes: OutputSizes, *, output_type: OutputType | None = None, **options: Any
    ) -> None:
        """`output_type`: the task's, with the loss of its head; raises InputError for a gate without a task."""
        super().__init__(sizes, **options)
        settings = self.settings
        self.weight *= settings.td_weight
        self.gate_term = f"{self.name}_gate_open"
        has_choices = isinstance(output_type, MultipleChoice)
        self.correct_choice_only = has_choices and settings.td_choices == "right"
        self.gate = _make_gate(settings, output_type)
        if self.gate is not None:
            self.required_fields = (*self.required_fields, f"features.{self.gate.feature}")
            self.monitored_terms = (*self.monitored_terms, self.gate_term)
        if self.correct_choice_only:
            self.required_fields = (*self.required_fields, "labels.label")
        self.project = nn.Linear(*self.widths(sizes))

    @classmethod
    def features(cls, context: ObjectiveContext | None = None) -> frozenset[str]:
        """Its own, and those that the gate reads."""
        names = super().features()
        if context is None:
            return names
        gate = _make_gate(context.settings.targeted_distillation, context.output_type)
        return names if gate is None else names | {gate.feature}

    def widths(self, sizes: OutputSizes) -> tuple[int, int]:
        """Widths of the student's states and of the teacher's features."""
        return sizes.text, sizes.teacher

    @abstractmethod
    def distances(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Distance (N,) between student and teacher in each row."""

    def distance(self, states: Tensor, features: Tensor) -> Tensor:
        """Distance (...) between projected states (..., D) of the student and features (..., E) of the teacher."""
        student = self.project(states).float()
        if self.settings.td_unit:
            student = F.normalize(student, dim=-1)
        gaps: Tensor = (student - features.detach().float()).abs()
        if self.settings.td_distance == "l2":
            gaps = gaps.square()
        return gaps.sum(-1) if self.settings.td_reduction == "sum" else gaps.mean(-1)

    def distilled_rows(self, batch: Batch) -> Tensor:
        """Mask (N,) bool of the distilled rows: all, or those of the correct choices."""
        number = torch.arange(batch.rows, device=batch.device)
        if not self.correct_choice_only:
            return number >= 0
        right = batch.labels["label"].repeat_interleave(batch.choices)
        return number % batch.choices == right

    def count(self, batch: Batch) -> dict[str, int]:
        """Distilled rows, and gates; with one gate per row, the gates of the distilled rows."""
        counts = {self.name: int(self.distilled_rows(batch).sum())}
        if self.gate is not None:
            counts[self.gate_term] = counts[self.name] if self.gate.is_per_pair else len(batch)
        return counts

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The summed distance (), by the term's name, and the number of open gates, as `NAME_gate_open`."""
        distances = self.distances(encoded, batch)
        rows = self.distilled_rows(batch)
        terms = {}
        if self.gate is not None:
            is_open = self.gate.open_gates(encoded, batch)
            open_rows = rows & is_open.repeat_interleave(batch.rows // len(is_open))
            terms[self.gate_term] = (open_rows if self.gate.is_per_pair else is_open).float().sum()
            rows = open_rows
        return {self.name: (distances * rows).sum(), **terms}

    def notes(self, means: Mapping[str, float]) -> list[str]:
        """A note on a gate that was never or always open."""
        share = means.get(self.gate_term)
        if share not in (0.0, 1.0):
            return []
        consequence = "the gate had no effect" if share else "nothing was distilled"
        return [
            f"the confidence gate was open in {share:.0%} of the last cases: {consequence}; check td_temperature and "
            "the scale of the teacher's logits"
        ]


class TargetedTextDistillation(TargetedDistillationTerm):
    """CLIP's text feature, at the end token, and the student's first state, of a decoder its last (Eq. 4)."""

    name = "td_text"
    feature = "clip_text"
    required_fields = ("text", "features.clip_text")

    def distances(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Distance (N,) for each row's text."""
        states = require(encoded.text, "text", self.name)
        text = pool_states(states, batch, "own", self.name, self.sizes.causal)
        return self.distance(text, batch.features[self.feature])


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
        is_read = read_words(batch, self.sizes, self.name) >= 0
        tokens = self._tokens(batch) & is_read.unsqueeze(1)
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
        is_masked = masked_tokens(batch, self.name).unsqueeze(1)
        return used & ~(tokens & is_masked).any(-1)

    def count(self, batch: Batch) -> dict[str, int]:
        """Rows, and gates."""
        return {**super().count(batch), USED: batch.rows, SHORT: batch.rows}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The summed distance (), as `td_words`, distilled words, and rows with fewer than `num_words`."""
        used = self._distilled_words(batch).sum(1)
        short = used < self.settings.num_words
        monitored = {USED: used.float().sum(), SHORT: short.float().sum()}
        return {**super().forward(encoded, batch), **monitored}


def image_states(encoded: EncoderOutput, batch: Batch, reader: str) -> Tensor:
    """State (N, D) of each row's first image: of its whole-image region or, without one, the mean of its regions.

    `reader`: name of the objective, for errors.
    """
    states = require(encoded.visual, "visual", reader)
    regions = require(batch.regions, "regions", reader)
    first = regions.mask & (regions.image_index == regions.image_index[:, :1])
    whole = first & regions.is_whole_image
    chosen = whole.where(whole.any(1, keepdim=True), first).unsqueeze(-1)
    return (states * chosen).sum(1) / chosen.sum(1).clamp(min=1)


class TargetedImageDistillation(TargetedDistillationTerm):
    """CLIP's image feature, and the student's state of the region that is the whole image (Eq. 3).

    Without such a region (the paper's UNITER and VILLA have none, and it does not say what replaces it),
    the mean state of the regions of the row's first image. Excluded are rows without regions, and rows
    whose image may be a negative by their label `sentence_image`.
    """

    name = "td_image"
    feature = "clip_image"
    required_fields: Sequence[str] = ("regions", "features.clip_image")
    monitored_terms: Sequence[str] = ("td_image_mean",)

    def widths(self, sizes: OutputSizes) -> tuple[int, int]:
        """Widths of a region's state and of CLIP's image feature; raises InputError for a model without regions."""
        if not sizes.regions:
            raise InputError(f"{self.name}: this model reads no regions; use td_text")
        return sizes.visual, sizes.teacher_image

    def distilled_rows(self, batch: Batch) -> Tensor:
        """Mask (N,) bool of the distilled rows that have regions of their own image."""
        regions = require(batch.regions, "regions", self.name)
        rows = super().distilled_rows(batch) & regions.mask.any(1)
        if "sentence_image" in batch.labels:
            rows &= (batch.labels["sentence_image"] != 0).repeat_interleave(batch.choices)
        return rows

    def distances(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Distance (N,) for each row's first image."""
        states = image_states(encoded, batch, self.name)
        return self.distance(states, batch.features[self.feature])

    def count(self, batch: Batch) -> dict[str, int]:
        """Rows, and gates."""
        counts = super().count(batch)
        return {**counts, f"{self.name}_mean": counts[self.name]}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The summed distance (), by the term's name, and the number of rows that use the mean, as `NAME_mean`."""
        regions = require(batch.regions, "regions", self.name)
        has_whole = (regions.is_whole_image & regions.mask).any(1)
        without_whole = (self.distilled_rows(batch) & ~has_whole).float().sum()
        return {**super().forward(encoded, batch), f"{self.name}_mean": without_whole}

    def notes(self, means: Mapping[str, float]) -> list[str]:
        """Notes on the gate, and on images without a whole-image region: CLIP's image is compared with their mean."""
        share = means.get(f"{self.name}_mean", 0.0)
        missing = [
            f"{self.name}: {share:.0%} of the last rows had no whole-image region (the store has none, or this model "
            "does not read it); there the mean of all regions was used"
        ]
        return super().notes(means) + (missing if share > 0 else [])


class SharedProjectionDistillation(TargetedImageDistillation):
    """The sum of CLIP-TD's distances of image and text (Eq. 3 and 4), where one Linear projects both states.

    With a Linear of its own on each side, as published, states of image and text can fit CLIP's features
    without being comparable with each other. With a shared one, their cosine is CLIP's.
    """

    name = "td_image_text"
    required_fields = ("text", "regions", "features.clip_image", "features.clip_text")
    monitored_terms = ("td_image_text_mean",)

    def widths(self, sizes: OutputSizes) -> tuple[int, int]:
        """Widths of a state and of a feature; raises InputError if image and text differ in one of them."""
        widths = sizes.text, sizes.teacher
        if super().widths(sizes) != widths:
            raise InputError(f"{self.name}: image and text differ in width; use td_image, td_text")
        return widths

    def distances(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Distance (N,) for each row's first image and its text, summed."""
        states = require(encoded.text, "text", self.name)
        text = self.distance(states[:, 0], batch.features["clip_text"])
        return super().distances(encoded, batch) + text


INITIAL_SCALE, LARGEST_SCALE = 1 / 0.07, 100.0
"""Scale of the cosine, learned as a logarithm, as in CLIP (Radford et al. 2021, Section 2.5)."""


class SimilarityDistillation(TaskDistillation):
    """Divergence of a student's distribution over a question's choices from a frozen CLIP's.

    The student's distribution is the softmax of scaled cosines between the projected state of the image and
    that of each choice's text (the first position); CLIP's is the softmax of its scaled similarities, as
    in CLIP-TD's gate. KL(CLIP, student) is averaged over questions. Projections are trained and not exported.
    Unlike CLIP-TD's terms, it compares image and text with each other, and each choice has its own target.
    """

    name = "td_similarity"
    required_fields = ("text", "regions", "features.clip_similarity")
    Settings = SimilarityDistillationSettings
    settings: SimilarityDistillationSettings

    def __init__(
        self, sizes: OutputSizes, *, output_type: OutputType | None = None, **options: Any
    ) -> None:
        """Raises InputError for a task without choices, and for a model without regions."""
        super().__init__(sizes, **options)
        self.weight *= self.settings.td_similarity_weight
        if not isinstance(output_type, MultipleChoice):
            raise InputError("td_similarity: only for a task of multiple choice")
        if not sizes.regions:
            raise InputError("td_similarity: this model reads no regions; use td_text")
        self.image = nn.Linear(sizes.visual, sizes.teacher)
        self.text = nn.Linear(sizes.text, sizes.teacher)
        self.log_scale = nn.Parameter(torch.tensor(math.log(INITIAL_SCALE)))

    def _has_image(self, batch: Batch) -> Tensor:
        """Mask (B,) bool of the questions whose choices all have regions."""
        regions = require(batch.regions, "regions", self.name)
        return regions.mask.any(1).view(len(batch), -1).all(1)

    def count(self, batch: Batch) -> dict[str, int]:
        """Questions with an image."""
        return {self.name: int(self._has_image(batch).sum())}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The summed divergence (), in nats, as `td_similarity`."""
        text = self.text(require(encoded.text, "text", self.name)[:, 0]).float()
        image = self.image(image_states(encoded, batch, self.name)).float()
        cosines = F.cosine_similarity(image, text, dim=-1)
        scale = self.log_scale.exp().clamp(max=LARGEST_SCALE)
        student = (scale * cosines).view(len(batch), -1).log_softmax(-1)
        teacher = batch.features["clip_similarity"].detach().float().view(len(batch), -1)
        told = teacher.log_softmax(-1)
        divergences = F.kl_div(student, told, reduction="none", log_target=True).sum(-1)
        return {self.name: (divergences * self._has_image(batch)).sum()}
