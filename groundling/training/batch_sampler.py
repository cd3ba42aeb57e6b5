"""Which samples are in each optimizer step: a pure function of the seed and the step."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from torch.utils.data import Dataset

from groundling.core.batch import Batch, Sample, collate, require
from groundling.core.errors import InputError
from groundling.core.rng import generator
from groundling.data.samples import SampleDataset, SampleSubset
from groundling.objectives import Objective, order_for_corruption
from groundling.settings.input_settings import WeightedFile
from groundling.settings.training import TrainingArguments

POOL = 64
"""Number of batches whose samples are sorted by length together, so that a batch needs little padding."""
BUCKET = 8192
"""Number of samples sorted by size together if batch size is in tokens (ChenRocks/UNITER, data/loader)."""


@dataclass(frozen=True)
class DataSource:
    """A data set of a run, its sampling ratio, and the objectives that train on its batches."""

    samples: SampleDataset
    """The data set."""
    ratio: float = 1.0
    """How often it is drawn, relative to the other sources."""
    objectives: tuple[str, ...] | None = None
    """Names of the objectives that train on this source; None: all. UNITER draws one objective per step this way."""
    name: str = field(default="data")
    """Its name in messages."""
    counts_towards_epoch: bool = True
    """Whether its samples count towards an epoch; text-only data mixed with captioned images does not (VL-BERT)."""
    extra_samples: SampleDataset | None = None
    """Extra samples in every batch, such as unlabelled ones (CLIP-TD, Table 3)."""
    extra_per_sample: int = 1
    """Number of extra samples for each of its own; a batch has `extra_per_sample * batch` extra samples."""


def split_by_file(
    source: DataSource, bounds: Sequence[int], files: Sequence[WeightedFile]
) -> list[DataSource]:
    """Split a source of several files into one per file, drawn by weight; unchanged if files have no weights.

    `bounds` (files + 1): index of each file's first sample, and the number of samples.
    """
    total = sum(each.weight for each in files)
    if not total:
        return [source]
    return [
        replace(
            source,
            samples=SampleSubset(source.samples, range(start, stop)),
            ratio=source.ratio * each.weight / total,
            name=f"{source.name}: {each.file}",
        )
        for each, start, stop in zip(files, bounds[:-1], bounds[1:], strict=True)
    ]


def steps_per_epoch(sources: Sequence[DataSource], batch: int) -> float:
    """Optimizer steps in one epoch of the counted sources, where a data set listed several times counts once.

    UNITER lists one data set four times, once per objective. Sources that do not count take their share of
    the steps, so that an epoch has more steps.
    """
    return _epoch_steps(sources, [len(source.samples) for source in sources], batch)


def _epoch_steps(sources: Sequence[DataSource], amounts: Sequence[int], unit: int) -> float:
    """As `steps_per_epoch`, for `amounts` of samples or micro-batches per source, `unit` of them in a step."""
    pairs = zip(sources, amounts, strict=True)
    amounts_by_data = {
        id(source.samples): amount for source, amount in pairs if source.counts_towards_epoch
    }
    share = sum(source.ratio for source in sources if source.counts_towards_epoch)
    share /= sum(source.ratio for source in sources)
    return sum(amounts_by_data.values()) / unit / share


class BatchIndices(NamedTuple):
    """The samples of a step or micro-batch, all from one source and epoch."""

    source: int
    """Index of the source."""
    epoch: int
    """Number of the source's epoch, a key of each sample's random generators."""
    indices: np.ndarray
    """(samples,) indices in the source."""


class BatchPlan:
    """Draws the source of every step by ratio; sub-classes choose the samples. Abstract."""

    def __init__(
        self, sources: Sequence[DataSource], steps: int, seed: int, per_epoch: float
    ) -> None:
        """`per_epoch`: number of steps in an epoch of the counted sources."""
        self.sources = sources
        self.steps = steps
        self.seed = seed
        self.per_epoch = per_epoch
        ratios = np.array([source.ratio for source in sources], float)
        share = ratios / ratios.sum()
        self.step_sources = generator(seed, "sources").choice(len(sources), steps, p=share)
        # Number of earlier steps of the same source: the step's position in the source's epochs.
        self.source_positions = np.zeros(steps, np.int64)
        for number in range(len(sources)):
            drawn = self.step_sources == number
            self.source_positions[drawn] = np.arange(drawn.sum())

    def __len__(self) -> int:
        return self.steps

    def micro_batch(self, step: int, place: int, places: int) -> BatchIndices:
        """Micro-batch number `place` of the `places` in a step, over all processes. Abstract."""
        raise NotImplementedError

    def covered_epochs(self) -> float:
        """Number of epochs of the counted sources in all steps."""
        return self.steps / self.per_epoch


def check_batch(source: object, count: int, batch: int) -> None:
    """Raises InputError if a source has fewer samples than a batch."""
    if count < batch:
        raise InputError(
            f"{source}: {count} samples are fewer than one batch of {batch}; lower batch"
        )


class FixedSizeBatchPlan(BatchPlan):
    """Steps of a fixed number of samples, from shuffled epochs of each source, bucketed by length."""

    def __init__(self, sources: Sequence[DataSource], batch: int, steps: int, seed: int) -> None:
        """`batch` samples per optimizer step; samples of an incomplete last batch are skipped, others each epoch.

        Raises InputError if a source has fewer samples than a batch.
        """
        for source in sources:
            check_batch(source.name, len(source.samples), batch)
        super().__init__(sources, steps, seed, steps_per_epoch(sources, batch))
        self.batch = batch
        self._epochs: dict[tuple[int, int], np.ndarray] = {}

    def __getitem__(self, step: int) -> BatchIndices:
        number = int(self.step_sources[step])
        per_epoch = len(self.sources[number].samples) // self.batch
        epoch, place = divmod(int(self.source_positions[step]), per_epoch)
        return BatchIndices(number, epoch, self._epoch(number, epoch)[place])

    def micro_batch(self, step: int, place: int, places: int) -> BatchIndices:
        """Every `places`-th sample of the step, from `place` on."""
        draw = self[step]
        return draw._replace(indices=draw.indices[place::places])

    def _epoch(self, number: int, epoch: int) -> np.ndarray:
        """All batches of one epoch: (batches, batch) indices."""
        if (number, epoch) not in self._epochs:
            # One epoch per source is kept.
            self._epochs = {key: value for key, value in self._epochs.items() if key[0] != number}
            self._epochs[number, epoch] = self._shuffle(number, epoch)
        return self._epochs[number, epoch]

    def _shuffle(self, number: int, epoch: int) -> np.ndarray:
        samples = self.sources[number].samples
        rng = generator(self.seed, "order", number, epoch)
        order = rng.permutation(len(samples))
        order = order[: len(order) // self.batch * self.batch]
        size = POOL * self.batch
        for start in range(0, len(order), size):
            pool = order[start : start + size]
            by_length = pool[np.argsort(samples.lengths[pool], kind="stable")]
            batches = rng.permutation(by_length.reshape(-1, self.batch))
            order[start : start + size] = batches.ravel()
        return order.reshape(-1, self.batch)


class TokenBudgetBatchPlan(BatchPlan):
    """Steps of micro-batches of at most a number of tokens, padding included, as in UNITER and VILLA.

    Every epoch of a source is split into micro-batches of samples of similar size, in random order. A step
    takes the next `places` of them, across the end of an epoch, so every sample is used once per epoch.
    Steps depend on `places` only, not on its split into processes and accumulation.
    """

    def __init__(
        self,
        sources: Sequence[DataSource],
        epochs: Sequence[TokenBudgetEpochs],
        places: int,
        steps: int,
        seed: int,
    ) -> None:
        amounts = [len(one[0]) for one in epochs]
        super().__init__(sources, steps, seed, _epoch_steps(sources, amounts, places))
        self.epochs = epochs

    def micro_batch(self, step: int, place: int, places: int) -> BatchIndices:
        """A micro-batch of one process."""
        number = int(self.step_sources[step])
        epoch, indices = self.epochs[number].batch(
            int(self.source_positions[step]) * places + place
        )
        return BatchIndices(number, epoch, indices)


class TokenBudgetEpochs:
    """A source's epochs as micro-batches of at most `tokens` tokens.

    The size of a micro-batch is its number of rows (samples times choices) times its padded length, which
    is the length of its longest text plus its largest number of regions.
    """

    def __init__(
        self, source: DataSource, number: int, tokens: int, seed: int, swaps_inputs: bool = False
    ) -> None:
        """`number`: the source's index; `swaps_inputs`: an objective swaps regions or CLIP texts between samples.

        Raises InputError if there is no sample, or one that is larger than a micro-batch.
        """
        if not len(source.samples):
            raise InputError(f"{source.name}: no samples")
        self.number = number
        self.tokens = tokens
        self.seed = seed
        sizes = source.samples.sizes.copy()
        # Each sample has extra samples, possibly the largest ones.
        if source.extra_samples is not None:
            rows, *extra_widths = source.extra_samples.sizes.max(0).tolist()
            sizes[:, 0] += source.extra_per_sample * rows
            sizes[:, 1:] = np.maximum(sizes[:, 1:], extra_widths)
        if swaps_inputs:  # any sample may get the largest one's regions or CLIP text
            sizes[:, 2] = sizes[:, 2].max()
        self.sizes = sizes
        sample_sizes = sizes[:, 0] * (sizes[:, 1] + sizes[:, 2])
        largest = int(sample_sizes.argmax())
        if sample_sizes[largest] > tokens:
            rows, text_tokens, visual_tokens = sizes[largest].tolist()
            raise InputError(
                f"batch_tokens = {tokens}: {source.name}: the sample {source.samples.ids[largest]!r} alone has "
                f"{sample_sizes[largest]} (rows x (tokens + regions or CLIP tokens) = {rows} x "
                f"({text_tokens} + {visual_tokens})); raise it, or lower max_length or max_regions"
            )
        self._batches: dict[int, list[np.ndarray]] = {}
        # Index of each epoch's first micro-batch among those of all epochs, as far as computed.
        self._starts = [0]

    def __getitem__(self, epoch: int) -> list[np.ndarray]:
        """All micro-batches of an epoch, each the indices of its samples."""
        if epoch not in self._batches:
            self._batches = {epoch: self._shuffle(epoch)}
        return self._batches[epoch]

    def batch(self, place: int) -> tuple[int, np.ndarray]:
        """The epoch and the samples of a micro-batch, by its index among those of all epochs."""
        while self._starts[-1] <= place:
            epoch = len(self._starts) - 1
            self._starts.append(self._starts[-1] + len(self[epoch]))
        epoch = bisect.bisect_right(self._starts, place) - 1
        return epoch, self[epoch][place - self._starts[epoch]]

    def _shuffle(self, epoch: int) -> list[np.ndarray]:
        rng = generator(self.seed, "order", self.number, epoch)
        order = rng.permutation(len(self.sizes))
        batches = []
        for start in range(0, len(order), BUCKET):
            bucket = order[start : start + BUCKET]
            _, text_tokens, visual_tokens = self.sizes[bucket].T
            # Which order needs less padding depends on whether regions or tokens vary more.
            orders = (
                np.lexsort((text_tokens, visual_tokens)),
                np.argsort(text_tokens + visual_tokens, kind="stable"),
            )
            filled = [self._fill(bucket[order]) for order in orders]
            fewest = min(filled, key=len)
            batches += fewest
        return [batches[place] for place in rng.permutation(len(batches))]

    def _fill(self, order: np.ndarray) -> list[np.ndarray]:
        starts = [0]
        rows, text_tokens, visual_tokens = 0, 0, 0
        for place, (more, most_tokens, most_visual_tokens) in enumerate(self.sizes[order].tolist()):
            rows += more
            text_tokens = max(text_tokens, most_tokens)
            visual_tokens = max(visual_tokens, most_visual_tokens)
            if rows * (text_tokens + visual_tokens) > self.tokens:
                starts.append(place)
                rows, text_tokens, visual_tokens = more, most_tokens, most_visual_tokens
        return np.split(order, starts[1:])


def plan_batches(
    sources: Sequence[DataSource],
    objectives: Sequence[Objective],
    config: TrainingArguments,
    processes: int,
) -> BatchPlan:
    """The steps of a run on `processes` processes; raises InputError if the data is too small for one step."""
    if not config.batch_tokens:
        steps = config.steps or count_steps(sources, config.batch, config.epochs)
        return FixedSizeBatchPlan(sources, config.batch, steps, config.seed)
    places = config.gradient_accumulation_steps * processes
    epochs = []
    for number, source in enumerate(sources):
        swaps_inputs = any(one.swaps_inputs for one in objectives if is_scored_by(source, one))
        epochs.append(
            TokenBudgetEpochs(source, number, config.batch_tokens, config.seed, swaps_inputs)
        )
    per_epoch = _epoch_steps(sources, [len(one[0]) for one in epochs], places)
    steps = config.steps or _whole_steps(per_epoch, config.epochs)
    return TokenBudgetBatchPlan(sources, epochs, places, steps, config.seed)


def count_steps(sources: Sequence[DataSource], batch: int, epochs: float) -> int:
    """Number of whole optimizer steps in `epochs` epochs, at least 1."""
    return _whole_steps(steps_per_epoch(sources, batch), epochs)


def _whole_steps(per_epoch: float, epochs: float) -> int:
    # Round to ten digits first, so that a ratio of 1/6 does not lose a step to rounding errors.
    return max(1, math.floor(round(epochs * per_epoch, 10)))


class MicroBatchDataset(Dataset[Batch]):
    """The corrupted and padded micro-batches of one process, by number; the dataset of a `DataLoader`.

    A sample's corruption depends on its epoch, not on how a batch is split.
    """

    def __init__(
        self,
        plan: BatchPlan,
        objectives: Sequence[Objective],
        accumulation_steps: int,
        rank: int,
        world: int,
    ) -> None:
        self.plan = plan
        self.accumulation_steps = accumulation_steps
        self.rank = rank
        self.world = world
        self.objectives = order_for_corruption(objectives)
        self.corruption = SampleCorruptor(plan.seed)

    def __len__(self) -> int:
        return len(self.plan) * self.accumulation_steps

    def __getitem__(self, number: int) -> Batch:
        step, micro = divmod(number, self.accumulation_steps)
        place = micro * self.world + self.rank
        draw = self.plan.micro_batch(step, place, self.accumulation_steps * self.world)
        source = self.plan.sources[draw.source]
        active = [o for o in self.objectives if is_scored_by(source, o)]
        samples = self.corruption(source.samples, draw.indices, draw.epoch, active)
        if source.extra_samples is not None:
            extra = self._extra_indices(source, draw.indices, draw.epoch)
            samples += self.corruption(source.extra_samples, extra, draw.epoch, active)
        return collate(samples)

    def _extra_indices(self, source: DataSource, indices: np.ndarray, epoch: int) -> np.ndarray:
        """Indices (extra_per_sample * len(indices),) of the extra samples; each sample has its own generator."""
        count = len(require(source.extra_samples, "extra_samples", source.name))
        keys = [(self.plan.seed, epoch, source.samples.ids[index], "beside") for index in indices]
        return np.concatenate(
            [generator(*key).integers(count, size=source.extra_per_sample) for key in keys]
        )


class SampleCorruptor:
    """Corrupts samples for objectives; random generators are keyed by (seed, epoch, sample id, objective)."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._neighbours: dict[int, LengthMatchedSampler] = {}

    def __call__(
        self,
        samples: SampleDataset,
        indices: Sequence[int] | np.ndarray,
        epoch: int,
        objectives: Sequence[Objective],
    ) -> list[Sample]:
        """Corrupted samples in the order of `indices`; `objectives` are ordered by `order_for_corruption`."""
        seed = self.seed
        rngs = [generator(seed, epoch, samples.ids[index], "sample") for index in indices]
        out = []
        for index, sample in zip(indices, samples.get(list(indices), rngs), strict=True):
            for objective in objectives:
                rng = generator(seed, epoch, sample.id, objective.name)

                def sample_negative(
                    similar_length: bool = False,
                    rng: np.random.Generator = rng,
                    index: int = int(index),
                ) -> Sample:
                    count = len(samples)
                    chosen = (
                        self._length_neighbours(samples).draw(index, rng)
                        if similar_length
                        else int(rng.integers(count))
                    )
                    return samples.get([chosen], [rng])[0]

                sample = objective.corrupt(sample, rng, sample_negative)
            out.append(sample)
        return out

    def _length_neighbours(self, samples: SampleDataset) -> LengthMatchedSampler:
        # Keyed by the data set itself, which stays alive as long as its sampler does.
        if id(samples) not in self._neighbours:
            self._neighbours[id(samples)] = LengthMatchedSampler(samples)
        return self._neighbours[id(samples)]


