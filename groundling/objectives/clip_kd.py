"""CLIP-KD's losses (Yang et al. 2024, 2307.12732) and relational distillation (Park et al. 2019), for a text student.

CLIP-KD's student has two towers. Here it is a text encoder, so each loss is the half that reads the student's texts.
Formulas are those of winycg/CLIP-KD (src/open_clip/loss.py, `KDClipLoss`); the papers were not read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import Batch, EncoderOutput, OutputSizes
from groundling.core.errors import InputError
from groundling.objectives import Objective, ObjectiveContext
from groundling.objectives.caption_to_image import number_images
from groundling.objectives.contrastive import (
    gather_across_processes,
    info_nce,
    pool_sentences,
    sentence_width,
)
from groundling.settings.objectives import (
    AffinitySettings,
    InteractiveContrastSettings,
    MimicrySettings,
    RelationalSettings,
)

FEATURES = {"image": "clip_image", "text": "clip_text"}
"""The teacher's feature by what it embeds."""
Target = Literal["image", "text"]
"""What a teacher embeds."""


class ProjectedSentence(Objective):
    """Base of the objectives that compare the projected sentence vector with a teacher's embedding."""

    in_batch_negatives = True

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        super().__init__(sizes, **options)
        width = sentence_width(sizes, self.settings.pooling)
        self.project: nn.Module = nn.Linear(width, self.target_width(sizes))

    def target_width(self, sizes: OutputSizes) -> int:
        """Width of the embeddings that the projected vector is compared with."""
        return sizes.teacher_image

    def count(self, batch: Batch) -> dict[str, int]:
        """Texts."""
        return {self.name: batch.rows}

    def sentences(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Projected sentence vectors (N, E) float32."""
        own = pool_sentences(encoded, batch, self.sizes, self.settings.pooling, self.name)
        projected: Tensor = self.project(own)
        return projected.float()


class _OfTarget(ProjectedSentence):
    """Base of the objectives whose setting `target` chooses the teacher's feature."""

    required_fields: tuple[str, ...] = ("text", "features.clip_image")
    target_setting = ""
    """Name of the setting."""

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        super().__init__(sizes, **options)
        self.required_fields = ("text", f"features.{FEATURES[self.target]}")

    @property
    def target(self) -> Target:
        """What the teacher embeds."""
        target: Target = getattr(self.settings, self.target_setting)
        return target

    def target_width(self, sizes: OutputSizes) -> int:
        """The width of the chosen feature."""
        return sizes.teacher_image if self.target == "image" else sizes.teacher

    @classmethod
    def features(cls, context: ObjectiveContext | None = None) -> frozenset[str]:
        """The chosen feature; both without a run."""
        if context is None:
            return frozenset(FEATURES.values())
        chosen = context.values(cls.Settings).get(cls.target_setting, "image")
        return frozenset({FEATURES[chosen]})

    def targets(self, batch: Batch) -> Tensor:
        """The teacher's embeddings (N, E), of unit length."""
        return batch.features[FEATURES[self.target]].float()


class FeatureMimicry(_OfTarget):
    """The mean squared difference between unit-length sentence vector and teacher embedding (CLIP-KD, FD).

    The student's vector passes a Linear before its normalisation, as in CLIP-KD where widths differ.
    """

    name = "feature_mimicry"
    in_batch_negatives = False
    target_setting = "mimicry_target"
    Settings = MimicrySettings
    settings: MimicrySettings

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        super().__init__(sizes, **options)
        self.weight *= self.settings.mimicry_weight

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The squared differences, averaged over dimensions and summed over texts to ()."""
        student = F.normalize(self.sentences(encoded, batch), dim=-1)
        return {self.name: (student - self.targets(batch)).pow(2).mean(-1).sum()}


class InteractiveContrast(ProjectedSentence):
    """InfoNCE of the student's texts among the teacher's images of the batch (CLIP-KD, ICL).

    Captions of the same image, which have equal embeddings, are no negatives.
    """

    name = "interactive_contrast"
    required_fields = ("text", "features.clip_image")
    Settings = InteractiveContrastSettings
    settings: InteractiveContrastSettings

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        super().__init__(sizes, **options)
        self.weight *= self.settings.interactive_weight
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def guessing_losses(self, rows: int) -> Mapping[str, float]:
        """Each text among all images of the batch."""
        return {self.name: math.log(rows)}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The cross-entropies summed over texts, ()."""
        images = batch.features["clip_image"].float()
        every, start = gather_across_processes(images)
        numbers = number_images(images)
        same = numbers[:, None] == gather_across_processes(numbers)[0][None]
        released = self.settings.interactive_scale == "released"
        scale = self.log_scale if released else self.log_scale.exp()
        anchors = F.normalize(self.sentences(encoded, batch), dim=-1)
        return {self.name: info_nce(anchors, every, start, scale, same)}


class AffinityDistillation(ProjectedSentence):
    """The divergence of the student's text-to-image distribution over the batch from the teacher's (CLIP-KD, cross KD).

    The teacher's is the softmax of its text's cosines with its images, the student's that of its own text with the
    same images.
    """

    name = "affinity_distillation"
    required_fields = ("text", "features.clip_image", "features.clip_text")
    Settings = AffinitySettings
    settings: AffinitySettings

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        """Raises InputError for a teacher whose texts and images are of different widths."""
        super().__init__(sizes, **options)
        self.weight *= self.settings.affinity_weight
        if sizes.teacher != sizes.teacher_image:
            raise InputError(f"{self.name}: the teacher's texts and images share no space")

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """KL divergences from the teacher's distributions, summed over texts to ()."""
        images, _ = gather_across_processes(batch.features["clip_image"].float())
        scale = self.settings.affinity_scale
        teacher = (scale * batch.features["clip_text"].float() @ images.T).log_softmax(-1)
        student = F.normalize(self.sentences(encoded, batch), dim=-1)
        log_share = (scale * student @ images.T).log_softmax(-1)
        return {self.name: F.kl_div(log_share, teacher, reduction="sum", log_target=True)}


class RelationalDistillation(_OfTarget):
    """Distances and angles among the sentence vectors of a batch follow the teacher's (RKD, Park et al. 2019, Sec. 3).

    The distance term is Huber's loss between all distances of pairs, each divided by the mean over all pairs; the
    angle term between the cosines at the corners of all triangles. Both are means, as in lenscloth/RKD
    (metric/loss.py). The relations are among the texts of a micro-batch of all processes.
    """

    name = "relational_kd"
    target_setting = "relational_target"
    Settings = RelationalSettings
    settings: RelationalSettings

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        super().__init__(sizes, **options)
        self.weight *= self.settings.relational_weight

    def count(self, batch: Batch) -> dict[str, int]:
        """Texts, for both terms."""
        return {"rkd_distance": batch.rows, "rkd_angle": batch.rows}

    def weight_of(self, term: str) -> float:
        """The setting's weight."""
        distance, angle = self.settings.relational_distance, self.settings.relational_angle
        return self.weight * (distance if term == "rkd_distance" else angle)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The mean losses times the number of texts, ()."""
        student, _ = gather_across_processes(self.sentences(encoded, batch))
        teacher, _ = gather_across_processes(self.targets(batch))
        rows = batch.rows
        distance = F.smooth_l1_loss(relative_distances(student), relative_distances(teacher))
        angle = F.smooth_l1_loss(corner_cosines(student), corner_cosines(teacher))
        return {"rkd_distance": rows * distance, "rkd_angle": rows * angle}


def relative_distances(vectors: Tensor) -> Tensor:
    """Distances (N, N) of all pairs of vectors (N, E), divided by their mean over two different texts."""
    gaps = vectors[:, None] - vectors[None]
    squared = gaps.pow(2).sum(-1)
    differs = squared > 0
    # The root of zero has no gradient.
    distances = torch.where(differs, squared, torch.ones_like(squared)).sqrt() * differs
    pairs = len(vectors) * (len(vectors) - 1)
    return distances / (distances.sum() / max(pairs, 1)).clamp(min=1e-12)


def corner_cosines(vectors: Tensor) -> Tensor:
    """Cosines (N, N, N) at the corner i of each triangle j, i, k of vectors (N, E); 0 where j or k equals i."""
    edges = F.normalize(vectors[None] - vectors[:, None], dim=-1)
    return edges @ edges.transpose(1, 2)
