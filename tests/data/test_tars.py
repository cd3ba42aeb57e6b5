"""Tar shards of captioned images: read where they lie, with the same captions and pixels as unpacked."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny.homes import noise, parquet

from groundling.core.errors import InputError
from groundling.data import hashed_names, tars
from groundling.data.captions import find_images, read_captions
from groundling.data.corpora import iterate_texts
from groundling.data.image_samples import decode_image, files_below
from groundling.data.images import image_digest, read_image
from groundling.data.tars import identity_of

CAPTIONS = ["two dogs", "a  cat\n", "three birds", "no picture"]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Two shards as img2dataset writes them, one without .txt; the last sample has no image."""
    (tmp_path / "shards").mkdir()
    pictures = [noise(tmp_path / f"{n}.png", (8, 6), n) for n in range(3)]
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


def test_a_tar_is_a_folder_of_images_and_an_empty_one_is_skipped(shards: Path) -> None:
    write(shards / "00000.tar")
    captions = read_captions(shards).images
    assert [one.captions for one in captions] == [("three birds",)]
    for images in (shards, shards / "00001.tar"):
        ((found,), missing) = find_images(captions, images)
        assert not missing and np.array_equal(
            *map(read_image, (images / found.file, shards.parent / "2.png"))
        )
        assert [text.image for text in iterate_texts(shards)] == list(files_below(images))


