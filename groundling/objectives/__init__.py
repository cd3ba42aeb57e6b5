"""An objective corrupts a sample, owns its head, and scores what a model said; one concept a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np
from torch import Tensor, nn

from groundling.batch import Batch, Encoded, Sample, Sizes


class Objective(nn.Module):
    """Corrupt + head + loss.

    `forward` returns *sums* by term name and `count` how many items each sum covers, both from one micro-batch;
    the loop divides by the count of the whole step, over accumulation and processes, so that splitting a batch
    changes nothing. Sub-classes take `Sizes` first and keyword options after it.
    """

    name: ClassVar[str]
    """Prefix of the terms in the log, and the key of the objective's own random stream."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Fields of the batch that must be there, e.g. `text` or `features.sentence`."""
    swaps: ClassVar[bool] = False
    """True if `corrupt` exchanges whole inputs; such objectives go before those that mask inside them."""

    def __init__(self, sizes: Sizes, *, weight: float = 1.0, warmup: int = 0) -> None:
        """`weight` of the terms in the total; it grows linearly from 0 over the first `warmup` optimizer steps."""
        super().__init__()
        self.sizes, self.weight, self.warmup = sizes, weight, warmup

    def weight_at(self, step: int) -> float:
        """Weight of this objective's terms at an optimizer step (0-based)."""
        return self.weight * min(1.0, (step + 1) / self.warmup) if self.warmup else self.weight

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, other: Callable[[], Sample]
    ) -> Sample:
        """A copy with inputs changed and labels set; `other()` draws another sample of the same data with `rng`."""
        return sample

    def count(self, batch: Batch) -> dict[str, int]:
        """How many items each term of `forward` sums over, from the batch alone."""
        raise NotImplementedError

    def forward(self, encoded: Encoded, batch: Batch) -> Mapping[str, Tensor]:
        """The summed loss of each term, scalars by name."""
        raise NotImplementedError


def in_order(objectives: list[Objective]) -> list[Objective]:
    """Objectives in the order their `corrupt` must run: whole-input swaps first."""
    return sorted(objectives, key=lambda o: not o.swaps)
