"""What Python is told: mistakes by keywords where a command has flags, and what a loaded model is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import homes
import pytest
from homes import put, table

import groundling
from groundling.cli import main
from groundling.core.errors import InputError, rename_flags_to_keywords
from groundling.core.output_types import (
    Classification,
    MultipleChoice,
    OpenAnswer,
    OutputType,
    RegionSelection,
    Regression,
)
from groundling.prediction.fine_tuned import describe_answers

KEYWORDS = ("batch", "regions", "model", "images", "object_tags", "skip_bad", "lr")
SWITCHES = ("object_tags", "skip_bad")


def told(message: str) -> str:
    with pytest.raises(InputError) as caught, rename_flags_to_keywords(KEYWORDS, SWITCHES):
        raise InputError(message)
    return str(caught.value)


@pytest.mark.parametrize(
    ("flags", "keywords"),
    [
        ("12 samples are fewer than one batch of 32; lower --batch", "lower batch="),
        ("--batch 8: too few", "batch=8: too few"),
        ("pass --regions STORE, too", "pass regions=STORE, too"),
        ("--model runs/x: no such folder", "model=runs/x: no such folder"),
        (
            "--no-object-tags is not for it; --skip-bad is",
            "object_tags=False is not for it; skip_bad=True is",
        ),
        ("pass --skip-bad to leave it empty", "pass skip_bad=True to leave it empty"),
        ("--batch and --lr go together", "batch= and lr= go together"),
        ("(--images), `--lr`", "(images=), `lr=`"),
        ("--regions: two stores of one name", "regions: two stores"),
        ("leave out --tasks", "leave out --tasks"),
        ("make it with `groundling regions --batch 3 --images X`", "--batch 3 --images X`"),
        ("a--batch and /tmp/--batch", "a--batch and /tmp/--batch"),
    ],
)
def test_flags_are_told_as_keywords(flags: str, keywords: str) -> None:
    assert keywords in told(flags)


def test_a_value_is_told_by_what_was_given() -> None:
    with (
        pytest.raises(InputError) as caught,
        rename_flags_to_keywords(KEYWORDS, (), {"model": ("mine",)}),
    ):
        raise InputError("is of another, not of --model mine; pass --model or")
    assert str(caught.value) == "is of another, not of model=mine; pass model= or"


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
    return groundling.visualize(folder / "bert", image=folder / "x.png", grid=2, cpu=True)


def missing_store(folder: Path) -> Any:
    return groundling.finetune(model=folder / "bert", data=folder / "a.csv", image="photo")


@pytest.mark.parametrize("call", [missing_photo, missing_store])
def test_no_function_speaks_of_flags(call: Callable[[Path], Any], tmp_path: Path) -> None:
    homes.student(tmp_path / "bert")
    homes.put(tmp_path / "a.csv", "photo,label\nx.png,1\n")
    with pytest.raises(InputError) as caught:
        call(tmp_path)
    assert "--" not in str(caught.value) and "=" in str(caught.value)


@pytest.mark.parametrize(
    ("form", "answers"),
    [
        (Classification(("no", "yes")), "['no', 'yes']"),
        (OpenAnswer(tuple("abcdefg")), "['a', 'b', 'c', 'd'] and 3 more"),
        (MultipleChoice(("0", "1")), "one of the question's choices"),
        (RegionSelection(), "a region"),
        (Regression(), "a number"),
    ],
)
def test_a_models_repr_tells_its_answers_in_short(form: OutputType, answers: str) -> None:
    assert describe_answers(form) == answers


def test_a_lone_path_stands_for_a_list_in_a_group_too(here: Path) -> None:
    put(here / "own.csv", table(("q", "y"), ("a cat", "yes"), ("a dog", "no")))
    given = {"student": "gone/gone", "text": here / "gone.txt"}
    with pytest.raises(InputError, match=r"gone\.txt: no such file|gone/gone: no model found"):
        groundling.compare(data="own.csv", text="q", label="y", arms="mlm", adapt=given, out="out")
    with pytest.raises(InputError, match=r"l1 needs .*teacher"):
        groundling.compare(data="own.csv", text="q", label="y", arms="l1", adapt=given, out="out")


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
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
    assert "--out '': not the name of a file or folder" in capsys.readouterr().err
