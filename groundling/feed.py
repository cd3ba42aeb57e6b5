"""Which samples each optimizer step sees: a pure function of the seed and the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch.utils.data import Dataset

from groundling.batch import Batch, Sample, collate
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
    objectives: tuple[str, ...] | None = None
    """Names of the objectives that see this source; None for all. UNITER draws one objective per step this way."""
    name: str = field(default="data")


class Draw(NamedTuple):
    """One optimizer step's samples."""

    source: int
    epoch: int
    indices: np.ndarray  # (batch,)


class Plan:
    """Every step's draw: one source per step by ratio; within a source, shuffled epochs bucketed by length."""

    def __init__(self, sources: Sequence[Source], batch: int, steps: int, seed: int) -> None:
        """`batch` samples per optimizer step; what does not fill a batch is left out, differently each epoch."""
        for source in sources:
            if len(source.samples) < batch:
                raise InputError(
                    f"{source.name}: {len(source.samples)} samples are fewer than one batch of {batch}; lower --batch"
                )
        self.sources, self.batch, self.steps, self.seed = sources, batch, steps, seed
        ratios = np.array([s.ratio for s in sources], float)
        picks = generator(seed, "sources").choice(len(sources), steps, p=ratios / ratios.sum())
        self.picks = picks
        # How often the step's source was drawn before it: its own position in its own epochs.
        self.turn = np.zeros(steps, np.int64)
        for number in range(len(sources)):
            here = picks == number
            self.turn[here] = np.arange(here.sum())
        self._epochs: dict[tuple[int, int], np.ndarray] = {}

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> Draw:
        number = int(self.picks[step])
        per_epoch = len(self.sources[number].samples) // self.batch
        epoch, at = divmod(int(self.turn[step]), per_epoch)
        return Draw(number, epoch, self._epoch(number, epoch)[at])

    def _epoch(self, number: int, epoch: int) -> np.ndarray:
        """All batches of one epoch: (batches, batch) indices."""
        if (number, epoch) not in self._epochs:
            source = self.sources[number]
            rng = generator(self.seed, "order", number, epoch)
            order = rng.permutation(len(source.samples))
            order = order[: len(order) // self.batch * self.batch]
            size = POOL * self.batch
            for start in range(0, len(order), size):
                pool = order[start : start + size]
                pool = pool[np.argsort(source.samples.lengths[pool], kind="stable")]
                order[start : start + size] = rng.permutation(pool.reshape(-1, self.batch)).ravel()
            self._epochs = {
                k: v for k, v in self._epochs.items() if k[0] != number
            }  # one epoch per source is kept
            self._epochs[number, epoch] = order.reshape(-1, self.batch)
        return self._epochs[number, epoch]

    def covered(self) -> float:
        """Epochs over all sources that the steps amount to."""
        return self.steps * self.batch / sum(len(s.samples) for s in self.sources)


class Feed(Dataset[Batch]):
    """Micro-batches of one process, corrupted and padded, by number; what a `DataLoader` reads.

    Sample `j` of a step goes to micro-batch and process by its place alone, so any split of the batch sees the same
    samples with the same corruption.
    """

    def __init__(
        self, plan: Plan, objectives: Sequence[Objective], accumulate: int, rank: int, world: int
    ) -> None:
        self.plan, self.accumulate, self.rank, self.world = plan, accumulate, rank, world
        self.objectives = in_order(list(objectives))

    def __len__(self) -> int:
        return len(self.plan) * self.accumulate

    def __getitem__(self, number: int) -> Batch:
        step, micro = divmod(number, self.accumulate)
        draw = self.plan[step]
        source = self.plan.sources[draw.source]
        part = draw.indices[micro * self.world + self.rank :: self.accumulate * self.world]
        active = [
            o for o in self.objectives if source.objectives is None or o.name in source.objectives
        ]
        return collate(self.samples(source.samples, part, draw.epoch, active))

    def samples(
        self, samples: Samples, indices: np.ndarray, epoch: int, objectives: Sequence[Objective]
    ) -> list[Sample]:
        """Corrupted samples, every random choice keyed by (seed, epoch, sample id, objective)."""
        seed = self.plan.seed
        plain = samples.get(
            list(indices), [generator(seed, epoch, samples.ids[i], "sample") for i in indices]
        )
        out = []
        for sample in plain:
            for objective in objectives:
                rng = generator(seed, epoch, sample.id, objective.name)

                def other(rng: np.random.Generator = rng) -> Sample:
                    return samples.get([int(rng.integers(len(samples)))], [rng])[0]

                sample = objective.corrupt(sample, rng, other)
            out.append(sample)
        return out
