"""Tasks on texts: GLUE from its TSV folders or from the hub, with XDBERT's metric first; SWAG; readability."""

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
    MSE,
    PEARSON,
    RMSE,
    SPEARMAN,
    Metric,
)
from groundling.core.output_types import Classification, MultipleChoice, OutputType, Regression
from groundling.core.rng import generator
from groundling.data.tables import read_header, read_rows
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


# SWAG, from the official csv files ("regular").

ENDINGS = tuple(f"ending{i}" for i in range(4))
SWAG_FORM = MultipleChoice(("0", "1", "2", "3"))
SWAG_SOURCE = "Zellers et al. 2018, SWAG, github.com/rowanz/swagaf"


def _swag_file(folder: Path, split: str) -> Path:
    return Path(folder) / f"{split}.csv"


def _read_swag(folder: Path, split: str) -> list[Example]:
    """Examples with their row numbers as official ids, as the server's file expects."""
    path = _swag_file(folder, split)
    labelled = split != "test"
    columns = ("sent1", "sent2", *ENDINGS, *(["label"] if labelled else []))
    examples: list[Example] = []
    for number, (where, row) in enumerate(read_rows(path, columns)):
        example = Example(
            f"swag-{split}-{number}",
            row["sent1"],
            label=SWAG_FORM.parse_label(row["label"], where) if labelled else None,
            choices=tuple(f"{row['sent2']} {row[ending]}" for ending in ENDINGS),
            official_id=str(number),
        )
        examples.append(example)
    require_nonempty(examples, f"{path}: contains no examples")
    return examples


REGULAR = Task(
    "swag",
    SWAG_FORM,
    _read_swag,
    (ACCURACY,),
    SWAG_SOURCE,
    dev=("val",),
    test={"test": "predictions.tsv"},
    file=_swag_file,
)
"""Papers report accuracy on `val`; the server's format is undocumented, so the file has index and choice."""


# Readability: csv of the CommonLit Readability Prize, or the CLEAR workbook exported to csv.

KAGGLE = ("id", "excerpt", "target")
"""Columns of the prize's file: id, passage, readability."""
CLEAR = ("ID", "Excerpt", "BT_easiness")
"""The same columns of the CLEAR workbook."""

DEV_SHARE = 0.2
"""Held-out share of the labelled passages: neither source has a labelled dev split."""


def passages_file(folder: Path, split: str) -> Path:
    """`test.csv`, or the labelled file: `train.csv`, else the folder's only other csv; a file is returned unchanged."""
    folder = Path(folder)
    if folder.is_file():
        return folder
    if split == "test":
        return folder / "test.csv"
    labelled = folder / "train.csv"
    if not labelled.exists():
        unlabelled = {"test", "sample_submission"}
        others = [path for path in sorted(folder.glob("*.csv")) if path.stem not in unlabelled]
        if len(others) == 1:
            return others[0]
    return labelled


def is_held_out(example: str) -> bool:
    """Whether a passage belongs to the dev split; depends only on its id."""
    return bool(generator("readability", example).random() < DEV_SHARE)


def _read_passages(folder: Path, split: str) -> list[Example]:
    path = passages_file(folder, split)
    columns = CLEAR if CLEAR[1] in read_header(path) else KAGGLE
    labelled = split != "test"
    examples: list[Example] = []
    for where, row in read_rows(path, columns if labelled else columns[:2]):
        number, text = row[columns[0]], row[columns[1]]
        if not text.strip():
            raise InputError(f"{where}: the passage is empty")
        label = None
        if labelled:
            if is_held_out(number) != (split == "dev"):
                continue
            label = READABILITY_FORM.parse_label(row[columns[2]], where)
        name = f"readability-{split}-{number}"
        examples.append(Example(name, text, label=label, official_id=number))
    require_nonempty(examples, f"{path}: contains no examples of {split}")
    return examples


READABILITY_FORM = Regression()
READABILITY_SOURCE = (
    "CommonLit Readability Prize (Kaggle 2021): RMSE; XDBERT's code computes the mean squared error"
)
READABILITY = Task(
    "readability",
    READABILITY_FORM,
    _read_passages,
    (RMSE, MSE),
    READABILITY_SOURCE,
    test={"test": "submission.csv"},
    submission_format=("id", "target", ","),
    file=passages_file,
)
"""READ of XDBERT's Table 1; lower is better."""
