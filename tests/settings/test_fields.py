"""A setting is declared once, with its range, and whoever makes settings has every value checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest

import groundling
from groundling.cli import COMMANDS, main
from groundling.core.errors import InputError
from groundling.settings.fields import (
    InvalidSettingError,
    Setting,
    Settings,
    above,
    at_least,
    between,
    declared_settings,
    fill_settings,
    flatten_settings,
    make_settings,
    may_repeat,
    replace_settings,
)


@dataclass(frozen=True)
class Inner(Settings):
    """A group."""

    share: Annotated[float, between(0, 1)] = 0.5
    """A share."""
    names: tuple[str, ...] = ()
    """Names."""


@dataclass(frozen=True)
class Outer(Settings):
    """Settings with a group."""

    count: Annotated[int, at_least(1)] = 3
    """How many."""
    rate: Annotated[float, above(0)] = 1.0
    """How fast."""
    betas: Annotated[tuple[float, float], at_least(0, below=1)] = (0.9, 0.99)
    """Two."""
    kind: Literal["a", "b"] = "a"
    """Which."""
    file: str = ""
    """Where."""
    full: bool = False
    """Whether."""
    files: Annotated[tuple[str, ...], may_repeat] = ()
    """Several."""
    inner: Inner = field(default_factory=Inner)


WRONG = [
    ("count", 0, "--count = 0, expected at least 1"),
    ("count", 1.5, "--count = 1.5, expected a whole number"),
    ("count", True, "--count = True, expected a whole number"),
    ("count", "1", "--count = '1', expected a whole number"),
    ("count", 10**400, "--count = a number of more than 18 digits, expected a smaller one"),
    ("rate", 10**400, "--rate = a number of more than 18 digits, expected a smaller one"),
    ("rate", float("nan"), "--rate = nan, expected more than 0, and a finite number"),
    ("rate", float("inf"), "--rate = inf, expected more than 0, and a finite number"),
    ("betas", (0.9,), "--betas = 0.9, expected two numbers"),
    ("betas", 0.9, "--betas = 0.9, expected two numbers"),
    ("kind", "c", "--kind = c, expected one of a, b"),
    ("file", None, "--file = None, expected a string"),
    ("full", 1, "--full = 1, expected true or false"),
    ("files", ("a", 1), "--files = ['a', 1], expected a list of strings"),
    ("share", 1.1, "--share = 1.1, expected 0 to 1"),
    ("names", ("a", "b", "a"), "--names: a is given twice; remove one"),
    ("inner", 3, "--inner = 3, expected"),
]


@pytest.mark.parametrize(("name", "value", "told"), WRONG)
def test_a_value_that_does_not_fit_is_refused_when_settings_are_made(
    name: str, value: Any, told: str
) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        (Inner if name in ("share", "names") else Outer)(**{name: value})
    assert str(caught.value).startswith(told)
    assert str(caught.value.under("train.")).startswith(told.replace("--", "--train.", 1))


def test_a_lone_text_is_a_list_of_one_and_a_path_its_text() -> None:
    made = Outer(file=Path("x"), files="a", inner=Inner(names=[Path("b"), "c"]))  # type: ignore[arg-type]
    assert (made.file, made.files, made.inner.names) == ("x", ("a",), ("b", "c"))
    assert Outer(files="").files == ()  # type: ignore[arg-type]
    assert Outer(files=("a", "a")).files == ("a", "a")


def test_numbers_of_numpy_are_plain_numbers() -> None:
    betas: Any = [np.float64(0.5), np.float32(0.25)]
    made = Outer(count=np.int64(4), rate=np.float32(0.5), betas=betas)  # type: ignore[arg-type]
    assert [*map(type, (made.count, made.rate, *made.betas))] == [int, float, float, float]
    assert (made.count, made.rate, made.betas) == (4, 0.5, (0.5, 0.25))
    with pytest.raises(InvalidSettingError, match="expected a whole number"):
        Outer(count=np.float32(4))  # type: ignore[arg-type]


def test_a_group_that_does_not_change_is_not_made_again() -> None:
    start = Outer()
    assert replace_settings(start) is start
    assert replace_settings(start, count=4).inner is start.inner
    assert replace_settings(start, share=1).inner.share == 1


def test_every_road_checks_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"^here: share = 2, expected 0 to 1"):
        fill_settings([Outer()], {"share": 2}, "here")
    with pytest.raises(InputError, match=r"--mask-rate = 2, expected more than 0 and below 1"):
        make_settings(type(COMMANDS["adapt"].settings["_own"]), mask_rate=2)
    with pytest.raises(InputError, match=r"mask_rate = 2, expected more than 0 and below 1"):
        groundling.adapt(mask_rate=2)
    assert main(["adapt", "--mask-rate", "2"]) == 2
    assert "--mask-rate = 2.0, expected more than 0 and below 1" in capsys.readouterr().err


def every_class() -> Iterator[Any]:
    """Every class of settings of every command."""
    waiting = [type(one) for command in COMMANDS.values() for one in command.settings.values()]
    seen = set()
    while waiting:
        kind: Any = waiting.pop()
        if kind not in seen:
            seen.add(kind)
            waiting += [
                one.kind for one in declared_settings(kind).values() if is_dataclass(one.kind)
            ]
            yield kind


CLASSES = sorted(every_class(), key=lambda kind: kind.__qualname__)


@pytest.mark.parametrize("kind", CLASSES)
def test_every_number_has_a_range_in_which_its_default_is(kind: Any) -> None:
    assert issubclass(kind, Settings)
    for one in fields(kind):
        setting: Setting = declared_settings(kind)[one.name]
        if setting.element_type in (int, float):
            assert setting.range is not None, one.name
            nan = float("nan")
            assert nan not in setting.range
            with pytest.raises(
                InvalidSettingError, match=rf"--{one.name.replace('_', '-')} = \[?nan"
            ):
                kind(**{one.name: (nan,) if setting.count == -1 else nan})
        if not is_dataclass(setting.kind):
            assert setting.convert(one.default) == one.default


@pytest.mark.parametrize("kind", CLASSES)
def test_every_list_of_texts_takes_a_lone_one(kind: Any) -> None:
    for group, one in flatten_settings(kind()):
        if one.kind == tuple[str, ...]:
            config = replace_settings(kind(), **{one.name: "td_text"})
            held = {each.name: vars(found)[each.name] for found, each in flatten_settings(config)}
            assert held[one.name] == ("td_text",), (group, one.name)


@pytest.mark.parametrize("flags", [["--seeds", "0"], ["--limit-train", "-5"]])
def test_compare_refuses_before_anything_is_trained(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["compare", "--arms", "mlm", "--tasks", "glue/rte", "--data", str(tmp_path)]
    assert main([*words, *flags, "--out", str(out)]) == 2
    assert f"{flags[0]} = {flags[1]}, expected at least" in capsys.readouterr().err
    assert not out.exists()
