"""The wheel and what it says of itself; test_quickstart.py runs it from an empty folder, far from the repository."""

from __future__ import annotations

import re
import subprocess
from email.parser import Parser
from pathlib import Path

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
