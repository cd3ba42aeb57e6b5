"""A task is examples + form + metrics + version; it makes the objective that fine-tunes for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..batch import Sizes
from ..data.samples import Example
from ..metrics import Metric
from ..objectives.supervised import Supervised
from .forms import Form


@dataclass(frozen=True)
class Task:
    """One benchmark, read from its official files."""

    name: str
    form: Form
    read: Callable[[Path, str], list[Example]]
    """(folder, split) to examples; unlabelled splits have label None."""
    metrics: tuple[Metric, ...]
    """The first is the headline."""
    source: str
    """Paper or site the definition follows."""
    version: int = 1
    """Raised whenever scores stop being comparable with earlier ones."""
    train: str = "train"
    dev: tuple[str, ...] = ("dev",)
    """Labelled splits on which it is evaluated; the first gives the headline."""
    test: Mapping[str, str] = field(default_factory=dict)
    """Unlabelled split to the file name its server expects."""

    def objective(self, sizes: Sizes) -> Supervised:
        """Head and loss for fine-tuning a model of these sizes."""
        return Supervised(sizes, form=self.form)

    def score(
        self, predictions: Sequence[float] | np.ndarray, labels: Sequence[float] | np.ndarray
    ) -> dict[str, float]:
        """Every metric by name; NaN where one is undefined on these predictions."""
        return {m.name: m.compute(np.asarray(predictions), np.asarray(labels)) for m in self.metrics}
