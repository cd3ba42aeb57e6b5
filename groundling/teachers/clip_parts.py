"""The parts of a CLIP-like teacher: features of the image, of the text, of its words, and scores from these."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import Batch, Example, Sample, TeacherInput, collate, require
from groundling.core.errors import InputError, prefix_errors
from groundling.core.rng import generator
from groundling.data.image_samples import image_files_by_id
from groundling.data.images import ImageInput, image_digest, read_image
from groundling.data.kmeans import Clusters, kmeans_1d
from groundling.data.samples import SampleDataset
from groundling.data.text.keywords import (
    KeywordExtractor,
    YakeExtractor,
    keyword_importance,
    select_random_tokens,
    select_tokens,
    token_scores,
)
from groundling.data.text.words import word_spans
from groundling.models.clip import FrozenClip, last_token_positions
from groundling.settings.objectives import TargetedDistillationSettings
from groundling.teachers import Teacher, code_hash
from groundling.teachers.feature_cache import BATCH, iterate_samples

UNNORMALIZED_IMAGE = "clip_image_unnormalized"
"""`clip_image` before it is scaled to unit length."""
FEATURES = (
    "clip_image",
    "clip_text",
    "clip_similarity",
    "clip_words",
    "clip_word",
    "clip_confidence",
    UNNORMALIZED_IMAGE,
)
"""Features that objectives may read; see `ClipTeacher`."""
SCORED_IMAGE = "clip_scored_image"
SCORED_TEXT = "clip_scored_text"
"""Embeddings in the space where image and text are compared, if the features are in another space."""


@dataclass(frozen=True)
class AnswerConfidence:
    """Confidence in an image's answer: softmax over all answers of the task, as texts (VQA)."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class SimilarityClusterConfidence:
    """Confidence in a class: each class is a cluster of the training data's similarities (SNLI-VE).

    A class's logit is minus the squared distance to its centre, over twice the variance around all centres.
    """

    classes: int


class TeacherImages:
    """The images of a teacher's examples; equal files have equal ids."""

    def __init__(self, source: str | Mapping[str, ImageInput]) -> None:
        """`source`: the images' folder, or the images by id."""
        self.source = source
        self.files: dict[str, ImageInput] = {}
        self.digests: dict[str, str] = {}

    def find(self, samples: SampleDataset, reader: str) -> None:
        """Locate the images of samples; raises InputError, which names the `reader`, for a missing one."""
        self.files.update(image_files_by_id(samples, self.source, reader))

    def id(self, example: Example) -> str:
        """A hash of the content of an example's image."""
        (name,) = example.images
        if name not in self.digests:
            self.digests[name] = image_digest(self.files[name])[:32]
        return self.digests[name]

    def name(self, image_id: str) -> str:
        """The data's name of an image with this id."""
        return next((name for name, own in self.digests.items() if own == image_id), image_id)

    def pixels(self, name: str, clips: Sequence[FrozenClip]) -> list[np.ndarray]:
        """An image's pixels for each model; raises InputError if its file is no image."""
        path = self.files[name]
        with prefix_errors(path):
            image = read_image(path)
        towers = [require(clip.image, "image", "this teacher") for clip in clips]
        return [tower.preprocess(image) for tower in towers]


