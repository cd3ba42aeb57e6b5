"""A classification, regression or pair task from your own csv, tsv or json file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from sys import intern
from typing import NamedTuple

from groundling.core.batch import Example
from groundling.core.errors import InputError, count_suffix, prefix_errors, require_nonempty
from groundling.core.metrics import ACCURACY, F1, MATTHEWS, PEARSON, RMSE, SPEARMAN, Metric
from groundling.core.output_types import Classification, OutputType, Regression
from groundling.core.rng import derive_seed
from groundling.data.images import image_id
from groundling.data.tables import read_rows, row_texts, user_columns
from groundling.data.text import normalize
from groundling.settings.input_settings import TableTaskSettings
from groundling.tasks import Task

MISSING_LABELS = {"nan", "NaN", "<NA>", "NaT"}
"""How tables are written by programs that had no label for a row."""
MOST_CLASSES = 20
"""Whole numbers with more distinct values than this make a regression."""
DEV_SHARE = 0.2
"""Approximate share of the row groups that is held out without a dev file."""
FEW_GROUPS = 10
"""With fewer groups than this, the held-out groups are not representative."""

RowGroup = tuple[str, ...]
"""Key of the rows that must stay in one split: value of --group, else image id, else the texts.

If few distinct texts repeat, such as the same five questions about every photo, they are not used as groups, since
held-out texts would never occur in training. Then each row is its own group.
"""


class TableExampleRow(NamedTuple):
    """One checked row of the file; small, since a file may have millions of rows."""

    where: str
    """File and line, for messages."""
    number: int
    """Number of the row, from 0."""
    texts: tuple[str, ...]
    """One or two texts."""
    label: str
    """The label without surrounding spaces."""
    images: tuple[str, ...]
    """The image id in a region store, if there is an image column."""
    group: RowGroup
    """Key of the rows that must stay in one split."""


def table_task(path: Path, options: TableTaskSettings) -> Task:
    """The task of a file with text columns `options.text` (one, or two separated by a comma) and `options.label`.

    Column `options.image`, if given, has image file names; without the ending they are the image ids in a region store.
    Without `options.dev`, about a fifth of the rows is held out, see `held_out`. Raises InputError if a file, line or
    column is missing or empty, or a label is invalid.
    """
    reader = TableReader(path, options)
    metrics = metrics_of(reader.form)
    # Version 2: the dev split is drawn by group; in version 1 it was every fifth row.
    return Task(f"table/{path.stem}", reader.form, reader, metrics, source=str(path), version=2)


class TableReader:
    """Reads the examples of your own file by split; reads the file and `options.dev` only once."""

    def __init__(self, path: Path, options: TableTaskSettings) -> None:
        """Raises InputError if a file, line or column is missing or empty, or a label is invalid."""
        self.path = path
        self.options = options
        self.rows = read_table(path, options)
        places: dict[str, str] = {}
        for row in self.rows:
            places.setdefault(row.label, row.where)
        self.form = form_of(places, options.label_type)

    @cached_property
    def dev_rows(self) -> list[TableExampleRow]:
        """The rows of `options.dev`; empty without a dev file."""
        return read_table(Path(self.options.dev), self.options) if self.options.dev else []

    @cached_property
    def split_rows(self) -> tuple[list[TableExampleRow], list[TableExampleRow]]:
        """The train and dev rows; raises InputError for an invalid label in either."""
        for row in (*self.rows, *self.dev_rows):
            self.form.parse_label(row.label, row.where)
        if self.options.dev:
            return self.rows, self.dev_rows
        dev_groups = held_out(self.path, (row.group for row in self.rows))
        split_rows: tuple[list[TableExampleRow], list[TableExampleRow]] = ([], [])
        for row in self.rows:
            split_rows[row.group in dev_groups].append(row)
        return split_rows

    def __call__(self, folder: Path, split: str) -> list[Example]:
        """A split's examples; `folder` is the file itself. Raises InputError for an invalid label in any split."""
        is_dev = split == "dev"
        path = Path(self.options.dev) if is_dev and self.options.dev else self.path
        return [example_of(row, self.form, path, split) for row in self.split_rows[is_dev]]


