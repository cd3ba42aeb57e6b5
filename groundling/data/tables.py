"""Reads text files, and rows with named columns from csv, tsv, json, jsonl and parquet files."""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any, cast

from groundling.core.errors import (
    InputError,
    convert_errors,
    convert_read_errors,
    require_known,
    require_nonempty,
)
from groundling.runs.folder import STATES, decoded_json, input_state, read_json
from groundling.settings.input_settings import TableTaskSettings

TABLES = (".csv", ".tsv")
"""Endings of tables, whose first line names the columns."""
ROWS = (*TABLES, ".jsonl")
"""Endings of files with one row of named columns or fields per line."""
DATA_FILES = (*ROWS, ".json")
"""The same, and .json, which holds a list of such objects."""
PARQUET = ".parquet"
SEPARATORS = (",", ";", "\t")
"""Possible separators of columns."""

# -- text --------------------------------------------------------------------------------------------------------------


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file, without a byte-order mark."""
    path = Path(path)
    with convert_read_errors(path):
        text = path.read_bytes().decode("utf-8-sig")
    if not text.strip():
        raise InputError(f"{path}: the file is empty")
    return text


def lines_of(path: str | Path) -> list[str]:
    """Lines of a text file, split at newlines only (other separators occur inside sentences)."""
    return _split_lines(read_text(path))


def iterate_lines(path: Path) -> Iterator[str]:
    """As `lines_of`, also of compressed text (.gz, .zst), without holding the file in memory."""
    line = None
    with convert_read_errors(path), _opened(path) as stream:
        for number, raw in enumerate(stream, 1):
            with convert_read_errors(f"{path}, line {number}"):
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            yield line.removesuffix("\n").removesuffix("\r")
    if line is None:
        raise InputError(f"{path}: the file is empty")


def _opened(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path))
    if path.suffix == ".zst":  # the standard library's reader of cut files raises no error
        arrow: Any = import_optional("pyarrow", path)
        return cast(IO[bytes], io.BufferedReader(arrow.input_stream(path, compression="zstd")))
    return path.open("rb")


def _split_lines(text: str) -> list[str]:
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


# -- rows --------------------------------------------------------------------------------------------------------------

Row = tuple[str, dict[str, Any]]
"""File and line of a row, for messages; and its values by column. Those of csv and tsv are texts."""


def read_rows(
    path: str | Path,
    columns: Sequence[str] = (),
    *,
    names: Sequence[str] = (),
    short: list[str] | None = None,
) -> Iterator[Row]:
    """Rows of a csv, tsv, json (a list of objects), jsonl or parquet file that have all of `columns`.

    `names`: of all columns, for a table without a header. `short` receives the places of table rows with too few
    fields, which are skipped (as in every QQP reader); without it, such rows raise an error. Quotes in a tsv are
    text.
    """
    path = Path(path)
    if path.suffix not in (".json", ".jsonl", PARQUET):
        yield from _table_rows(path, columns, names, short)
        return
    rows = {".json": _json_entries, ".jsonl": read_json_lines, PARQUET: parquet_rows}[path.suffix]
    for where, row in rows(path):
        for name in columns:
            if row.get(name) is None:
                raise InputError(f"{where}: no field {name!r}")
        yield where, row


def read_header(path: Path) -> list[str]:
    """The names of a table's columns, or of the fields of the first object."""
    if path.suffix not in (".json", ".jsonl", PARQUET):
        return next(_table_lines(path), (0, []))[1]
    return list(next(read_rows(path), ("", {}))[1])


def read_all_columns(path: Path, columns: Sequence[str] = ()) -> tuple[list[str], list[Row]]:
    """The names of all columns, and the rows as from `read_rows`; raises InputError if there are none."""
    rows = list(read_rows(path, columns))
    require_nonempty(rows, f"{path}: the file has no rows")
    return list(dict.fromkeys(name for _, row in rows for name in row)), rows


def _table_rows(
    path: Path, columns: Sequence[str], names: Sequence[str], short: list[str] | None
) -> Iterator[Row]:
    lines = _table_lines(path, has_header=not names)
    header = list(names) or next(lines, (0, []))[1]
    for name in columns or header:
        require_known(name, header, f"{path}: no column {name!r}")
        if header.count(name) > 1:
            raise InputError(f"{path}: {header.count(name)} columns are called {name!r}")
    for number, fields in lines:
        where = f"{path}, line {number}"
        if len(fields) == len(header):
            yield where, dict(zip(header, fields, strict=True))
        elif short is not None and len(fields) < len(header):
            short.append(where)
        else:
            raise InputError(f"{where}: {len(fields)} fields, expected {len(header)}")


def _table_lines(path: Path, has_header: bool = True) -> Iterator[tuple[int, list[str]]]:
    usual = "," if path.suffix == ".csv" else "\t"
    text = read_text(path)
    header = text.partition("\n")[0] if has_header else usual
    best = max(SEPARATORS, key=header.count)
    separator = usual if usual in header or best not in header else best
    if separator == usual == "\t":
        lines = enumerate(_split_lines(text), 1)
        yield from ((number, line.split("\t")) for number, line in lines if line)
        return
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}") from None


def _json_entries(path: Path) -> Iterator[Row]:
    entries = read_json(path)
    if not isinstance(entries, list):
        raise InputError(f"{path}: expected a list of objects")
    for number, entry in enumerate(entries):
        yield _object(f"{path}, entry {number}", entry)


def _object(where: str, row: object) -> Row:
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected an object")
    return where, row


