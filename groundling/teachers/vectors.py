"""Vectors of images and texts that were computed elsewhere, as a teacher; neither model nor images are needed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import FORWARD_BATCH, Batch, Sample, require
from groundling.core.errors import InputError
from groundling.data.samples import SampleDataset
from groundling.data.vectors import Modality, VectorTable
from groundling.runs.progress import Progress
from groundling.teachers import Teacher
from groundling.teachers.clip import UNNORMALIZED_IMAGE, text_for_clip
from groundling.teachers.feature_cache import iterate_samples
from groundling.teachers.text import StandardizedTextTeacher

IMAGE_FEATURES = ("clip_image", UNNORMALIZED_IMAGE)
TEXT_FEATURES = ("clip_text", "sentence")
RAW: dict[Modality, str] = {"image": UNNORMALIZED_IMAGE, "text": "sentence"}
"""The feature that is a stored vector as it is."""
UNIT_LENGTH = {"clip_image": RAW["image"], "clip_text": RAW["text"]}
"""Features of unit length, and those of which they are made."""


class StoredVectors(StandardizedTextTeacher):
    """Stored vectors of each row's image and text, by the image's id and by the text itself.

    Features by row: `clip_image` (N, Ei) and `clip_text` (N, Et) of unit length, `clip_image_unnormalized` (N, Ei), and
    `sentence` (N, Et), standardised as by `ClipTextTeacher`. A text is one that was embedded: whole, not cut.
    """

    name = "vectors"

    def __init__(self, folder: str | Path, features: Collection[str], standardise: bool) -> None:
        """Raises InputError for features that vectors cannot have, and for vectors that the folder does not have."""
        lacking = sorted(set(features) - {*IMAGE_FEATURES, *TEXT_FEATURES})
        if lacking:
            advice = "; word_weight=0 trains without words" if "words" in lacking else ""
            raise InputError(f"{folder}: stored vectors have no {', '.join(lacking)}{advice}")
        super().__init__(standardise and "sentence" in features)
        self.feature_names = tuple(sorted(features))
        self.tables: dict[Modality, VectorTable] = {}
        if not set(IMAGE_FEATURES).isdisjoint(features):
            self.tables["image"] = VectorTable(folder, "image")
            self.image_width = self.tables["image"].width
            self.image_features = self.feature_names
        if not set(TEXT_FEATURES).isdisjoint(features):
            self.tables["text"] = VectorTable(folder, "text")
            self.width = self.tables["text"].width

    def split(self, fixed: bool) -> tuple[Sequence[Teacher], Sequence[Teacher]]:
        """Never cached: the vectors are read where they are."""
        return [], [self]

    def key(self) -> dict[str, Any]:
        """The files of vectors."""
        return {modality: table.key() for modality, table in self.tables.items()}

    def fit(self, samples: SampleDataset) -> StoredVectors:
        """Find the vectors of all samples, and the mean and deviation of `sentence`.

        Raises InputError for a sample without a vector.
        """
        progress = Progress("vectors of samples", len(samples), "sample")
        rows: list[Sample] = []
        for sample in iterate_samples(samples):
            rows += sample.rows
            if len(rows) >= FORWARD_BATCH:
                self._find(rows)
                rows = []
            progress.update()
        self._find(rows)
        progress.close()
        super().fit(samples)
        return self

    def _find(self, rows: Sequence[Sample]) -> dict[Modality, list[int]]:
        """The rows of the samples' vectors, by modality."""
        examples = [require(row.example, "example", "a teacher") for row in rows]
        found: dict[Modality, list[int]] = {}
        for modality, table in self.tables.items():
            names = [text_for_clip(one) for one in examples]
            if modality == "image":
                for one in examples:
                    if len(one.images) != 1:
                        raise InputError(f"{one.id} has {len(one.images)} images, expected one")
                names = [one.images[0] for one in examples]
            found[modality] = table.rows_of(names).tolist() if names else []
        return found

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        """The stored vectors of each row as features; equal ones have equal ids."""
        found = self._find(rows)
        values = {modality: table.read(found[modality]) for modality, table in self.tables.items()}
        numbers = zip(*found.values(), strict=True)
        return [
            Sample(
                "|".join(map(str, ids)),
                features={RAW[modality]: values[modality][place] for modality in values},
            )
            for place, ids in enumerate(numbers)
        ]

    def raw_features(self, batch: Batch) -> dict[str, Tensor]:
        """The stored vectors (U, E)."""
        return dict(batch.features)

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """The requested features (U, E)."""
        features = super().features(batch)
        for name, raw in UNIT_LENGTH.items():
            if name in self.feature_names:
                features[name] = F.normalize(batch.features[raw], dim=-1)
        return {name: features[name] for name in self.feature_names}
