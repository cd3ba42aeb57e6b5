"""CLIP and its kin as a teacher of an image, a text and the words that matter most (CLIP-TD, Section 3.1; MAD)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch

from groundling.core.batch import Sample, collate
from groundling.core.errors import InputError
from groundling.data.image_samples import Picture
from groundling.data.text.keywords import KeywordExtractor
from groundling.models.clip import FrozenClip
from groundling.settings.objectives import TargetedDistillationSettings
from groundling.teachers import Teacher
from groundling.teachers.clip_parts import (
    FEATURES,
    SCORED_IMAGE,
    SCORED_TEXT,
    AnswerConfidence,
    ClipBatch,
    ClipImagePart,
    ClipModels,
    ClipScorePart,
    ClipTeacherPart,
    ClipTextPart,
    ClipWordPart,
    ClusterConfidence,
    CombinedClipTeacher,
    TeacherImages,
)


class ClipTeacher(CombinedClipTeacher):
    """A CLIP-like model's features of each row's image and text; only what is asked for is computed.

    Features by row, float32: `clip_image` (N, Ei) and `clip_text` (N, Et), of unit length; `clip_similarity` (N,), the
    cosine of both times CLIP's own scale; `clip_words` (N, M, Et), of unit length, of the M words that matter most,
    each as its last piece shows it, and `clip_word` (N, M) int64, which raw words of the row these are, zeros and -1
    beyond; `clip_confidence` (N,), the largest share of its softmax over the task's answers.

    A row's text is its first text and, after a space, its second, in one window, cut from the end. The words that
    matter are those with the most visual relevance (cosine of image and word) and keyword importance (Eq. 5 and 6).
    """

    def __init__(
        self,
        clip: FrozenClip,
        features: Collection[str],
        options: TargetedDistillationSettings | None = None,
        *,
        scorer: FrozenClip | None = None,
        keywords: KeywordExtractor | None = None,
        confidence: AnswerConfidence | ClusterConfidence | None = None,
        images: Mapping[str, Picture] | None = None,
    ) -> None:
        """A teacher that is asked for `features`, some of `FEATURES`.

        Args:
            clip: the model whose features these are.
            features: what is asked for.
            options: the folder of the images, the space of the features, and how words are selected.
            scorer: another CLIP-like model, which compares image and text; without one, the model itself does.
            keywords: finds the keywords of a text; without, the built-in extractor does.
            confidence: what `clip_confidence` is about.
            images: the images by id; without, those in the folder of the images.

        Raises InputError if something is asked for that these cannot say.
        """
        options = options or TargetedDistillationSettings()
        photos = TeacherImages(options.teacher_images if images is None else images)
        clips = ClipModels(clip, scorer or clip, options.teacher_space == "joint", photos)
        wanted = [name for name in FEATURES if name in features]
        made = _with_dependencies(wanted, clips, confidence, options)
        _check_sources(wanted, made, clips, options)
        members: list[ClipTeacherPart] = []
        if photos_read := made & {"clip_image", SCORED_IMAGE}:
            members.append(ClipImagePart(clips, photos_read))
        texts = made & {"clip_text", SCORED_TEXT}
        if texts:
            members.append(ClipTextPart(clips, texts))
        if "clip_words" in made:
            words = ClipWordPart(clips, options, keywords)
            # The part for texts reads with the same model what the part for words reads again.
            words.counts_truncated = not (texts - {SCORED_TEXT} if clips.has_scorer else texts)
            members.append(words)
        if scores := made & {"clip_similarity", "clip_confidence"}:
            members.append(ClipScorePart(clips, scores, confidence))
        super().__init__(clips, members, wanted)
        text, image = clip.text, clip.image
        if text is not None:
            self.width = (
                text.embed_dim if clips.in_joint_space else int(text.projection.in_features)
            )
        if image is not None:
            self.image_width = image.embed_dim if clips.in_joint_space else image.pooled_width

    def parts(self) -> Sequence[Teacher]:
        """One for images, one for texts, one for words, and one for what follows from these; as are needed."""
        return self.members

    def merge_uncached(self, parts: Sequence[Teacher]) -> Sequence[Teacher]:
        """One teacher of them all, which reads each text once."""
        rest = [one for one in self.members if one in parts]
        made = {name for one in rest for name in one.feature_names}
        return [CombinedClipTeacher(self.clips, rest, made & set(self.feature_names))]

    @torch.no_grad()
    def word_scores(self, rows: Sequence[Sample]) -> list[tuple[np.ndarray, np.ndarray]]:
        """By what the words of rows are selected: the score (K,) of each raw word, and which are candidates (K,) bool.

        Words that are none score 0. For a teacher that is asked for `clip_words`, chosen by what they are worth.
        """
        one = ClipBatch(self.clips, collate(self.inputs(rows)).to(self.clips.scorer.device))
        self.compute(one)
        (words,) = [member for member in self.members if isinstance(member, ClipWordPart)]
        return words.scores(one)


def _with_dependencies(
    wanted: Collection[str],
    clips: ClipModels,
    sure_of: AnswerConfidence | ClusterConfidence | None,
    options: TargetedDistillationSettings,
) -> set[str]:
    """All features that have to be computed for what is asked for."""
    made = set(wanted)
    if "clip_confidence" in made:
        made.add(
            "clip_similarity" if isinstance(sure_of, ClusterConfidence) else clips.scored_image
        )
        if sure_of is None:
            raise InputError("a teacher's confidence needs a task with answers to be sure of")
    if "clip_similarity" in made:
        made |= {clips.scored_image, clips.scored_text}
    if {"clip_words", "clip_word"} & made:
        made |= {"clip_words", "clip_word"}
        if options.word_selection == "top":
            made.add(clips.scored_image)
    return made


def _check_sources(
    wanted: Sequence[str],
    made: Collection[str],
    clips: ClipModels,
    options: TargetedDistillationSettings,
) -> None:
    """Raises InputError if models or settings do not suffice for the features `made`."""
    compares = bool({"clip_similarity", "clip_confidence"} & set(made))
    if "clip_words" in made and options.word_selection == "top":
        compares = True
    if compares and not clips.scorer.share_space:
        raise InputError(
            "image and text side of the teacher are of different models and share no space; pass "
            "--teacher-scorer MODEL, a CLIP-like model that compares image and text"
        )
    if (compares or "clip_image" in made) and clips.photos.where == "":
        raise InputError(
            f"a teacher that is asked for {', '.join(wanted)} needs --teacher-images FOLDER"
        )
