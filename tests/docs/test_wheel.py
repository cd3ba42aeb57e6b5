"""The wheel and what it says of itself; test_quickstart.py runs it from an empty folder, far from the repository."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from email.parser import Parser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import wheels
import yaml
from documents import ROOT

import groundling


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.site(tmp_path_factory.mktemp("wheel"))


def test_the_package_is_all_there(site: Path) -> None:
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "groundling"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listing.returncode:
        pytest.skip("no git checkout, so nothing tells which files belong to the package")
    assert [name for name in listing.stdout.split() if not (site / name).is_file()] == []


def test_what_it_says_of_itself(site: Path) -> None:
    (folder,) = site.glob("*.dist-info")
    told = Parser().parsestr((folder / "METADATA").read_text(encoding="utf-8"))
    assert told["Version"] == groundling.__version__
    assert told["License-Expression"] == "Apache-2.0"
    assert {"Typing :: Typed", "Intended Audience :: Science/Research"} <= set(
        told.get_all("Classifier")
    )
    assert len(told.get_all("Project-URL")) == 4
    assert "groundling = groundling.cli:main" in (folder / "entry_points.txt").read_text()


def test_versions_agree() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", changes, re.MULTILINE)[0] == groundling.__version__
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == groundling.__version__
    assert {"cff-version", "message", "title", "authors"} <= set(cited)


# -- bootstrap ---------------------------------------------------------------------------------------


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
