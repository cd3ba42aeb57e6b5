"""Strict readers of tab- and comma-separated files and of JSON.

A row that lacks a field is an error that names its line.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from groundling.core.errors import InputError, convert_read_errors, prefix_errors, require_known
from groundling.runs.folder import decoded_json
from groundling.settings.input_settings import TableTaskSettings

TABLES = (".csv", ".tsv")
"""Endings of tables, whose first line names the columns."""
ROWS = (*TABLES, ".jsonl")
"""Endings of files with one row of named columns or fields per line."""
DATA_FILES = (*ROWS, ".json")
"""The same, and .json, which holds a list of such objects."""
BLOCK = 1 << 20
"""Number of bytes read at a time."""
ZERO_BYTE = "a zero byte; the file is damaged, or not text in UTF-8"
OLD_MAC = "lines end in carriage returns alone (old Mac); convert the file to newlines"


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file, without a byte-order mark.

    Raises:
        InputError: the file is missing, empty, not UTF-8, or contains zero bytes.
    """
    path = Path(path)
    with convert_read_errors(path):
        raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise describe_bad_utf8(path, raw, error.start) from None
    if "\0" in text:  # UTF-16, a binary file, or a file damaged by a power failure
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InputError(f"{path}, line {line}: {ZERO_BYTE}")
    if not text.strip():
        raise InputError(f"{path}: the file is empty")
    return text


def describe_bad_utf8(path: Path, raw: bytes, place: int, before: int = 0) -> InputError:
    """The message for a byte that is not UTF-8 at a position.

    `before`: number of the file's lines before `raw`.
    """
    line = before + raw.count(b"\n", 0, place) + 1
    return InputError(
        f"{path}, line {line}: not UTF-8 (byte 0x{raw[place]:02x}); save it as UTF-8, or convert a file "
        "from Windows with `iconv -f WINDOWS-1252 -t UTF-8`"
    )


def lines_of(path: str | Path) -> list[str]:
    """Lines of a text file, split at newlines only (other separators occur inside sentences).

    Raises:
        InputError: as `read_text`, or lines end in carriage returns alone, which
            would make the file one line.
    """
    text = read_text(path)
    if "\n" not in text and "\r" in text.rstrip("\r"):
        raise InputError(f"{path}: {OLD_MAC}")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def text_lines(path: str | Path, newline: str = "\n") -> Iterator[str]:
    """Iterate over the lines of a UTF-8 file, with their ends, so that a large
    file needs little memory.

    `newline` is passed to `open`: lines end at newlines only or, if it is empty,
    also at carriage returns.

    Raises:
        InputError: as `read_text`, at the faulty line.
    """
    path = Path(path)
    _refuse_blank(path)
    with convert_read_errors(path), path.open(encoding="utf-8-sig", newline=newline) as file:
        try:
            for number, line in enumerate(file, 1):
                if "\0" in line:
                    raise InputError(f"{path}, line {number}: {ZERO_BYTE}")
                yield line
        except UnicodeDecodeError:
            raise _wrong_byte(path) from None


def _refuse_blank(path: Path) -> None:
    """Raises InputError for a file that is missing, cannot be read, or contains only white space."""
    with convert_read_errors(path), path.open("rb") as file:
        while block := file.read(BLOCK):
            if block.removeprefix(b"\xef\xbb\xbf").strip():
                return
    raise InputError(f"{path}: the file is empty")


def _wrong_byte(path: Path) -> InputError:
    """The message for a file that is not UTF-8: its first line that is not, and the byte."""
    with convert_read_errors(path), path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return describe_bad_utf8(path, line, error.start, number - 1)
    return InputError(f"{path}: not UTF-8; convert the file")


# -- columns -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableDialect:
    """How the columns of a table are separated."""

    separator: str
    """The character between two values."""
    quoted: bool
    """Whether values may be quoted as in RFC 4180; otherwise a quote is part of the text."""

    def names(self, line: str) -> list[str]:
        """The values of a line; empty if a csv cannot hold them, such as a name of 200,000 letters."""
        if not self.quoted:
            return line.split(self.separator)
        try:
            return next(csv.reader([line], delimiter=self.separator), [])
        except csv.Error:
            return []


SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
"""Possible separators, and their names in messages."""
TABS = TableDialect("\t", quoted=False)
"""The dialect of a .tsv file."""
COMMAS = TableDialect(",", quoted=True)
"""The dialect of a .csv file."""


def detect_dialect(header: str, usual: TableDialect) -> TableDialect:
    """The dialect of a table, from its first line and the default for its ending.

    If the default separator does not split the header, another one that does is used: Excel writes
    semicolons where numbers have decimal commas.
    """
    if len(usual.names(header)) > 1:
        return usual
    others = [TableDialect(mark, quoted=True) for mark in SEPARATORS if mark != usual.separator]
    best = max(others, key=lambda other: len(other.names(header)))
    return best if len(best.names(header)) > 1 else usual


