"""Samples with random states of a teacher for each of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from groundling.core.batch import Sample
from groundling.core.rng import generator


class TokenStates:
    """Samples with the feature `teacher_states` (T, 24) in each row."""

    def __init__(self, samples: Any, width: int = 24) -> None:
        self.samples, self.width = samples, width
        self.ids, self.lengths, self.images = samples.ids, samples.lengths, samples.images

    def __len__(self) -> int:
        return len(self.samples)

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator] = ()) -> list[Sample]:
        return [sample.each_row(self._with_states) for sample in self.samples.get(indices, rngs)]

    def _with_states(self, row: Sample) -> Sample:
        assert row.text is not None
        shape = (len(row.text.input_ids), self.width)
        drawn = generator("states", row.text.input_ids.tobytes().hex()).normal(size=shape)
        return replace(row, features={**row.features, "teacher_states": drawn.astype(np.float32)})
