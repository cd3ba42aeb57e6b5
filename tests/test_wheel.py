"""The wheel: made as anybody would make it, and used from an empty folder, far from the repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml
from documents import ROOT

import groundling

QUICKSTART = """
from functools import partial
from pathlib import Path

import groundling
from groundling.config import QuickstartConfig
from groundling.recipes import quickstart as module
from groundling.world import WorldConfig

assert Path(groundling.__file__).is_relative_to({site!r})
sizes = dict(nouns=24, dev_nouns=6, test_nouns=8, dev_scenes=10, dev_sentences=10, sentences=150, scenes=130)
module.WorldConfig = partial(WorldConfig, **sizes)
module.quickstart(QuickstartConfig(scale=0.003, processes=1), "runs/quickstart")
"""
"""The whole quickstart on a very small world."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    made = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*made, str(ROOT)], check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def site(wheel: Path) -> Path:
    """A folder like `site-packages` with the wheel in it."""
    folder = wheel.parent / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


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


def test_the_quickstart_runs_from_an_empty_folder(site: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-P", "-c", QUICKSTART.format(site=str(site))],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert "MLM only (control)" in run.stdout
    page = (tmp_path / "runs/quickstart/report.html").read_text(encoding="utf-8")
    assert "<svg" in page and "contrastive" in page
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
