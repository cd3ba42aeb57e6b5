"""Models of text and regions whose attention is analysed, passes over their samples, and controls.

A pass hands out attention maps layer by layer and keeps none: an `AttentionConsumer` reduces every
map to what it needs, so memory does not grow with the attention maps, and each sample costs one
forward pass. Controls: features of other images, random weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from groundling.core.batch import Batch, Example, RegionRow, Sample, collate
from groundling.core.errors import InputError, raise_first, require_nonempty
from groundling.core.output_types import OutputType
from groundling.core.registry import require_instance, resolve
from groundling.core.resampling import derangement
from groundling.core.rng import derive_seed, generator
from groundling.data.captions import find_images, images_in_store, read_captions, with_store_ids
from groundling.data.image_samples import image_files_by_id
from groundling.data.images import ImageInput
from groundling.data.regions import RegionSource, RegionStore
from groundling.data.regions.samples import ImageSampleBuilder, ImageSources, RegionLabeler
from groundling.data.samples import SampleDataset, TextDataset
from groundling.models.attention import AttentionMap
from groundling.models.loading import Encoder
from groundling.prediction import FineTunedModel, load
from groundling.prediction.model_description import FILE
from groundling.runs.progress import track
from groundling.settings.fields import require_settings
from groundling.settings.input_settings import CaptionSettings, RegionSettings
from groundling.studies.attention.commands import AnalysedModelSettings, ModalityConfig
from groundling.studies.attention.models import PatchReader, PatchStore, pointing_game
from groundling.tasks import Task
from groundling.vision_language import RegionEncoder
from groundling.vision_language.loading import load_encoder


class RegionModel:
    """A model of text and regions on its device, with its region store."""

    form: OutputType | None = None
    """Output type of a fine-tuned model."""
    notes: Sequence[str] = ()
    """Notes on its numbers, for the reader."""

    def __init__(self, config: AnalysedModelSettings, device: torch.device) -> None:
        """Raises InputError if the model reads no regions, or the store does not fit it."""
        self.config = config
        loaded = load_encoder(config.model, config.model_format, config.architecture)
        model = require_instance(loaded, RegionEncoder, f"{config.model}: reads no regions:")
        settings = RegionSettings(**vars(config.image_settings), object_tags=config.object_tags)
        self.inputs = ImageSampleBuilder(settings)
        self.inputs.check_pixels(model, config.model)
        self.store: RegionStore | None = None
        if not isinstance(model, PatchReader):
            require_settings(config, f"{config.model}: this model", "regions")
            self.inputs.check(model)
            self.store = self.inputs.store
        if config.untrained:
            randomize_weights(model, config.seed)
        # A text alone or a pair is read as in pre-training.
        model.prepare((), True)
        self.model = model.to(device).eval()

    def mark(self, usual: RegionLabeler) -> RegionLabeler:
        """The rule for right regions: the task's (`usual`), or `pointing_game` for patches."""
        return pointing_game if isinstance(self.model, PatchReader) else usual

    def samples(
        self, examples: Sequence[Example], partner: Mapping[str, str] | None = None
    ) -> SampleDataset:
        """Examples as the model reads them; with `partner`, features of each image's other image.

        Raises InputError if an example has no image, or an image no region.
        """
        model = self.model
        text, _ = model.inputs(self.config.max_length)
        texts = TextDataset(
            self.inputs.select_tags(examples), text, max_cached=0
        )  # each is read once
        files: dict[str, ImageInput] = {}
        if model.region_source != "features":
            files = image_files_by_id(
                texts, self.config.image_settings.images, "a model that reads pixels"
            )
        store: RegionSource | None = self.store
        if isinstance(model, PatchReader):
            store = PatchStore(model, files)
        assert store is not None  # only patches have none
        if partner is not None:
            store = OtherImageStore(store, partner)
        shown = {image: files[partner[image] if partner else image] for image in files}
        samples = self.inputs.samples(texts, model, ImageSources(store, shown))
        # The control with other images, hours later, would have no features for it.
        empty = [image for images in samples.images for image in images if not store.count(image)]
        raise_first([f"{image}: has no region" for image in empty])
        return samples


def is_fine_tuned(source: str) -> bool:
    """Whether `finetune` wrote the folder, so that it has a head and a task."""
    patterns = (FILE, f"model/{FILE}", f"seed-*/model/{FILE}")
    return any(any(Path(source).glob(pattern)) for pattern in patterns)


