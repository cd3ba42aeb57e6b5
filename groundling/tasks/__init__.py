"""Tasks: a `Task` combines examples, output type, metrics and version.

Any module, inside or outside this package, may define a task.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from groundling.core.batch import Example, RegionRow
from groundling.core.errors import EMPTY, InputError, count_suffix, duplicates, require_known
from groundling.core.metrics import Metric
from groundling.core.output_types import OutputType
from groundling.runs.folder import data_hash


def list_oddities(file: Path, examples: Sequence[Example]) -> list[str]:
    """Notes on accepted oddities of a split: repeated ids, and texts of only spaces."""
    empty = []
    for one in examples:
        texts = (one.text, one.text_pair, *one.choices)
        if not all(text is None or text.strip() for text in texts):
            empty.append(one.id)
    faults = {
        "expected only once, found again": duplicates(one.id for one in examples),
        EMPTY: empty,
    }
    return [
        f"{file}, example {ids[0]}: {fault}{count_suffix(ids)}"
        for fault, ids in faults.items()
        if ids
    ]


def _itself(folder: Path, split: str) -> Path:
    return Path(folder)


@dataclass(frozen=True)
class Task:
    """One benchmark, read from its official files."""

    name: str
    """Name in commands and result files."""
    form: OutputType
    """Output type of its answers."""
    read: Callable[[Path, str], list[Example]]
    """(folder, split) to examples; `official_id` is the id of the server and scorer; label None: unlabelled."""
    metrics: tuple[Metric, ...]
    """Metrics; the first one is the headline metric."""
    source: str
    """Paper or site of the task's definition."""
    version: int = 1
    """Increases with every change after which scores are not comparable."""
    train: str = "train"
    """The training split."""
    dev: tuple[str, ...] = ("dev",)
    """Labelled evaluation splits; the first one gives the headline score."""
    test: Mapping[str, str] = field(default_factory=dict)
    """Server's file name by unlabelled split; empty if the server also needs another task's predictions."""
    submission_format: tuple[str, str, str] | Callable[[Sequence[str], Sequence[str]], str] = (
        "index",
        "prediction",
        "\t",
    )
    """Format of the server's file: heading of the ids, heading of the predictions, separator; or a function from
    official ids and answers to the file's text."""
    file: Callable[[Path, str], Path] = _itself
    """(folder, split) to the split's file."""
    read_form: Callable[[Path], OutputType] | None = None
    """Reads the output type from a data folder that lists the answers; `with_answers_of` replaces `form` with it."""
    label_regions: Callable[[Example, RegionRow], np.ndarray] | None = None
    """For region selection: whether each of an example's R regions is right, (R,) of 1 or 0."""
    label_train_regions: Callable[[Example, RegionRow], np.ndarray] | None = None
    """The same for training examples, if they use another criterion; None: as `label_regions`."""
    head_task: str = ""
    """Name of the task whose architecture-specific head this task uses; empty: its own."""
    official_scores: (
        Callable[[Path, str, Sequence[str], Sequence[str]], dict[str, float]] | None
    ) = None
    """The benchmark's further scores, 0..1, by group or type: (folder, split, official ids, answers) to scores."""
    read_unlabelled: Callable[[Path, str], list[tuple[Example, ...]]] | None = None
    """Reads a split without using labels, if inputs depend on a label (VCR's rationales): all possible versions of
    each example."""

    def __post_init__(self) -> None:
        """Raises InputError for two metrics of one name, of which results would hold the last."""
        for name in duplicates(metric.name for metric in self.metrics):
            raise InputError(f"{self.name}: two metrics are called {name!r}; rename one")

    def with_answers_of(self, folder: Path) -> Task:
        """The task with the answers listed in a data folder; unchanged if the answers are fixed."""
        if self.read_form is None:
            return self
        return replace(self, form=self.read_form(Path(folder)))

    def has_answers_of(self, folder: Path) -> bool:
        """Whether a data folder lists the task's answers in the same order; True if the answers are fixed."""
        return self.read_form is None or self.read_form(Path(folder)) == self.form

    def splits_to_train(self, splits: Sequence[str]) -> tuple[str, ...]:
        """The training splits: `splits`, or the task's own if `splits` is empty.

        Raises InputError for an unlabelled or repeated split.
        """
        for split in splits:
            self.check_labelled(split, "train_splits")
        if len(set(splits)) < len(splits):
            raise InputError(f"train_splits={' '.join(splits)}: a split is repeated")
        return tuple(splits) or (self.train,)

    def check_labelled(self, split: str, flag: str) -> None:
        """Raises InputError, beginning with `flag`, for an unlabelled split."""
        fault = f"{flag}: {self.name} has no labelled split {split!r}"
        require_known(split, (self.train, *self.dev), fault)

    def identical_split_notes(self, folder: Path) -> list[str]:
        """A warning for each dev split whose file is identical to the training split's.

        Raises InputError if a file cannot be read.
        """
        train, *dev = (self.file(Path(folder), split) for split in (self.train, *self.dev))
        others = [path for path in dev if path != train and path.is_file() and train.is_file()]
        same = [path for path in others if data_hash(path) == data_hash(train)]
        return [f"{path}: identical to {train}; its scores measure memorisation" for path in same]

    def submission(
        self, split: str, officials: Sequence[str], predictions: Sequence[float] | np.ndarray
    ) -> str:
        """The text of the server's file for an unlabelled split, one of `test`.

        `officials` are the `Example.official_id` of its examples in file order, `predictions` (N,) those of
        `OutputType.predict`. Raises InputError for a split without a server file or an example without official id.
        """
        offered = [name for name, file in self.test.items() if file]
        require_known(split, offered, f"{self.name}: {split!r} has no server file")
        answers = self._answers(officials, predictions)
        for number, official in enumerate(officials):
            if not official:
                raise InputError(f"{self.name}: example {number} of {split!r} has no official id")
        if callable(self.submission_format):
            return self.submission_format(officials, answers)
        heading, prediction, separator = self.submission_format
        lines = [f"{heading}{separator}{prediction}"]
        for official, answer in zip(officials, answers, strict=True):
            lines.append(f"{official}{separator}{answer}")
        return "\n".join(lines) + "\n"

    def score(
        self,
        predictions: Sequence[float] | np.ndarray,
        labels: Sequence[float] | np.ndarray,
        outputs: np.ndarray | None = None,
    ) -> dict[str, float]:
        """All metrics by name of predictions (N,); NaN where a metric is undefined for them.

        `labels` are shaped as `OutputType` documents. Without `outputs` (N, R), one score per region, ranked metrics
        are omitted.
        """
        scores = {}
        for metric in self.metrics:
            values = outputs if metric.uses_scores else np.asarray(predictions)
            if values is not None:
                scores[metric.name] = metric.compute(values, np.asarray(labels))
        return scores

    def official(
        self,
        folder: Path,
        split: str,
        officials: Sequence[str],
        predictions: Sequence[float] | np.ndarray,
    ) -> dict[str, float]:
        """The `official_scores` by name, 0..1; empty for a task without any. Arguments as for `submission`."""
        answers = self._answers(officials, predictions)
        if self.official_scores is None:
            return {}
        return self.official_scores(Path(folder), split, officials, answers)

    def _answers(
        self, officials: Sequence[str], predictions: Sequence[float] | np.ndarray
    ) -> list[str]:
        pairs = zip(officials, predictions, strict=True)
        return [self.form.format_prediction(prediction) for _, prediction in pairs]


def check_labelled_alike(path: Path, unlabelled: Collection[bool]) -> None:
    """Raises InputError if `unlabelled` has both values: some lines of a file have a label, others do not."""
    if len(set(unlabelled)) > 1:
        raise InputError(f"{path}: some lines have a label and some have none")
