"""A classification, regression or pair task made of the user's own csv, tsv or json file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from groundling.batch import Example
from groundling.config import FinetuneConfig
from groundling.data.regions import stem
from groundling.data.tables import lines_of, read_csv, read_tsv
from groundling.errors import InputError
from groundling.forms import Classify, Form, Regress
from groundling.metrics import ACCURACY, F1, MATTHEWS, PEARSON, RMSE, SPEARMAN
from groundling.runs import read_json
from groundling.tasks import Task

MOST_CLASSES = 20
"""Whole numbers with more distinct values than this are taken for a regression."""

DEV_EVERY = 5
"""Without a dev file, every fifth example is held out."""


def own_task(config: FinetuneConfig) -> Task:
    """The task in `config.data` with text columns `config.text` (one, or two by comma) and label `config.label`.

    Column `config.image`, if there is one, names an image file; without its ending it is the image's id in a store.

    Raises InputError naming file, line and column of what is missing or no label.
    """
    columns = tuple(name.strip() for name in config.text.split(",") if name.strip())
    if len(columns) not in (1, 2):
        raise InputError("your own file needs --text COLUMN or --text FIRST,SECOND beside --label")
    given = (*columns, *([config.image] if config.image else []))
    wanted = (*given, config.label)
    path = Path(config.data)
    labels = [(where, row[config.label]) for where, row in rows_of(path, wanted)]
    if not labels:
        raise InputError(f"{path}: holds no examples")
    for where, label in labels:
        if not label.strip():
            raise InputError(f"{where}: column {config.label!r} is empty; expected a label")
    form = form_of(labels, config.form)

    def read(folder: Path, split: str) -> list[Example]:
        separate = split == "dev" and config.dev
        source = Path(config.dev) if separate else folder
        examples = []
        for number, (where, row) in enumerate(rows_of(source, wanted)):
            held = number % DEV_EVERY == DEV_EVERY - 1
            if config.dev or held == (split == "dev"):
                for name, kind in (
                    (name, "an image file" if name == config.image else "a text") for name in given
                ):
                    if not row[name].strip():
                        raise InputError(f"{where}: column {name!r} is empty; expected {kind}")
                label = form.label(row[config.label], where)
                pair = row[columns[1]] if len(columns) == 2 else None
                name, images = (
                    f"{source.stem}-{split}-{number}",
                    tuple(stem(row[c]) for c in given[len(columns) :]),
                )
                examples.append(Example(name, row[columns[0]], pair, label, images=images))
        if not examples:
            raise InputError(f"{source}: holds no examples for {split}")
        return examples

    binary = (MATTHEWS, F1) if isinstance(form, Classify) and len(form.labels) == 2 else ()
    metrics = (ACCURACY, *binary) if isinstance(form, Classify) else (PEARSON, SPEARMAN, RMSE)
    return Task(f"table/{path.stem}", form, read, metrics, str(path))


def form_of(labels: list[tuple[str, str]], asked: str) -> Form:
    """Classes or numbers, as asked; by itself: numbers with a fraction or of many values are a regression."""
    values = sorted({value for _, value in labels})
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        numbers = []
    many = len(values) > MOST_CLASSES or any(not number.is_integer() for number in numbers)
    if asked == "regress" or (asked == "auto" and numbers and many):
        return Regress()
    if len(values) < 2:
        raise InputError(
            f"{labels[0][0]}: every label is {values[0]!r}; expected at least two classes"
        )
    return Classify(tuple(values))


def rows_of(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Rows as (file and line, {column: text}) of a .csv, .tsv, .json (a list) or .jsonl file, by its suffix."""
    if path.suffix in {".csv", ".tsv"}:
        for number, row in (read_csv if path.suffix == ".csv" else read_tsv)(path, columns):
            yield f"{path}, line {number}", row
        return
    if path.suffix not in {".json", ".jsonl"}:
        raise InputError(f"{path}: expected a .csv, .tsv, .json or .jsonl file")
    if path.suffix == ".json":
        content = read_json(path)
        if not isinstance(content, list):
            raise InputError(f"{path}: expected a list of objects")
        items = [(f"{path}, entry {number}", item) for number, item in enumerate(content)]
    else:
        lines = [(n, line) for n, line in enumerate(lines_of(path), 1) if line.strip()]
        items = [(f"{path}, line {n}", _parsed(path, n, line)) for n, line in lines]
    for where, item in items:
        missing = [name for name in columns if not isinstance(item, dict) or item.get(name) is None]
        if missing:
            raise InputError(f"{where}: no field {missing[0]!r}")
        yield (
            where,
            {
                name: item[name] if isinstance(item[name], str) else json.dumps(item[name])
                for name in columns
            },
        )


def _parsed(path: Path, number: int, line: str) -> object:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {number}: not valid JSON ({error.msg})") from None
