"""What a run depends on is known by its content, and read once."""

import os
from pathlib import Path

import pytest
from homes import never, put

from groundling.core.errors import InputError
from groundling.runs import hashing
from groundling.runs.hashing import CACHE, SMALL, data_hash, remember_hashes, sha256_of
from groundling.runs.run import Run

LONG = b"x" * SMALL


@pytest.mark.parametrize("name", ["1.jpg", "refs(unc).p", "features-00000.npy", "deep/er.bin"])
def test_e4_other_content_of_the_same_size_is_another_input(name: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    put(data / "other.txt", "stays")
    put(data / name, LONG + b"1")
    run = Run(tmp_path / "out", "test", {}, {"data": data}, cpu=True)
    run.end({"score": 1})
    os.utime(data / name, ns=(10**18, 10**18))
    assert Run(tmp_path / "out", "test", {}, {"data": data}, cpu=True).result == {"score": 1}
    put(data / name, LONG + b"2")
    os.utime(data / name, ns=(10**18, 10**18))
    with pytest.raises(InputError, match=r"holds another run \(inputs.data.sha256: "):
        Run(tmp_path / "out", "test", {}, {"data": data}, cpu=True)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that remembers; files count as settled at once, in which no two changes share a time."""
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(hashing, "MIN_AGE", -(10**18))
    return tmp_path / "cache" / "hashes.sqlite"


def test_e4_a_file_is_read_once_while_it_stays_as_it_is(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(tmp_path / "data" / "a.bin", LONG)
    times = file.stat()
    hashes = [data_hash(file), data_hash(file.parent)]
    assert hashes[0] == sha256_of(file)
    with monkeypatch.context() as patch:
        patch.setattr(hashing, "sha256_of", never)
        assert [data_hash(file), data_hash(file.parent)] == hashes
    put(tmp_path / "b.bin", LONG.replace(b"x", b"y")).replace(
        file
    )  # another inode: no clock is asked
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert data_hash(file) == sha256_of(file) != hashes[0]
    assert data_hash(file.parent) != hashes[1]


def test_what_is_known_from_writing_is_not_read(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(tmp_path / "a.bin", LONG)
    remember_hashes({file: "known"})
    assert data_hash(file) == "known"
    put(tmp_path / "b.bin", LONG).replace(file)
    assert data_hash(file) == sha256_of(file)
    monkeypatch.setattr(hashing, "MIN_AGE", 10**18)
    remember_hashes({file: "known"})  # too new
    assert data_hash(file) == sha256_of(file)


def test_e4_what_just_changed_is_not_remembered(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "MIN_AGE", 10**18)
    file = put(tmp_path / "a.bin", LONG)
    data_hash(file)
    monkeypatch.setattr(hashing, "sha256_of", lambda _: "read again")
    assert data_hash(file) == "read again"


def test_e4_a_damaged_or_forbidden_cache_is_none(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(tmp_path / "a.bin", LONG)
    put(cache, b"no data base" * 1000)
    assert data_hash(file) == sha256_of(file)
    monkeypatch.setenv(CACHE, str(put(tmp_path / "file", "not a folder")))
    assert data_hash(file) == sha256_of(file)
