"""What may be in the repository: few files, small ones, pictures only in `docs/`, and no module without a subject."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_FILES = 550
MOST_BYTES = 5_500_000
"""A tenth above what text and code need: rendered or trained files would pass it at once."""
IMAGES = {
    ".avif",
    ".bmp",
    ".gif",
    ".heic",
    ".ico",
    ".jpeg",
    ".jpg",
    ".pdf",
    ".png",
    ".ppm",
    ".svg",
    ".tif",
    ".tiff",
    ".webp",
}
SAYS_NOTHING = {"util", "utils", "helper", "helpers", "common", "misc", "shared", "stuff", "tools"}


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    """Files that git tracks and that are there, relative to the repository."""
    if not (ROOT / ".git").exists():
        pytest.skip(
            "no git checkout (a source archive, say), so nothing tells which files are tracked"
        )
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    paths = [Path(name) for name in listing.split("\0") if name]
    return [path for path in paths if (ROOT / path).exists()]


# C1: 31,700 rendered files, 154 MB, were once tracked.


def test_few_files_are_tracked(tracked: list[Path]) -> None:
    assert 50 < len(tracked) <= MOST_FILES


def test_tracked_files_are_small(tracked: list[Path]) -> None:
    assert sum((ROOT / path).stat().st_size for path in tracked) <= MOST_BYTES


def test_images_are_in_docs_alone(tracked: list[Path]) -> None:
    images = [path for path in tracked if path.suffix.lower() in IMAGES]
    assert [str(path) for path in images if path.parts[0] != "docs"] == []


def test_every_module_has_a_subject() -> None:
    modules = (ROOT / "groundling").rglob("*")
    assert [str(path) for path in modules if path.stem.lower() in SAYS_NOTHING] == []
