"""Which samples are in each optimizer step: a pure function of the seed and the step."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
from torch.utils.data import Dataset

from groundling.core.batch import Batch, Sample, collate
from groundling.core.errors import InputError
from groundling.core.rng import generator
from groundling.data.samples import SampleDataset, SampleSubset
from groundling.objectives import Objective, order_for_corruption
from groundling.settings.input_settings import WeightedFile
from groundling.settings.training import TrainingArguments, count_steps

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
    name: str = "data"
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


def steps_per_epoch(sources: Sequence[DataSource], amounts: Sequence[int], per_step: int) -> float:
    """Optimizer steps in one epoch of the counted sources, where a data set listed several times counts once.

    UNITER lists one data set four times, once per objective. Sources that do not count take their share of the steps,
    so that an epoch has more steps. `amounts`: samples or micro-batches of each source; a step takes `per_step`.
    """
    pairs = zip(sources, amounts, strict=True)
    amounts_by_data = {
        id(source.samples): amount for source, amount in pairs if source.counts_towards_epoch
    }
    share = sum(source.ratio for source in sources if source.counts_towards_epoch)
    share /= sum(source.ratio for source in sources)
    return sum(amounts_by_data.values()) / per_step / share


Batches = Sequence[np.ndarray] | np.ndarray
"""Batches of an epoch, each the indices of its samples."""


class SourceBatches:
    """The batches of one source, shuffled anew in every epoch; the last epoch stays in memory."""

    def __init__(
        self,
        shuffle: Callable[[np.random.Generator], Batches],
        key: tuple[int | str, ...],
        per_epoch: int = 0,
    ) -> None:
        """`shuffle` makes an epoch's batches of indices; `per_epoch`: their number, 0 if it differs between epochs."""
        self.shuffle = shuffle
        self.key = key
        self.per_epoch = per_epoch
        self._epoch: tuple[int, Batches] = (-1, ())
        # Index of each epoch's first batch among those of all epochs, as far as computed.
        self._starts = [0]

    def of_epoch(self, epoch: int) -> Batches:
        """All batches of an epoch."""
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self.shuffle(generator(*self.key, epoch)))
        return self._epoch[1]

    def find(self, place: int) -> tuple[int, np.ndarray]:
        """The epoch and the samples of a batch, by its index among those of all epochs."""
        if self.per_epoch:
            epoch, within = divmod(place, self.per_epoch)
            return epoch, self.of_epoch(epoch)[within].astype(np.int64)
        while self._starts[-1] <= place:
            epoch = len(self._starts) - 1
            self._starts.append(self._starts[-1] + len(self.of_epoch(epoch)))
        epoch = bisect.bisect_right(self._starts, place) - 1
        return epoch, self.of_epoch(epoch)[place - self._starts[epoch]].astype(np.int64)


class BatchPlan:
    """The samples of every micro-batch of a run: a step draws its source by ratio, and takes the next of its batches.

    A step of a fixed number of samples is one batch, split into micro-batches. A step in tokens takes as many batches
    as it has micro-batches, across the end of an epoch, so every sample is used once per epoch. Steps depend on the
    number of micro-batches only, not on its split into processes and accumulation.
    """

    def __init__(
        self,
        sources: Sequence[DataSource],
        batches: Sequence[SourceBatches],
        steps: int,
        seed: int,
        per_epoch: float,
    ) -> None:
        """`per_epoch`: number of steps in an epoch of the counted sources."""
        self.sources = sources
        self.batches = batches
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

    def micro_batch(self, step: int, place: int, places: int) -> tuple[int, int, np.ndarray]:
        """Index of the source, its epoch, and the samples of micro-batch `place` of the `places` in a step."""
        number = int(self.step_sources[step])
        position = int(self.source_positions[step])
        batches = self.batches[number]
        if batches.per_epoch:
            epoch, indices = batches.find(position)
            return number, epoch, indices[place::places]
        epoch, indices = batches.find(position * places + place)
        return number, epoch, indices

    def covered_epochs(self) -> float:
        """Number of epochs of the counted sources in all steps."""
        return self.steps / self.per_epoch


