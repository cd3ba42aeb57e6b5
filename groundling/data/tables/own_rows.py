"""Rows of one's own csv, tsv, json or jsonl file, by the names of their columns."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from groundling.core.errors import InputError
from groundling.data.tables.tables import (
    TABLES,
    columns_of,
    lines_of,
    read_text,
    refuse_halves,
    table_values,
)
from groundling.settings.inputs import OwnFile


class Where(NamedTuple):
    """Where a row stands; as a text, which is made when a message needs it, its file and line."""

    path: Path
    unit: str
    """What is counted: line, or entry of a list."""
    number: int

    def __str__(self) -> str:
        return f"{self.path}, {self.unit} {self.number}"


def where_of(path: Path, number: int) -> Where:
    """Where a row of a file stands, of those that `rows_of` numbers."""
    return Where(path, "entry" if path.suffix == ".json" else "line", number)


class Cells(Mapping[str, str]):
    """A row of a table by the names of its columns, which all rows share: a million rows need not hold them."""

    __slots__ = ("places", "values_in_order")

    def __init__(self, places: Mapping[str, int], values: tuple[str, ...]) -> None:
        self.places = places
        self.values_in_order = values

    def __getitem__(self, name: str) -> str:
        return self.values_in_order[self.places[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def rows_of(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """Rows as (number of the line or entry, texts of `columns`) of a .csv, .tsv, .json (a list) or .jsonl file.

    Raises:
        InputError: another suffix, a column that is missing or there twice, or a value that is neither text nor number.
    """
    if path.suffix in TABLES:
        yield from table_values(path, columns)
        return
    for number, item in _objects(path):
        if not isinstance(item, dict):
            where = where_of(path, number)
            raise InputError(f"{where}: no field {columns[0]!r}; expected an object")
        try:
            yield number, texts_in(item, columns)
        except InputError as error:
            raise InputError(f"{where_of(path, number)}: {error}") from None


def own_columns(options: OwnFile) -> tuple[tuple[str, ...], dict[str, str]]:
    """The columns of texts, one or two, and all columns that a task of one's own file reads, with what each holds.

    Raises InputError for columns that do not go together.
    """
    text_columns = tuple(name.strip() for name in options.text.split(",") if name.strip())
    if len(text_columns) not in (1, 2):
        raise InputError("your own file needs --text COLUMN or --text FIRST,SECOND beside --label")
    if options.group and options.dev:
        raise InputError(
            f"--group {options.group} says what is held out together, but --dev {options.dev} holds nothing out; "
            "leave one of them out"
        )
    if options.label in text_columns:
        raise InputError(
            f"--text {options.text}: column {options.label!r} is the label, which no text may tell; leave it out"
        )
    expected = dict.fromkeys(text_columns, "a text")
    expected[options.label] = "a label"
    if options.image:
        expected[options.image] = "an image file"
    if options.group:
        expected.setdefault(options.group, "a group")  # may be one of the others
    return text_columns, expected


def check_columns(path: Path, columns: Sequence[str]) -> None:
    """Raises InputError as `rows_of` does, as far as a file's header or its first row tells."""
    next(rows_of(path, tuple(columns)), None)


def check_asked(path: Path, header: Sequence[str], columns: Mapping[str, str], mark: str) -> None:
    """Raises InputError for a column, or one of several by comma, that a header lacks, naming the setting that says it.

    `columns`: what settings say, by the name of the setting, which `mark` stands before in messages.
    """
    for setting, listed in columns.items():
        for name in filter(None, map(str.strip, listed.split(","))):
            if name not in header:
                raise InputError(
                    f"{path}: no column {name!r}; there are: {', '.join(header)}; "
                    f"{mark}{setting} says which column it is"
                )


def whole_rows(
    path: Path, columns: Sequence[str]
) -> tuple[list[str], list[tuple[Where, Mapping[str, Any]]]]:
    """The names of all columns, and of each row its file and line and all it holds, of the same files as `rows_of`.

    Values are texts, but of json whatever the file has. Raises InputError as `rows_of` does, if no row has one of
    `columns`, and for a file without rows; what a field of json holds is not looked at (see `texts_in`).
    """
    if path.suffix in TABLES:
        header = columns_of(path)
        _require(path, columns, header)
        places = {name: place for place, name in enumerate(header)}
        rows: list[tuple[Where, Mapping[str, Any]]] = [
            (where_of(path, number), Cells(places, tuple(values)))
            for number, values in rows_of(path, tuple(header))
        ]
    else:
        rows = []
        for number, item in _objects(path):
            where = where_of(path, number)
            if not isinstance(item, dict):
                raise InputError(f"{where}: expected an object")
            rows.append((where, item))
        header = list(dict.fromkeys(name for _, row in rows for name in row))
        if rows:
            _require(path, columns, header)
    if not rows:
        raise InputError(f"{path}: holds no rows")
    return header, rows


def _require(path: Path, columns: Sequence[str], header: Sequence[str]) -> None:
    for name in columns:
        if name not in header:
            raise InputError(f"{path}: no column {name!r}; there are: {', '.join(header)}")


def _objects(path: Path) -> Iterator[tuple[int, object]]:
    """The entries of a .json or .jsonl file, each after its number."""
    if path.suffix == ".json":
        return _entries(path)
    if path.suffix == ".jsonl":
        return _lines(path)
    raise InputError(f"{path}: expected a .csv, .tsv, .json or .jsonl file")


def _entries(path: Path) -> Iterator[tuple[int, object]]:
    content = _parsed(str(path), read_text(path))
    if not isinstance(content, list):
        raise InputError(f"{path}: expected a list of objects")
    yield from enumerate(content)


def _lines(path: Path) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(lines_of(path), 1):
        if line.strip():
            yield number, _parsed(where_of(path, number), line)


def _parsed(where: object, text: str) -> object:
    def once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
        names = Counter(name for name, _ in pairs)
        for name, count in names.items():
            if count > 1:
                raise InputError(f"{where}: {count} fields are called {name!r}; rename all but one")
        return dict(pairs)

    try:
        parsed: object = json.loads(text, object_pairs_hook=once_each)
    except InputError:
        raise
    except json.JSONDecodeError as error:
        place = f", line {error.lineno}" if error.lineno > 1 else ""
        raise InputError(f"{where}{place}: not valid JSON ({error.msg})") from None
    except (RecursionError, ValueError):
        raise InputError(f"{where}: nested too deep, or a number of too many digits") from None
    if "\\u" in text:
        refuse_halves(str(where), parsed)
    return parsed


def texts_in(row: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    """Some fields of a row as a csv would have them; raises InputError, without the place, for others."""
    return [_cell(name, row.get(name)) for name in columns]


def _cell(name: str, value: object) -> str:
    if value is None:
        raise InputError(f"no field {name!r}")
    if isinstance(value, str):
        return value
    # A bool is an int to Python.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and not math.isfinite(value)):
        what = json.dumps(value)[:40]
        raise InputError(f"field {name!r} is {what}; expected a text or a number")
    return json.dumps(value)
