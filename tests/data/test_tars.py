"""Tar shards of captioned images: read where they lie, with the same captions and pixels as unpacked."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny.homes import noise, put

from groundling.core.errors import InputError
from groundling.data import tars
from groundling.data.captions import read_captions
from groundling.data.corpora import iterate_texts
from groundling.data.image_samples import files_below
from groundling.data.images import image_digest, read_image

CAPTIONS = ["two dogs", "a  cat\n", "three birds", "no picture"]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Two shards as img2dataset writes them, one without .txt; the last sample has no image."""
    pictures = [noise(tmp_path / f"{n}.png", (8, 6), n) for n in range(3)]
    put(tmp_path / "shards/00000.parquet", b"")
    for shard, numbers in enumerate([(0, 1), (2, 3)]):
        with tarfile.open(tmp_path / f"shards/{shard:05}.tar", "w") as opened:
            for number in numbers:
                key = f"{shard:05}{number:04}"
                members = {"json": json.dumps({"caption": CAPTIONS[number], "key": key}).encode()}
                if number < 3:
                    members["png"] = pictures[number].read_bytes()
                if shard == 0:
                    members["txt"] = CAPTIONS[number].encode()
                for ending, content in members.items():
                    add(opened, f"{key}.{ending}", content)
    return tmp_path / "shards"


def add(opened: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    opened.addfile(member, io.BytesIO(content))


def test_captions_and_images_are_those_of_the_files(shards: Path) -> None:
    found = read_captions(shards)
    assert [one.captions for one in found.images] == [("two dogs",), ("a cat",), ("three birds",)]
    files = files_below(shards)
    for number, text in enumerate(iterate_texts(shards)):
        (file,) = files[text.image]
        unpacked = shards.parent / f"{number}.png"
        assert np.array_equal(read_image(file), read_image(unpacked))
        assert image_digest(file) == image_digest(unpacked)
    assert number == 2
    one = list(iterate_texts(shards / "00001.tar"))
    assert [text.image for text in one] == ["00001.tar/000010002"]


def test_members_are_listed_once(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(tars.members(shards / "00000.tar"))
    tars.members.cache_clear()
    monkeypatch.setattr(tars, "_listed", lambda tar: pytest.fail("listed again"))
    assert dict(tars.members(shards / "00000.tar")) == before


def cut(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[:700])


def twice(shard: Path) -> None:
    with tarfile.open(shard, "a") as opened:
        add(opened, "000000000.png", b"again")


def no_caption(shard: Path) -> None:
    with tarfile.open(shard, "a") as opened:
        add(opened, "x.png", b"picture")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "00000.tar"),
        (twice, "two members are called '000000000.png'"),
        (no_caption, "no member x.json"),
        (lambda shard: shard.write_bytes(b"no tar" * 200), "00000.tar: cannot be read"),
    ],
)
def test_damage_is_named_with_its_tar(
    damage: Callable[[Path], object], message: str, shards: Path
) -> None:
    damage(shards / "00000.tar")
    tars.members.cache_clear()
    with pytest.raises(InputError, match=message):
        list(iterate_texts(shards))
