"""No command is silent for long: short phases, long steps and what has no steps are told, and jobs as they begin."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import homes
import pytest

from groundling.cli import main
from groundling.command_line import Command
from groundling.runs import jobs, progress
from groundling.runs.jobs import Job, run_jobs
from groundling.runs.progress import Progress, report_silence


def wait_for(out: io.StringIO, text: str) -> None:
    """Until somebody has said it; in vain, the test ends after a minute."""
    end = time.monotonic() + 60
    while text not in out.getvalue():
        assert time.monotonic() < end, out.getvalue()
        time.sleep(0.01)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.01)


@pytest.mark.usefixtures("soon")
def test_a_silent_command_says_how_long_it_has_been_at_work() -> None:
    out = io.StringIO()
    with report_silence("probe-facts", out):
        wait_for(out, "probe-facts: running for 0:00:00\n")
        shown = Progress("reading", 3, "image", stream=io.StringIO(), clock=lambda: 0.0)
        inner = Progress("training", 9, "step", stream=io.StringIO(), clock=lambda: 0.0)
        inner.step()
        wait_for(out, "training: step 1 of 9, 0:00:00 left\n")  # the innermost, however short
        inner.close()
        wait_for(out, "reading: image 0 of 3, 0:00:00 left\n")
        shown.close()
        said = len(out.getvalue())
        wait_for(out, "0:00:00 left\nprobe-facts: running")
    assert len(out.getvalue()) > said
    time.sleep(0.1)
    last = out.getvalue()
    time.sleep(0.1)
    assert out.getvalue() == last  # over is over


@pytest.mark.usefixtures("soon")
def test_beside_a_bar_and_in_other_processes_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class SilentTerminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = io.StringIO()
    shown = Progress("training", 9, "step", stream=SilentTerminal())
    with report_silence("probe-facts", out):
        time.sleep(0.2)
    shown.close()
    monkeypatch.setenv("RANK", "1")
    with report_silence("probe-facts", out):
        time.sleep(0.1)
    assert out.getvalue() == ""


def test_every_command_is_heard(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.01)
    monkeypatch.setattr(Command, "check", lambda *_: None)
    monkeypatch.setattr(Command, "call", lambda *_: time.sleep(0.5))
    assert main(["probe-facts"]) == 0
    assert "probe-facts: running for " in capsys.readouterr().err


def test_jobs_are_named_as_they_begin_and_while_they_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setattr(jobs, "ProcessPoolExecutor", homes.Here)
    monkeypatch.setattr(jobs, "SECONDS", 0.05)
    path = str(tmp_path / "log")
    said: list[str] = []
    waiting = [
        Job("a", time.sleep, (0.3,)),
        Job("b", homes.note, (path, "b"), ("a",)),
    ]
    run_jobs(waiting, 2, said.append)
    lines = capsys.readouterr().err.splitlines()
    assert (lines[0], lines[-1]) == ("job 1 of 2: a", "job 2 of 2: b")
    assert "0 of 2 jobs are done; running: a (0:00:00)" in lines[1:-1]
    assert [line.split(":")[0] for line in said] == ["a", "b"]
