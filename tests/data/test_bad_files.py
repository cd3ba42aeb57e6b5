"""Images that cannot be read: one line that names the file, status 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny.homes import coco, picture, put


@pytest.mark.parametrize("kind", ["garbage", "cut short", "missing"])
def test_images_that_are_broken_or_missing(
    kind: str, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    for n in (1, 2, 3):
        picture(tmp_path / "images" / f"{n}.png", size=(64, 64))
    bad = tmp_path / "images" / "2.png"
    if kind == "missing":
        bad.unlink()
    else:
        put(bad, b"no image" if kind == "garbage" else bad.read_bytes()[:60])
    captions = coco(
        tmp_path / "c.json", [(n, f"{n}.png") for n in (1, 2, 3)], [(n, "a dog") for n in (1, 2, 3)]
    )
    small = (
        "--cpu --steps 1 --batch 2 --size 16 --vision-tower 32 1 --text-tower 32 1 --vocab-size 520"
    )
    read = ["--captions", captions, "--images", tmp_path / "images", "--out", tmp_path / "out"]
    line = refusal("train-clip", *read, *small.split())
    if kind == "missing":
        assert "1 of 3" in line and "2.png" in line
        assert "skip_missing" in line
    else:
        assert f"{bad}: does not decode" in line