def metrics_of(form: OutputType) -> tuple[Metric, ...]:
    """Metrics of a task from your own file."""
    if not isinstance(form, Classification):
        return PEARSON, SPEARMAN, RMSE
    if len(form.labels) == 2:
        return ACCURACY, MATTHEWS, F1
    return (ACCURACY,)


def positive_class(form: OutputType) -> dict[str, str]:
    """`positive`, the class that `f1` is of; empty for forms without that metric."""
    if F1 in metrics_of(form) and isinstance(form, Classification):
        return {"positive": form.labels[1]}
    return {}


def example_of(row: TableExampleRow, form: OutputType, path: Path, split: str) -> Example:
    """The example of a row of a split; raises InputError for a label that does not fit the output type."""
    return Example(
        f"{path.stem}-{split}-{row.number}",
        text=row.texts[0],
        text_pair=row.texts[1] if len(row.texts) == 2 else None,
        label=form.parse_label(row.label, row.where),
        images=row.images,
        official_id=str(row.number),
    )


def form_of(labels: Mapping[str, str], label_type: str) -> OutputType:
    """The output type as requested; `auto`: fractional numbers or many distinct numbers are a regression.

    `labels` are distinct, with the place of their first row. Raises InputError for a single class.
    """
    values = sorted(labels)
    are_measurements = label_type == "regress"
    if label_type == "auto":
        with suppress(ValueError):  # a label that is no number
            numbers = [float(value) for value in values]
            are_whole = all(number.is_integer() for number in numbers)
            are_measurements = len(numbers) > MOST_CLASSES or not are_whole
    if are_measurements:
        return Regression()
    if len(values) < 2:
        raise InputError(f"{labels[values[0]]}: every label is {values[0]!r}")
    return Classification(tuple(values))


# -- held-out rows -----------------------------------------------------------------------------------------------------
def held_out(path: Path, groups: Iterable[RowGroup]) -> set[RowGroup]:
    """The row groups of the dev split: about a fifth, at least one, never all.

    Each group's split depends only on the group, so appended rows do not move others (except in files with so few
    groups that none or all are drawn: then one group changes its split). Raises InputError for a single group.
    """
    distinct = dict.fromkeys(groups)
    if len(distinct) < 2:
        raise InputError(f"{path}: all rows are in one group; pass a dev file")
    held = {group for group in distinct if _draw(group) < DEV_SHARE}
    if not held:
        held.add(min(distinct, key=_draw))
    elif len(held) == len(distinct):
        held.remove(max(distinct, key=_draw))
    return held


def _draw(group: RowGroup) -> float:
    return derive_seed("own file", *group) / 2**63


def table_notes(reader: TableReader) -> list[str]:
    """Notes on the file that matter for the scores, one line each.

    They report classes in one split only, whole numbers that are no classes, and dev rows whose image or texts are in
    train.
    """
    train, dev = reader.split_rows
    notes = overlap_notes(train, dev)
    if isinstance(reader.form, Classification):
        return _odd_classes(reader.form, train, dev) + notes
    labels = {row.label for row in reader.rows}
    if reader.options.label_type == "auto" and all(float(label).is_integer() for label in labels):
        many = f"{len(labels)} whole numbers, more than {MOST_CLASSES}"
        notes = [
            f"the labels are {many}, so this is a regression; for classes set label_type=classify",
            *notes,
        ]
    return notes


