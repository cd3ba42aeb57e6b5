"""The wheel, made as anybody would make it, and Python that has nothing else of the project."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from documents import ROOT


def site(folder: Path) -> Path:
    """A folder like `site-packages` with the wheel in it."""
    made = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*made, str(ROOT)], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    place = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


def run(site: Path, code: str, place: Path) -> str:
    """Runs Python in a folder, with the wheel's package; what it printed."""
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout
