"""One pass over a model and its samples that tells attention layer by layer; nothing of it is held.

An `AttentionConsumer` takes from every map what it needs and lets it go, so that memory does not grow with attention and cost is
one forward pass a sample. Of several processes each reads its share; batches are the same however many there are, and
what consumers keep is merged in the samples' order or in exact sums, so that results are equal, too.
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
"""Samples that are read at a time."""


@dataclass(frozen=True)
class AttentionBatch:
    """A batch as a consumer meets it."""

    batch: Batch
    """As the model reads it, on the model's device."""
    samples: Sequence[Sample]
    """Its B samples without padding, each with its `example`."""
    places: Sequence[int]
    """Number of each among all samples of the pass."""


class AttentionConsumer(Protocol):
    """What looks at maps as they are made."""

    def consume(self, seen: AttentionBatch, one: AttentionMap) -> None:
        """Take what is needed of one layer; no tensor of `one` may be kept, nor a view of it."""
        ...

    def local_result(self) -> Any:
        """What this process has taken, small enough to travel between processes."""
        ...

    def merge(self, parts: Sequence[Any]) -> None:
        """Hold what all processes together have taken: each one's `kept`, its own among them."""
        ...


class RaggedSampleArrays:
    """Small arrays by sample; in the samples' order once merged, whichever process made them."""

    def __init__(self) -> None:
        self.rows: dict[int, np.ndarray] = {}

    def put(self, place: int, layer: int, row: np.ndarray) -> None:
        """A layer's array (...) of the sample of this number; layers come in their order, and are stacked."""
        before = self.rows.get(place)
        if (0 if before is None else len(before)) != layer:
            raise InputError(f"sample {place}: layer {layer} was told out of its turn")
        self.rows[place] = row[None] if before is None else np.concatenate([before, row[None]])

    def local_result(self) -> dict[int, np.ndarray]:
        """The rows of this process by number."""
        return self.rows

    def merge(self, parts: Sequence[dict[int, np.ndarray]]) -> None:
        """The rows of all processes."""
        every = {place: row for part in parts for place, row in part.items()}
        self.rows = {place: every[place] for place in sorted(every)}

    def stacked(self) -> np.ndarray:
        """All rows (samples, layers, ...), which have to be of one shape."""
        return np.stack([self.rows[place] for place in sorted(self.rows)])