def test_members_are_listed_once(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(tars.members(shards / "00000.tar"))
    tars._list_at.cache_clear()
    monkeypatch.setattr(tars, "_listed", lambda tar: pytest.fail("listed again"))
    assert dict(tars.members(shards / "00000.tar")) == before
    tars._list_at.cache_clear()
    monkeypatch.setattr(hashed_names, "FORMAT", "another")
    with pytest.raises(pytest.fail.Exception, match="listed again"):
        dict(tars.members(shards / "00000.tar"))


def test_a_tar_that_is_replaced_is_listed_again_even_at_its_old_time(shards: Path) -> None:
    shard = shards / "00000.tar"
    before, key = dict(tars.members(shard)), identity_of([shard])
    stat, content = shard.stat(), read_image(shard / "000000001.png").tobytes()
    files = {name: tars.read_part(shard, part) for name, part in before.items()}
    with tarfile.open(shard, "w") as opened:  # of the same size
        for name, one in reversed(files.items()):
            add(opened, name, one)
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (shard.stat().st_size, shard.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    after = dict(tars.members(shard))
    assert list(after) == list(before)[::-1] and identity_of([shard]) != key
    assert read_image(shard / "000000001.png").tobytes() == content


def test_a_tar_that_is_cut_while_it_is_read_gives_no_part_of_a_member(shards: Path) -> None:
    shard = shards / "00000.tar"
    part = dict(tars.members(shard))["000000001.png"]
    with shard.open("r+b") as stream:
        stream.truncate(part.start + part.size - 1)
    with pytest.raises(InputError, match=r"00000.tar: was changed while it was read"):
        tars.read_part(shard, part)


def test_a_caption_may_be_in_the_parquet_beside_its_tar(shards: Path) -> None:
    captions = ["a bus", "gone", None, "gone too", "a cup"]
    rows = {"key": ["0", "1", "2", "3", "caf\xe9"], "caption": captions}
    status = [*["success"] * 3, "failed_to_download", "success"]
    parquet(shards / "00002.parquet", **rows, status=status)
    with tarfile.open(shards / "00002.tar", "w") as opened:
        for key in ("0", "2", "3"):
            add(opened, f"./{key}.JPG", b"")
        add(opened, "4.jpg", b"")
        add(opened, "4.json", b'{"caption": "four", "status": "failed_to_resize"}')
        add(opened, "5.jpg", b"")
        add(opened, "5.json", b'{"caption": null}')
        add(opened, "6.jpg", b"")
        add(opened, "6.json", b'{"caption": "six", "status": null}')
        add(opened, "cafe\u0301.jpg", b"")  # by macOS; the table has its composed form
    tar = shards / "00002.tar"
    expected = [("a bus", "00002.tar/0"), ("six", "00002.tar/6"), ("a cup", "00002.tar/caf\xe9")]
    assert list(iterate_texts(tar)) == expected
    before = identity_of([tar])
    parquet(shards / "00002.parquet", key=["0"], caption=["another"])
    assert identity_of([tar]) != before


def write(shard: Path, *members: tuple[str, bytes]) -> None:
    """A tar in place of another."""
    with tarfile.open(shard, "w") as opened:
        for name, content in members:
            add(opened, name, content)


def flip(shard: Path) -> None:
    """Damage the header of the second member."""
    content = bytearray(shard.read_bytes())
    content[1024] ^= 1
    shard.write_bytes(content)


def other_ids(shard: Path) -> None:
    parquet(shard.with_suffix(".parquet"), key=["7"], caption=["x"])
    write(shard, ("a.jpg", b""))


def two_rows(shard: Path) -> None:
    parquet(shard.with_suffix(".parquet"), key=["a", "a"], caption=["x", "y"])
    write(shard, ("a.jpg", b""))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut inside a member": (lambda at: at.write_bytes(at.read_bytes()[:700]), "00000.tar: "),
    "cut inside a header": (
        lambda at: at.write_bytes(at.read_bytes()[:1100]),
        "was cut .byte 1,02",
    ),
    "cut between members": (
        lambda at: at.write_bytes(at.read_bytes()[:1024]),
        "was cut .byte 1,02",
    ),
    "a damaged header": (flip, "was cut .byte 1,024"),
    "no tar": (lambda at: at.write_bytes(b"no tar" * 200), "00000.tar: cannot be read"),
    "an empty tar": (write, "00000.tar: no text found"),
    "a tar that was never filled": (
        lambda at: at.write_bytes(bytes(20480)),
        "zeros after 0 members",
    ),
    "two images of a key": (
        lambda at: write(at, ("x.jpg", b""), ("x.png", b""), ("x.txt", b"a dog")),
        "00000.tar: x: has a .jpg and a .png; leave one out",
    ),
    "a dot in a key": (
        lambda at: write(at, ("x.y.jpg", b""), ("x.y.txt", b"a dog")),
        "00000.tar: x.y.jpg: a name's first dot ends its key; rename it",
    ),
    "half a surrogate": (
        lambda at: write(at, ("x.jpg", b""), ("x.json", b'{"caption": "\\ud83d"}')),
        "00000.tar: x.json",
    ),
    "a zeroed header": (
        lambda at: at.write_bytes(at.read_bytes()[:1024] + bytes(512) + at.read_bytes()[1536:]),
        "00000.tar: the tar is damaged or was cut",
    ),
    "room that was never filled": (
        lambda at: at.write_bytes(at.read_bytes() + bytes(1 << 18)),
        "00000.tar: ends in .* zeros after 6 members",
    ),
    "two tars in one": (
        lambda at: at.write_bytes(at.read_bytes() * 2),
        "00000.tar: the tar is damaged or was cut",
    ),
    "an empty file": (lambda at: at.write_bytes(b""), "00000.tar: cannot be read"),
    "a name twice": (
        lambda at: write(at, ("a.jpg", b""), ("./a.jpg", b"")),
        "the member 'a.jpg' is no path below it, or is twice",
    ),
    "a name above": (lambda at: write(at, ("a/../../b.jpg", b"")), "is no path below it"),
    "an absolute name": (lambda at: write(at, ("/etc/b.jpg", b"")), "is no path below it"),
    "no caption": (lambda at: write(at, ("x.png", b"")), "00000.tar: x has no .txt, no .json"),
    "no image": (lambda at: write(at, ("x.txt", b"a dog")), "00000.tar: no text found"),
    "a json without one": (
        lambda at: write(at, ("x.png", b""), ("x.json", b"{}")),
        "00000.tar: x.json: cannot be read .KeyError: 'caption'",
    ),
    "a caption that is none": (
        lambda at: write(at, ("x.png", b""), ("x.json", b'{"caption": [1]}')),
        "00000.tar: x.json: field 'caption' is .1",
    ),
    "bytes that are no text": (
        lambda at: write(at, ("x.png", b""), ("x.txt", b"\xff")),
        "00000.tar: x.txt: cannot be read .UnicodeDecodeError",
    ),
    "a parquet of other ids": (other_ids, "00000.tar: a has no .txt.* no row in .*00000.parquet"),
    "two captions of a key": (two_rows, "00000.parquet, row 1: the key a has another caption"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named_with_its_tar(damage, message, shards):
    damage(shards / "00000.tar")
    with pytest.raises(InputError, match=message):
        list(iterate_texts(shards / "00000.tar"))


def test_an_image_that_is_none_is_named_with_its_tar(shards: Path) -> None:
    write(shards / "00000.tar", ("x.jpg", b"no jpg"), ("x.txt", b"a dog"))
    with pytest.raises(InputError, match=r"00000.tar/x.jpg: does not decode as an image"):
        decode_image(shards / "00000.tar/x.jpg", 8)
