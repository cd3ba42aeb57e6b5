"""Which samples each optimizer step sees: a pure function of the seed and the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch.utils.data import Dataset

from groundling.batch import Batch, Sample, collate, needed
from groundling.data.samples import Samples
from groundling.errors import InputError
from groundling.keyed import generator
from groundling.objectives import Objective, in_order

POOL = 64
"""Batches whose samples are sorted by length together, so that a batch needs little padding."""


@dataclass(frozen=True)
class Source:
    """A data set of a run, how often it is drawn relative to others, and which objectives score its batches."""

    samples: Samples
    ratio: float = 1.0
    """How often it is drawn, relative to the other sources."""
    objectives: tuple[str, ...] | None = None
    """Names of the objectives that see this source; None for all. UNITER draws one objective per step this way."""
    name: str = field(default="data")
    """What messages call it."""
    counts: bool = True
    """Whether its samples count towards an epoch; text beside captioned images does not (VL-BERT)."""
    beside: Samples | None = None
    """Other samples that stand in every batch beside its own, such as unlabelled ones (CLIP-TD, Table 3)."""
    each: int = 1
    """How many of those stand beside each of its own; a batch has that many times `batch` more samples."""

    def __post_init__(self) -> None:
        """Raises InputError if nothing could be put beside its samples."""
        if self.beside is not None and (self.each < 1 or not len(self.beside)):
            raise InputError(
                f"{self.name}: {self.each} of {len(self.beside)} samples beside each of its own, expected at least 1 "
                "of at least 1"
            )


def epoch_steps(sources: Sequence[Source], batch: int) -> float:
    """Optimizer steps in which the counted samples come up once, each data set taken once however often it is listed.

    UNITER lists one data set four times, once for each objective; a source that does not count takes its share of the
    steps, so that an epoch has more of them.
    """
    different = {id(source.samples): len(source.samples) for source in sources if source.counts}
    share = sum(source.ratio for source in sources if source.counts)
    share /= sum(source.ratio for source in sources)
    return sum(different.values()) / batch / share


class Draw(NamedTuple):
    """One optimizer step's samples."""

    source: int
    epoch: int
    indices: np.ndarray
    """(batch,)."""


class Plan:
    """Every step's draw: one source per step by ratio; within a source, shuffled epochs bucketed by length."""

    def __init__(self, sources: Sequence[Source], batch: int, steps: int, seed: int) -> None:
        """`batch` samples per optimizer step; what does not fill a batch is left out, differently each epoch.

        Raises InputError if a source has fewer samples than a batch.
        """
        for source in sources:
            if len(source.samples) < batch:
                raise InputError(
                    f"{source.name}: {len(source.samples)} samples are fewer than one batch of {batch}; lower --batch"
                )
        self.sources = sources
        self.batch = batch
        self.steps = steps
        self.seed = seed
        ratios = np.array([source.ratio for source in sources], float)
        share = ratios / ratios.sum()
        self.picks = generator(seed, "sources").choice(len(sources), steps, p=share)
        # How often the step's source was drawn before it: its own position in its own epochs.
        self.turn = np.zeros(steps, np.int64)
        for number in range(len(sources)):
            drawn = self.picks == number
            self.turn[drawn] = np.arange(drawn.sum())
        self._epochs: dict[tuple[int, int], np.ndarray] = {}

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> Draw:
        number = int(self.picks[step])
        per_epoch = len(self.sources[number].samples) // self.batch
        epoch, place = divmod(int(self.turn[step]), per_epoch)
        return Draw(number, epoch, self._epoch(number, epoch)[place])

    def _epoch(self, number: int, epoch: int) -> np.ndarray:
        """All batches of one epoch: (batches, batch) indices."""
        if (number, epoch) not in self._epochs:
            # One epoch per source is kept.
            self._epochs = {key: value for key, value in self._epochs.items() if key[0] != number}
            self._epochs[number, epoch] = self._shuffled(number, epoch)
        return self._epochs[number, epoch]

    def _shuffled(self, number: int, epoch: int) -> np.ndarray:
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

    def covered(self) -> float:
        """Epochs of the counted samples that the steps amount to."""
        return self.steps / epoch_steps(self.sources, self.batch)


def steps_of(sources: Sequence[Source], batch: int, epochs: float) -> int:
    """Whole optimizer steps in so many epochs, at least one."""
    # Rounding to ten digits first: a share of 1/6 must not lose a step to binary fractions.
    return max(1, math.floor(round(epochs * epoch_steps(sources, batch), 10)))


class Feed(Dataset[Batch]):
    """Micro-batches of one process, corrupted and padded, by number; what a `DataLoader` reads.

    Sample `j` of a step goes to micro-batch and process by its place alone, so any split of the batch sees the same
    samples with the same corruption.
    """

    def __init__(
        self,
        plan: Plan,
        objectives: Sequence[Objective],
        accumulate: int,
        rank: int,
        world: int,
    ) -> None:
        """`accumulate` micro-batches a step, of process `rank` of `world`."""
        self.plan = plan
        self.accumulate = accumulate
        self.rank = rank
        self.world = world
        self.objectives = in_order(objectives)

    def __len__(self) -> int:
        return len(self.plan) * self.accumulate

    def __getitem__(self, number: int) -> Batch:
        step, micro = divmod(number, self.accumulate)
        draw = self.plan[step]
        source = self.plan.sources[draw.source]
        part = draw.indices[micro * self.world + self.rank :: self.accumulate * self.world]
        active = [o for o in self.objectives if scores(source, o)]
        samples = self.samples(source.samples, part, draw.epoch, active)
        if source.beside is not None:
            others = self._beside(source, part, draw.epoch)
            samples += self.samples(source.beside, others, draw.epoch, active)
        return collate(samples)

    def _beside(self, source: Source, indices: np.ndarray, epoch: int) -> np.ndarray:
        """What stands beside samples of a source, drawn for each of them by its own key: (each * len(indices),)."""
        count = len(needed(source.beside, "beside", source.name))
        keys = [(self.plan.seed, epoch, source.samples.ids[index], "beside") for index in indices]
        return np.concatenate([generator(*key).integers(count, size=source.each) for key in keys])

    def samples(
        self,
        samples: Samples,
        indices: np.ndarray,
        epoch: int,
        objectives: Sequence[Objective],
    ) -> list[Sample]:
        """Corrupted samples, every random choice keyed by (seed, epoch, sample id, objective)."""
        seed = self.plan.seed
        rngs = [generator(seed, epoch, samples.ids[index], "sample") for index in indices]
        out = []
        for sample in samples.get(list(indices), rngs):
            for objective in objectives:
                rng = generator(seed, epoch, sample.id, objective.name)

                def other(rng: np.random.Generator = rng) -> Sample:
                    return samples.get([int(rng.integers(len(samples)))], [rng])[0]

                sample = objective.corrupt(sample, rng, other)
            out.append(sample)
        return out


def scores(source: Source, objective: Objective) -> bool:
    """Whether an objective sees a source's batches."""
    return source.objectives is None or objective.name in source.objectives