def plan_batches(
    sources: Sequence[DataSource],
    objectives: Sequence[Objective],
    config: TrainingArguments,
    processes: int,
) -> BatchPlan:
    """The steps of a run on `processes` processes; raises InputError if the data is too small for one step."""
    batches = []
    for number, source in enumerate(sources):
        check_batch(source.name, len(source.samples), 1 if config.batch_tokens else config.batch)
        key = (config.seed, "order", number)
        if config.batch_tokens:
            swaps_inputs = any(one.swaps_inputs for one in objectives if is_scored_by(source, one))
            sizes = _sample_sizes(source, config.batch_tokens, swaps_inputs)
            by_size = partial(_shuffle_by_size, sizes, config.batch_tokens)
            batches.append(SourceBatches(by_size, key))
        else:
            by_length = partial(_shuffle_by_length, source.samples, config.batch)
            batches.append(SourceBatches(by_length, key, len(source.samples) // config.batch))
    if config.batch_tokens:
        amounts = [len(one.of_epoch(0)) for one in batches]
        per_step = config.gradient_accumulation_steps * processes
    else:
        amounts = [len(source.samples) for source in sources]
        per_step = config.batch
    per_epoch = steps_per_epoch(sources, amounts, per_step)
    steps = config.steps or count_steps(config.epochs, per_epoch)
    return BatchPlan(sources, batches, steps, config.seed, per_epoch)


def check_batch(source: object, count: int, batch: int) -> None:
    """Raises InputError if a source has fewer samples than a batch."""
    if count < batch:
        raise InputError(
            f"{source}: {count} samples are fewer than one batch of {batch}; lower batch"
        )


def _shuffle_by_length(samples: SampleDataset, batch: int, rng: np.random.Generator) -> np.ndarray:
    order = _permutation(len(samples), rng)
    order = order[: len(order) // batch * batch]
    size = POOL * batch
    for start in range(0, len(order), size):
        pool = order[start : start + size]
        by_length = pool[np.argsort(samples.lengths[pool], kind="stable")]
        batches = rng.permutation(by_length.reshape(-1, batch))
        order[start : start + size] = batches.ravel()
    return order.reshape(-1, batch)


def _permutation(count: int, rng: np.random.Generator) -> np.ndarray:
    """`rng.permutation(count)` in half of its memory, which every process that loads data has to itself."""
    kind = np.int32 if count <= 1 << 31 else np.int64
    return rng.permutation(np.arange(count, dtype=kind))


def _sample_sizes(source: DataSource, tokens: int, swaps_inputs: bool) -> np.ndarray:
    """Each sample's rows, text tokens and visual tokens (samples, 3), with its extra samples.

    `swaps_inputs`: an objective swaps regions or CLIP texts between samples. Raises InputError if a sample is larger
    than a micro-batch of `tokens`.
    """
    sizes = source.samples.sizes.copy()
    # Each sample has extra samples, possibly the largest ones.
    if source.extra_samples is not None:
        rows, *extra_widths = source.extra_samples.sizes.max(0).tolist()
        sizes[:, 0] += source.extra_per_sample * rows
        sizes[:, 1:] = np.maximum(sizes[:, 1:], extra_widths)
    if swaps_inputs:  # any sample may get the largest one's regions or CLIP text
        sizes[:, 2] = sizes[:, 2].max()
    totals = sizes[:, 0] * (sizes[:, 1] + sizes[:, 2])
    largest = int(totals.argmax())
    if totals[largest] > tokens:
        raise InputError(
            f"batch_tokens = {tokens}: {source.name}: the sample {source.samples.ids[largest]!r} alone has "
            f"{totals[largest]}, padding included; raise it, or lower max_length or max_regions"
        )
    return sizes


def _shuffle_by_size(sizes: np.ndarray, tokens: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Batches of samples of similar size with at most `tokens` tokens, padding included, as in UNITER and VILLA.

    A batch's size is its number of rows (samples times choices) times its padded length, which is the length of its
    longest text plus its largest number of regions.
    """
    order = _permutation(len(sizes), rng)
    batches = []
    for start in range(0, len(order), BUCKET):
        bucket = order[start : start + BUCKET]
        _, text_tokens, visual_tokens = sizes[bucket].T
        # Which order needs less padding depends on whether regions or tokens vary more.
        orders = (
            np.lexsort((text_tokens, visual_tokens)),
            np.argsort(text_tokens + visual_tokens, kind="stable"),
        )
        filled = [_fill_batches(bucket[order], sizes, tokens) for order in orders]
        fewest = min(filled, key=len)
        batches += fewest
    return [batches[place] for place in rng.permutation(len(batches))]


def _fill_batches(order: np.ndarray, sizes: np.ndarray, tokens: int) -> list[np.ndarray]:
    starts = []
    rows, text_tokens, visual_tokens = 0, 0, 0
    for place, (more, most_tokens, most_visual_tokens) in enumerate(sizes[order].tolist()):
        rows += more
        text_tokens = max(text_tokens, most_tokens)
        visual_tokens = max(visual_tokens, most_visual_tokens)
        if rows * (text_tokens + visual_tokens) > tokens:
            starts.append(place)
            rows, text_tokens, visual_tokens = more, most_tokens, most_visual_tokens
    return np.split(order, starts)


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

    def __len__(self) -> int:
        return len(self.plan) * self.accumulation_steps

    def __getitem__(self, number: int) -> Batch:
        step, micro = divmod(number, self.accumulation_steps)
        place = micro * self.world + self.rank
        places = self.accumulation_steps * self.world
        number_of_source, epoch, indices = self.plan.micro_batch(step, place, places)
        source = self.plan.sources[number_of_source]
        active = [o for o in self.objectives if is_scored_by(source, o)]
        samples = corrupt_samples(source.samples, indices, self.plan.seed, epoch, active)
        if source.extra_samples is not None:
            count, each = len(source.extra_samples), source.extra_per_sample
            ids = source.samples.ids
            rngs = [generator(self.plan.seed, epoch, ids[index], "beside") for index in indices]
            extra = np.concatenate([rng.integers(count, size=each) for rng in rngs])
            samples += corrupt_samples(source.extra_samples, extra, self.plan.seed, epoch, active)
        return collate(samples)


def corrupt_samples(
    samples: SampleDataset,
    indices: Sequence[int] | np.ndarray,
    seed: int,
    epoch: int,
    objectives: Sequence[Objective],
) -> list[Sample]:
    """Samples in the order of `indices`, corrupted for objectives, which are ordered by `order_for_corruption`.

    Random generators are keyed by (seed, epoch, sample id, objective).
    """
    rngs = [generator(seed, epoch, samples.ids[index], "sample") for index in indices]
    out = []
    for index, sample in zip(indices, samples.get(list(indices), rngs), strict=True):
        for objective in objectives:
            rng = generator(seed, epoch, sample.id, objective.name)
            draw = partial(_draw_negative, samples, int(index), rng)
            sample = objective.corrupt(sample, rng, draw)
        out.append(sample)
    return out


def _draw_negative(
    samples: SampleDataset, index: int, rng: np.random.Generator, similar_length: bool = False
) -> Sample:
    """Another sample of the data set, or with little chance the same one.

    With `similar_length`, it is a neighbour in the order of lengths, within 1 % of all samples.
    """
    if similar_length:
        order, place = _by_length(samples)  # type: ignore[arg-type]
        reach = 1 + min(MAX_REACH, len(order) // 100)
        width = min(2 * reach + 1, len(order))
        start = int(np.clip(place[index] - reach, 0, len(order) - width))
        chosen = int(order[start + rng.integers(width)])
    else:
        chosen = int(rng.integers(len(samples)))
    return samples.get([chosen], [rng])[0]


MAX_REACH = 64
"""Maximum number of neighbours on either side, in the order of lengths."""


@lru_cache(maxsize=4)  # ordering a corpus takes seconds
def _by_length(samples: SampleDataset) -> tuple[np.ndarray, np.ndarray]:
    """The samples in the order of their lengths, and the place of each.

    Samples of equal length are shuffled, so that neighbours are not adjacent in the corpus.
    """
    shuffled = generator("near").permutation(len(samples))
    order = shuffled[np.argsort(samples.lengths[shuffled], kind="stable")]
    return order, np.argsort(order)


def is_scored_by(source: DataSource, objective: Objective) -> bool:
    """Whether an objective trains on a source's batches."""
    return source.objectives is None or objective.name in source.objectives
