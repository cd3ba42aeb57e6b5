"""A task is examples + form + metrics + version; it makes the objective that fine-tunes for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from groundling.batch import Example, RegionRow, Sizes
from groundling.errors import InputError
from groundling.forms import Form
from groundling.joins.readouts import PLAIN, Readout
from groundling.metrics import Metric
from groundling.objectives.supervised import Supervised


def _itself(folder: Path, split: str) -> Path:
    return Path(folder)


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
    """Unlabelled split to the file name its server expects; empty if one task's predictions are not enough for it."""
    layout: Sequence[str] | Callable[[Sequence[str], Sequence[str]], str] = (
        "index",
        "prediction",
        "\t",
    )
    """Of that file: heading of the ids, heading of the predictions, separator; or what writes ids and answers."""

    file: Callable[[Path, str], Path] = _itself
    """(folder, split) to the file that holds the split."""
    listed: Callable[[Path], Form] | None = None
    """Reads the form from the data folder, where that is what lists the answers; `at` puts it in place of `form`."""
    mark: Callable[[Example, RegionRow], np.ndarray] | None = None
    """Which of its regions (R,) are right for an example, 1 or 0, where the answer is a region."""
    extra: Callable[[Path, str, Sequence[str], Sequence[str]], dict[str, float]] | None = None
    """More of the benchmark's own scores, 0..1, by (folder, split, ids, answers): over groups, or by type."""

    def at(self, folder: Path) -> Task:
        """The task with the answers that its data folder lists; itself if the answers are always the same."""
        return self if self.listed is None else replace(self, form=self.listed(Path(folder)))

    def objective(self, sizes: Sizes, read: Readout = PLAIN) -> Supervised:
        """Head and loss for fine-tuning a model of these sizes."""
        return Supervised(sizes, form=read.form(self.form), at=read.at, between=read.between)

    def submission(
        self, split: str, ids: Sequence[str], predictions: Sequence[float] | np.ndarray
    ) -> str:
        """The text of the server's file; `ids`, whose ends are the server's, in the order of the split's own file."""
        if not self.test.get(split):
            there = ", ".join(name for name, file in self.test.items() if file) or "none"
            raise InputError(f"{self.name}: {split!r} has no server file; unlabelled are: {there}")
        answers = [self.form.spell(p) for _, p in zip(ids, predictions, strict=True)]
        if callable(self.layout):
            return self.layout(ids, answers)
        index, prediction, mark = self.layout
        rows = [
            f"{i.rsplit('-', 1)[1]}{mark}{answer}" for i, answer in zip(ids, answers, strict=True)
        ]
        return "\n".join([f"{index}{mark}{prediction}", *rows]) + "\n"

    def score(
        self,
        predictions: Sequence[float] | np.ndarray,
        labels: Sequence[float] | np.ndarray,
        outputs: np.ndarray | None = None,
    ) -> dict[str, float]:
        """Every metric by name; NaN where one is undefined on these predictions. Ranked ones need the `outputs`."""
        given = {False: np.asarray(predictions), True: outputs}
        return {
            m.name: m.compute(values, np.asarray(labels))
            for m in self.metrics
            if (values := given[m.ranked]) is not None
        }

    def official(
        self,
        folder: Path,
        split: str,
        ids: Sequence[str],
        predictions: Sequence[float] | np.ndarray,
    ) -> dict[str, float]:
        """The scores of `extra` by name; none for a task without."""
        answers = [self.form.spell(p) for _, p in zip(ids, predictions, strict=True)]
        return {} if self.extra is None else self.extra(Path(folder), split, ids, answers)
