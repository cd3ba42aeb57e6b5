"""GLUE, from its official TSV folders or from the hub; XDBERT's metric comes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from groundling.core.batch import Example
from groundling.core.errors import InputError, convert_errors, require_nonempty
from groundling.core.metrics import (
    ACCURACY,
    ACCURACY_AND_F1,
    F1,
    MATTHEWS,
    PEARSON,
    SPEARMAN,
    Metric,
)
from groundling.core.output_types import Classification, OutputType, Regression
from groundling.data.tables import read_rows
from groundling.tasks import Task

SOURCE = "Wang et al. 2018, GLUE, gluebenchmark.com"


@dataclass(frozen=True)
class GlueLayout:
    """File layout and reader of one GLUE task."""

    folder: str
    """The task's folder inside the GLUE root."""
    form: OutputType
    """Classes in the order of their numbers, or a range of scores."""
    texts: tuple[str, ...]
    """Columns of the sentence or the two sentences."""
    label: str
    """Column of the label, by name since MNLI's train and dev files have 12 and 16 columns."""
    hub_columns: tuple[str, ...]
    """Column names of `texts` on the hub."""
    columns_without_header: tuple[str, ...] = ()
    """Columns of labelled files without a header (CoLA)."""
    index: str = "index"
    """Id column of unlabelled files, which the server expects."""
    skip_short: bool = False
    """Skip rows that are broken by a newline inside a question (QQP)."""

    @property
    def short(self) -> str:
        """The task's name without `glue/`."""
        return self.folder.lower()

    def path(self, folder: Path, split: str) -> Path:
        """The file of a split; `folder` is the GLUE root or the task's folder."""
        inner = Path(folder) / self.folder
        return (inner if inner.is_dir() else Path(folder)) / f"{split}.tsv"

    def __call__(self, folder: Path, split: str) -> list[Example]:
        """Examples in file order; those of a `test` split are unlabelled, with the server's index as id.

        Short rows are left out for tasks with `skip_short`.
        """
        path = self.path(folder, split)
        labelled = not split.startswith("test")
        examples: list[Example] = []
        short: list[str] | None = [] if self.skip_short else None  # it takes what is left out
        columns = (*self.texts, self.label if labelled else self.index)
        names = self.columns_without_header if labelled else ()
        for where, row in read_rows(path, columns, names=names, short=short):
            texts = [row[name] for name in self.texts]
            if labelled:
                # Numbered by position, as on the hub: a QQP `id` identifies a question pair.
                number = str(len(examples))
                label = self.form.parse_label(row[self.label], where)
                examples.append(self.example(split, number, texts, label))
            else:
                examples.append(self.example(split, row[self.index], texts, None))
        require_nonempty(examples, f"{path}: contains no examples")
        return examples

    def example(
        self, split: str, number: str, texts: Sequence[str], label: float | int | None
    ) -> Example:
        """Build an example; `number` is the server's index, or the position in a labelled file."""
        return Example(
            f"{self.short}-{split}-{number}",
            text=texts[0],
            text_pair=texts[1] if len(texts) > 1 else None,
            label=label,
            official_id=number,
        )


def from_hub(task: Task, split: str) -> list[Example]:
    """Examples of a GLUE task from `nyu-mll/glue` on the hub; raises InputError without `datasets` or network."""
    reader = task.read
    if not isinstance(reader, GlueLayout):
        raise InputError(f"{task.name}: only GLUE tasks can be read from the hub; pass data=FOLDER")
    name = reader.short.replace("-", "")
    advice = "; pip install 'groundling[hub]', or pass data=FOLDER"
    with convert_errors(f"{task.name}: {split} cannot be read from the hub", advice):
        import datasets

        rows = datasets.load_dataset("nyu-mll/glue", name, split=split.replace("dev", "validation"))
    # Two of the hub's columns are not used: MRPC's test labels, and `idx`, which for MRPC refers to another file.
    # STS-B's scores are single precision on the hub: 3.8 would become 3.7999999523.
    labels = [None if split in task.test else round(row["label"], 6) for row in rows]
    return [
        reader.example(split, str(position), [row[name] for name in reader.hub_columns], label)
        for position, (row, label) in enumerate(zip(rows, labels, strict=True))
    ]


def _task(
    reader: GlueLayout,
    *metrics: Metric,
    dev: tuple[str, ...] = ("dev",),
    test: Mapping[str, str] | None = None,
) -> Task:
    test = test or {"test": f"{reader.folder}.tsv"}
    return Task(
        f"glue/{reader.short}",
        reader.form,
        reader,
        metrics,
        SOURCE,
        dev=dev,
        test=test,
        file=reader.path,
    )


# Classes are numbered as on the hub; BERT's original code starts MNLI's with contradiction.
YES = Classification(("0", "1"))
TWO = Classification(("entailment", "not_entailment"))
THREE = Classification(("entailment", "neutral", "contradiction"))
PAIR = ("sentence1", "sentence2")
ASKED = ("question1", "question2")
MNLI_TEST = {"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"}

RTE = _task(GlueLayout("RTE", TWO, PAIR, "label", PAIR), ACCURACY)
MRPC = _task(GlueLayout("MRPC", YES, ("#1 String", "#2 String"), "Quality", PAIR), F1, ACCURACY)
STSB = _task(GlueLayout("STS-B", Regression(0, 5), PAIR, "score", PAIR), PEARSON, SPEARMAN)
_cola = GlueLayout(
    "CoLA",
    YES,
    ("sentence",),
    "label",
    ("sentence",),
    columns_without_header=("source", "label", "mark", "sentence"),
)
COLA = _task(_cola, MATTHEWS)
SST2 = _task(GlueLayout("SST-2", YES, ("sentence",), "label", ("sentence",)), ACCURACY)
QNLI = _task(
    GlueLayout("QNLI", TWO, ("question", "sentence"), "label", ("question", "sentence")), ACCURACY
)
QQP = _task(
    GlueLayout("QQP", YES, ASKED, "is_duplicate", ASKED, index="id", skip_short=True),
    ACCURACY_AND_F1,
    ACCURACY,
    F1,
)
_mnli = GlueLayout("MNLI", THREE, PAIR, "gold_label", ("premise", "hypothesis"))
MNLI = _task(_mnli, ACCURACY, dev=("dev_matched", "dev_mismatched"), test=MNLI_TEST)
WNLI = _task(GlueLayout("WNLI", YES, PAIR, "label", PAIR), ACCURACY)
TASKS = (RTE, MRPC, STSB, COLA, SST2, QNLI, QQP, MNLI, WNLI)
