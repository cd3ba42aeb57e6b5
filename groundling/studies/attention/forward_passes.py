"""Passes of a model over samples that hand out attention maps layer by layer and keep none.

An `AttentionConsumer` reduces every map to what it needs, so memory does not grow with the attention maps,
and each sample costs one forward pass. Several processes share the samples. Batches do not depend
on the number of processes, and results are merged in the samples' order or as exact sums, so
results do not depend on it either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object

from groundling.core.batch import Batch, Sample, collate
from groundling.core.errors import InputError
from groundling.data.samples import SampleDataset
from groundling.data.shards import ProcessRank
from groundling.models.attention import AttentionMap
from groundling.models.formats import Encoder
from groundling.runs.jobs import Job, check_starts, run_jobs
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

    def local_result(self) -> Any:
        """This process's result, small enough to send between processes."""
        ...

    def merge(self, parts: Sequence[Any]) -> None:
        """Combine the `local_result` of all processes, this one's included."""
        ...


class RaggedSampleArrays:
    """Small arrays by sample, which may differ in shape; sorted by sample once merged."""

    def __init__(self) -> None:
        self.rows: dict[int, np.ndarray] = {}

    def put(self, sample: int, layer: int, row: np.ndarray) -> None:
        """Add a layer's array (...) for the sample at `sample`; layers must come in order."""
        before = self.rows.get(sample)
        if (0 if before is None else len(before)) != layer:
            raise InputError(f"sample {sample}: the model gave layer {layer} out of order")
        self.rows[sample] = row[None] if before is None else np.concatenate([before, row[None]])

    def local_result(self) -> dict[int, np.ndarray]:
        """The arrays of this process's samples, by index."""
        return self.rows

    def merge(self, parts: Sequence[dict[int, np.ndarray]]) -> None:
        """Combine the arrays of all processes."""
        every = {place: row for part in parts for place, row in part.items()}
        self.rows = {place: every[place] for place in sorted(every)}

    def stacked(self) -> np.ndarray:
        """All arrays (samples, layers, ...), which must have the same shape."""
        return np.stack([self.rows[place] for place in sorted(self.rows)])