class FineTunedRegionModel(RegionModel):
    """A model that `finetune` wrote, evaluated as in its training run."""

    def __init__(
        self, config: AnalysedModelSettings, device: torch.device, trust: Sequence[str]
    ) -> None:
        """`trust`: as in `load`. Raises InputError if it reads text alone."""
        self.fitted: FineTunedModel = load(config.model, device=str(device), trust=trust)
        student = self.fitted.student
        if not isinstance(student, RegionEncoder) or not self.fitted.description.reads_regions:
            raise InputError(
                f"{config.model}: this model reads only text; pass one that reads regions"
            )
        shown = config.image_settings
        if shown.max_regions or not config.object_tags:
            raise InputError(
                f"{config.model} always reads max_regions and object_tags as in its training; leave them out"
            )
        self.inputs = self.fitted.image_inputs(
            shown.regions, shown.images, allow_region_mismatch=shown.allow_region_mismatch
        )
        if config.untrained:
            randomize_weights(student, config.seed)
        self.model = student.to(device).eval()
        self.form = self.fitted.form
        self.notes = self.fitted.notes

    def samples(
        self, examples: Sequence[Example], partner: Mapping[str, str] | None = None
    ) -> SampleDataset:
        """As its own head reads them; raises InputError for an image that cannot be read."""
        images = list(dict.fromkeys(image for one in examples for image in one.images))
        others = [] if partner is None else [partner[image] for image in images]
        sources = self.inputs.image_sources(list(dict.fromkeys([*images, *others])))
        raise_first([f"{image}: {fault}" for image, fault in sources.faults.items()])
        if partner is not None and sources.store is not None:
            photos = {image: sources.images[partner[image]] for image in images if sources.images}
            sources = replace(sources, store=OtherImageStore(sources.store, partner), images=photos)
        return self.fitted.samples(examples, sources, self.fitted.task.label_regions)


def read_analysis_examples(
    subject: RegionModel, config: ModalityConfig
) -> tuple[list[Example], Sequence[str]]:
    """The examples of a task, of a fine-tuned model's data, or of captions; and notes.

    Raises InputError if the data is missing or malformed, or an example has no image.
    """
    data = Path(config.data)
    if config.task:
        task = resolve("tasks", Task, config.task).with_answers_of(data)
        return task.read(data, config.split or task.dev[0]), ()
    if isinstance(subject, FineTunedRegionModel):
        _, parts = subject.fitted.labelled_splits(
            data, config.split, config.asking, config.label, subject.inputs
        )
        return next(iter(parts.values())), ()
    splits = (config.split,) if config.split else ()
    captions = read_captions(data, CaptionSettings(config.columns, splits))
    folder = config.image_settings.images
    images, store = captions.images, subject.store
    if store is None and folder:
        images, _ = find_images(images, folder)
    images = with_store_ids(images)
    if store is not None:
        images, _ = images_in_store(images, store, store.folder)
    examples = [
        Example(f"{image.id}#{number}", caption, images=(image.id,))
        for image in images
        for number, caption in enumerate(image.captions)
    ]
    return examples, captions.notes


# -- passes ------------------------------------------------------------------------------------------------------------
BATCH = 32
"""Samples per batch."""


@dataclass(frozen=True)
class AttentionBatch:
    """A batch of samples."""

    batch: Batch
    """As the model reads it, on the model's device."""
    samples: Sequence[Sample]
    """Its B samples without padding, each with its `example`."""
    places: Sequence[int]
    """Index of each among all samples of the pass."""


class AttentionConsumer(Protocol):
    """Receives attention maps as they are computed."""

    def consume(self, batch: AttentionBatch, attention_map: AttentionMap) -> None:
        """Process the map of one layer; it must not keep its tensors or views of them."""
        ...


class SampleArrays:
    """Arrays by sample and layer, kept as whole batches, which take little memory."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.batches: dict[int, list[Sequence[np.ndarray] | np.ndarray]] = {}

    @property
    def layers(self) -> list[int]:
        """Numbers of the layers."""
        return list(self.batches)

    def put(
        self, places: Sequence[int], layer: int, rows: Sequence[np.ndarray] | np.ndarray
    ) -> None:
        """Add a layer's B arrays for the samples at `places`; layers come in the same order."""
        self.batches.setdefault(layer, []).append(rows)
        if layer == self.layers[0]:
            self.places += places

    def stacked(self) -> np.ndarray:
        """All arrays (samples, layers, ...), which must have the same shape, in the samples' order."""
        order = np.argsort(self.places)
        return np.stack([np.concatenate(rows)[order] for rows in self.batches.values()], 1)

    def by_sample(self) -> list[np.ndarray]:
        """Each sample's arrays (layers, ...), in the samples' order; samples may differ in shape."""
        layers = [list(chain.from_iterable(rows)) for rows in self.batches.values()]
        return [np.stack([rows[place] for rows in layers]) for place in np.argsort(self.places)]