def read_json_lines(path: Path, texts: Sequence[str] = ()) -> Iterator[Row]:
    """The objects of a file with one in each line, each with a text in every field of `texts`."""
    for number, line in enumerate(iterate_lines(path), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        _, row = _object(where, decoded_json(where, line))
        for name in texts:
            if not isinstance(row.get(name), str):
                raise InputError(f"{where}: no text in field {name!r}")
        yield where, row


def parquet_rows(path: Path, columns: Sequence[str] = ()) -> Iterator[Row]:
    """Rows of a parquet file, read in batches; all columns, or some."""
    parquet: Any = import_optional("pyarrow.parquet", path)
    number = 0
    with convert_errors(f"{path}: cannot be read"), parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(4096, columns=list(columns) or None):
            for row in batch.to_pylist():
                yield f"{path}, row {number}", row
                number += 1


def import_optional(name: str, path: Path, extra: str = "corpora") -> ModuleType:
    """A library that only some files need; raises InputError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise InputError(f"{path}: needs {package}; pip install 'groundling[{extra}]'") from None


def row_texts(row: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    """Some values of a row, as texts as in a csv."""
    texts = []
    for name in columns:
        value = row.get(name)
        # In Python, a bool is an int.
        is_cell = isinstance(value, str | int | float) and not isinstance(value, bool)
        if not is_cell or (isinstance(value, float) and not math.isfinite(value)):
            raise InputError(f"field {name!r} is {value!r:.40}; expected a text or a number")
        texts.append(value if isinstance(value, str) else json.dumps(value))
    return texts


# -- settings that name columns ----------------------------------------------------------------------------------------


def user_columns(options: TableTaskSettings) -> tuple[tuple[str, ...], dict[str, str]]:
    """The one or two text columns, and all columns that a task from the user's own file reads, with their contents."""
    texts = tuple(text_columns(options.text, "text"))
    check_no_label(texts, options.label, f"text {options.text}")
    if options.group and options.dev:
        raise InputError("group is for held-out rows, of which a dev file leaves none")
    expected = dict.fromkeys(texts, "a text")
    expected[options.label] = "a label"
    if options.image:
        expected[options.image] = "an image file"
    if options.group:
        expected.setdefault(options.group, "a group")  # may also be a text column
    return texts, expected


def split_columns(columns: str) -> list[str]:
    """The column names in a comma-separated list."""
    return [name.strip() for name in columns.split(",") if name.strip()]


def text_columns(columns: str, setting: str) -> list[str]:
    """The one or two text columns that a setting lists."""
    names = split_columns(columns)
    if len(names) not in (1, 2):
        raise InputError(f"{setting}={columns}: expected one column, or two separated by a comma")
    return names


def check_no_label(texts: Sequence[str], label: str, setting: str) -> None:
    """Raises InputError if a text column that a setting names is also the label column."""
    if label in texts:
        raise InputError(f"{setting}: column {label!r} is the label and must not be an input")


# -- data sets of Hugging Face's `datasets`, a hub id or a folder; streamed, never held in memory ----------------------

HUB_PREFIX = "datasets:"
SAVED = ("state.json", "dataset_dict.json")
"""Files of a folder written by the library's save_to_disk, in a format of its own."""
TEXT_COLUMNS = ("text", "caption", "sentence")
"""Names of the column of texts, the likeliest first."""


def is_hub_dataset(source: object) -> bool:
    """Whether a source is `datasets:NAME`, `datasets:NAME:CONFIG` or `datasets:NAME:CONFIG:SPLIT`."""
    return str(source).startswith(HUB_PREFIX)


def _hub_parts(source: object) -> tuple[str, str | None, str]:
    name, *rest = str(source).removeprefix(HUB_PREFIX).split(":")
    if not name or len(rest) > 2:
        raise InputError(
            f"{source}: expected {HUB_PREFIX}NAME, {HUB_PREFIX}NAME:CONFIG or {HUB_PREFIX}NAME:CONFIG:SPLIT"
        )
    if any((Path(name) / file).is_file() for file in SAVED):
        raise InputError(
            f"{name}: written by save_to_disk; load_from_disk(FOLDER).to_parquet(FILE) writes what can be read"
        )
    config, split = (*rest, "", "")[:2]
    return name, config or None, split or "train"


def hub_dataset_identity(source: object) -> str:
    """What changes with the data set's content: the library's hash of its builder and files, and of a folder ours.

    The library knows a local file by its time alone, which unpacking an archive may set.
    """
    name, config, split = _hub_parts(source)
    library: Any = import_optional("datasets", Path(str(source)), "hub")
    with convert_errors(f"{source}: cannot be read"):
        builder = library.load_dataset_builder(name, config)
        identity = f"{builder.hash}-{builder.config.create_config_id({})}-{split}"
    files = input_state(str(source))
    return "-".join([identity, *(str(files[kind]) for kind in STATES if kind in files)])


def hub_dataset_texts(source: object, column: str = "") -> Iterator[str]:
    """The texts of a data set, row by row, of a `column` or of the first of `TEXT_COLUMNS`; no code of it runs."""
    name, config, split = _hub_parts(source)
    library: Any = import_optional("datasets", Path(str(source)), "hub")
    with convert_errors(f"{source}: cannot be read"):
        rows = library.load_dataset(name, config, split=split, streaming=True)
        names = rows.column_names or list(next(iter(rows), {}))
        chosen = column or next((name for name in TEXT_COLUMNS if name in names), TEXT_COLUMNS[0])
        require_known(chosen, names, f"{source}: no column {chosen!r}")
        for number, row in enumerate(rows.select_columns(chosen)):
            text = row[chosen]
            if not isinstance(text, str | None):
                raise InputError(
                    f"{source}, row {number}: column {chosen!r} holds {text!r:.40}, expected text"
                )
            yield text or ""
