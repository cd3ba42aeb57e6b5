"""A few hundred damaged files, evenly over all readers; by hand, `python -m tests.fuzz --n 10000` tries any number.

Each of the other tests is a class of findings of the fuzzer's, once mended.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path

import mutations
import readers
import trials

SEED = 16
EACH = 2
"""Mutations of every reader."""


def test_damaged_files_are_refused_or_read_as_before(tmp_path: Path) -> None:
    names = list(readers.readers(readers.LazyFixture(tmp_path)))
    outcomes = trials.run(names, range(EACH), SEED, tmp_path)
    assert len(outcomes) == EACH * len(names)
    assert [str(outcome) for outcome in outcomes if outcome.is_finding] == []
    assert {"as before", "refused"} <= {outcome.what for outcome in outcomes} <= set(trials.FINE)


def _imports_what_it_reads(place: Path) -> object:
    return import_module(
        json.loads((place / "a.json").read_text())["kind"].partition(":")[0]
    ).__name__


def test_code_that_a_file_names_and_that_runs_is_a_finding(tmp_path: Path) -> None:
    reader = readers.Reader(
        readers.written("a.json", '{"kind": "json:THING"}'), _imports_what_it_reads, checked=False
    )
    outcomes = _tried(reader, tmp_path, mutations.a_foreign_name)
    assert "code ran" in {outcome.what for outcome in outcomes}


def _tried(
    reader: readers.Reader, folder: Path, change: mutations.Change
) -> list[trials.MutationOutcome]:
    """What came of mutations of one kind, with a module planted that anybody can import."""
    folder.mkdir(exist_ok=True)
    path, here = list(sys.path), Path.cwd()
    trials.plant(folder)
    try:
        bench = trials.Bench("one", reader, folder / "bench", SEED)
        numbers = [n for n in range(400) if bench.mutation(n)[1].name == change.__name__]
        return [bench.tried(number) for number in numbers]
    finally:
        sys.path[:] = path
        os.chdir(here)
