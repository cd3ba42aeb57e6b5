"""A few hundred damaged files, evenly over all readers; by hand, `python -m tests.fuzz --n 10000` tries any number.

Each of the other tests is a class of findings of the fuzzer's, once mended.
"""

from __future__ import annotations

from pathlib import Path

import readers
import trials

SEED = 16
EACH = 2
"""Mutations of every reader."""


def test_damaged_files_are_refused_or_read_as_before(tmp_path: Path) -> None:
    names = list(readers.readers(readers.Shelf(tmp_path)))
    outcomes = trials.run(names, range(EACH), SEED, tmp_path)
    assert len(outcomes) == EACH * len(names)
    assert [str(outcome) for outcome in outcomes if outcome.is_finding] == []
    assert {outcome.what for outcome in outcomes} == set(trials.FINE)
