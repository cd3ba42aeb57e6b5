"""Texts of a data set that Hugging Face's `datasets` reads, a hub id or a folder; streamed, never held in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from groundling.core.errors import InputError, convert_errors, require_known
from groundling.data.tables import import_optional

PREFIX = "datasets:"
COLUMNS = ("text", "caption", "sentence")
"""Names of the column of texts, the likeliest first."""


class HubDataset(NamedTuple):
    """A data set, and what is read of it."""

    name: str
    """Hub id, or folder of data files."""
    config: str
    """Configuration; empty: the only one."""
    split: str


def is_hub_dataset(source: object) -> bool:
    """Whether a source is `datasets:NAME`, `datasets:NAME:CONFIG` or `datasets:NAME:CONFIG:SPLIT`."""
    return str(source).startswith(PREFIX)


def parse_hub_dataset(source: object) -> HubDataset:
    """The data set of a source, by default the split `train`; raises InputError for too many parts."""
    name, *rest = str(source).removeprefix(PREFIX).split(":")
    if not name or len(rest) > 2:
        raise InputError(
            f"{source}: expected {PREFIX}NAME, {PREFIX}NAME:CONFIG or {PREFIX}NAME:CONFIG:SPLIT"
        )
    config, split = (*rest, "", "")[:2]
    return HubDataset(name, config, split or "train")


def hub_dataset_identity(source: object) -> str:
    """What changes with the data set's content: the library's hash of its builder and files."""
    given = parse_hub_dataset(source)
    library: Any = import_optional("datasets", Path(str(source)), "hub")
    with convert_errors(f"{source}: cannot be read"):
        builder = library.load_dataset_builder(given.name, given.config or None)
        return f"{builder.hash}-{builder.config.create_config_id({})}-{given.split}"


def hub_dataset_texts(source: object, column: str = "") -> Iterator[str]:
    """The texts of a data set, row by row, of a `column` or of the first of `COLUMNS`; no code of it runs."""
    given = parse_hub_dataset(source)
    library: Any = import_optional("datasets", Path(str(source)), "hub")
    with convert_errors(f"{source}: cannot be read"):
        rows = library.load_dataset(
            given.name, given.config or None, split=given.split, streaming=True
        )
        names = rows.column_names or list(next(iter(rows), {}))
        chosen = column or next((name for name in COLUMNS if name in names), COLUMNS[0])
        require_known(chosen, names, f"{source}: no column {chosen!r}")
        for number, row in enumerate(rows.select_columns(chosen)):
            text = row[chosen]
            if not isinstance(text, str | None):
                raise InputError(
                    f"{source}, row {number}: column {chosen!r} holds {text!r:.40}, expected text"
                )
            yield text or ""
