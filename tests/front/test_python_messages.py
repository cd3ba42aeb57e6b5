"""What Python and the command line are told: mistakes by the names of settings, and what a loaded model is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import homes
from tiny.homes import put, table

import groundling
from groundling.cli import main
from groundling.core.errors import InputError


def test_a_function_and_its_command_name_the_same_setting(tmp_path: Path, capsys: Any) -> None:
    homes.student(tmp_path / "bert")
    text = homes.text(tmp_path / "text.txt", 8)
    settings = {"student": tmp_path / "bert", "text": text, "arm": "mlm", "batch": 500}
    with pytest.raises(InputError, match=r"lower batch$") as caught:
        groundling.adapt(**settings, cpu=True, out=tmp_path / "python")
    assert "--" not in str(caught.value)
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    assert main(["adapt", *flags, "--cpu", "--out", str(tmp_path / "command")]) == 2
    assert "lower batch\n" in capsys.readouterr().err


def missing_photo(folder: Path) -> Any:
    return groundling.visualize(folder / "bert", image=folder / "x.png", cpu=True)


def missing_store(folder: Path) -> Any:
    return groundling.finetune(model=folder / "bert", data=folder / "a.csv", image="photo")


@pytest.mark.parametrize("call", [missing_photo, missing_store])
def test_no_function_speaks_of_flags(call: Callable[[Path], Any], tmp_path: Path) -> None:
    homes.student(tmp_path / "bert")
    homes.put(tmp_path / "a.csv", "photo,label\nx.png,1\n")
    with pytest.raises(InputError) as caught:
        call(tmp_path)
    assert "--" not in str(caught.value)


def test_a_lone_path_stands_for_a_list_in_a_group_too(here: Path) -> None:
    put(here / "own.csv", table(("q", "y"), ("a cat", "yes"), ("a dog", "no")))
    given = {"student": "gone/gone", "text": here / "gone.txt"}
    with pytest.raises(InputError, match=r"gone\.txt: no such file|gone/gone: no model found"):
        groundling.compare(data="own.csv", text="q", label="y", arms="mlm", adapt=given, out="out")
    with pytest.raises(
        InputError, match=r"needs teacher|gone\.txt: no such file|gone/gone: no model found"
    ):
        groundling.compare(data="own.csv", text="q", label="y", arms="l1", adapt=given, out="out")


@pytest.mark.parametrize("name", ["x" * 5000])
@pytest.mark.parametrize(
    "call",
    [
        lambda name: groundling.adapt(student=name, text=name, arm="mlm"),
        lambda name: groundling.data_make_world(out=name),
        lambda name: groundling.quickstart(out=name),
        lambda name: groundling.visualize(name, image=name, text="a cat"),
        groundling.load,
    ],
)
def test_names_that_no_file_can_have(call: Callable[[str], Any], name: str) -> None:
    with pytest.raises(InputError):
        call(name)


@pytest.mark.parametrize("command", ["verdict", "finetune", "predict", "data make-world", "run"])
def test_an_empty_place_is_none(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--out", ""]) == 2
    assert "out: empty; expected the name of a file or folder" in capsys.readouterr().err
