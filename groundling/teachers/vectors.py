"""Vectors of images and texts: a teacher that reads stored ones, and how a teacher writes them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import FORWARD_BATCH, Batch, Example, Sample, collate, require
from groundling.core.errors import InputError, convert_errors, raise_first
from groundling.data.corpora import CorpusDataset, batched, corpus_of, iterate_texts
from groundling.data.hashed_names import mapped_arrays
from groundling.data.image_samples import files_below, single_file
from groundling.data.images import ImageInput, image_faults
from groundling.data.samples import SampleDataset, TextDataset
from groundling.data.shards import ProcessRank
from groundling.data.vectors import LAYOUTS, TOGETHER, Modality, VectorTable, text_key
from groundling.models.frozen_clip import load_frozen_clip, load_teacher_text
from groundling.runs.folder import renamed
from groundling.runs.progress import Progress
from groundling.settings.input_settings import CaptionSettings
from groundling.teachers import Teacher, compute_features, name_of
from groundling.teachers.clip import UNNORMALIZED_IMAGE, ClipTeacher, text_for_clip
from groundling.teachers.feature_cache import iterate_samples
from groundling.teachers.text import ClipTextTeacher, StandardizedTextTeacher

IMAGE_FEATURES = ("clip_image", UNNORMALIZED_IMAGE)
TEXT_FEATURES = ("clip_text", "sentence")
WRITTEN: dict[Modality, tuple[str, str]] = {
    "image": (UNNORMALIZED_IMAGE, "clip_image"),
    "text": ("sentence", "clip_text"),
}
"""Features that are written as vectors: the first that a teacher has."""
RAW: dict[Modality, str] = {modality: names[0] for modality, names in WRITTEN.items()}
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
            named = ", ".join(name for name in lacking if name != "has")  # which words there are
            raise InputError(f"{folder}: stored vectors have no {named}{advice}")
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
        stored = corpus_of(samples)
        if stored is None:
            for some in batched(iterate_samples(samples), FORWARD_BATCH):
                self._find([row for sample in some for row in sample.rows])
        else:
            for modality in self.tables:
                self._check_stored(modality, *stored)
        super().fit(samples)
        return self

    def _check_stored(self, modality: Modality, corpus: CorpusDataset, numbers: range) -> None:
        """Find the vectors of stored texts, in the first run on both."""
        table = self.tables[modality]
        progress = Progress(f"vectors of {modality}s", len(numbers), "sample", reads_inputs=True)

        def rows() -> Iterator[np.ndarray]:
            yield np.zeros(0, np.int64)
            for some in batched(corpus.strings(modality, numbers), TOGETHER):
                yield table.rows_of(some)
                progress.update(len(some))

        identity = repr(
            [corpus.key, numbers, modality, str(table.folder.absolute()), table.state()]
        )
        mapped_arrays("vectors", identity, ["rows"], lambda: [np.concatenate(list(rows()))])
        progress.close()

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


# -- writing them --


class Names(NamedTuple):
    """What is to be embedded, each once, in the order of the data."""

    texts: list[str]
    images: dict[str, ImageInput]
    """Files by id."""


def read_names(files: Sequence[str], selection: CaptionSettings, folder: str) -> Names:
    """The texts of some files, and their images in a folder, or without files all images in it.

    Raises InputError for a missing image, or a folder whose images no text has.
    """
    texts: dict[str, None] = {}
    named: dict[str, None] = {}
    for file in files:
        for text, image in iterate_texts(file, selection):
            texts[text_key(text)] = None
            named[image] = None
    named.pop("", None)
    if not folder:
        return Names(list(texts), {})
    found = files_below(Path(folder))
    if files and not named:
        raise InputError(f"images={folder}: the texts have no images")
    if not found:
        raise InputError(f"{folder}: no images in this folder")
    images: dict[str, ImageInput] = {}
    for name in named or sorted(found):
        if name not in found:
            raise InputError(f"{folder}: the image {name!r} is missing")
        images[name] = single_file(found[name])
    return Names(list(texts), images)


def text_teacher(source: str, max_windows: int) -> Teacher:
    """The text tower of a source, as `adapt` reads it, before features are standardised."""
    return ClipTextTeacher(*load_teacher_text(source), standardise=False, max_windows=max_windows)


def image_teacher(source: str, images: dict[str, ImageInput]) -> ClipTeacher:
    """The image tower of a source, which reads these images."""
    clip = load_frozen_clip(source, text=False)
    teacher = ClipTeacher(clip, {UNNORMALIZED_IMAGE}, images=images)
    teacher.files.update(images)
    return teacher


def fit_own(teacher: Teacher, modality: Modality, names: Sequence[str]) -> None:
    """Fit a teacher of the user's own to the texts or images.

    Raises InputError for one that reads more of a row than its `example`.
    """
    samples = TextDataset([_example(modality, name) for name in names], None)
    teacher.fit(samples)
    with convert_errors(
        f"{name_of(teacher)} reads more than a row's example, all that it has here"
    ):
        teacher.inputs([_row(modality, names[0])])


def embed(
    teacher: Teacher,
    modality: Modality,
    names: Sequence[str],
    out: Path,
    size: int,
    part: ProcessRank,
    images: Mapping[str, ImageInput] = MappingProxyType({}),
) -> int:
    """Write the missing files of vectors of images or texts, this process's share; returns the vectors' width.

    Equal inputs are encoded once, in the batches of the cache of a run that reads the same data, whose features are
    then equal to the last bit. Raises InputError for a damaged one among the `images` before the first is encoded,
    because repairing it makes it another run.
    """
    groups: dict[str, list[str]] = {}
    for some in batched(names, FORWARD_BATCH):
        for name, key in zip(
            some, teacher.ids([_row(modality, name) for name in some]), strict=True
        ):
            groups.setdefault(key, []).append(name)
    every = list(groups.values())
    size = -(-size // FORWARD_BATCH) * FORWARD_BATCH
    shards = [every[start : start + size] for start in range(0, len(every), size)]
    numbers = part.shard_numbers(len(shards))
    files = {number: out / f"{LAYOUTS[modality].files}-{number:05}.npy" for number in numbers}
    missing = {number for number, file in files.items() if not file.is_file()}
    if modality == "image":
        first = [group[0] for number in sorted(missing) for group in shards[number]]
        faults = image_faults({name: images[name] for name in first if name in images})
        raise_first([f"{name}: {fault}" for name, fault in faults.items()])
    progress = Progress(f"vectors of {modality}s", len(every), "input")
    for number, file in files.items():
        if number in missing:
            vectors = vectors_of(teacher, modality, [group[0] for group in shards[number]])
            pairs = zip(shards[number], vectors, strict=True)
            named = [(name, vector) for group, vector in pairs for name in group]
            write_vectors(file, [name for name, _ in named], [vector for _, vector in named])
        progress.update(len(shards[number]))
    progress.close()
    return teacher.image_width if modality == "image" else teacher.width


def _example(modality: Modality, name: str) -> Example:
    return Example(name, "", images=(name,)) if modality == "image" else Example(name, name)


def _row(modality: Modality, name: str) -> Sample:
    return Sample(name, example=_example(modality, name))


def vectors_of(teacher: Teacher, modality: Modality, names: Sequence[str]) -> Iterator[np.ndarray]:
    """The vector (E,) of each image or text; raises InputError for one that is not finite."""
    for some in batched(names, FORWARD_BATCH):
        batch = collate(teacher.inputs([_row(modality, name) for name in some]))
        features = compute_features(teacher, batch)
        written = [name for name in WRITTEN[modality] if name in features]
        if not written:
            raise InputError(
                f"{name_of(teacher)} has {', '.join(features)} of each {modality}, and not "
                f"{' or '.join(WRITTEN[modality])}, which `embed` writes"
            )
        values: torch.Tensor = features[written[0]]
        for name, value in zip(some, values.cpu().numpy(), strict=True):
            if not np.isfinite(value).all():
                raise InputError(f"{name}: the teacher's vector is not finite")
            yield value


def write_vectors(file: Path, names: Sequence[str], values: Sequence[np.ndarray]) -> None:
    """Write vectors and the ids of their rows; the file of vectors, which completes the shard, is the last."""
    with renamed(file.with_suffix(".txt"), synced=True) as partial:
        partial.write_text("\n".join(names) + "\n", encoding="utf-8")
    with renamed(file, synced=True) as partial, partial.open("wb") as stream:
        np.save(stream, np.stack(values))
