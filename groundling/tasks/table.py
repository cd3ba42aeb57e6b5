"""A classification, regression or pair task made of the user's own csv, tsv or json file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from groundling.batch import Example
from groundling.config import OwnFile
from groundling.data.image_files import stem
from groundling.data.own_rows import own_columns, rows_of
from groundling.errors import InputError
from groundling.forms import Classify, Form, Regress
from groundling.keyed import seed_of
from groundling.metrics import ACCURACY, F1, MATTHEWS, PEARSON, RMSE, SPEARMAN, Metric
from groundling.tasks import Task

MOST_CLASSES = 20
"""Whole numbers with more distinct values than this are taken for a regression."""
DEV_SHARE = 0.2
"""Share of the groups of rows that is held out without a dev file, about."""
FEW_GROUPS = 10
"""With fewer groups than this, what is held out is a matter of luck."""
USUAL_SHARES = (0.1, 0.4)
"""A dev split with less or more of the rows than this is reported."""

Group = tuple[str, ...]
"""What rows that must stay on one side have in common: value of --group, else id of the image, else the texts.

A few texts that repeat, such as the same five questions about every photo, are no groups: a text held out would never
be seen in training. Each of their rows is a group of its own.
"""


@dataclass(frozen=True)
class OwnRow:
    """One row of the file, its columns checked."""

    where: str
    """File and line, for messages."""
    number: int
    """Its place in the file, from 0."""
    texts: tuple[str, ...]
    """One or two."""
    label: str
    """Without spaces around it."""
    stripped: bool
    """Whether there were any."""
    images: tuple[str, ...]
    """The image's id in a region store, if there is a column of images."""
    group: Group
    """What it has in common with rows that must stay on its side."""


def own_task(path: Path, options: OwnFile) -> Task:
    """The task in a file with text columns `options.text` (one, or two by comma) and label `options.label`.

    Column `options.image`, if there is one, names an image file; without its ending it is the image's id in a store.
    Without `options.dev` about a fifth of the rows is held out, see `held_out`.

    Raises:
        InputError: a file, line or column is missing, empty or no label.
    """
    read = OwnReader(path, options)
    metrics = metrics_of(read.form)
    # Version 2: the dev split is drawn by group; it was every fifth row.
    return Task(f"table/{path.stem}", read.form, read, metrics, source=str(path), version=2)


class OwnReader:
    """The examples of one's own file by split; the file, and that of `options.dev`, is read once."""

    def __init__(self, path: Path, options: OwnFile) -> None:
        """Raises InputError if a file, line or column is missing, empty or no label."""
        self.path = path
        self.options = options
        self.rows = own_rows(path, options)
        self.form = form_of([(row.where, row.label) for row in self.rows], options.form)

    @cached_property
    def dev_rows(self) -> list[OwnRow]:
        """The rows of `options.dev`; none without it."""
        return own_rows(Path(self.options.dev), self.options) if self.options.dev else []

    def __call__(self, folder: Path, split: str) -> list[Example]:
        """A split's examples; `folder` is the file itself. Raises InputError for a wrong label, on either side."""
        if split == "dev" and self.options.dev:
            file = Path(self.options.dev)
            return [example_of(row, self.form, file, split) for row in self.dev_rows]
        # All are made, so that a mistake is found on either side.
        examples = [example_of(row, self.form, self.path, split) for row in self.rows]
        if self.options.dev:
            return examples
        held = held_out(self.path, [row.group for row in self.rows])
        return [
            example
            for row, example in zip(self.rows, examples, strict=True)
            if (row.group in held) == (split == "dev")
        ]


def metrics_of(form: Form) -> tuple[Metric, ...]:
    """What answers of one's own are scored by."""
    if not isinstance(form, Classify):
        return PEARSON, SPEARMAN, RMSE
    if len(form.labels) == 2:
        return ACCURACY, MATTHEWS, F1
    return (ACCURACY,)


