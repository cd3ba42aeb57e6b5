"""What a run depends on is known by its path, size and time; what must be known by content is hashed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from homes import put

from groundling.core.errors import InputError
from groundling.runs.hashing import data_hash, input_state, sha256_of
from groundling.runs.run import Run


def at(path: Path, seconds: int) -> Path:
    """The file with this time of its last change."""
    os.utime(path, (seconds, seconds))
    return path


@pytest.mark.parametrize("name", ["data.bin", "folder/deep/er.bin"])
def test_e4_an_input_of_another_size_or_time_makes_another_run(name: str, tmp_path: Path) -> None:
    file = at(put(tmp_path / "in" / name, "one"), 10**9)
    inputs = {"data": tmp_path / "in" / name.partition("/")[0]}
    out = tmp_path / "out"
    assert Run(out, "test", {}, inputs, cpu=True).end({"score": 1}) == {"score": 1}
    at(put(file, "two"), 10**9)  # of the same size and time: not noticed
    put(file.parent / ".lock", "")
    assert Run(out, "test", {}, inputs, cpu=True).result == {"score": 1}
    for content, time in (("longer", 10**9), ("one", 10**9 + 1)):
        at(put(file, content), time)
        with pytest.raises(InputError, match=r"out: holds another run \(inputs.data.\w+: .* now"):
            Run(out, "test", {}, inputs, cpu=True)
    at(put(file, "one"), 10**9)
    assert Run(out, "test", {}, inputs, cpu=True).result == {"score": 1}


def test_a_file_more_is_another_input_and_a_hub_id_is_its_name(tmp_path: Path) -> None:
    put(tmp_path / "in/a.txt", "a")
    before = input_state(tmp_path / "in")
    assert input_state(tmp_path / "in") == before
    put(tmp_path / "in/b.txt", "")
    assert input_state(tmp_path / "in") != before
    assert input_state("somebody/model") == {"path": "somebody/model"}


def test_content_is_hashed_whatever_its_time(tmp_path: Path) -> None:
    file = put(tmp_path / "in/a.txt", "a")
    before = data_hash(file), data_hash(file.parent)
    assert before[0] == sha256_of(file)
    at(file, 10**9)
    assert (data_hash(file), data_hash(file.parent)) == before
    at(put(file, "b"), 10**9)
    assert data_hash(file) != before[0] and data_hash(file.parent) != before[1]
    assert data_hash("somebody/model") == "not a local path"
    with pytest.raises(InputError, match="gone: no such file"):
        sha256_of(tmp_path / "gone")
