"""A few hundred damaged files, evenly over all readers; by hand, `python -m tests.fuzz --n 10000` tries any number."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import mutations
import pytest
import readers
import trials

EACH = 3
"""Mutations of every reader: that a file is gone, and two others."""


def test_damaged_files_are_refused_or_read_as_before(tmp_path: Path) -> None:
    names = list(readers.readers(readers.LazyFixture(tmp_path)))
    counts, findings = trials.run(names, EACH, 16, tmp_path)
    assert findings == []
    assert counts.total() == EACH * len(names)
    assert {"as before", "refused"} <= set(counts) <= set(trials.FINE)


def imports_what_it_reads(place: Path) -> object:
    module, _, _ = json.loads((place / "a.json").read_text())["kind"].partition(":")
    return import_module(module).__name__


def reads_numbers_anyhow(place: Path) -> object:
    return str(json.loads((place / "a.json").read_text())["size"])


FINDINGS = {
    "code ran": (imports_what_it_reads, mutations.a_foreign_name),
    "silent damage": (reads_numbers_anyhow, mutations.not_a_number),
    "traceback": (reads_numbers_anyhow, mutations.cut),
}


@pytest.mark.parametrize("kind", FINDINGS)
def test_a_careless_reader_is_found(kind: str, tmp_path: Path) -> None:
    read, change = FINDINGS[kind]
    reader = readers.Reader(readers.written("a.json", '{"kind": "json:THING", "size": 1}'), read)
    with trials.planted(tmp_path / "work"):
        (finding,) = trials.Bench("one", reader, tmp_path / "bench").fuzz(200, 0, change).findings
    assert finding.startswith(f"{kind}: one ")
