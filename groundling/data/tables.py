"""Tab- and comma-separated files, read strictly: a row with missing fields is an error that names its line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from groundling.errors import InputError


def read_text(path: str | Path) -> str:
    """A UTF-8 file (a byte-order mark is dropped); raises InputError if it is missing, empty or not UTF-8."""
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
    if not text.strip():
        raise InputError(f"{path}: the file is empty")
    return text


def lines_of(path: str | Path) -> list[str]:
    """Lines of a text file, split at newlines only (other separators occur inside real sentences)."""
    lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def read_tsv(
    path: str | Path, columns: Sequence[str], header: bool = True, skip_short: bool = False
) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a TSV with quoting off, as (line number, {column: value}); `columns` must be there.

    Without a header, `columns` names the fields in order. A row with too few fields raises InputError, or is left out
    with `skip_short` (the rule of every QQP reader; callers count what is missing).
    """
    lines = lines_of(path)
    names = lines[0].split("\t") if header else list(columns)
    missing = [c for c in columns if c not in names]
    if missing:
        raise InputError(
            f"{path}, line 1: no column {missing[0]!r}; the header has {', '.join(names)}"
        )
    place = {name: names.index(name) for name in columns}
    needed = max(place.values()) + 1
    for number, line in enumerate(lines[1:] if header else lines, start=2 if header else 1):
        fields = line.split("\t")
        if len(fields) < needed:
            if skip_short:
                continue
            raise InputError(
                f"{path}, line {number}: {len(fields)} fields, expected at least {needed}"
            )
        yield number, {name: fields[at] for name, at in place.items()}


def read_csv(path: str | Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of an RFC-4180 CSV with a header, as (line number, {column: value}); `columns` must be there."""
    text = read_text(path)
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        names = reader.fieldnames or []
        missing = [c for c in columns if c not in names]
        if missing:
            raise InputError(
                f"{path}, line 1: no column {missing[0]!r}; the header has {', '.join(names)}"
            )
        for row in reader:
            absent = [c for c in columns if row[c] is None]
            if absent:
                raise InputError(
                    f"{path}, line {reader.line_num}: no value for column {absent[0]!r}"
                )
            if None in row:
                about = f"{len(names) + len(row[None])} values for {len(names)} columns"
                raise InputError(
                    f"{path}, line {reader.line_num}: {about}; a comma inside a value needs quotes"
                )
            yield reader.line_num, {c: row[c] for c in columns}
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num + 1}: quotes are not in order ({error})"
        ) from None