class SampleArrays:
    """Arrays of one shape by sample and layer, held as whole batches: little more than their own bytes."""

    def __init__(self) -> None:
        self.places: list[np.ndarray] = []
        self.layers: list[list[np.ndarray]] = []

    def put(self, places: Sequence[int], layer: int, rows: np.ndarray) -> None:
        """A layer's arrays (B, ...) of the samples of these numbers; a batch's layers come in their order."""
        if layer == 0:
            self.places.append(np.array(places, np.int32))
        if layer == len(self.layers):
            self.layers.append([])
        if layer > len(self.layers) or len(self.layers[layer]) != len(self.places) - 1:
            raise InputError(f"sample {places[0]}: layer {layer} was told out of its turn")
        self.layers[layer].append(rows)

    def local_result(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Numbers (n,) and arrays (n, layers, ...) of this process's samples, if it has any."""
        if not self.places:
            return None
        layers = [np.concatenate(batches) for batches in self.layers]
        return np.concatenate(self.places), np.stack(layers, 1)

    def merge(self, parts: Sequence[tuple[np.ndarray, np.ndarray] | None]) -> None:
        """Those of all processes, in the order of samples."""
        told = [part for part in parts if part is not None]
        self.places, self.layers = [], []
        if told:
            places = np.concatenate([places for places, _ in told])
            order = np.argsort(places)
            rows = np.concatenate([rows for _, rows in told])[order]
            self.places = [places[order]]
            self.layers = [[rows[:, layer]] for layer in range(rows.shape[1])]

    def stacked(self) -> np.ndarray:
        """All arrays (samples, layers, ...), in the order of samples."""
        kept = self.local_result()
        if kept is None:
            raise InputError("no layer was told of any sample")
        places, rows = kept
        return rows[np.argsort(places)]


FIXED_POINT_SCALE = 1 << 32
"""Parts of 1 in which `ExactSums` counts: integers add up to the same in any order, floating-point numbers do not."""


class ExactSums:
    """Sums of numbers that are the same in whatever order and by whichever process they were added."""

    def __init__(self, *shape: int) -> None:
        self.total = np.zeros(shape, np.int64)

    def add(self, where: Any, values: np.ndarray) -> None:
        """Add values, each at most 2**20 in size, to the part of the sums that `where` indexes."""
        self.total[where] += np.rint(np.asarray(values, float) * FIXED_POINT_SCALE).astype(np.int64)

    def local_result(self) -> np.ndarray:
        """The sums of this process, in parts of 1."""
        return self.total

    def merge(self, parts: Sequence[np.ndarray]) -> None:
        """The sums of all processes."""
        self.total = np.sum(parts, axis=0)

    def values(self) -> np.ndarray:
        """The sums, exact to 2**-33 for each number that was added."""
        return self.total / FIXED_POINT_SCALE


class ModelPass(Protocol):
    """What is asked of every sample once."""

    def run(self, part: ProcessRank) -> None:
        """Ask the share of one of several processes; what it says waits to be merged with the others'."""
        ...

    def local_result(self) -> Any:
        """What this process's share has said, small enough to travel between processes."""
        ...

    def merge(self, parts: Sequence[Any]) -> None:
        """Hold what all processes together were told: each one's `kept`, its own among them."""
        ...


def iterate_batches(
    model: Encoder, samples: SampleDataset, part: ProcessRank, batch: int
) -> Iterator[tuple[Batch, list[Sample], list[int]]]:
    """Batches of a process's share on the model's device, their samples and those's numbers.

    Batches are the same however many processes there are. Raises InputError if there are no samples.
    """
    if not len(samples):
        raise InputError("there are no samples whose attention could be looked at")
    device = next(model.parameters()).device
    order = np.argsort(samples.lengths, kind="stable")  # equal lengths together need little padding
    training = model.training
    model.eval()
    starts = range(part.rank * batch, len(order), batch * part.world)
    for start in track(starts, "looking", "batch"):
        places = [int(place) for place in order[start : start + batch]]
        some = list(samples.get(places, ()))
        yield collate(some).to(device), some, places
    model.train(training)


class AttentionPass:
    """A pass that tells every map of attention to consumers."""

    def __init__(
        self,
        model: Encoder,
        samples: Callable[[], SampleDataset],
        consumers: Sequence[AttentionConsumer],
        batch: int = BATCH,
    ) -> None:
        """`samples` are made when they are read, so that those of passes to come take no memory."""
        self.model = model
        self.samples = samples
        self.consumers = consumers
        self.batch = batch

    @torch.no_grad()
    def run(self, part: ProcessRank) -> None:
        """Every layer's map, the lowest layer first; raises InputError if the model gives no attention."""
        samples = self.samples()
        for batch, some, places in iterate_batches(self.model, samples, part, self.batch):
            _tell(self.model, AttentionBatch(batch, some, places), self.consumers)

    def local_result(self) -> list[Any]:
        """What each consumer has kept."""
        return [consumer.local_result() for consumer in self.consumers]

    def merge(self, parts: Sequence[list[Any]]) -> None:
        """Every consumer's."""
        for place, consumer in enumerate(self.consumers):
            consumer.merge([part[place] for part in parts])


def _tell(model: Encoder, seen: AttentionBatch, consumers: Sequence[AttentionConsumer]) -> None:
    """One forward pass, of which consumers are told."""

    def watch(one: AttentionMap) -> None:
        for consumer in consumers:
            consumer.consume(seen, one)

    model(seen.batch, watch)


def run_passes_here(passes: Sequence[ModelPass]) -> None:
    """Do passes on this process; under torchrun every process does its share, and all hold the whole afterwards."""
    state = PartialState()
    part = ProcessRank(state.process_index, state.num_processes)
    for one in passes:
        one.run(part)
        own = [one.local_result()]
        one.merge(gather_object(own) if state.num_processes > 1 else own)


PassFactory = Callable[[torch.device], Sequence[ModelPass]]
"""What makes a command's passes on a device; it can be pickled, as other processes are sent it."""


def run_passes(passes: Sequence[ModelPass], plan: PassFactory, processes: int = 1) -> None:
    """Do all passes of a command: by this process, by those of torchrun, or by so many that are started here.

    `plan` makes the same passes in these. Raises InputError for torchrun and `processes` at once.
    """
    state = PartialState()
    if processes == 1:
        run_passes_here(passes)
        return
    check_starts(processes, state.num_processes)
    parts = [ProcessRank(rank, processes) for rank in range(processes)]
    jobs = [Job(f"part {one.rank + 1}", _share, (plan, state.device.type, one)) for one in parts]
    shares = run_jobs(jobs, processes, lambda line: None)
    for number, one in enumerate(passes):
        one.merge([shares[job.name][number] for job in jobs])


def _share(plan: PassFactory, device: str, part: ProcessRank) -> list[Any]:
    """What one process's share of every pass has said."""
    passes = plan(PartialState(cpu=device == "cpu").device)
    for one in passes:
        one.run(part)
    return [one.local_result() for one in passes]
