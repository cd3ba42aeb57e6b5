"""Sentence embeddings and image-text similarity without training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from groundling.core.batch import FORWARD_BATCH, Example, collate, require
from groundling.core.errors import InputError, raise_first
from groundling.data.regions.samples import ImageSampleBuilder
from groundling.data.samples import SampleDataset, TextDataset, TextRowEncoder
from groundling.models.frozen_clip import load_frozen_clip
from groundling.models.heads import load_head
from groundling.models.sentence_modules import SentenceModules
from groundling.models.text_encoder import TextEncoder
from groundling.objectives.image_text_matching import ImageTextMatching
from groundling.runs.progress import track
from groundling.settings.objectives import TargetedDistillationSettings
from groundling.teachers.clip import ClipTeacher, text_for_clip
from groundling.teachers.feature_cache import FeatureCache, TeacherSet
from groundling.vision_language import RegionEncoder
from groundling.vision_language.loading import is_region_encoder, load_encoder

# Sentence embeddings, equal to those of sentence-transformers with the same folder.


def text_length_limit(text: TextEncoder, sentence: SentenceModules | None) -> int:
    """Maximum number of tokens per text: the sentence encoder's, if it has one, at most the encoder's."""
    return min(text.max_length, (sentence and sentence.max_length) or text.max_length)


@torch.no_grad()
def sentence_vectors(
    text: TextEncoder, sentence: SentenceModules, texts: Sequence[str], max_length: int = 0
) -> tuple[Tensor, np.ndarray]:
    """Embeddings (N, E) of texts, after the prompt of `sentence`, on the CPU; and truncated tokens of each, (N,).

    `max_length`: maximum number of tokens per text, in place of `text_length_limit(text, sentence)`.
    """
    text.eval()
    length = min(max_length, text.max_length) if max_length else text_length_limit(text, sentence)
    examples = [Example(str(number), sentence.prompt + one) for number, one in enumerate(texts)]
    samples = TextDataset(examples, TextRowEncoder(text.tokenizer, length))
    device = next(text.parameters()).device
    batches = _batches_by_length(samples)
    dropped = np.zeros(len(texts), np.int64)
    found = []
    for places in track(batches, "sentences", "batch"):
        some = samples.get(places.tolist())
        dropped[places] = [sample.truncated_tokens for sample in some]
        batch = collate(some).to(device)
        tokens = require(batch.text, "text", "a sentence encoder")
        states = require(text(batch).text, "text", "a sentence encoder")
        found.append(sentence.vectors(states, tokens.attention_mask).cpu())
    return torch.cat(found)[np.argsort(np.concatenate(batches), kind="stable")], dropped


def _batches_by_length(samples: SampleDataset) -> list[np.ndarray]:
    """The places of samples in batches of similar lengths, which need little padding."""
    order = np.argsort(samples.lengths, kind="stable")
    return [order[start : start + FORWARD_BATCH] for start in range(0, len(order), FORWARD_BATCH)]


class MatchScores(NamedTuple):
    """Similarity scores of N image-text pairs."""

    scores: np.ndarray
    """(N,) float64, higher is better."""
    token_digests: list[bytes]
    """Token ids of each text after truncation, as bytes."""
    truncated_tokens: np.ndarray
    """(N,) number of truncated tokens per text."""


class CosineMatcher:
    """Cosine similarity of a CLIP-like model, with cached features of every image and text."""

    measure = "cosine x scale"

    def __init__(self, source: str, images: str, device: torch.device, cache: FeatureCache) -> None:
        """`images` is the image folder, `cache` stores features."""
        if is_region_encoder(source):
            raise InputError(f"{source}: this model reads regions; pass regions=STORE")
        self.clip = load_frozen_clip(source)
        self.clip.to(device)
        self.images = images
        self.cache = cache
        self.scale = float(require(self.clip.text, "text", "a CLIP").logit_scale.exp())

    def with_features(self, examples: Sequence[Example], *features: str) -> SampleDataset:
        """Samples with the named features: `clip_image` (E,), `clip_text` (E,), of unit length."""
        teacher = ClipTeacher(
            self.clip, features, TargetedDistillationSettings(teacher_images=self.images)
        )
        samples, _ = TeacherSet([teacher], self.cache).wrap(TextDataset(examples, None))
        return samples

    def __call__(self, examples: Sequence[Example], split: str) -> MatchScores:
        """Cosine similarity of image and text, multiplied by CLIP's logit scale."""
        samples = self.with_features(examples, "clip_image", "clip_text")
        scores: list[float] = []
        read = []
        dropped = []
        for start in range(0, len(examples), FORWARD_BATCH):
            places = range(start, min(start + FORWARD_BATCH, len(examples)))
            some = [sample.features for sample in samples.get(places, ())]
            images = np.stack([one["clip_image"] for one in some]).astype(float)
            texts = np.stack([one["clip_text"] for one in some]).astype(float)
            scores += (self.scale * (images * texts).sum(1)).tolist()
            for row, cut in self.clip.tokenize(
                [text_for_clip(examples[place]) for place in places]
            ):
                read.append(row.input_ids.tobytes())
                dropped.append(cut)
        return MatchScores(np.array(scores), read, np.array(dropped))

    def cluster_values(self, scores: np.ndarray) -> np.ndarray:
        """The scores unchanged."""
        return scores