def iterate_batches(model: Encoder, samples: SampleDataset, batch: int) -> Iterator[AttentionBatch]:
    """Batches of samples of similar lengths; the model is in eval mode.

    Raises InputError if there are no samples.
    """
    require_nonempty(samples, "the data contains no examples, so there is nothing to analyse")
    device = next(model.parameters()).device
    order = np.argsort(samples.lengths, kind="stable")
    training = model.training
    model.eval()
    for start in track(range(0, len(order), batch), "attention", "batch"):
        places = [int(place) for place in order[start : start + batch]]
        batch_samples = list(samples.get(places, ()))
        yield AttentionBatch(collate(batch_samples).to(device), batch_samples, places)
    model.train(training)


@torch.no_grad()
def consume_attention(
    model: Encoder, samples: SampleDataset, consumer: AttentionConsumer, batch: int = BATCH
) -> None:
    """Hand every layer's map, in order, to the consumer; raises InputError without samples."""
    for seen in iterate_batches(model, samples, batch):
        model(seen.batch, lambda attention_map, seen=seen: consumer.consume(seen, attention_map))


# -- controls ----------------------------------------------------------------------------------------------------------
def shuffle_images(images: Sequence[str], seed: int) -> dict[str, str]:
    """A permutation that maps every image to another one; the same for the same seed and images.

    Raises InputError for fewer than two images.
    """
    different = list(dict.fromkeys(images))
    if len(different) < 2:
        raise InputError(
            f"{len(different)} image, and the control with other images needs at least 2; turn the control off "
            "with shuffled_images_control=False or perturbed_inputs=False"
        )
    # The inverse, so that published numbers stay.
    others = np.argsort(derangement(len(different), generator(seed, "partners")))
    return {one: different[other] for one, other in zip(different, others, strict=True)}


class OtherImageStore(RegionSource):
    """A store in which every image keeps its boxes and has the region features of another image.

    A caption is read with the same number of regions in the same places, but with features that it
    does not describe. A head that is right with them uses the regions' positions, sizes or order.
    If the other image has fewer regions, its features are repeated.
    """

    def __init__(self, store: RegionSource, partner: Mapping[str, str]) -> None:
        """`partner`: the image whose features each image gets, see `shuffle_images`."""
        self.store = store
        self.partner = partner

    def count(self, image: str) -> int:
        """Number of an image's regions."""
        return self.store.count(image)

    def facts_of(self, image: str) -> Mapping[str, Any]:
        """Facts about the image whose boxes are read."""
        return self.store.facts_of(image)

    def __contains__(self, image: object) -> bool:
        return image in self.store

    def __getitem__(self, image: str) -> RegionRow:
        """The image's regions with the features of its partner's."""
        row = self.store[image]
        other = self.store[self.partner[image]]
        own_places = np.flatnonzero(~row.is_whole_image)
        places = np.flatnonzero(~other.is_whole_image)
        if not len(places):
            places = np.arange(len(other))
        features = row.features.copy()
        features[own_places] = other.features[np.resize(places, len(own_places))]
        if row.is_whole_image.any():
            # If the other image has no whole-image region, the mean of its regions replaces it, as in
            # `add_whole_image`.
            whole = (
                other.features[other.is_whole_image]
                if other.is_whole_image.any()
                else other.features
            )
            features[row.is_whole_image] = whole.mean(0)
        return replace(row, features=features)


def randomize_weights(model: Encoder, seed: int = 0) -> Encoder:
    """Replace the model's weights by random ones, as BERT's are initialised; a CNN stays.

    A control: results that remain with random weights are not due to training.
    """
    draws = torch.Generator().manual_seed(derive_seed(seed, "untrained"))
    for name, part in model.named_modules():
        if name.startswith("cnn."):
            continue
        if isinstance(part, nn.Linear | nn.Embedding):
            values = torch.randn(part.weight.shape, generator=draws) * 0.02
            part.weight.data.copy_(values)
        if isinstance(part, nn.Linear) and part.bias is not None:
            part.bias.data.zero_()
        if isinstance(part, nn.LayerNorm):
            part.reset_parameters()
    for weight in model.patch_parameters() if isinstance(model, PatchReader) else ():
        weight.data.copy_(torch.randn(weight.shape, generator=draws) * 0.02)
    return model
