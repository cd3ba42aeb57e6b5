"""The vokenizer as a teacher: the image that fits each token best, of a folder of images (Tan and Bansal 2020)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Batch, Example, Sample, require, select
from groundling.core.errors import InputError, convert_errors, prefix_errors
from groundling.data.image_samples import files_below, single_file
from groundling.data.images import image_digest
from groundling.data.samples import SampleDataset, TextDataset
from groundling.data.vectors import VectorTable
from groundling.models.frozen_clip import FrozenClip, load_frozen_clip
from groundling.models.heads import (
    TokenImageMatchingHeads,
    concatenated_layers,
    load_matching_heads,
)
from groundling.models.hub import VECTORS
from groundling.models.loading import weights_sha256
from groundling.models.text_encoder import TextEncoder, load_text_encoder
from groundling.settings.objectives import TargetedDistillationSettings
from groundling.teachers import (
    Teacher,
    TeacherContext,
    TeacherSpec,
    check_same_tokens,
    token_inputs,
)
from groundling.teachers.clip import ClipTeacher
from groundling.teachers.feature_cache import FeatureCache, TeacherDataset

SCORES = 1 << 24
"""Scores of tokens and images that are in memory together: 64 MB."""


class VokenImages:
    """The images that may become vokens, in the order of their ids, and a CLIP-like model that reads them."""

    def __init__(
        self, folder: str | Path, clip: FrozenClip, space: Literal["joint", "pre_projection"]
    ) -> None:
        """`space` of the features, as in `ClipTeacher`; raises InputError for fewer than two images."""
        files = files_below(Path(folder))
        with prefix_errors(folder):
            self.files = {name: single_file(files[name]) for name in sorted(files)}
        if len(self.files) < 2:
            raise InputError(f"{folder}: vokens need at least 2 images to choose from")
        self.clip = clip
        options = TargetedDistillationSettings(teacher_space=space)
        self.teacher = ClipTeacher(clip, ["clip_image"], options, images=self.files)

    def __len__(self) -> int:
        return len(self.files)

    def features(self) -> Tensor:
        """Unit-length features (M, E); raises InputError for a damaged image."""
        examples = [Example(name, "", images=(name,)) for name in self.files]
        samples = TeacherDataset(TextDataset(examples, None), self.teacher, FeatureCache())
        features = [sample.features["clip_image"] for sample in samples.get(range(len(self)))]
        return torch.from_numpy(np.stack(features)).to(self.clip.device)

    @cached_property
    def key(self) -> dict[str, Any]:
        """Hash of the images in their order, and the tower and space of their features."""
        digests = "".join(image_digest(file) for file in self.files.values())
        return {"images": hashlib.sha256(digests.encode()).hexdigest(), **self.teacher.key()}


class VokenVectors:
    """The image vectors of a folder that may become vokens, in the order of their ids."""

    def __init__(self, folder: str | Path, images: str = "") -> None:
        """`images`: the folder of the images that may, of which each has a vector; empty: all that have one.

        Raises InputError for fewer than two, and for an image without a vector.
        """
        table = VectorTable(folder, "image")
        names = sorted(files_below(Path(images))) if images else table.ids()
        self.vectors = torch.from_numpy(table.read(table.rows_of(names).tolist()))
        if len(names) < 2:
            raise InputError(f"{images or folder}: vokens need at least 2 images to choose from")

    def __len__(self) -> int:
        return len(self.vectors)

    def features(self) -> Tensor:
        """Unit-length features (M, E)."""
        return F.normalize(self.vectors, dim=-1)

    @cached_property
    def key(self) -> dict[str, Any]:
        """Hash of the vectors in their order."""
        return {"vectors": hashlib.sha256(self.vectors.numpy().tobytes()).hexdigest()}


class _TokenTeacher(Teacher):
    """A teacher that reads each row's own tokens before masking, and returns `voken` (N, T) int32. Abstract."""

    name = "vokens"

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        """Each row's tokens before masking; equal ones have equal ids."""
        return token_inputs(rows, self.name)

    def size_gb(self, samples: SampleDataset) -> float:
        """0, so that they are always cached: they are no larger than the texts' tokens."""
        return 0.0

    def unbatch(self, features: Mapping[str, Tensor], batch: Batch) -> list[dict[str, np.ndarray]]:
        """Each row's vokens (T,), without padding."""
        lengths = require(batch.text, "text", self.name).attention_mask.sum(1).tolist()
        vokens = features["voken"].cpu().numpy()
        return [{"voken": row[:length]} for row, length in zip(vokens, lengths, strict=True)]