def default_dialect(path: Path) -> TableDialect:
    """The default dialect for a file's ending."""
    return TABS if path.suffix == ".tsv" else COMMAS


def separator_note(path: Path) -> str:
    """A note on a table whose separator is not the default; empty for any other file.

    Raises InputError as `read_text`.
    """
    if path.suffix in DATA_FILES and path.suffix not in TABLES:
        return ""
    usual = default_dialect(path)
    found = detect_dialect(_first_line(path), usual)
    if found == usual:
        return ""
    called = SEPARATORS[found.separator]
    return f"{path}: its columns are separated by {called}, as its first line shows"


def _first_line(path: Path) -> str:
    return next(text_lines(path, "")).rstrip("\r\n")


def read_header(path: Path) -> list[str]:
    """The header of a .csv file, or of a tab-separated one; raises InputError as `read_text`."""
    _, names = next(_rows(path, detect_dialect(_first_line(path), default_dialect(path))))
    return names


def read_tsv(
    path: str | Path, columns: Sequence[str], header: bool = True, short: list[int] | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a TSV with quoting off, as (line number, {column: value}).

    Args:
        path: the file.
        columns: required columns, each of which must occur once; without a header, the
            names of all fields in order.
        header: whether the first line names the columns; if it is not separated by tabs, the file
            is read as by `read_csv`.
        short: receives the lines of rows with too few fields, which are skipped (as in every QQP
            reader); without it, such rows raise an error.

    Raises:
        InputError: the file cannot be read, a column is missing or occurs twice, or a row's
            number of fields differs from the header's: a tab too many or too few would shift its
            values into other columns.
    """
    path = Path(path)
    dialect = detect_dialect(_first_line(path), TABS) if header else TABS
    return _by_name(columns, _values(path, columns, dialect, header, short))


def read_csv(path: str | Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of an RFC-4180 CSV with a header, as (line number, {column: value}).

    Semicolons or tabs as separators are detected.

    Args:
        path: the file.
        columns: required columns, each of which must occur once.

    Raises:
        InputError: the file cannot be read, a column is missing or occurs twice, or a row
            is too short or too long.
    """
    path = Path(path)
    return _by_name(columns, _values(path, columns, detect_dialect(_first_line(path), COMMAS)))


def _by_name(
    columns: Sequence[str], rows: Iterator[tuple[int, list[str]]]
) -> Iterator[tuple[int, dict[str, str]]]:
    for line, values in rows:
        yield line, dict(zip(columns, values, strict=True))


def table_values(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Rows as from `read_tsv` for a .tsv file and `read_csv` for any other, as values
    in the order of `columns`.
    """
    return _values(path, columns, detect_dialect(_first_line(path), default_dialect(path)))


def _values(
    path: Path,
    columns: Sequence[str],
    dialect: TableDialect,
    header: bool = True,
    short: list[int] | None = None,
) -> Iterator[tuple[int, list[str]]]:
    rows = _rows(path, dialect)
    names = list(columns)
    if header:
        _, names = next(rows)
        _require(path, columns, names)
    places = [names.index(name) for name in columns]
    width = len(names)
    for line, fields in rows:
        if len(fields) != width:
            if short is not None and len(fields) < width:
                short.append(line)
                continue
            raise InputError(f"{path}, line {line}: {_wrong_count(len(fields), names, dialect)}")
        yield line, [fields[place] for place in places]


def _wrong_count(fields: int, names: Sequence[str], dialect: TableDialect) -> str:
    """The message for a row whose number of fields differs from the header's."""
    if not dialect.quoted:
        return f"{fields} fields, expected {len(names)}; a tab separates columns and cannot be part of a text"
    if fields < len(names):
        return f"no value for column {names[fields]!r}; the row has {fields} of {len(names)} values"
    mark = SEPARATORS[dialect.separator].removesuffix("s")
    return f"{fields} values for {len(names)} columns; a {mark} inside a value needs quotes"


def _rows(path: Path, dialect: TableDialect) -> Iterator[tuple[int, list[str]]]:
    """All rows of a table, the header included, each with its line number."""
    if dialect.quoted:
        return _quoted_rows(path, dialect.separator)
    return _plain_rows(path, dialect.separator)


def _plain_rows(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text_lines(path), 1):
        whole = line.removesuffix("\n")
        if number == 1 and whole == line and "\r" in line.rstrip("\r"):
            raise InputError(f"{path}: {OLD_MAC}")
        yield number, whole.removesuffix("\r").split(separator)


def _quoted_rows(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Rows of RFC 4180, each with the number of its last line; empty lines are skipped."""
    reader = csv.reader(text_lines(path, ""), delimiter=separator, strict=True)
    first = 1
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
            first = reader.line_num + 1
    except csv.Error as error:
        raise InputError(_wrong_quotes(path, separator, first, reader.line_num, error)) from None


def _wrong_quotes(path: Path, separator: str, first: int, last: int, error: csv.Error) -> str:
    """The message for a faulty row from line `first` to `last`: the quote
    that is not closed correctly.

    Everything after an unclosed quote belongs to one value, until a later quote is invalid
    or the value is too long.
    """
    opened = 0
    inside = False
    doubled = False
    at_start = True
    for number, line in islice(enumerate(text_lines(path, ""), 1), first - 1, last):
        for mark, after in zip(line, [*line[1:], ""], strict=True):
            if not inside:
                inside = at_start and mark == '"'
                opened = number if inside else opened
                at_start = mark == separator or mark in "\r\n"
            elif doubled:
                doubled = False
            elif mark == '"' and after == '"':
                doubled = True
            elif mark == '"':
                inside = False
                if after not in (separator, "\r", "\n", ""):
                    return (
                        f"{path}, line {opened}: the quote that opens here closes in line {number}, but the value "
                        'continues; close it at the end, or write a quote inside a value twice ("")'
                    )
    if inside:
        return f"{path}, line {opened}: the quote that opens here is still open in line {last}; close it"
    return f"{path}, line {last}: a cell is too long ({error})"


def check_surrogates(where: str, parsed: object) -> None:
    """Raises InputError if parsed JSON contains half of a surrogate pair, which is not a character."""
    try:
        json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise InputError(
            f"{where}: {half!a} is an unpaired surrogate; write the text in UTF-8"
        ) from None


def _require(path: str | Path, columns: Sequence[str], names: Sequence[str]) -> None:
    """Raises InputError unless every column occurs in the header once."""
    for column in columns:
        if column not in names:
            raise InputError(
                f"{path}, line 1: no column {column!r}; the header has {', '.join(names)}"
            )
        if names.count(column) > 1:
            raise InputError(
                f"{path}, line 1: {names.count(column)} columns are called {column!r}; rename all but one"
            )


def read_json_lines(path: Path, texts: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON-lines file, each with its file and line.

    Each has a text in every field of `texts`.

    Raises:
        InputError: A line is not JSON, not an object, or has no such text.
    """
    for number, line in enumerate(lines_of(path), 1):
        where = f"{path}, line {number}"
        row = decoded_json(where, line, line=True)
        if "\\u" in line:
            check_surrogates(where, row)
        for name in texts:
            if not isinstance(row, dict) or not isinstance(row.get(name), str):
                raise InputError(f"{where}: no text in field {name!r}")
        yield where, row


# -- rows by column name -----------------------------------------------------------------------------------------------


class RowPosition(NamedTuple):
    """The position of a row; as a text, which is made only when a message
    needs it, its file and line.
    """

    path: Path
    unit: str
    """Unit of the number: line, or entry of a list."""
    number: int

    def __str__(self) -> str:
        return f"{self.path}, {self.unit} {self.number}"


def row_position(path: Path, number: int) -> RowPosition:
    """The position of a row from `read_rows`."""
    return RowPosition(path, "entry" if path.suffix == ".json" else "line", number)


class TableRow(Mapping[str, str]):
    """A row of a table, by column; all rows share the names of the columns, which saves
    memory for a million rows.
    """

    __slots__ = ("position_of", "values_in_order")

    def __init__(self, position_of: Mapping[str, int], values: tuple[str, ...]) -> None:
        self.position_of = position_of
        self.values_in_order = values

    def __getitem__(self, name: str) -> str:
        return self.values_in_order[self.position_of[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.position_of)

    def __len__(self) -> int:
        return len(self.position_of)


def read_rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """Rows as (number of the line or entry, texts of `columns`) of a .csv, .tsv,
    .json (a list) or .jsonl file.

    Raises:
        InputError: another ending, a column that is missing or occurs twice, or a value that
            is neither text nor number.
    """
    if path.suffix in TABLES:
        yield from table_values(path, columns)
        return
    for number, item in _objects(path):
        if not isinstance(item, dict):
            where = row_position(path, number)
            raise InputError(f"{where}: no field {columns[0]!r}; expected an object")
        with prefix_errors(row_position(path, number)):
            yield number, row_texts(item, columns)


def user_columns(options: TableTaskSettings) -> tuple[tuple[str, ...], dict[str, str]]:
    """The one or two text columns, and all columns that a task from the user's own file
    reads, with their contents.

    Raises InputError for columns that conflict.
    """
    text_columns = tuple(name.strip() for name in options.text.split(",") if name.strip())
    if len(text_columns) not in (1, 2):
        raise InputError("your own file needs --text COLUMN or --text FIRST,SECOND besides --label")
    if options.group and options.dev:
        raise InputError(
            f"--group {options.group} groups the held-out rows, but with --dev {options.dev} no rows are held out; "
            "leave one of them out"
        )
    check_no_label(text_columns, options.label, f"--text {options.text}")
    expected = dict.fromkeys(text_columns, "a text")
    expected[options.label] = "a label"
    if options.image:
        expected[options.image] = "an image file"
    if options.group:
        expected.setdefault(options.group, "a group")  # may also be a text column
    return text_columns, expected


def check_one_or_two(texts: Sequence[str], flag: str) -> None:
    """Raises InputError unless a flag names one or two text columns."""
    if len(texts) not in (1, 2):
        raise InputError(f"{flag}: expected one column, or two separated by a comma")


def check_no_label(texts: Sequence[str], label: str, flag: str) -> None:
    """Raises InputError if a text column that a flag names is also the label column."""
    if label in texts:
        raise InputError(
            f"{flag}: column {label!r} is the label and must not be part of the input; leave it out"
        )


def check_columns(path: Path, columns: Sequence[str]) -> None:
    """Raises InputError as `read_rows`, as far as the file's header or first row shows the fault."""
    next(read_rows(path, tuple(columns)), None)


def check_named_columns(
    path: Path, header: Sequence[str], columns: Mapping[str, str], prefix: str
) -> None:
    """Raises InputError if a setting names a column, or one of several separated by
    commas, that the header lacks.

    `columns`: values of settings, by the name of the setting, which messages write after `prefix`.
    """
    for setting, listed in columns.items():
        for name in filter(None, map(str.strip, listed.split(","))):
            advice = f"; name the column with {prefix}{setting}"
            require_known(name, header, f"{path}: no column {name!r}", advice)


def read_all_columns(
    path: Path, columns: Sequence[str]
) -> tuple[list[str], list[tuple[RowPosition, Mapping[str, Any]]]]:
    """The names of all columns, and each row with its file and line, from
    the same files as `read_rows`.

    Values are texts; values from JSON keep their type. Raises InputError as `read_rows`, if no
    row has one of `columns`, and for a file without rows; the types of JSON values are not
    checked (see `row_texts`).
    """
    if path.suffix in TABLES:
        header = read_header(path)
        _require_columns(path, columns, header)
        position_of = {name: place for place, name in enumerate(header)}
        rows: list[tuple[RowPosition, Mapping[str, Any]]] = [
            (row_position(path, number), TableRow(position_of, tuple(values)))
            for number, values in read_rows(path, tuple(header))
        ]
    else:
        rows = []
        for number, item in _objects(path):
            where = row_position(path, number)
            if not isinstance(item, dict):
                raise InputError(f"{where}: expected an object")
            rows.append((where, item))
        header = list(dict.fromkeys(name for _, row in rows for name in row))
        if rows:
            _require_columns(path, columns, header)
    if not rows:
        raise InputError(f"{path}: the file has no rows")
    return header, rows


def _require_columns(path: Path, columns: Sequence[str], header: Sequence[str]) -> None:
    for name in columns:
        require_known(name, header, f"{path}: no column {name!r}")


def _objects(path: Path) -> Iterator[tuple[int, object]]:
    """The entries of a .json or .jsonl file, each with its number."""
    if path.suffix == ".json":
        return _entries(path)
    if path.suffix == ".jsonl":
        return _lines(path)
    raise InputError(f"{path}: expected a .csv, .tsv, .json or .jsonl file")


def _entries(path: Path) -> Iterator[tuple[int, object]]:
    content = _parsed(path, read_text(path))
    if not isinstance(content, list):
        raise InputError(f"{path}: expected a list of objects")
    yield from enumerate(content)


def _lines(path: Path) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(lines_of(path), 1):
        if line.strip():
            yield number, _parsed(row_position(path, number), line, line=True)


def _parsed(where: object, text: str, line: bool = False) -> object:
    def once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
        names = Counter(name for name, _ in pairs)
        for name, count in names.items():
            if count > 1:
                raise InputError(f"{where}: {count} fields are called {name!r}; rename all but one")
        return dict(pairs)

    decode = partial(json.loads, object_pairs_hook=once_each)
    parsed: object = decoded_json(where, text, decode, line)
    if "\\u" in text:
        check_surrogates(str(where), parsed)
    return parsed


def row_texts(row: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    """Some fields of a row, as texts as in a csv.

    Raises InputError, without the place, for other types.
    """
    return [_cell(name, row.get(name)) for name in columns]


def _cell(name: str, value: object) -> str:
    if value is None:
        raise InputError(f"no field {name!r}")
    if isinstance(value, str):
        return value
    # In Python, a bool is an int.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and not math.isfinite(value)):
        what = json.dumps(value)[:40]
        raise InputError(f"field {name!r} is {what}; expected a text or a number")
    return json.dumps(value)
