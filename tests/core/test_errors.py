"""What a message quotes: one short line, which names the file."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny.commands import adapting_with
from tiny.homes import put

from groundling.commands.adapt import data as adapting_data
from groundling.core.errors import InputError, convert_read_errors, did_you_mean, flatten_message


def test_an_error_is_quoted_in_one_short_line() -> None:
    error = OSError("\n  first  line\nsecond line " + 200 * "x")
    assert flatten_message(error).startswith("first line second line xxx")
    assert len(flatten_message(error)) == 160
    assert flatten_message(KeyError()) == "KeyError"


def packed(path: Path) -> None:
    struct.unpack("<i", path.read_bytes())


def zipped(path: Path) -> None:
    zipfile.ZipFile(path)


def coded(path: Path) -> None:
    path.read_text(encoding="utf-8")


def endless(path: Path) -> None:
    endless(path)


def huge(path: Path) -> None:
    raise MemoryError


@pytest.mark.parametrize("read", [packed, zipped, coded, endless, huge, Path.iterdir])
def test_e14_what_a_reader_stumbles_over_is_one_line_that_names_the_file(read, tmp_path):
    file = put(tmp_path / "damaged", b"\xff")
    with pytest.raises(InputError) as told, convert_read_errors(file):
        list(read(file))
    assert str(told.value).startswith(f"{file}: cannot be read (")
    with (
        pytest.raises(InputError, match="gone: no such file; make it"),
        convert_read_errors("gone", "; make it"),
    ):
        Path("gone").read_bytes()


def test_e14_what_the_system_refuses_is_one_line_that_names_the_file(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Callable[..., str]
) -> None:
    file = put(tmp_path / "damaged", b"\xff")
    monkeypatch.setattr(adapting_data, "corpus_samples", lambda *_: list(file.iterdir()))
    line = refusal(*adapting_with(given, tmp_path / "out", arm="mlm"))
    assert line.startswith(f"groundling: {file}: cannot be read or written (")


def test_e14_a_message_is_one_line_whatever_it_quotes() -> None:
    assert str(InputError("a\nb\x1b[31m\tc")) == "a b [31m c"


@pytest.mark.parametrize(
    ("name", "near"), {"RTE": "glue/rte", "swga": "swag", "xyz": "", "": ""}.items()
)
def test_the_nearest_name_is_one_of_the_same_last_part(name: str, near: str) -> None:
    offered = ["rtee", "glue/rte", "swag"]
    assert did_you_mean(name, offered) == (f"; did you mean {near}?" if near else "")