class VokenTeacher(_TokenTeacher):
    """The voken of each ordinary token: argmax over images of the dot product of both unit vectors; 0 for others.

    Vokenization, Section 3 (from memory, not checked). The tokens are the student's own, so the
    vokenizer must have the same tokenizer; the released code maps vokens to other tokenizers ("revokenization").
    """

    def __init__(
        self,
        matcher: TextEncoder,
        heads: TokenImageMatchingHeads,
        images: VokenImages | VokenVectors,
    ) -> None:
        """`matcher`: the text encoder of the vokenizer; `heads`: its heads."""
        self.matcher = matcher.eval().requires_grad_(False)
        self.matcher.return_layers()
        self.heads = heads.eval().requires_grad_(False)
        self.layers = heads.states_width // matcher.sizes.text
        self.images = images
        self.width = len(images)
        self.image_vectors: Tensor | None = None

    @property
    def source(self) -> str:
        """Where the vokenizer was loaded from."""
        return f"voken_matcher={self.matcher.tokenizer.name_or_path}"

    def to(self, device: torch.device | str) -> Self:
        """Move vokenizer and image tower to a device."""
        if isinstance(self.images, VokenImages):
            self.images.clip.to(device)
        if self.image_vectors is not None:
            self.image_vectors = self.image_vectors.to(device)
        return super().to(device)

    def key(self) -> dict[str, Any]:
        """Weights of the vokenizer, and the images in their order."""
        return {
            "matcher": weights_sha256(self.matcher.encoder),
            "heads": weights_sha256(self.heads),
            **self.images.key,
        }

    @torch.no_grad()
    def features(self, batch: Batch) -> dict[str, Tensor]:
        """`voken` (U, T) int32; raises InputError for a text that is too long for the vokenizer."""
        device = next(self.heads.parameters()).device
        if self.image_vectors is None:  # with all vokens in the cache, no image is read
            with convert_errors("voken_matcher was trained with another teacher or teacher_space"):
                self.image_vectors = self.heads.image_vectors(self.images.features().to(device))
        batch = batch.to(device)
        tokens = require(batch.text, "text", self.name)
        rows, length = tokens.input_ids.shape
        if length > self.matcher.max_length:
            raise InputError(f"{self.source}: set max_length={self.matcher.max_length}")
        states = concatenated_layers(self.matcher(batch), self.layers, self.source)
        places = batch.flat_indices(lambda one: require(one.text, "text", self.name).ordinary)
        vectors = self.heads.token_vectors(select(states, places))
        together = max(1, SCORES // len(self.images))
        best = [(some @ self.image_vectors.T).argmax(-1) for some in vectors.split(together)]
        vokens = torch.zeros(rows * length, dtype=torch.int32, device=batch.device)
        vokens[places] = torch.cat(best).int()
        return {"voken": vokens.view(rows, length)}


class TokenIdTeacher(_TokenTeacher):
    """Each token's own id as its voken: the control without images (airsplay/vokenization, vlm/data.py)."""

    name = "token_ids"

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """`tokenizer`: the student's."""
        self.width = len(tokenizer)

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """`voken` (U, T) int32."""
        return {"voken": require(batch.text, "text", self.name).input_ids.int()}


def make_voken_teacher(given: TeacherContext) -> Teacher:
    """The vokenizer of a run's settings, or its control of token ids.

    Raises InputError for a missing setting, or if student and vokenizer have different tokenizers.
    """
    options = given.settings.vokens
    targeted = given.settings.targeted_distillation
    tokenizer = require(given.tokenizer, "text", "voken_classification")
    if options.voken_control == "token_id":
        return TokenIdTeacher(tokenizer)
    if not options.voken_matcher:
        raise InputError("voken_classification needs voken_matcher=FOLDER")
    folder = options.voken_images or targeted.teacher_images
    if not (folder or given.source.startswith(VECTORS)):
        raise InputError("voken_classification needs voken_images=FOLDER, or teacher_images=FOLDER")
    heads = load_matching_heads(options.voken_matcher)
    matcher = load_text_encoder(options.voken_matcher)
    check_same_tokens(matcher.tokenizer, tokenizer, options.voken_matcher)
    if given.source.startswith(VECTORS):
        vectors = VokenVectors(given.source.removeprefix(VECTORS), options.voken_images)
        return VokenTeacher(matcher, heads, vectors)
    clip = load_frozen_clip(given.source, text=False)
    return VokenTeacher(matcher, heads, VokenImages(folder, clip, targeted.teacher_space))


VOKENS = TeacherSpec("vokens", ("voken",), make_voken_teacher)