class ClipModels(NamedTuple):
    """The models of a teacher, and the images they read."""

    model: FrozenClip
    """The model that computes the teacher's features."""
    scorer: FrozenClip
    """The model that compares image and text: that of the features, or another one if given."""
    in_joint_space: bool
    """Whether features are in the joint space; otherwise they are taken before the projections."""
    images: TeacherImages

    @property
    def has_scorer(self) -> bool:
        """Whether `scorer` is another model than `model`."""
        return self.scorer is not self.model

    @property
    def scored_image(self) -> str:
        """Name of the image feature that is compared with texts."""
        return "clip_image" if self.in_joint_space and not self.has_scorer else SCORED_IMAGE

    @property
    def scored_text(self) -> str:
        """Name of the text feature that is compared with images."""
        return "clip_text" if self.in_joint_space and not self.has_scorer else SCORED_TEXT

    def normalize_text(self, states: Tensor) -> Tensor:
        """Unit-length features (..., E) from states (..., D) of the text tower of `model`."""
        return F.normalize(
            _projected(self.model, states) if self.in_joint_space else states, dim=-1
        )

    def with_own_text(self, inputs: list[Sample], texts: Sequence[str]) -> list[Sample]:
        """Inputs with their texts, tokenized for `model`."""
        if inputs[0].clip is not None:
            return inputs
        rows = self.model.tokenize(texts)
        pairs = zip(inputs, rows, strict=True)
        return [
            replace(one, clip=row, truncated_tokens=truncated) for one, (row, truncated) in pairs
        ]

    def with_scorer_text(self, inputs: list[Sample], texts: Sequence[str]) -> list[Sample]:
        """Inputs with their texts, tokenized for `scorer`, if it is another model."""
        scorer_input = inputs[0].teacher_inputs.get("scorer")
        if not self.has_scorer or (scorer_input is not None and scorer_input.clip is not None):
            return inputs
        rows = self.scorer.tokenize(texts)
        return [
            _add_teacher_input(one, "scorer", clip=row)
            for one, (row, _) in zip(inputs, rows, strict=True)
        ]


class ClipBatch:
    """One batch of inputs; each model encodes its texts at most once for all parts of a teacher."""

    def __init__(self, clips: ClipModels, batch: Batch) -> None:
        self.models = clips
        self.batch = batch
        self.features: dict[str, Tensor] = dict(batch.features)

    @cached_property
    def model_text(self) -> tuple[Tensor, Tensor]:
        """Token states (U, V, D) of each text in `model`, and the state (U, D) at its end."""
        return self.models.model.encode_texts(self.batch)

    @cached_property
    def scorer_text(self) -> tuple[Tensor, Tensor]:
        """As `model_text`, for `scorer` and its own inputs."""
        return self.models.scorer.encode_texts(self.batch.teacher_inputs["scorer"].batch)


