"""Passes of a model over samples that hand out attention maps layer by layer and keep none.

An `AttentionConsumer` reduces every map to what it needs, so memory does not grow with the attention maps,
and each sample costs one forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
import torch

from groundling.core.batch import Batch, Sample, collate
from groundling.core.errors import require_nonempty
from groundling.data.samples import SampleDataset
from groundling.models.attention import AttentionMap
from groundling.models.formats import Encoder
from groundling.runs.progress import track

BATCH = 32
"""Samples per batch."""


@dataclass(frozen=True)
class AttentionBatch:
    """A batch as a consumer receives it."""

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


def iterate_batches(
    model: Encoder, samples: SampleDataset, batch: int
) -> Iterator[tuple[Batch, list[Sample], list[int]]]:
    """Batches on the model's device, with their samples and indices; the model is in eval mode.

    Raises InputError if there are no samples.
    """
    require_nonempty(samples, "the data contains no examples, so there is nothing to analyse")
    device = next(model.parameters()).device
    order = np.argsort(
        samples.lengths, kind="stable"
    )  # similar lengths together need little padding
    training = model.training
    model.eval()
    for start in track(range(0, len(order), batch), "attention", "batch"):
        places = [int(place) for place in order[start : start + batch]]
        batch_samples = list(samples.get(places, ()))
        yield collate(batch_samples).to(device), batch_samples, places
    model.train(training)


@torch.no_grad()
def consume_attention(
    model: Encoder, samples: SampleDataset, consumer: AttentionConsumer, batch: int = BATCH
) -> None:
    """Hand every layer's map, in order, to the consumer; raises InputError without samples."""
    for inputs, batch_samples, places in iterate_batches(model, samples, batch):
        seen = AttentionBatch(inputs, batch_samples, places)
        model(inputs, lambda attention_map, seen=seen: consumer.consume(seen, attention_map))
