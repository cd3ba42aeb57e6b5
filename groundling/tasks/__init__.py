"""A task is examples + form + metrics + version.

Any module may hold one, inside this package or not: nothing in `Task` knows where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from groundling.core.batch import Example, RegionRow
from groundling.core.errors import EMPTY, TWICE, InputError, duplicates, fault_lines, require_known
from groundling.core.field_docs import with_field_docs
from groundling.core.metrics import Metric
from groundling.core.output_types import OutputType
from groundling.runs.hashing import data_hash


def list_oddities(file: Path, examples: Sequence[Example]) -> list[str]:
    """A line for each oddity of a split that is read past: texts of spaces alone, and ids that are there twice."""
    empty = []
    for example in examples:
        for text in (example.text, example.text_pair, *example.choices):
            if text is not None and not text.strip():
                empty.append(f"example {example.id}")
    repeated = duplicates(f"example {example.id}" for example in examples)
    return fault_lines(file, TWICE, repeated) + fault_lines(file, EMPTY, empty)


def _itself(folder: Path, split: str) -> Path:
    return Path(folder)


@with_field_docs
@dataclass(frozen=True)
class Task:
    """One benchmark, read from its official files."""

    name: str
    """What commands and result files call it."""
    form: OutputType
    """The shape of its answer."""
    read: Callable[[Path, str], list[Example]]
    """(folder, split) to examples, whose `official` is what server and scorer call them; label None: unlabelled."""
    metrics: tuple[Metric, ...]
    """The first is the headline."""
    source: str
    """Paper or site the definition follows."""
    version: int = 1
    """Raised whenever scores stop being comparable with earlier ones."""
    train: str = "train"
    """The split it is learned from."""
    dev: tuple[str, ...] = ("dev",)
    """Labelled splits on which it is evaluated; the first gives the headline."""
    test: Mapping[str, str] = field(default_factory=dict)
    """Unlabelled split to the file name its server expects; empty if one task's predictions are not enough for it."""
    submission_format: tuple[str, str, str] | Callable[[Sequence[str], Sequence[str]], str] = (
        "index",
        "prediction",
        "\t",
    )
    """Of that file: heading of the official ids, heading of the predictions, separator; or what writes its text from
    official ids and answers."""
    read_with_notes: Callable[[Path, str], tuple[list[Example], list[str]]] | None = None
    """Reads a split as `read` does, with lines on what it left out; None where nothing is to be said."""
    file: Callable[[Path, str], Path] = _itself
    """(folder, split) to the file that holds the split."""
    read_form: Callable[[Path], OutputType] | None = None
    """Reads the form from the data folder, where that is what lists the answers; `at` puts it in place of `form`."""
    label_regions: Callable[[Example, RegionRow], np.ndarray] | None = None
    """Which of its R regions are right for an example, (R,) of 1 or 0, where the answer is a region."""
    label_train_regions: Callable[[Example, RegionRow], np.ndarray] | None = None
    """The same for examples that are learned from, where it is not the measure of the score; None: as `mark`."""
    head_task: str = ""
    """Name of the task whose head a paper's model has for this one, too; empty: its own."""
    official_scores: (
        Callable[[Path, str, Sequence[str], Sequence[str]], dict[str, float]] | None
    ) = None
    """More of the benchmark's own scores, 0..1, over groups or by type: (folder, split, official ids, answers)."""
    read_unlabelled: Callable[[Path, str], list[tuple[Example, ...]]] | None = None
    """Reads a split as if its labels were secret: all that may stand in an example's place, where `read` tells a label
    in other fields than `label`."""

    def with_answers_of(self, folder: Path) -> Task:
        """The task with the answers that its data folder lists; itself if the answers are always the same."""
        if self.read_form is None:
            return self
        return replace(self, form=self.read_form(Path(folder)))

    def with_notes(self, folder: Path, split: str) -> tuple[list[Example], list[str]]:
        """A split's examples, and lines on what was left out; raises InputError as `read`."""
        if self.read_with_notes is None:
            return self.read(folder, split), []
        return self.read_with_notes(folder, split)

    def splits_to_train(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """The splits to learn from: `wanted` ones, or its own where there are none.

        Raises InputError for a split that is not labelled, or is there twice.
        """
        for split in wanted:
            self.check_labelled(split, "--train-splits")
        if len(set(wanted)) < len(wanted):
            raise InputError(f"--train-splits {' '.join(wanted)}: a split is there twice")
        return tuple(wanted) or (self.train,)

    def check_labelled(self, split: str, flag: str) -> None:
        """Raises InputError, which begins with `flag`, for a split that is not labelled."""
        told = f"{flag}: {self.name} has no labelled split {split!r}"
        require_known(split, (self.train, *self.dev), told)

    def identical_split_notes(self, folder: Path) -> list[str]:
        """A line for each dev split whose file holds the very bytes of the training split's; none is usual.

        Raises InputError if a file cannot be read.
        """
        learned = self.file(Path(folder), self.train)
        notes = []
        for split in self.dev:
            path = self.file(Path(folder), split)
            both = path != learned and path.is_file() and learned.is_file()
            if both and data_hash(path) == data_hash(learned):
                notes.append(
                    f"{path}: the very bytes of {learned}; scores tell what was remembered"
                )
        return notes

    def submission(
        self, split: str, officials: Sequence[str], predictions: Sequence[float] | np.ndarray
    ) -> str:
        """The text of the server's file.

        Args:
            split: An unlabelled split, one of `test`.
            officials: `Example.official_id` of its examples, in the order of the split's own file.
            predictions: (N,), as `OutputType.predict` makes them, in the same order.

        Raises:
            InputError: The split has no server file, or an example has no official id.
        """
        offered = [name for name, file in self.test.items() if file]
        require_known(split, offered, f"{self.name}: {split!r} has no server file")
        answers = self._answers(officials, predictions)
        for number, official in enumerate(officials):
            if not official:
                raise InputError(
                    f"{self.name}: example {number} of {split!r} has no official id, which the server's file "
                    "needs; its reader has to set Example.official"
                )
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
        """Every metric by name; NaN where one is undefined on these predictions.

        Args:
            predictions: (N,).
            labels: (N,), or with the axes that the form's table names.
            outputs: (N, R), one score per region; without them ranked metrics are left out.
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
        """The scores of `extra` by name, 0..1, none for a task without; arguments as for `submission`."""
        answers = self._answers(officials, predictions)
        if self.official_scores is None:
            return {}
        return self.official_scores(Path(folder), split, officials, answers)

    def _answers(
        self, officials: Sequence[str], predictions: Sequence[float] | np.ndarray
    ) -> list[str]:
        """Predictions as the task's files spell them, one for each official id."""
        pairs = zip(officials, predictions, strict=True)
        return [self.form.format_prediction(prediction) for _, prediction in pairs]


def check_labelled_alike(path: Path, unlabelled: Collection[bool]) -> None:
    """Raises InputError if some lines of a file have no label and some have one: both are in `unlabelled`."""
    if len(set(unlabelled)) > 1:
        raise InputError(f"{path}: some lines have a label and some have none")