class ClipTeacherPart(Teacher):
    """A teacher of some features of a CLIP-like model. Abstract."""

    selects_words = False
    """Whether it selects words, among those that the student reads."""

    def __init__(
        self,
        clips: ClipModels,
        feature_names: Collection[str],
        reads_images: bool,
        reads_texts: bool,
    ) -> None:
        """`reads_images`, `reads_texts`: whether the features `feature_names` depend on the image and on the text."""
        self.clips = clips
        self.feature_names = tuple(sorted(feature_names))
        self.reads_images = reads_images
        self.reads_texts = reads_texts

    @property
    def required_features(self) -> set[str]:
        """Names of the earlier parts' features that it reads."""
        return set()

    def add_inputs(self, inputs: list[Sample], rows: Sequence[Sample]) -> list[Sample]:
        """Inputs extended by what this part reads from their rows."""
        return inputs

    def compute(self, clip_batch: ClipBatch) -> dict[str, Tensor]:
        """Its features, by name. Abstract."""
        raise NotImplementedError

    def to(self, device: torch.device | str) -> ClipTeacherPart:
        """Move the models to a device."""
        self.clips.model.to(device)
        self.clips.scorer.to(device)
        return self

    def fit(self, samples: SampleDataset) -> ClipTeacherPart:
        """Locate the images; raises InputError if an example has not exactly one image, or an image is missing."""
        if self.reads_images:
            self.clips.images.find(samples, f"a teacher of {', '.join(self.feature_names)}")
        return self

    def ids(self, rows: Sequence[Sample]) -> list[str]:
        """A hash of the text, of the image's file, or of both, whichever its features depend on.

        If it selects words, the text's hash includes which words the student does not read.
        """
        ids = []
        for row in rows:
            example = require(row.example, "example", "a teacher")
            parts = []
            if self.reads_texts:
                text = text_for_clip(example)
                truncated = _truncated_words(row, text) if self.selects_words else ()
                parts.append(_digest(f"{text}\n{truncated}" if truncated else text))
            if self.reads_images:
                parts.append(self.clips.images.id(example))
            ids.append("|".join(parts))
        return ids

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        """Pixels and texts, as far as needed, and the rows' features that it reads."""
        required = [name for name in rows[0].features if name in self.required_features]
        inputs = [
            Sample(name, features={feature: row.features[feature] for feature in required})
            for name, row in zip(self.ids(rows), rows, strict=True)
        ]
        return self.add_inputs(inputs, rows)

    @torch.no_grad()
    def features(self, batch: Batch) -> dict[str, Tensor]:
        """Its features of a batch, by name; see `ClipTeacher`."""
        features = self.compute(ClipBatch(self.clips, batch.to(self.clips.scorer.device)))
        return {name: features[name] for name in self.feature_names}

    def countable_features(
        self, batch: Batch, features: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Empty: no objective's `count` reads its features."""
        return {}

    def key(self) -> dict[str, Any]:
        """Weights, preprocessing and tokenizers that its features depend on."""
        key: dict[str, Any] = {
            "features": list(self.feature_names),
            "embedding_space": "joint" if self.clips.in_joint_space else "pre_projection",
        }
        models = {"teacher": self.clips.model}
        if self.clips.has_scorer:
            models["scorer"] = self.clips.scorer
        for name, clip in models.items():
            if self.reads_images and clip.image is not None:
                key[f"{name}_image"] = clip.image_key
            if self.reads_texts and clip.text is not None:
                key[f"{name}_text"] = clip.text_key
        return key


class ClipImagePart(ClipTeacherPart):
    """Features of images: `clip_image`, also unnormalized, and `clip_scored_image` if images are compared elsewhere."""

    name = "clip_images"
    cacheable = "always"

    def __init__(self, clips: ClipModels, feature_names: Collection[str]) -> None:
        """`feature_names`: which of the three."""
        super().__init__(clips, feature_names, reads_images=True, reads_texts=False)
        scored = SCORED_IMAGE in feature_names
        own = {"clip_image", UNNORMALIZED_IMAGE} & set(feature_names)
        self.uses_model = bool(own) or (scored and not clips.has_scorer)
        self.uses_scorer = scored and clips.has_scorer

    def add_inputs(self, inputs: list[Sample], rows: Sequence[Sample]) -> list[Sample]:
        """Inputs with their pixels."""
        clips = [self.clips.model] * self.uses_model + [self.clips.scorer] * self.uses_scorer
        pixels: dict[str, list[np.ndarray]] = {}
        out = []
        for one, row in zip(inputs, rows, strict=True):
            (name,) = require(row.example, "example", "a teacher").images
            if name not in pixels:
                pixels[name] = self.clips.images.pixels(name, clips)
            if self.uses_model:
                one = replace(one, pixels=pixels[name][0])
            if self.uses_scorer:
                one = _add_teacher_input(one, "scorer", pixels=pixels[name][-1])
            out.append(one)
        return out

    def compute(self, clip_batch: ClipBatch) -> dict[str, Tensor]:
        """Features (U, E), one of them not of unit length; an image shared by several inputs is encoded once."""
        features = {}
        if self.uses_model:
            pooled, joint = self.clips.model.encode_images(
                clip_batch.batch, _image_ids(clip_batch.batch)
            )
            own = joint if self.clips.in_joint_space else pooled
            features["clip_image"] = F.normalize(own, dim=-1)
            if UNNORMALIZED_IMAGE in self.feature_names:
                features[UNNORMALIZED_IMAGE] = own
            if SCORED_IMAGE in self.feature_names:
                features[SCORED_IMAGE] = F.normalize(joint, dim=-1)
        if self.uses_scorer:
            teacher_input = clip_batch.batch.teacher_inputs["scorer"]
            _, joint = self.clips.scorer.encode_images(
                teacher_input.batch, _image_ids(teacher_input.batch)
            )
            features[SCORED_IMAGE] = F.normalize(joint, dim=-1)[teacher_input.row_index]
        return features


class ClipTextPart(ClipTeacherPart):
    """Features of texts: `clip_text`, and `clip_scored_text` if texts are compared in another space."""

    name = "clip_texts"

    def __init__(self, clips: ClipModels, feature_names: Collection[str]) -> None:
        """`feature_names`: which of the two."""
        super().__init__(clips, feature_names, reads_images=False, reads_texts=True)
        scored = SCORED_TEXT in feature_names
        self.uses_model = "clip_text" in feature_names or (scored and not clips.has_scorer)
        self.uses_scorer = scored and clips.has_scorer

    def add_inputs(self, inputs: list[Sample], rows: Sequence[Sample]) -> list[Sample]:
        """Inputs with their texts."""
        texts = _texts_of(rows)
        if self.uses_model:
            inputs = self.clips.with_own_text(inputs, texts)
        return self.clips.with_scorer_text(inputs, texts) if self.uses_scorer else inputs

    def compute(self, clip_batch: ClipBatch) -> dict[str, Tensor]:
        """Unit-length features (U, E)."""
        features = {}
        if self.uses_model:
            _, ends = clip_batch.model_text
            features["clip_text"] = self.clips.normalize_text(ends)
            if SCORED_TEXT in self.feature_names and not self.clips.has_scorer:
                features[SCORED_TEXT] = F.normalize(_projected(self.clips.model, ends), dim=-1)
        if self.uses_scorer:
            _, ends = clip_batch.scorer_text
            row = clip_batch.batch.teacher_inputs["scorer"].row_index
            features[SCORED_TEXT] = F.normalize(_projected(self.clips.scorer, ends), dim=-1)[row]
        return features


class ClipWordPart(ClipTeacherPart):
    """The selected words, `clip_word`, and their features, `clip_words`."""

    name = "clip_words"
    selects_words = True

    def __init__(
        self,
        clips: ClipModels,
        options: TargetedDistillationSettings,
        keywords: KeywordExtractor | None = None,
    ) -> None:
        """`options`: how words are selected; `keywords`: an extractor other than the built-in one."""
        self.options = options
        self.keywords = keywords or YakeExtractor()
        self.selects_by_score = options.word_selection == "top"
        super().__init__(
            clips, ("clip_words", "clip_word"), reads_images=self.selects_by_score, reads_texts=True
        )

    @property
    def required_features(self) -> set[str]:
        """The image feature that words are compared with."""
        return {self.clips.scored_image} if self.selects_by_score else set()

    def key(self) -> dict[str, Any]:
        """As `ClipTeacherPart.key`, and how words are selected."""
        selection: dict[str, Any] = {
            "num_words": self.options.num_words,
            "word_selection": self.options.word_selection,
        }
        if self.selects_by_score:
            extractor = self.keywords
            kind = extractor if hasattr(extractor, "__qualname__") else type(extractor)
            selection |= {"relevance": self.options.relevance, "keywords": code_hash(kind)}
        return super().key() | {"selection": selection}

    def add_inputs(self, inputs: list[Sample], rows: Sequence[Sample]) -> list[Sample]:
        """Inputs with their texts and the inputs of word selection."""
        texts = _texts_of(rows)
        inputs = self.clips.with_own_text(inputs, texts)
        if self.selects_by_score:
            inputs = self.clips.with_scorer_text(inputs, texts)
        each = zip(inputs, texts, rows, strict=True)
        return [self._with_words(one, text, _truncated_words(row, text)) for one, text, row in each]

    def _with_words(self, one: Sample, text: str, truncated: Sequence[int]) -> Sample:
        """An input with the inputs of word selection: `candidate` and `importance` (K,), or `clip_word` (M,)."""
        places = word_spans(text)
        # A word truncated for the student or for a model cannot be compared.
        is_candidate = _is_word(text, places)
        is_candidate[list(truncated)] = False
        for row in (
            one.clip,
            one.teacher_inputs["scorer"].clip if "scorer" in one.teacher_inputs else None,
        ):
            if row is not None:
                is_candidate &= np.isin(np.arange(len(places)), row.word_ids)
        if not self.selects_by_score:
            rng = generator("clip_words", text)
            chosen = select_random_tokens(is_candidate, self.options.num_words, rng)
            return replace(one, features={**one.features, "clip_word": self._numbers(chosen)})
        importance = keyword_importance(text, places, self.keywords)
        features = {"candidate": is_candidate, "importance": importance}
        one = replace(one, features={**one.features, **features})
        if self.options.relevance == "isolated":
            one = _add_teacher_input(one, "isolated", clip=self.clips.scorer.tokenize_words(text))
        return one

    def _numbers(self, chosen: np.ndarray) -> np.ndarray:
        """The numbers of the selected words, padded with -1: (M,) int64."""
        numbers = np.full(self.options.num_words, -1, np.int64)
        numbers[: len(chosen)] = chosen
        return numbers

    def compute(self, clip_batch: ClipBatch) -> dict[str, Tensor]:
        """Numbers (U, M) of the selected words, and their features (U, M, E)."""
        states, _ = clip_batch.model_text
        chosen = (
            clip_batch.features["clip_word"]
            if not self.selects_by_score
            else self._selected(clip_batch)
        )
        return {"clip_word": chosen, "clip_words": self._features(clip_batch.batch, states, chosen)}

    def _selected(self, clip_batch: ClipBatch) -> Tensor:
        """Numbers (U, M) of the words with the highest scores; raises InputError for a cosine that is not finite."""
        words = self.options.num_words
        chosen = [
            self._numbers(select_tokens(*scores, words)) for scores in self.scores(clip_batch)
        ]
        return torch.from_numpy(np.stack(chosen)).to(clip_batch.batch.device)

    def scores(self, clip_batch: ClipBatch) -> list[tuple[np.ndarray, np.ndarray]]:
        """Scores (K,) of each row's words, and a mask (K,) of candidates; raises InputError as `_selected`."""
        is_candidate = clip_batch.batch.features["candidate"].cpu().numpy()
        importance = clip_batch.batch.features["importance"].cpu().numpy()
        cosines = self._relevance(clip_batch).double().cpu().numpy()
        features = []
        for row, candidates in enumerate(is_candidate):
            if not np.isfinite(cosines[row][candidates]).all():
                image = self.clips.images.name(_image_ids(clip_batch.batch)[row])
                raise InputError(f"{image}: the teacher's similarity to a word is not finite")
            features.append((token_scores(cosines[row], importance[row], candidates), candidates))
        return features

    def _relevance(self, clip_batch: ClipBatch) -> Tensor:
        """The cosine (U, K) of each row's image with each of its raw words."""
        batch, scorer = clip_batch.batch, self.clips.scorer
        count = batch.features["candidate"].shape[1]
        image = clip_batch.features[self.clips.scored_image]
        if self.options.relevance == "isolated":
            return self._isolated_relevance(batch.teacher_inputs["isolated"], image, count)
        if self.clips.has_scorer:
            teacher_input = batch.teacher_inputs["scorer"]
            states = clip_batch.scorer_text[0][teacher_input.row_index]
            windows = require(teacher_input.batch.clip, "clip", "visual relevance")
            last = last_token_positions(windows.word_ids, count)[teacher_input.row_index]
        else:
            states, _ = clip_batch.model_text
            last = last_token_positions(
                require(batch.clip, "clip", "visual relevance").word_ids, count
            )
        of_words = F.normalize(_projected(scorer, _gather_states(states, last)), dim=-1)
        return (of_words @ image.unsqueeze(-1)).squeeze(-1)

    def _isolated_relevance(self, teacher_input: TeacherInput, image: Tensor, count: int) -> Tensor:
        """As `_relevance`, for words encoded in windows of their own."""
        windows = require(teacher_input.batch.clip, "clip", "visual relevance")
        tower = require(self.clips.scorer.text, "text", "visual relevance")
        _, ends = tower.forward_unprojected(windows)
        ends = F.normalize(tower.projection(ends), dim=-1)
        number = torch.arange(len(ends), device=ends.device)
        begins = torch.searchsorted(windows.row_index.contiguous(), windows.row_index.contiguous())
        place = number - begins
        by_row = ends.new_zeros(
            teacher_input.batch.rows, max(count, int(place.max()) + 1), ends.shape[1]
        )
        by_row[windows.row_index, place] = ends
        return (by_row[teacher_input.row_index, :count] @ image.unsqueeze(-1)).squeeze(-1)

    def _features(self, batch: Batch, states: Tensor, chosen: Tensor) -> Tensor:
        """Features (U, M, E) of the selected words (U, M); zeros for padding."""
        windows = require(batch.clip, "clip", "features of words")
        count = 1 + max(0, int(windows.word_ids.max()))
        last = last_token_positions(windows.word_ids, count).gather(1, chosen.clamp(min=0))
        return self.clips.normalize_text(_gather_states(states, last)) * (chosen >= 0).unsqueeze(-1)


class ClipScorePart(ClipTeacherPart):
    """Scores from the features of image and text: `clip_similarity` and `clip_confidence`."""

    name = "clip_scores"
    # Cheap to compute from the cached image features, which stay independent of the task's answers.
    cacheable = "never"

    def __init__(
        self,
        clips: ClipModels,
        feature_names: Collection[str],
        confidence: AnswerConfidence | SimilarityClusterConfidence | None = None,
    ) -> None:
        """`feature_names`: which of the two; `confidence`: the answers that `clip_confidence` refers to."""
        self.confidence = confidence
        self.answers: Tensor | None = None
        self.clusters: Clusters | None = None
        super().__init__(
            clips, feature_names, reads_images=True, reads_texts="clip_similarity" in feature_names
        )

    @property
    def required_features(self) -> set[str]:
        """The features that are compared."""
        return {self.clips.scored_image} | ({self.clips.scored_text} if self.reads_texts else set())

    def key(self) -> dict[str, Any]:
        """As `ClipTeacherPart.key`, and the answers."""
        key = super().key()
        if isinstance(self.confidence, AnswerConfidence):
            answers_json = json.dumps(self.confidence.texts).encode()
            key["answers"] = hashlib.sha256(answers_json).hexdigest()
        return key

    def fit(self, samples: SampleDataset) -> ClipTeacherPart:
        """Locate the images, and compute the classes' clusters from the similarities of all rows."""
        super().fit(samples)
        self.fit_clusters(samples, ())
        return self

    def fit_clusters(
        self, samples: SampleDataset, feature_parts: Sequence[ClipTeacherPart]
    ) -> None:
        """Compute the classes' clusters; `feature_parts`: parts whose features are not in the samples yet."""
        if (
            not isinstance(self.confidence, SimilarityClusterConfidence)
            or self.clusters is not None
        ):
            return
        similarity = "clip_similarity"
        own = ClipScorePart(self.clips, (similarity,))
        one = CombinedClipTeacher(self.clips, [*feature_parts, own], (similarity,))
        features: list[np.ndarray] = []
        rows: list[Sample] = []
        for number, sample in enumerate(iterate_samples(samples), 1):
            rows += sample.rows
            if len(rows) >= BATCH or number == len(samples):
                features.append(one.features(collate(one.inputs(rows)))[similarity].cpu().numpy())
                rows = []
        self.clusters = kmeans_1d(np.concatenate(features), self.confidence.classes)

    def compute(self, clip_batch: ClipBatch) -> dict[str, Tensor]:
        """The scaled cosine (U,), and the largest softmax probability (U,) over the answers."""
        features = {}
        image = clip_batch.features[self.clips.scored_image]
        if self.reads_texts:
            scale = require(self.clips.scorer.text, "text", "a similarity").logit_scale.exp()
            pairs = image * clip_batch.features[self.clips.scored_text]
            features["clip_similarity"] = scale * pairs.sum(-1)
        if "clip_confidence" in self.feature_names:
            if isinstance(self.confidence, AnswerConfidence):
                features["clip_confidence"] = self._answer_confidence(image, self.confidence.texts)
            else:
                features["clip_confidence"] = self._class_confidence(features["clip_similarity"])
        return features

    def _class_confidence(self, similarity: Tensor) -> Tensor:
        """The largest softmax probability (U,) over the classes' clusters."""
        clusters = require(self.clusters, "clusters", "a teacher's confidence")
        logits = torch.from_numpy(clusters.logits(similarity.cpu().numpy()))
        return logits.softmax(-1).amax(-1).to(similarity)

    def _answer_confidence(self, image: Tensor, texts: Sequence[str]) -> Tensor:
        """The largest softmax probability (U,) over the answers, whose embeddings are computed once."""
        scorer = self.clips.scorer
        tower = require(scorer.text, "text", "an answer's embedding")
        if self.answers is None:
            self.answers = scorer.embed_texts([row for row, _ in scorer.tokenize(texts)])
        answers = self.answers.to(image.device)
        return (tower.logit_scale.exp() * image @ answers.T).softmax(-1).amax(-1)


class CombinedClipTeacher(ClipTeacherPart):
    """Several parts in one pass, as they run in every training step."""

    name = "clip"

    def __init__(
        self, clips: ClipModels, members: Sequence[ClipTeacherPart], feature_names: Collection[str]
    ) -> None:
        """`members`: the parts, of which later ones read earlier ones' features; `feature_names`: those it returns."""
        super().__init__(
            clips,
            feature_names,
            any(one.reads_images for one in members),
            any(one.reads_texts for one in members),
        )
        self.members = members
        self.selects_words = any(one.selects_words for one in members)

    @property
    def required_features(self) -> set[str]:
        """Features that members read and no member computes."""
        required = {name for one in self.members for name in one.required_features}
        return required - {name for one in self.members for name in one.feature_names}

    def fit(self, samples: SampleDataset) -> ClipTeacherPart:
        """Locate the images, and fit the members to the data."""
        super().fit(samples)
        feature_parts = [
            one for one in self.members if isinstance(one, ClipImagePart | ClipTextPart)
        ]
        for one in self.members:
            if isinstance(one, ClipScorePart):
                one.fit_clusters(samples, feature_parts)
        return self

    def add_inputs(self, inputs: list[Sample], rows: Sequence[Sample]) -> list[Sample]:
        """Inputs extended by what every member reads."""
        for one in self.members:
            inputs = one.add_inputs(inputs, rows)
        return inputs

    def compute(self, clip_batch: ClipBatch) -> dict[str, Tensor]:
        """The features of all members."""
        for member in self.members:
            clip_batch.features |= member.compute(clip_batch)
        return clip_batch.features

    def key(self) -> dict[str, Any]:
        """The keys of all members, by name."""
        return {one.name: one.key() for one in self.members}


def _image_ids(batch: Batch) -> list[str]:
    """The id of each input's image, which is the end of the input's id."""
    return [name.rpartition("|")[2] for name in batch.ids]


def _texts_of(rows: Sequence[Sample]) -> list[str]:
    """The texts that CLIP reads for some rows."""
    return [text_for_clip(require(row.example, "example", "a teacher")) for row in rows]


def text_for_clip(example: Example) -> str:
    """The text that CLIP reads for a row: the first text and, after a space, the second, without a head's cue.

    Raw words have the same numbers as in the row (`Tokens.word_ids`), as the space ends the first text's last word.
    """
    text = example.text if example.text_pair is None else f"{example.text} {example.text_pair}"
    return text.removesuffix(example.prompt_suffix).rstrip() if example.prompt_suffix else text


def _is_word(text: str, places: np.ndarray) -> np.ndarray:
    """Mask (K,) bool of the raw words that are not punctuation."""
    return np.array([text[start].isalnum() for start, _ in places], bool)


def _truncated_words(row: Sample, text: str) -> tuple[int, ...]:
    """Numbers of the words in a row's text without a token of the student, because of truncation or otherwise."""
    if row.text is None or row.word_type_ids is None:
        return ()
    unread = np.ones(len(row.word_type_ids) + 1, bool)
    unread[row.text.word_ids] = False  # index -1 (no word) is the extra last element
    if not unread[:-1].any():
        return ()
    is_word = _is_word(text, word_spans(text))  # a head's cue comes after them
    return tuple(np.flatnonzero(unread[: len(is_word)] & is_word).tolist())


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _add_teacher_input(one: Sample, name: str, **parts: Any) -> Sample:
    """An input with more fields in its `teacher_inputs[name]`, which another tower reads."""
    teacher_input = replace(one.teacher_inputs.get(name, Sample(one.id)), **parts)
    return replace(one, teacher_inputs={**one.teacher_inputs, name: teacher_input})


def _projected(clip: FrozenClip, states: Tensor) -> Tensor:
    tower = require(clip.text, "text", "this teacher")
    projected: Tensor = tower.projection(states)
    return projected


def _gather_states(states: Tensor, places: Tensor) -> Tensor:
    """States (U, K, D) at positions (U, K) of states (U, V, D); position 0 in place of -1."""
    index = places.clamp(min=0).unsqueeze(-1).expand(-1, -1, states.shape[-1])
    return states.gather(1, index)