def example_of(row: OwnRow, form: Form, path: Path, split: str) -> Example:
    """The example of a row of a split; raises InputError for a label that is none of the form's."""
    return Example(
        f"{path.stem}-{split}-{row.number}",
        text=row.texts[0],
        pair=row.texts[1] if len(row.texts) == 2 else None,
        label=form.label(row.label, row.where),
        images=row.images,
        official=str(row.number),
    )


def form_of(labels: list[tuple[str, str]], asked: str) -> Form:
    """Classes or numbers, as asked; by itself: numbers with a fraction or of many values are a regression.

    Args:
        labels: where each label stands, and the label.
        asked: auto, classify or regress.

    Raises:
        InputError: classes are asked for and there is one only.
    """
    values = sorted({value for _, value in labels})
    if asked == "regress" or (asked == "auto" and _are_measurements(values)):
        return Regress()
    if len(values) < 2:
        where = labels[0][0]
        raise InputError(f"{where}: every label is {values[0]!r}; expected at least two classes")
    return Classify(tuple(values))


def _are_measurements(values: Sequence[str]) -> bool:
    """Whether distinct labels are numbers that look measured, not numbers of classes."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return False
    return len(numbers) > MOST_CLASSES or not all(number.is_integer() for number in numbers)


# -- what is held out --------------------------------------------------------------------------------------------------


def held_out(path: Path, groups: Sequence[Group]) -> set[Group]:
    """The groups of rows that make the dev split: about a fifth, at least one, never all.

    Each group's side depends on itself alone, so that rows that are appended move no others (but for files with so
    few groups that none is drawn, or all are: then one changes sides).

    Raises:
        InputError: all rows are of one group.
    """
    draws = {group: seed_of("own file", *group) / 2**63 for group in groups}
    if len(draws) < 2:
        raise InputError(
            f"{path}: all rows are of one group, so none can be held out; pass --dev FILE"
        )
    held = {group for group, draw in draws.items() if draw < DEV_SHARE}
    if not held:
        held.add(min(draws, key=lambda group: draws[group]))
    elif len(held) == len(draws):
        held.remove(max(draws, key=lambda group: draws[group]))
    return held


def own_notes(read: OwnReader) -> list[str]:
    """What a reader of the scores must know of the file, a line each; empty if there is nothing.

    Labels with spaces around them, classes of one row or on one side only, a dev split that is unusually large, small
    or made of few groups, and dev rows whose image or texts are in train.
    """
    train = read(read.path, "train")
    dev = read(read.path, "dev")
    notes = _stray_spaces(read.path, read.rows)
    if read.options.dev:
        notes += _stray_spaces(Path(read.options.dev), read.dev_rows)
    else:
        notes += _unusual_split(read.path, read.rows, len(dev))
    if isinstance(read.form, Classify):
        notes += _odd_classes(read.form, train, dev)
    return notes + overlap(train, dev)


def _stray_spaces(path: Path, rows: Sequence[OwnRow]) -> list[str]:
    count = sum(row.stripped for row in rows)
    if not count:
        return []
    return [f"{path}: {count} of {len(rows)} labels had spaces around them, which are left out"]


def _unusual_split(path: Path, rows: Sequence[OwnRow], dev_rows: int) -> list[str]:
    groups = len({row.group for row in rows})
    low, high = USUAL_SHARES
    if groups >= FEW_GROUPS and low <= dev_rows / len(rows) <= high:
        return []
    return [
        f"{path}: {dev_rows} of {len(rows)} rows are held out, by {groups} groups, images or texts; "
        "a file of your own for --dev would say more"
    ]


def _odd_classes(form: Classify, train: Sequence[Example], dev: Sequence[Example]) -> list[str]:
    """Classes of one row, or on one side only: a line for one, or for all that are odd in the same way."""
    in_train = Counter(example.label for example in train)
    in_dev = Counter(example.label for example in dev)
    single, train_only, dev_only = [], [], []
    for number, name in enumerate(form.labels):
        if in_train[number] + in_dev[number] == 1:
            single.append(repr(name))
        elif not in_dev[number]:
            train_only.append(f"{name!r} is in train ({in_train[number]} rows)")
        elif not in_train[number]:
            dev_only.append(f"{name!r} is in dev ({in_dev[number]} rows)")
    notes = []
    if len(single) == 1:
        notes.append(f"class {single[0]} has one row; is it spelt as it should be?")
    elif single:
        notes.append(
            f"{len(single):,} classes have one row each, such as {', '.join(single[:3])}; "
            "are they spelt as they should be, and is this the column of labels?"
        )
    for told, other in ((train_only, "dev"), (dev_only, "train")):
        if told:
            more = f"; {len(told):,} classes are like this" if len(told) > 1 else ""
            notes.append(f"class {told[0]}, but not in {other}{more}")
    return notes


def overlap(train: Sequence[Example], dev: Sequence[Example]) -> list[str]:
    """How many dev examples have an image of a training example, or without images its texts; a line each, or none."""
    notes = []
    advice = "scores tell what was remembered, too; see --group and --dev"
    train_images = {image for example in train for image in example.images}
    seen = sum(not train_images.isdisjoint(example.images) for example in dev)
    if seen:
        notes.append(f"{seen} of {len(dev)} dev rows show an image that is in train: {advice}")
    if any(example.images for example in dev):
        return notes  # the same question about another image is another example
    train_texts = {(example.text, example.pair) for example in train}
    train_first = {example.text for example in train if example.pair is not None}
    same_texts = 0
    same_first_text = 0
    for example in dev:
        if (example.text, example.pair) in train_texts:
            same_texts += 1
        elif example.text in train_first:
            same_first_text += 1
    if same_texts:
        notes.append(f"{same_texts} of {len(dev)} dev rows have texts that are in train: {advice}")
    if same_first_text:
        notes.append(
            f"{same_first_text} of {len(dev)} dev rows have their first text in common with a training row: "
            "if it tells the answer, pass --group"
        )
    return notes


# -- rows of a file ----------------------------------------------------------------------------------------------------


def own_rows(path: Path, options: OwnFile) -> list[OwnRow]:
    """The rows of one's own file, in its order.

    Raises:
        InputError: the columns asked for do not go together, the file has none of them, or a row lacks a value.
    """
    text_columns, expected = own_columns(options)
    rows = []
    for number, (where, values) in enumerate(rows_of(path, tuple(expected))):
        for name, what in expected.items():
            if not values[name].strip():
                raise InputError(f"{where}: column {name!r} is empty; expected {what}")
        texts = tuple(values[name] for name in text_columns)
        label = values[options.label].strip()
        stripped = label != values[options.label]
        images: tuple[str, ...] = ()
        # Spaces around a text or a value, and `./` before a file, make no group of its own.
        group = tuple(text.strip() for text in texts)
        if options.image:
            images = (stem(values[options.image].strip().removeprefix("./")),)
            group = images
        if options.group:
            group = (values[options.group].strip(),)
        rows.append(OwnRow(where, number, texts, label, stripped, images, group))
    if not rows:
        raise InputError(f"{path}: holds no examples")
    grouped_by_text = not options.group and not options.image
    if grouped_by_text and len({row.group for row in rows}) < FEW_GROUPS:
        return _each_by_itself(rows)
    return rows


def _each_by_itself(rows: Sequence[OwnRow]) -> list[OwnRow]:
    """The rows, those that repeat a text told apart by how often it has occurred."""
    occurred: Counter[tuple[str, ...]] = Counter()
    apart = []
    for row in rows:
        group = row.group
        # The first keeps its group, for more rows with other texts make groups of the texts.
        if occurred[row.group]:
            group = (*group, str(occurred[row.group]))
        occurred[row.group] += 1
        apart.append(replace(row, group=group))
    return apart