def _odd_classes(
    form: Classification, train: Sequence[TableExampleRow], dev: Sequence[TableExampleRow]
) -> list[str]:
    """Notes on classes that are in one split only, as misspelt ones are, and on names that mean the same."""
    in_train = Counter(row.label for row in train)
    in_dev = Counter(row.label for row in dev)
    notes = []
    one_sided = [name for name in form.labels if not (in_train[name] and in_dev[name])]
    if one_sided:
        name = one_sided[0]
        notes.append(
            f"class {name!r} has {in_train[name]} rows in train and {in_dev[name]} in dev"
            f"{count_suffix(one_sided)}; check its spelling and the label column"
        )
    spellings: dict[str, list[str]] = {}
    for name in form.labels:
        spellings.setdefault(_meaning(name), []).append(ascii(name))
    alike = [names for names in spellings.values() if len(names) > 1]
    if alike:
        notes.append(
            f"classes {' and '.join(alike[0])} are the same number, or differ only in case, spaces or Unicode form, "
            f"and count as separate classes{count_suffix(alike)}"
        )
    return notes


def _meaning(name: str) -> str:
    try:
        return str(float(name))
    except ValueError:
        return normalize(name)


def overlap_notes(train: Sequence[TableExampleRow], dev: Sequence[TableExampleRow]) -> list[str]:
    """Notes on dev rows that share an image, or without images texts, with training rows.

    Texts are compared without regard to capitals, spaces and Unicode form.
    """
    train_images = {image for row in train for image in row.images}
    same_images = sum(not train_images.isdisjoint(row.images) for row in dev)
    same_texts = same_first_text = 0
    # The same question about another image is another example.
    if not any(row.images for row in dev):
        train_texts = {_spelt_alike(row.texts) for row in train}
        first_of_two = {texts[0] for texts in train_texts if len(texts) == 2}
        dev_texts = [_spelt_alike(row.texts) for row in dev]
        others = [texts for texts in dev_texts if texts not in train_texts]
        same_texts = len(dev_texts) - len(others)
        same_first_text = sum(texts[0] in first_of_two for texts in others)
    advice = "scores include memorisation; see group and dev"
    shared = {
        f"an image that is also in train: {advice}": same_images,
        f"texts that are also in train: {advice}": same_texts,
        "the first text of a training row: if this text determines the answer, set group": same_first_text,
    }
    return [
        f"{count} of {len(dev)} dev rows have {what}" for what, count in shared.items() if count
    ]


def _spelt_alike(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(normalize, texts))


# -- rows of a file ----------------------------------------------------------------------------------------------------
def read_table(path: Path, options: TableTaskSettings) -> list[TableExampleRow]:
    """The rows of your own file, in order; raises InputError if a column is missing or a row lacks a value."""
    text_columns, expected = user_columns(options)
    rows = []
    for number, (where, cells) in enumerate(read_rows(path, tuple(expected))):
        with prefix_errors(where):
            values = dict(zip(expected, row_texts(cells, tuple(expected)), strict=True))
        plain = {name: value.strip() for name, value in values.items()}
        for name, value in plain.items():
            if not value:
                raise InputError(f"{where}: column {name!r} is empty; expected {expected[name]}")
        label = intern(plain[options.label])
        if label in MISSING_LABELS:
            raise InputError(f"{where}: the label {label!r} stands for a missing value")
        images: tuple[str, ...] = ()
        # Surrounding spaces, and `./` before a file name, do not change the group.
        group = tuple(plain[name] for name in text_columns)
        if options.image:
            images = (image_id(plain[options.image].removeprefix("./")),)
            group = images
        if options.group:
            group = (plain[options.group],)
        texts = tuple(values[name] for name in text_columns)
        rows.append(TableExampleRow(where, number, texts, label, images, group))
    require_nonempty(rows, f"{path}: contains no examples")
    grouped_by_text = not options.group and not options.image
    if grouped_by_text and len({row.group for row in rows}) < FEW_GROUPS:
        return _each_by_itself(rows)
    return rows


def _each_by_itself(rows: Sequence[TableExampleRow]) -> list[TableExampleRow]:
    """The rows with distinct groups: repeated texts get their occurrence number."""
    occurred: Counter[tuple[str, ...]] = Counter()
    apart = []
    for row in rows:
        group = row.group
        # The first row keeps its group, so its split does not change if the file grows beyond `FEW_GROUPS` texts.
        if occurred[row.group]:
            group = (*group, str(occurred[row.group]))
        occurred[row.group] += 1
        apart.append(row._replace(group=group))
    return apart