def load_match_head(
    model: RegionEncoder, folder: str | Path, device: torch.device | str
) -> ImageTextMatching | None:
    """The image-text matching head that `pretrain` saved in a model's folder; None if there is none."""
    head = ImageTextMatching(model.sizes)
    if not all(load_head(Path(folder), part, name) for name, part in head.saved_modules().items()):
        return None
    return head.to(device).eval()


class MatchHeadMatcher:
    """The image-text matching head of a pre-trained single-stream model (1 = match)."""

    measure = "log-odds of a match"

    def __init__(
        self, source: str, inputs: ImageSampleBuilder, device: torch.device, max_length: int
    ) -> None:
        """Load the match head of a model's folder; `max_length` in tokens."""
        model = load_encoder(source)
        if not isinstance(model, RegionEncoder):
            raise InputError(f"{source}: this model reads no regions; leave regions out")
        self.model = model.to(device).eval()
        head = load_match_head(model, source, device)
        if head is None:
            raise InputError(f"{source}: was pre-trained without a match head (sentence_image)")
        self.head = head
        # In pre-training, UNITER's [SEP] has another segment than in fine-tuning; no examples: no new words.
        model.prepare((), True)
        self.max_length = max_length
        self.device = device
        self.inputs = inputs
        inputs.check_pixels(model, source)
        inputs.check(model)

    def __call__(self, examples: Sequence[Example], split: str) -> MatchScores:
        """Match logit minus no-match logit."""
        text, _ = self.model.inputs(self.max_length)
        texts = TextDataset(self.inputs.select_tags(examples), text)
        samples = self.inputs.samples(texts, self.model, self.inputs.all_images())
        scores = np.zeros(len(examples))
        read = [b""] * len(examples)
        dropped = np.zeros(len(examples), np.int64)
        for places in track(_batches_by_length(samples), f"matching {split}", "batch"):
            some = samples.get(places.tolist(), ())
            batch = collate(some).to(self.device)
            with torch.no_grad():
                logits = self.head.compute_logits(self.model(batch), batch).double()
            scores[places] = (logits[:, 1] - logits[:, 0]).cpu().numpy()
            for place, sample in zip(places, some, strict=True):
                read[place] = require(sample.text, "text", "a match head").input_ids.tobytes()
                dropped[place] = sample.truncated_tokens
        return MatchScores(scores, read, dropped)

    def cluster_values(self, scores: np.ndarray) -> np.ndarray:
        """Probabilities of a match."""
        return np.asarray(expit(scores))


Matcher = CosineMatcher | MatchHeadMatcher
"""Scores image-text pairs: called with a split's examples, which have one image and no choices."""


def equalise_identical_texts(scores: np.ndarray, read: Sequence[Sequence[bytes]]) -> np.ndarray:
    """Scores (N, C) in which choices with equal token ids, (N, C) bytes, all get the first one's score.

    Texts that are equal after truncation would otherwise differ by rounding, and the choice be arbitrary.
    """
    first = np.array([[texts.index(text) for text in texts] for texts in read])
    return np.take_along_axis(scores, first, 1)


def require_finite(similarities: np.ndarray) -> np.ndarray:
    """The similarities (N, C) unchanged; raises InputError where one is not finite."""
    faults = np.flatnonzero(~np.isfinite(similarities).all(1))
    raise_first([f"row {row}: a similarity is not a finite number" for row in faults])
    return similarities
