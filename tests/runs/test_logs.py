"""Logs of runs, read whatever a kill or an edit left."""

from __future__ import annotations

from pathlib import Path

import pytest
from homes import put

from groundling.core.errors import InputError
from groundling.runs.folder import read_log
from groundling.training.watched import means_by_epoch


def test_e14_a_log_is_read_but_for_a_last_line_that_a_kill_cut_off(tmp_path: Path) -> None:
    path = put(tmp_path / "log.jsonl", '{"step": 1, "loss": NaN}\n{"step": 2, "lo')
    assert [line["step"] for line in read_log(path)] == [1]
    for damage in ("[1]", "{}", '{"step": "1"}', '{"step": 1, "loss": []}', "[" * 10**5):
        put(path, f'{damage}\n{{"step": 2}}\n')
        with pytest.raises(InputError, match=r"log.jsonl, line 1: not a line of a log"):
            read_log(path)


def test_e14_a_log_whose_steps_cover_nothing_or_go_back(tmp_path: Path) -> None:
    log = put(
        tmp_path / "log.jsonl",
        '{"step": 0, "loss": 9}\n{"step": 2, "loss": 1}\n{"step": 2, "loss": 9}\n',
    )
    assert means_by_epoch(log, ["loss"], 2) == {"loss": [1.0]}
    put(log, '{"step": 2, "loss": 1}\n{"step": 1, "loss": 1}\n')
    with pytest.raises(
        InputError, match=r"log.jsonl, line 2: step 1 after step 2; delete the line"
    ):
        read_log(log)


def test_e14_a_number_that_no_float_holds_is_no_line_of_a_log(tmp_path: Path) -> None:
    log = put(tmp_path / "log.jsonl", '{"step": 1, "loss": 1' + "0" * 400 + "}\n")
    with pytest.raises(InputError, match=r"log.jsonl, line 1: not a line"):
        read_log(log)