class SampleArrays:
    """Arrays of one shape by sample and layer, kept as whole batches to save memory."""

    def __init__(self) -> None:
        self.places: list[np.ndarray] = []
        self.layers: list[list[np.ndarray]] = []

    def put(self, places: Sequence[int], layer: int, rows: np.ndarray) -> None:
        """Add a layer's arrays (B, ...) for the samples at `places`; layers must come in order."""
        if layer == 0:
            self.places.append(np.array(places, np.int32))
        if layer == len(self.layers):
            self.layers.append([])
        if layer > len(self.layers) or len(self.layers[layer]) != len(self.places) - 1:
            raise InputError(f"sample {places[0]}: the model gave layer {layer} out of order")
        self.layers[layer].append(rows)

    def local_result(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Indices (n,) and arrays (n, layers, ...) of this process's samples, if any."""
        if not self.places:
            return None
        layers = [np.concatenate(batches) for batches in self.layers]
        return np.concatenate(self.places), np.stack(layers, 1)

    def merge(self, parts: Sequence[tuple[np.ndarray, np.ndarray] | None]) -> None:
        """Combine the arrays of all processes, in the samples' order."""
        results = [part for part in parts if part is not None]
        self.places, self.layers = [], []
        if results:
            places = np.concatenate([places for places, _ in results])
            order = np.argsort(places)
            rows = np.concatenate([rows for _, rows in results])[order]
            self.places = [places[order]]
            self.layers = [[rows[:, layer]] for layer in range(rows.shape[1])]

    def stacked(self) -> np.ndarray:
        """All arrays (samples, layers, ...), in the samples' order."""
        result = self.local_result()
        if result is None:
            raise InputError("the model returned no attention map for any sample")
        places, rows = result
        return rows[np.argsort(places)]


FIXED_POINT_SCALE = 1 << 32
"""`ExactSums` adds multiples of 1 / FIXED_POINT_SCALE as integers, whose sum does not depend on the order."""


class ExactSums:
    """Sums of numbers that do not depend on the order of addition or on the number of processes."""

    def __init__(self, *shape: int) -> None:
        self.total = np.zeros(shape, np.int64)

    def add(self, index: Any, values: np.ndarray) -> None:
        """Add values, each at most 2**20 in absolute value, to the sums at index `index`."""
        self.total[index] += np.rint(np.asarray(values, float) * FIXED_POINT_SCALE).astype(np.int64)

    def local_result(self) -> np.ndarray:
        """The sums of this process, in multiples of 1 / FIXED_POINT_SCALE."""
        return self.total

    def merge(self, parts: Sequence[np.ndarray]) -> None:
        """Combine the sums of all processes."""
        self.total = np.sum(parts, axis=0)

    def values(self) -> np.ndarray:
        """The sums; each number added has an error of at most 2**-33."""
        return self.total / FIXED_POINT_SCALE


class ModelPass(Protocol):
    """One run of a model over all samples."""

    def run(self, process: ProcessRank) -> None:
        """Run one process's share; its result is merged with the others' afterwards."""
        ...

    def local_result(self) -> Any:
        """The result of this process's share, small enough to send between processes."""
        ...

    def merge(self, parts: Sequence[Any]) -> None:
        """Combine the `local_result` of all processes, this one's included."""
        ...


def iterate_batches(
    model: Encoder, samples: SampleDataset, process: ProcessRank, batch: int
) -> Iterator[tuple[Batch, list[Sample], list[int]]]:
    """Batches of a process's share on the model's device, with their samples and indices.

    Batches do not depend on the number of processes. Raises InputError if there are no samples.
    """
    if not len(samples):
        raise InputError("the data contains no examples, so there is nothing to analyse")
    device = next(model.parameters()).device
    order = np.argsort(
        samples.lengths, kind="stable"
    )  # similar lengths together need little padding
    training = model.training
    model.eval()
    starts = range(process.rank * batch, len(order), batch * process.world)
    for start in track(starts, "attention", "batch"):
        places = [int(place) for place in order[start : start + batch]]
        batch_samples = list(samples.get(places, ()))
        yield collate(batch_samples).to(device), batch_samples, places
    model.train(training)


class AttentionPass:
    """A pass that hands every attention map to its consumers."""

    def __init__(
        self,
        model: Encoder,
        samples: Callable[[], SampleDataset],
        consumers: Sequence[AttentionConsumer],
        batch: int = BATCH,
    ) -> None:
        """`samples` is called when the pass runs, so that later passes take no memory yet."""
        self.model = model
        self.samples = samples
        self.consumers = consumers
        self.batch = batch

    @torch.no_grad()
    def run(self, process: ProcessRank) -> None:
        """Hand out every layer's map in order; raises InputError if the model gives none."""
        samples = self.samples()
        for batch, batch_samples, places in iterate_batches(
            self.model, samples, process, self.batch
        ):
            _hand_out_maps(self.model, AttentionBatch(batch, batch_samples, places), self.consumers)

    def local_result(self) -> list[Any]:
        """The result of each consumer."""
        return [consumer.local_result() for consumer in self.consumers]

    def merge(self, parts: Sequence[list[Any]]) -> None:
        """Combine every consumer's results."""
        for place, consumer in enumerate(self.consumers):
            consumer.merge([part[place] for part in parts])


def _hand_out_maps(
    model: Encoder, batch: AttentionBatch, consumers: Sequence[AttentionConsumer]
) -> None:
    """One forward pass that hands its maps to the consumers."""

    def watch(attention_map: AttentionMap) -> None:
        for consumer in consumers:
            consumer.consume(batch, attention_map)

    model(batch.batch, watch)


def run_passes_here(passes: Sequence[ModelPass]) -> None:
    """Run passes; under torchrun each process runs its share, and all get the merged result."""
    state = PartialState()
    process = ProcessRank(state.process_index, state.num_processes)
    for one in passes:
        one.run(process)
        own = [one.local_result()]
        one.merge(gather_object(own) if state.num_processes > 1 else own)


PassFactory = Callable[[torch.device], Sequence[ModelPass]]
"""Makes a command's passes on a device; picklable, as it is sent to other processes."""


def run_passes(passes: Sequence[ModelPass], plan: PassFactory, processes: int = 1) -> None:
    """Run all passes of a command: in this process, in torchrun's, or in `processes` new ones.

    `plan` makes the same passes in each of these. Raises InputError for torchrun together with
    `processes`.
    """
    state = PartialState()
    if processes == 1:
        run_passes_here(passes)
        return
    check_starts(processes, state.num_processes)
    ranks = [ProcessRank(rank, processes) for rank in range(processes)]
    jobs = [Job(f"part {one.rank + 1}", _share, (plan, state.device.type, one)) for one in ranks]
    shares = run_jobs(jobs, processes, lambda line: None)
    for number, one in enumerate(passes):
        one.merge([shares[job.name][number] for job in jobs])


def _share(plan: PassFactory, device: str, process: ProcessRank) -> list[Any]:
    """The results of one process's share of every pass."""
    passes = plan(PartialState(cpu=device == "cpu").device)
    for one in passes:
        one.run(process)
    return [one.local_result() for one in passes]
