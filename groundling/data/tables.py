"""Tab- and comma-separated files, read strictly: a row with missing fields is an error that names its line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from groundling.errors import InputError


def read_text(path: str | Path) -> str:
    """A UTF-8 file (a byte-order mark is dropped).

    Raises:
        InputError: the file is missing, empty, not UTF-8, or has zero bytes, which no text has.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: not UTF-8 (byte 0x{raw[error.start]:02x}); convert the file"
        ) from None
    if "\0" in text:  # UTF-16, a binary file, or what a file system leaves after the power failed
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InputError(f"{path}, line {line}: a zero byte; damaged, or not a text in UTF-8")
    if not text.strip():
        raise InputError(f"{path}: the file is empty")
    return text


def lines_of(path: str | Path) -> list[str]:
    """Lines of a text file, split at newlines only (other separators occur inside real sentences).

    Raises:
        InputError: as `read_text`, or lines end in a carriage return alone, which would make the file one line.
    """
    text = read_text(path)
    if "\n" not in text and "\r" in text.rstrip("\r"):
        raise InputError(
            f"{path}: lines end in carriage returns alone (old Mac); convert the file to newlines"
        )
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def read_tsv(
    path: str | Path, columns: Sequence[str], header: bool = True, skip_short: bool = False
) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a TSV with quoting off, as (line number, {column: value}).

    Args:
        path: the file.
        columns: columns that must be there, once each; without a header, the names of the fields in order.
        header: whether the first line names the columns.
        skip_short: leave out rows with too few fields (the rule of every QQP reader; callers count what is missing).

    Raises:
        InputError: the file cannot be read, a column is missing or there twice, or a row has too few fields.
    """
    lines = lines_of(path)
    first_row = 0
    names = list(columns)
    if header:
        first_row = 1
        names = lines[0].split("\t")
        _require(path, columns, names)
    place = {name: names.index(name) for name in columns}
    fewest = max(place.values()) + 1
    for number, line in enumerate(lines[first_row:], start=first_row + 1):
        fields = line.split("\t")
        if len(fields) < fewest:
            if skip_short:
                continue
            raise InputError(
                f"{path}, line {number}: {len(fields)} fields, expected at least {fewest}"
            )
        yield number, {name: fields[position] for name, position in place.items()}


def read_csv(path: str | Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of an RFC-4180 CSV with a header, as (line number, {column: value}).

    Args:
        path: the file.
        columns: columns that must be there, once each.

    Raises:
        InputError: the file cannot be read, a column is missing or there twice, or a row is too short or long.
    """
    text = read_text(path)
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        names = list(reader.fieldnames or [])
        _require(path, columns, names)
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            for name in columns:
                if row[name] is None:
                    raise InputError(f"{where}: no value for column {name!r}")
            surplus = row.get(None)
            if surplus:
                about = f"{len(names) + len(surplus)} values for {len(names)} columns"
                raise InputError(f"{where}: {about}; a comma inside a value needs quotes")
            yield reader.line_num, {name: row[name] for name in columns}
    except csv.Error as error:
        where = f"{path}, line {reader.line_num + 1}"
        raise InputError(
            f"{where}: quotes are not in order, or a cell is too long ({error})"
        ) from None


def refuse_halves(where: str, parsed: object) -> None:
    """Raises InputError if JSON that was read holds half of a surrogate pair, which is no character of any text."""
    try:
        json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise InputError(
            f"{where}: {half!a} is half a character; write the text in UTF-8"
        ) from None


def columns_of(path: Path) -> list[str]:
    """The header of a .csv file, or of a tab-separated one; raises InputError as `read_text`."""
    if path.suffix == ".csv":
        return next(csv.reader(io.StringIO(read_text(path), newline="")))
    return lines_of(path)[0].split("\t")


def run_together(names: Sequence[str]) -> str:
    """What to say of a header whose only name holds what separates the columns of other files; empty for any other."""
    if len(names) == 1:
        for mark, called in ((";", "semicolons"), ("\t", "tabs"), (",", "commas")):
            if mark in names[0]:
                return f"; its columns look separated by {called}: save a .csv with commas, a .tsv with tabs"
    return ""


def _require(path: str | Path, columns: Sequence[str], names: Sequence[str]) -> None:
    """Raises InputError unless every column is among the header's names once."""
    for column in columns:
        if column not in names:
            raise InputError(
                f"{path}, line 1: no column {column!r}; the header has {', '.join(names)}{run_together(names)}"
            )
        if names.count(column) > 1:
            raise InputError(
                f"{path}, line 1: {names.count(column)} columns are called {column!r}; rename all but one"
            )


def read_json_lines(path: Path, texts: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file of JSON lines, each after its file and line; each has a text in every field of `texts`.

    Raises:
        InputError: A line is not JSON, not an object, or has no such text.
    """
    for number, line in enumerate(lines_of(path), 1):
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{where}: not valid JSON ({error.msg})") from None
        except (ValueError, RecursionError):
            # Python refuses numbers of thousands of digits and brackets thousands deep.
            raise InputError(f"{where}: a number too long, or too many brackets") from None
        if "\\u" in line:
            refuse_halves(where, row)
        for name in texts:
            if not isinstance(row, dict) or not isinstance(row.get(name), str):
                raise InputError(f"{where}: no text in field {name!r}")
        yield where, row
