"""`bootstrap.py` installs what a command needs and no more; once is enough."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script beside copies of the files that it reads."""
    for name in ("bootstrap.py", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    spec = importlib.util.spec_from_file_location("bootstrap", tmp_path / "bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def ran(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would be run."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess:
        commands.append([Path(command[0]).name, *command[1:]])
        if "venv" in command:
            bootstrap.VENV.mkdir()
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(bootstrap.subprocess, "run", run)
    return commands


def call(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", *words])
    bootstrap.main()


def made(commands: list[list[str]]) -> list[str]:
    """What was made or installed, in order."""
    return [one[-1] for one in commands if "venv" in one or "-e" in one or "--target" in one]


def test_each_command_installs_what_it_needs_once(
    bootstrap: ModuleType, ran: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, venv = str(bootstrap.ROOT), str(bootstrap.VENV)
    call(bootstrap, monkeypatch, "quickstart", "--scale", "0.1")
    assert made(ran) == [venv, root]
    assert ran[-1] == ["groundling", "quickstart", "--scale", "0.1"]
    ran.clear()
    call(bootstrap, monkeypatch, "quickstart")
    assert made(ran) == []
    ran.clear()
    call(bootstrap, monkeypatch, "test")
    assert made(ran) == [f"{root}[test]", bootstrap.OPEN_CLIP[-1]]  # on top of what is there
    assert ran[-1][0] == "pytest"
    ran.clear()
    call(bootstrap, monkeypatch, "quickstart")
    call(bootstrap, monkeypatch, "test")
    assert made(ran) == []
    (bootstrap.ROOT / "constraints.txt").write_text("numpy<3\n")
    ran.clear()
    call(bootstrap, monkeypatch, "test")
    assert made(ran) == [venv, f"{root}[test]", bootstrap.OPEN_CLIP[-1]]  # other files: anew


def test_an_unknown_command_says_what_there_is(
    bootstrap: ModuleType, ran: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=r"bootstrap\.py quickstart"):
        call(bootstrap, monkeypatch, "tests")
    assert ran == []
