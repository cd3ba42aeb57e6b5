"""What is in the repository and in the wheel: few files, small ones, each with a subject; tests where the code is."""

from __future__ import annotations

import ast
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

import groundling

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "groundling"
MOST_FILES = 510
MOST_BYTES = 6_065_000
"""Little above what text, code and published results need: rendered or trained files would pass it at once."""
ENDINGS = "avif bmp gif heic ico jpeg jpg pdf png ppm svg tif tiff webp"
IMAGES = {f".{ending}" for ending in ENDINGS.split()}
SAYS_NOTHING = {"util", "utils", "helper", "helpers", "common", "misc", "shared", "stuff", "tools"}


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    """Files that git tracks and that are there, relative to the repository."""
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listing.returncode:
        pytest.skip("no git checkout, so nothing tells which files are tracked")
    paths = [Path(name) for name in listing.stdout.split("\0") if name]
    return [path for path in paths if (ROOT / path).exists()]


def test_tracked_files_are_few_and_small_and_images_are_in_docs_alone(tracked: list[Path]) -> None:
    # C1: 31,700 rendered files, 154 MB, were once tracked.
    assert 50 < len(tracked) <= MOST_FILES
    assert sum((ROOT / path).stat().st_size for path in tracked) <= MOST_BYTES
    images = [path for path in tracked if path.suffix.lower() in IMAGES]
    assert [str(path) for path in images if path.parts[0] != "docs"] == []


def test_every_module_has_a_subject_and_says_what_it_is_for() -> None:
    modules = [*PACKAGE.rglob("*.py"), *(ROOT / "recipes").glob("*.py")]
    assert [str(path) for path in modules if path.stem.lower() in SAYS_NOTHING] == []
    filled = {path: text for path in modules if (text := path.read_text(encoding="utf-8").strip())}
    assert [
        str(path) for path, text in filled.items() if not ast.get_docstring(ast.parse(text))
    ] == []


OF_NO_ROOM = {
    "tiny": "tiny models, files and runs that several test files build",
    "contracts": "what every objective and every student must do",
    "docs": "what documents say",
    "front": "the command line and its functions in Python",
    "fuzz": "damaged files for every reader",
    "parity": "the same as other libraries compute",
}
"""Folders of tests that go with no folder of the package, and what they hold."""


def test_tests_lie_as_the_code_lies() -> None:
    tests = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("*.py")}
    rooms = {path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("__init__.py")}
    assert [str(one) for one in tests - rooms if str(one) not in OF_NO_ROOM] == []


def test_every_study_has_its_tests() -> None:
    studies = list((PACKAGE / "studies").glob("*/__init__.py"))
    assert len(studies) > 4
    for study in studies:
        assert list((ROOT / "tests/studies" / study.parent.name).glob("test_*.py")), study.parent


def test_no_test_file_imports_another() -> None:
    """What two of them need is in `tests/tiny/`; or one cannot be moved, or run, without the other."""
    found = []
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("test_"):
                found.append(f"{path.name} imports {node.module}")
    assert found == []


def test_a_class_name_stands_for_one_thing() -> None:
    named: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                named.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert len(named) > 300
    assert {name: places for name, places in named.items() if len(places) > 1} == {}


# -- the wheel, and what it says of itself; test_quickstart.py runs it from an empty folder --------------------
@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.site(tmp_path_factory.mktemp("wheel"))


def test_the_package_is_all_there(site: Path, tracked: list[Path]) -> None:
    own = [path for path in tracked if path.parts[0] == "groundling"]
    assert [str(path) for path in own if not (site / path).is_file()] == []


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
def test_ci_runs_what_the_readme_says() -> None:
    command = "python3 bootstrap.py test"
    assert f"`{command}`" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()[-1] == command


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


def test_each_command_installs_what_it_needs_once(bootstrap, ran, monkeypatch):
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
