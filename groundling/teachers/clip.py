"""CLIP-like models as a teacher of an image, a text and its most relevant words (CLIP-TD, Section 3.1; MAD)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch

from groundling.core.batch import Sample, collate
from groundling.core.errors import InputError
from groundling.data.image_samples import ImageInput
from groundling.data.text.keywords import KeywordExtractor
from groundling.models.clip import FrozenClip
from groundling.settings.objectives import TargetedDistillationSettings
from groundling.teachers import Teacher
from groundling.teachers.clip_parts import (
    FEATURES,
    SCORED_IMAGE,
    SCORED_TEXT,
    UNNORMALIZED_IMAGE,
    AnswerConfidence,
    ClipBatch,
    ClipImagePart,
    ClipModels,
    ClipScorePart,
    ClipTeacherPart,
    ClipTextPart,
    ClipWordPart,
    CombinedClipTeacher,
    SimilarityClusterConfidence,
    TeacherImages,
)


class ClipTeacher(CombinedClipTeacher):
    """A CLIP-like model's features of each row's image and text; only the requested ones are computed.

    Features by row, float32: `clip_image` (N, Ei) and `clip_text` (N, Et), of unit length;
    `clip_image_unnormalized` (N, Ei), as CLIP returns it;
    `clip_similarity` (N,), the cosine of both times CLIP's learned scale; `clip_words` (N, M, Et), of unit
    length, at the last token of each of the M selected words, padded with zeros; `clip_word` (N, M) int64,
    the numbers of these raw words in the row, padded with -1; `clip_confidence` (N,), the largest
    probability of its softmax over the task's answers.

    A row's text is its first text and, after a space, its second, truncated to one window. Words are
    selected by visual relevance (cosine of image and word) and keyword importance (Eq. 5 and 6).
    """

    def __init__(
        self,
        clip: FrozenClip,
        features: Collection[str],
        options: TargetedDistillationSettings | None = None,
        *,
        scorer: FrozenClip | None = None,
        keywords: KeywordExtractor | None = None,
        confidence: AnswerConfidence | SimilarityClusterConfidence | None = None,
        images: Mapping[str, ImageInput] | None = None,
    ) -> None:
        """A teacher of the named `features`, some of `FEATURES`.

        Args:
            clip: the model that computes the features.
            features: names of the requested features.
            options: the image folder, the features' space, and how words are selected.
            scorer: another CLIP-like model that compares image and text; by default `clip`.
            keywords: extracts the keywords of a text; by default the built-in extractor.
            confidence: the answers that `clip_confidence` refers to.
            images: the images by id; by default those in the image folder.

        Raises InputError if models or settings are missing for a requested feature.
        """
        options = options or TargetedDistillationSettings()
        teacher_images = TeacherImages(options.teacher_images if images is None else images)
        clips = ClipModels(clip, scorer or clip, options.teacher_space == "joint", teacher_images)
        requested = [name for name in FEATURES if name in features]
        computed = _with_dependencies(requested, clips, confidence, options)
        _check_sources(requested, computed, clips, options)
        members: list[ClipTeacherPart] = []
        image_features = computed & {"clip_image", UNNORMALIZED_IMAGE, SCORED_IMAGE}
        if image_features:
            members.append(ClipImagePart(clips, image_features))
        text_features = computed & {"clip_text", SCORED_TEXT}
        if text_features:
            members.append(ClipTextPart(clips, text_features))
        if "clip_words" in computed:
            words = ClipWordPart(clips, options, keywords)
            # The text part already counts the truncated tokens of the same model.
            words.counts_truncated = not (
                text_features - {SCORED_TEXT} if clips.has_scorer else text_features
            )
            members.append(words)
        if scores := computed & {"clip_similarity", "clip_confidence"}:
            members.append(ClipScorePart(clips, scores, confidence))
        super().__init__(clips, members, requested)
        text, image = clip.text, clip.image
        if text is not None:
            self.width = (
                text.embed_dim if clips.in_joint_space else int(text.projection.in_features)
            )
        if image is not None:
            self.image_width = image.embed_dim if clips.in_joint_space else image.pooled_width

    def parts(self) -> Sequence[Teacher]:
        """Up to four parts, for images, texts, words and scores, as needed."""
        return self.members

    def merge_uncached(self, parts: Sequence[Teacher]) -> Sequence[Teacher]:
        """One teacher of all these parts, which encodes each text once."""
        rest = [part for part in self.members if part in parts]
        computed = {name for part in rest for name in part.feature_names}
        return [CombinedClipTeacher(self.clips, rest, computed & set(self.feature_names))]

    @torch.no_grad()
    def word_scores(self, rows: Sequence[Sample]) -> list[tuple[np.ndarray, np.ndarray]]:
        """The selection score (K,) of each raw word in each row, and a mask (K,) bool of the candidates.

        Other words score 0. Only for a teacher of `clip_words` that selects words by score.
        """
        clip_batch = ClipBatch(self.clips, collate(self.inputs(rows)).to(self.clips.scorer.device))
        self.compute(clip_batch)
        (words,) = [member for member in self.members if isinstance(member, ClipWordPart)]
        return words.scores(clip_batch)


def _with_dependencies(
    requested: Collection[str],
    clips: ClipModels,
    confidence: AnswerConfidence | SimilarityClusterConfidence | None,
    options: TargetedDistillationSettings,
) -> set[str]:
    """The requested features, and those that they are computed from."""
    computed = set(requested)
    if "clip_confidence" in computed:
        computed.add(
            "clip_similarity"
            if isinstance(confidence, SimilarityClusterConfidence)
            else clips.scored_image
        )
    if "clip_similarity" in computed:
        computed |= {clips.scored_image, clips.scored_text}
    if {"clip_words", "clip_word"} & computed:
        computed |= {"clip_words", "clip_word"}
        if options.word_selection == "top":
            computed.add(clips.scored_image)
    return computed


def _check_sources(
    requested: Sequence[str],
    computed: Collection[str],
    clips: ClipModels,
    options: TargetedDistillationSettings,
) -> None:
    """Raises InputError if a model or setting is missing for the features `computed`."""
    compares = bool({"clip_similarity", "clip_confidence"} & set(computed))
    if "clip_words" in computed and options.word_selection == "top":
        compares = True
    if compares and not clips.scorer.share_space:
        raise InputError("the teacher's towers share no space; pass teacher_scorer=MODEL")
    reads_images = compares or bool({"clip_image", UNNORMALIZED_IMAGE} & set(computed))
    if reads_images and clips.images.source == "":
        raise InputError(f"a teacher of {', '.join(requested)} needs teacher_images=FOLDER")