MAX_REACH = 64
"""Maximum number of neighbours on either side, in the order of lengths."""


class LengthMatchedSampler:
    """Draws a sample of similar length: a neighbour in the order of lengths, within 1 % of all samples.

    Samples of equal length are shuffled, so that neighbours are not adjacent in the corpus.
    """

    def __init__(self, samples: SampleDataset) -> None:
        """Orders by `samples.lengths`, so that no sample needs to be tokenized."""
        self.samples = samples
        shuffled = generator("near").permutation(len(samples))
        self.order = shuffled[np.argsort(samples.lengths[shuffled], kind="stable")]
        self.place = np.empty(len(self.order), np.int64)
        self.place[self.order] = np.arange(len(self.order))
        self.reach = 1 + min(MAX_REACH, len(self.order) // 100)

    def draw(self, index: int, rng: np.random.Generator) -> int:
        """Index of a sample of similar length, possibly `index` itself."""
        width = min(2 * self.reach + 1, len(self.order))
        start = int(np.clip(self.place[index] - self.reach, 0, len(self.order) - width))
        return int(self.order[start + rng.integers(width)])


def is_scored_by(source: DataSource, objective: Objective) -> bool:
    """Whether an objective trains on a source's batches."""
    return source.objectives is None or objective.name in source.objectives
