"""A CLIP-like model as a teacher of an image, a text and its most relevant words (CLIP-TD, Section 3.1; MAD)."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import Batch, Example, Sample, collate, require
from groundling.core.errors import InputError, prefix_errors
from groundling.core.rng import generator
from groundling.data.image_samples import image_files_by_id
from groundling.data.images import ImageInput, image_digest, read_image
from groundling.data.kmeans import Clusters, kmeans_1d
from groundling.data.samples import SampleDataset
from groundling.data.text import word_spans
from groundling.data.text.keywords import (
    KeywordExtractor,
    extract_yake_keywords,
    keyword_importance,
    select_random_tokens,
    select_tokens,
    token_scores,
)
from groundling.models.clip import last_token_positions
from groundling.models.frozen_clip import FrozenClip
from groundling.settings.objectives import TargetedDistillationSettings
from groundling.teachers import Teacher, code_hash, digest
from groundling.teachers.feature_cache import FeatureCache, TeacherDataset, iterate_samples

UNNORMALIZED_IMAGE = "clip_image_unnormalized"
"""`clip_image` before it is scaled to unit length."""
SCORED_IMAGE = "clip_scored_image"
SCORED_TEXT = "clip_scored_text"
"""Embeddings in the space where image and text are compared, if the features are in another space."""
IMAGES = frozenset({"clip_image", UNNORMALIZED_IMAGE, SCORED_IMAGE})
TEXTS = frozenset({"clip_text", SCORED_TEXT})
WORDS = frozenset({"clip_word", "clip_words"})
SCORES = frozenset({"clip_similarity", "clip_confidence"})
GROUPS = {"clip_images": IMAGES, "clip_texts": TEXTS, "clip_words": WORDS, "clip_scores": SCORES}
"""Features that are computed from the same inputs, and so cached together."""
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


class ClipTeacher(Teacher):
    """A CLIP-like model's features of each row's image and text; only the requested ones are computed.

    Features by row, float32: `clip_image` (N, Ei) and `clip_text` (N, Et), of unit length;
    `clip_image_unnormalized` (N, Ei), as CLIP returns it;
    `clip_similarity` (N,), the cosine of both times CLIP's learned scale; `clip_words` (N, M, Et), of unit
    length, at the last token of each of the M selected words, padded with zeros; `clip_word` (N, M) int64,
    the numbers of these raw words in the row, padded with -1; `clip_confidence` (N,), the largest
    probability of its softmax over the task's answers (VQA) or, for a number of classes, over clusters of
    the training data's similarities (SNLI-VE): a cluster's logit is minus the squared distance to its
    centre, over twice the variance around all centres.

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
        answers: Sequence[str] | int = 0,
        images: Mapping[str, ImageInput] | None = None,
    ) -> None:
        """A teacher of the named `features`, some of `FEATURES`.

        Args:
            clip: the model that computes the features.
            features: names of the requested features.
            options: the image folder, the features' space, and how words are selected.
            scorer: another CLIP-like model that compares image and text; by default `clip`.
            keywords: extracts the keywords of a text; by default the built-in extractor.
            answers: the task's answers as texts, or its number of classes, for `clip_confidence`.
            images: the images by id; by default those in the image folder.

        Raises InputError if models or settings are missing for a requested feature.
        """
        self.options = options or TargetedDistillationSettings()
        self.clip = clip
        self.scorer = scorer or clip
        self.has_scorer = self.scorer is not clip
        self.in_joint_space = self.options.teacher_space == "joint"
        self.selects_by_score = self.options.word_selection == "top"
        compares_elsewhere = self.has_scorer or not self.in_joint_space
        self.scored_image = SCORED_IMAGE if compares_elsewhere else "clip_image"
        self.scored_text = SCORED_TEXT if compares_elsewhere else "clip_text"
        self.keywords = keywords or extract_yake_keywords
        self.answers = answers
        self.answer_embeddings: Tensor | None = None
        self.clusters: Clusters | None = None
        self.images = self.options.teacher_images if images is None else images
        self.files: dict[str, ImageInput] = {}
        self.digests: dict[str, str] = {}
        self.whole = self
        requested = tuple(name for name in FEATURES if name in features)
        self._compute_only(self._with_dependencies(requested), requested)
        self._check_sources(requested)
        if clip.text is not None:
            self.width = clip.text.embed_dim if self.in_joint_space else clip.text.states_width
        if clip.image is not None:
            self.image_width = (
                clip.image.embed_dim if self.in_joint_space else clip.image.pooled_width
            )
        self.groups = [
            self._restricted(name, group & self.computed)
            for name, group in GROUPS.items()
            if group & self.computed
        ]

    def _with_dependencies(self, requested: Collection[str]) -> set[str]:
        computed = set(requested)
        if "clip_confidence" in computed and isinstance(self.answers, int):
            computed.add("clip_similarity")
        if "clip_similarity" in computed:
            computed.add(self.scored_text)
        if WORDS & computed:
            computed |= WORDS
        if SCORES & computed or (WORDS & computed and self.selects_by_score):
            computed.add(self.scored_image)
        return computed

    def _check_sources(self, requested: Sequence[str]) -> None:
        compares = bool(SCORES & self.computed) or self._scores_words
        if compares and not self.scorer.share_space:
            raise InputError("the teacher's towers share no space; pass teacher_scorer=MODEL")
        if self.reads_images and self.images == "":
            raise InputError(f"a teacher of {', '.join(requested)} needs teacher_images=FOLDER")

    def _compute_only(self, computed: Collection[str], returned: Collection[str]) -> None:
        self.computed = frozenset(computed)
        self.feature_names = tuple(sorted(returned))
        self.reads_images = bool((IMAGES | SCORES) & self.computed) or self._scores_words
        self.image_features = self.feature_names if self.reads_images else ()
        self.reads_texts = bool((TEXTS | WORDS | {"clip_similarity"}) & self.computed)
        # The texts of the same model are counted once.
        texts = self.whole.computed & (TEXTS - {SCORED_TEXT} if self.has_scorer else TEXTS)
        self.counts_truncated = not (self.computed <= WORDS and texts)

    def _restricted(self, name: str, computed: Collection[str]) -> ClipTeacher:
        """A teacher of some of the features, with the same models, images and statistics of the data."""
        one = copy.copy(self)
        one.name = name
        one._compute_only(computed, computed)
        return one

    # What each of its features needs.

    name = "clip"

    @property
    def _scores_words(self) -> bool:
        return bool(WORDS & self.computed) and self.selects_by_score

    @property
    def _reads_own_image(self) -> bool:
        own = {"clip_image", UNNORMALIZED_IMAGE}
        return bool((own if self.has_scorer else IMAGES) & self.computed)

    @property
    def _reads_own_text(self) -> bool:
        own = {"clip_text"} if self.has_scorer else TEXTS
        return bool((own | WORDS) & self.computed)

    @property
    def _required_features(self) -> set[str]:
        required = {self.scored_image} if SCORES & self.computed or self._scores_words else set()
        if "clip_similarity" in self.computed:
            required.add(self.scored_text)
        return required - self.computed

    def split(self, fixed: bool) -> tuple[Sequence[Teacher], Sequence[Teacher]]:
        """Parts for images, texts and words, and one of the rest, which encodes each text once.

        Images are cached even if texts are drawn anew. Scores are cheap to compute from cached features, which stay
        independent of the task's answers.
        """
        cached = [
            part
            for part in self.groups
            if part.name == "clip_images" or (fixed and part.name != "clip_scores")
        ]
        computed = {name for part in self.groups if part not in cached for name in part.computed}
        if not computed:
            return cached, []
        rest = self._restricted("clip", computed)
        rest._compute_only(computed, computed & set(self.feature_names))
        return cached, [rest]

    def to(self, device: torch.device | str) -> Self:
        """Move the models to a device."""
        self.clip.to(device)
        self.scorer.to(device)
        return self

    def fit(self, samples: SampleDataset) -> ClipTeacher:
        """Locate the images and, for classes, compute the clusters of the similarities of all rows.

        Raises InputError if an example has not exactly one image, or an image is missing.
        """
        if self.reads_images:
            reader = f"a teacher of {', '.join(self.feature_names)}"
            self.files.update(image_files_by_id(samples, self.images, reader))
        needs_clusters = "clip_confidence" in self.computed and self.whole.clusters is None
        if needs_clusters and isinstance(self.answers, int):
            name = "clip_similarity"
            one = self._restricted("clip", ((IMAGES | TEXTS) & self.computed) | {name})
            scored = iterate_samples(TeacherDataset(samples, one, FeatureCache()))
            similarities = [row.features[name] for sample in scored for row in sample.rows]
            self.whole.clusters = kmeans_1d(np.array(similarities), self.answers)
        return self

    def key(self) -> dict[str, Any]:
        """Weights, preprocessing and tokenizers of each group of features, and how words are selected."""
        if self.name not in GROUPS:
            return {one.name: one.key() for one in self.groups if one.computed & self.computed}
        key: dict[str, Any] = {
            "features": list(self.feature_names),
            "embedding_space": self.options.teacher_space,
            "counts_truncated": self.counts_truncated,
        }
        models = {"teacher": self.clip} | ({"scorer": self.scorer} if self.has_scorer else {})
        for name, clip in models.items():
            if self.reads_images and clip.image is not None:
                key[f"{name}_image"] = clip.image_key
            if self.reads_texts and clip.text is not None:
                key[f"{name}_text"] = clip.text_key
        if WORDS & self.computed:
            names = ["num_words", "word_selection", *["relevance"] * self.selects_by_score]
            key["selection"] = {name: getattr(self.options, name) for name in names}
        if self._scores_words:
            extractor = self.keywords
            kind = extractor if hasattr(extractor, "__qualname__") else type(extractor)
            key["keywords"] = code_hash(kind)
        if "clip_confidence" in self.computed:
            key["answers"] = digest(json.dumps(self.answers).encode())
        return key

    # Inputs: pixels and tokens.

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
                truncated = _truncated_words(row, text) if WORDS & self.computed else ()
                parts.append(digest((f"{text}\n{truncated}" if truncated else text).encode()))
            if self.reads_images:
                (image,) = example.images
                if image not in self.digests:
                    self.digests[image] = image_digest(self.files[image])[:32]
                parts.append(self.digests[image])
            ids.append("|".join(parts))
        return ids

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        """Pixels and texts, as far as needed, and the rows' features that it reads."""
        required = [name for name in rows[0].features if name in self._required_features]
        inputs = [
            Sample(name, features={feature: row.features[feature] for feature in required})
            for name, row in zip(self.ids(rows), rows, strict=True)
        ]
        examples = [require(row.example, "example", "a teacher") for row in rows]
        if IMAGES & self.computed:
            inputs = self._with_pixels(inputs, examples)
        texts = [text_for_clip(example) for example in examples] if self.reads_texts else []
        if self._reads_own_text:
            tokenized = zip(inputs, self.clip.tokenize(texts), strict=True)
            inputs = [
                replace(one, clip=row, truncated_tokens=cut * self.counts_truncated)
                for one, (row, cut) in tokenized
            ]
        if self.has_scorer and (SCORED_TEXT in self.computed or self._scores_words):
            rows_of_scorer = zip(inputs, self.scorer.tokenize(texts), strict=True)
            inputs = [_add_input(one, "scorer", clip=row) for one, (row, _) in rows_of_scorer]
        if WORDS & self.computed:
            each = zip(inputs, texts, rows, strict=True)
            inputs = [self._with_words(*one) for one in each]
        return inputs

    def _with_pixels(self, inputs: list[Sample], examples: Sequence[Example]) -> list[Sample]:
        names = [example.images[0] for example in examples]
        if self._reads_own_image:
            own = zip(inputs, self._pixels(names, self.clip), strict=True)
            inputs = [replace(one, pixels=pixels) for one, pixels in own]
        if self.has_scorer and SCORED_IMAGE in self.computed:
            others = zip(inputs, self._pixels(names, self.scorer), strict=True)
            inputs = [_add_input(one, "scorer", pixels=pixels) for one, pixels in others]
        return inputs

    def _pixels(self, names: Sequence[str], clip: FrozenClip) -> list[np.ndarray]:
        tower = require(clip.image, "image", "this teacher")
        pixels = {}
        for name in dict.fromkeys(names):
            with prefix_errors(self.files[name]):
                pixels[name] = tower.preprocess(read_image(self.files[name]))
        return [pixels[name] for name in names]

    def _with_words(self, one: Sample, text: str, row: Sample) -> Sample:
        """An input with the inputs of word selection: `candidate` and `importance` (K,), or `clip_word` (M,)."""
        places = word_spans(text)
        # A word truncated for the student or for a model cannot be compared.
        is_candidate = _is_word(text, places)
        is_candidate[list(_truncated_words(row, text))] = False
        scorer_input = one.teacher_inputs.get("scorer")
        for tokens in (one.clip, scorer_input.clip if scorer_input else None):
            if tokens is not None:
                is_candidate &= np.isin(np.arange(len(places)), tokens.word_ids)
        if not self.selects_by_score:
            rng = generator("clip_words", text)
            chosen = select_random_tokens(is_candidate, self.options.num_words, rng)
            return replace(one, features={**one.features, "clip_word": self._numbers(chosen)})
        importance = keyword_importance(text, places, self.keywords)
        features = {"candidate": is_candidate, "importance": importance}
        one = replace(one, features={**one.features, **features})
        if self.options.relevance == "isolated":
            one = _add_input(one, "isolated", clip=self.scorer.tokenize_words(text))
        return one

    def _numbers(self, chosen: np.ndarray) -> np.ndarray:
        numbers = np.full(self.options.num_words, -1, np.int64)
        numbers[: len(chosen)] = chosen
        return numbers

    # Features.

    @torch.no_grad()
    def features(self, batch: Batch) -> dict[str, Tensor]:
        """Its features of a batch, by name; each model encodes an image and a text once."""
        batch = batch.to(self.scorer.device)
        features = dict(batch.features) | self._image_features(batch)
        if self._reads_own_text:
            states, ends = self.clip.encode_texts(batch)
            if "clip_text" in self.computed:
                features["clip_text"] = self._text_feature(ends)
            if SCORED_TEXT in self.computed and not self.has_scorer:
                features[SCORED_TEXT] = self.clip.project_texts(ends)
        if self.has_scorer and SCORED_TEXT in self.computed:
            scorer_input = batch.teacher_inputs["scorer"]
            _, ends = self.scorer.encode_texts(scorer_input.batch)
            features[SCORED_TEXT] = self.scorer.project_texts(ends)[scorer_input.row_index]
        if WORDS & self.computed:
            if self.selects_by_score:
                scores = self._word_scores(batch, features[self.scored_image], states)
                words = self.options.num_words
                chosen = np.stack([self._numbers(select_tokens(*row, words)) for row in scores])
                features["clip_word"] = torch.from_numpy(chosen).to(batch.device)
            windows = require(batch.clip, "clip", "features of words")
            chosen_words = features["clip_word"]
            count = 1 + max(0, int(windows.word_ids.max()))
            last = last_token_positions(windows.word_ids, count)
            last = last.gather(1, chosen_words.clamp(min=0))
            of_words = self._text_feature(_gather_states(states, last))
            features["clip_words"] = of_words * (chosen_words >= 0).unsqueeze(-1)  # 0 in padding
        if "clip_similarity" in self.computed:
            scale = require(self.scorer.text, "text", "a similarity").logit_scale.exp()
            pairs = features[self.scored_image] * features[self.scored_text]
            features["clip_similarity"] = scale * pairs.sum(-1)
        if "clip_confidence" in self.computed:
            features["clip_confidence"] = self._confidence(features)
        return {name: features[name] for name in self.feature_names}

    def _image_features(self, batch: Batch) -> dict[str, Tensor]:
        """Features (U, E), one of them not of unit length; an image shared by several inputs is encoded once."""
        features = {}
        if self._reads_own_image:
            pooled, joint = self.clip.encode_images(batch, _image_ids(batch))
            own = joint if self.in_joint_space else pooled
            features["clip_image"] = F.normalize(own, dim=-1)
            features[UNNORMALIZED_IMAGE] = own
            features[SCORED_IMAGE] = F.normalize(joint, dim=-1)
        if self.has_scorer and SCORED_IMAGE in self.computed:
            scorer_input = batch.teacher_inputs["scorer"]
            images = scorer_input.batch
            _, joint = self.scorer.encode_images(images, _image_ids(images))
            features[SCORED_IMAGE] = F.normalize(joint, dim=-1)[scorer_input.row_index]
        return {name: value for name, value in features.items() if name in self.computed}

    def _text_feature(self, states: Tensor) -> Tensor:
        """Unit-length features (..., E) from states (..., D) of the text tower."""
        return (
            self.clip.project_texts(states) if self.in_joint_space else F.normalize(states, dim=-1)
        )

    @torch.no_grad()
    def word_scores(self, rows: Sequence[Sample]) -> list[tuple[np.ndarray, np.ndarray]]:
        """The selection score (K,) of each raw word in each row, and a mask (K,) bool of the candidates.

        Other words score 0. Only for a teacher of `clip_words` that selects words by score.
        """
        batch = collate(self.inputs(rows)).to(self.scorer.device)
        image = (dict(batch.features) | self._image_features(batch))[self.scored_image]
        return self._word_scores(batch, image, self.clip.encode_texts(batch)[0])

    def _word_scores(
        self, batch: Batch, image: Tensor, states: Tensor
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """As `word_scores`, of images (U, E) and states (U, V, D); raises InputError for cosines not finite."""
        is_candidate = batch.features["candidate"].cpu().numpy()
        importance = batch.features["importance"].cpu().numpy()
        vectors = self._word_vectors(batch, states, is_candidate.shape[1])
        cosines = (vectors @ image.unsqueeze(-1)).squeeze(-1).double().cpu().numpy()
        scores = []
        for row, candidates in enumerate(is_candidate):
            if not np.isfinite(cosines[row][candidates]).all():
                names = {digest: name for name, digest in self.digests.items()}
                name = names.get(_image_ids(batch)[row], "an image")
                raise InputError(f"{name}: the teacher's similarity to a word is not finite")
            scores.append((token_scores(cosines[row], importance[row], candidates), candidates))
        return scores

    def _word_vectors(self, batch: Batch, states: Tensor, count: int) -> Tensor:
        """Unit-length embeddings (U, K, E) of the raw words of each text, where they are compared with images."""
        if self.options.relevance == "isolated":
            return self._isolated_words(batch, count)
        windows = require(batch.clip, "clip", "visual relevance")
        last = last_token_positions(windows.word_ids, count)
        if self.has_scorer:
            scorer_input = batch.teacher_inputs["scorer"]
            windows = require(scorer_input.batch.clip, "clip", "visual relevance")
            last = last_token_positions(windows.word_ids, count)[scorer_input.row_index]
            states = self.scorer.encode_texts(scorer_input.batch)[0][scorer_input.row_index]
        return self.scorer.project_texts(_gather_states(states, last))

    def _isolated_words(self, batch: Batch, count: int) -> Tensor:
        """As `_word_vectors`, for words encoded in windows of their own."""
        isolated = batch.teacher_inputs["isolated"]
        windows = require(isolated.batch.clip, "clip", "visual relevance")
        tower = require(self.scorer.text, "text", "visual relevance")
        ends = self.scorer.project_texts(tower.forward_unprojected(windows)[1])
        number = torch.arange(len(ends), device=ends.device)
        begins = torch.searchsorted(windows.row_index.contiguous(), windows.row_index.contiguous())
        place = number - begins
        by_row = ends.new_zeros(isolated.batch.rows, max(count, int(place.max()) + 1), len(ends[0]))
        by_row[windows.row_index, place] = ends
        return by_row[isolated.row_index, :count]

    def _confidence(self, features: Mapping[str, Tensor]) -> Tensor:
        """The largest softmax probability (U,) over the answers, whose embeddings are computed once, or clusters."""
        if isinstance(self.answers, int):
            clusters = require(self.whole.clusters, "clusters", "a teacher's confidence")
            similarity = features["clip_similarity"]
            logits = torch.from_numpy(clusters.logits(similarity.cpu().numpy()))
            return logits.softmax(-1).amax(-1).to(similarity)
        scorer = self.scorer
        if self.whole.answer_embeddings is None:
            rows = [row for row, _ in scorer.tokenize(self.answers)]
            self.whole.answer_embeddings = scorer.embed_texts(rows)
        image = features[self.scored_image]
        scale = require(scorer.text, "text", "an answer's embedding").logit_scale.exp()
        answers = self.whole.answer_embeddings.to(image.device)
        return (scale * image @ answers.T).softmax(-1).amax(-1)


def _image_ids(batch: Batch) -> list[str]:
    return [name.rpartition("|")[2] for name in batch.ids]


def text_for_clip(example: Example) -> str:
    """The text that CLIP reads for a row: the first text and, after a space, the second, without a head's cue.

    Raw words have the same numbers as in the row (`Tokens.word_ids`), as the space ends the first text's last word.
    """
    text = example.text if example.text_pair is None else f"{example.text} {example.text_pair}"
    return text.removesuffix(example.prompt_suffix).rstrip() if example.prompt_suffix else text


def _is_word(text: str, places: np.ndarray) -> np.ndarray:
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


def _add_input(one: Sample, name: str, **fields: Any) -> Sample:
    """An input with more fields in its `teacher_inputs[name]`, which another tower reads."""
    teacher_input = replace(one.teacher_inputs.get(name, Sample(one.id)), **fields)
    return replace(one, teacher_inputs={**one.teacher_inputs, name: teacher_input})


def _gather_states(states: Tensor, places: Tensor) -> Tensor:
    """States (U, K, D) at positions (U, K) of states (U, V, D); position 0 in place of -1."""
    index = places.clamp(min=0).unsqueeze(-1).expand(-1, -1, states.shape[-1])
    return states.gather(1, index)
