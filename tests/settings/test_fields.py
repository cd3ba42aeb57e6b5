"""A setting is declared once, with its range, and whoever makes settings has every value checked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field, is_dataclass
from math import nan
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np
import pytest
from annotated_types import Ge, Gt, Interval
from tiny.homes import put

import groundling
from groundling.cli import COMMANDS, main
from groundling.core.errors import InputError
from groundling.settings.fields import (
    Settings,
    fill_settings,
    make_settings,
    may_repeat,
    replace_settings,
    setting_fields,
    setting_values,
    settings,
    settings_of,
)
from groundling.settings.training import TrainingArguments

Share = Annotated[float, Interval(ge=0, lt=1)]


@settings
class Inner(Settings):
    """A group."""

    share: Annotated[float, Interval(ge=0, le=1)] = 0.5
    """A share."""
    names: tuple[str, ...] = ()
    """Names."""


@settings
class Outer(Settings):
    """Settings with a group."""

    count: Annotated[int, Ge(1)] = 3
    """How many."""
    rate: Annotated[float, Gt(0)] = 1.0
    """How fast."""
    betas: tuple[Share, Share] = (0.9, 0.99)
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


NUMBER = "expected a valid number"
WHOLE = "expected a valid integer"
WRONG = [
    ("count", 0, "count = 0: expected greater than or equal to 1"),
    ("count", 1.5, f"count = 1.5: {WHOLE}"),
    ("count", "many", f"count = 'many': {WHOLE}"),
    ("rate", float("nan"), "rate = nan: expected a finite number"),
    ("rate", float("inf"), "rate = inf: expected a finite number"),
    ("rate", "fast", f"rate = 'fast': {NUMBER}"),
    ("betas", (0.9,), "betas: field required"),
    ("betas", 0.9, "betas: field required"),
    ("betas", (0.9, 1.0), "betas = 1.0: expected less than 1"),
    ("kind", "c", "kind = 'c': expected 'a' or 'b'"),
    ("file", None, "file = None: expected a valid string"),
    ("full", "maybe", "full = 'maybe': expected a valid boolean"),
    ("files", ("a", 1), "files = 1: expected a valid string"),
    ("share", 1.1, "share = 1.1: expected less than or equal to 1"),
    ("names", ("a", "b", "a"), "names = ('a', 'b', 'a'): a is given twice; remove one"),
    ("inner", 3, "inner = 3: expected"),
]


@pytest.mark.parametrize(("name", "value", "told"), WRONG)
def test_a_value_that_does_not_fit_is_refused_when_settings_are_made(name, value, told):
    with pytest.raises(InputError) as caught:
        (Inner if name in ("share", "names") else Outer)(**{name: value})
    assert told in str(caught.value) and str(caught.value).startswith(name)
    with pytest.raises(InputError):
        replace_settings(Outer(), **{name: value})


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
    with pytest.raises(InputError, match="expected a valid integer"):
        Outer(count=np.float32(4.5))  # type: ignore[arg-type]


def test_every_road_checks_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"^share = 2: expected less than or equal to 1"):
        fill_settings([Outer()], {"share": 2})
    with pytest.raises(InputError, match=r"^mask_rate = 2: expected less than 1"):
        make_settings(type(COMMANDS["adapt"].settings["_own"]), mask_rate=2)
    with pytest.raises(InputError, match=r"mask_rate = 2: expected less than 1"):
        groundling.adapt(mask_rate=2)
    assert main(["adapt", "--mask-rate", "2"]) == 2
    assert "mask_rate = '2': expected less than 1" in capsys.readouterr().err


@pytest.mark.parametrize("given", [{"milestones": (3.0,)}, {"schedule": "steps"}])
def test_milestones_and_their_schedule_need_each_other(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="schedule=steps, and only that, needs milestones"):
        TrainingArguments(**given)


TUNE = "finetune --model STUDENT --data GLUE --task"
SEEING = "pretrain --model STUDENT --regions R --captions C"
REFUSED = {
    "adapt": "needs student",
    "adapt --student x": "needs teacher",
    "adapt --student x --arm mlm+nonsense": "no objective is called 'nonsense'; there are: ",
    "adapt --student STUDENT --arm mlm": "no text to adapt on",
    "train-clip": "needs captions",
    "finetune": "needs model",
    f"{TUNE} glue/x": "no task is called 'glue/x'",
    "finetune --model STUDENT --data absent --task glue/rte": "absent: no such file or folder",
    f"{TUNE} glue/rte --label y": "finetune needs either task, or text and label",
    f"{TUNE} glue/rte --zero-region-features": "zero_region_features: needs regions; pass regions",
    f"{TUNE} glue/rte --max-regions 3": "max_regions=3: needs regions",
    f"{TUNE} glue/rte --text-only-baseline": "text_only_baseline: needs regions",
    f"{TUNE} cola --limit-train=-1": "limit_train = '-1': expected greater than or equal to 0",
    "probe": "needs model",
    "probe --model STUDENT --data GLUE": "expected a folder `probes`",
    "compare --arms mlm": "compare needs either tasks, or text and label",
    "compare --arms nonsense --no-control --tasks glue/rte --data GLUE": "is called 'nonsense'",
    "data make-world --nouns 3": "nouns = '3': expected greater than or equal to 4",
    "info nonsense": "nonsense: neither a model folder nor a preset",
    f"{SEEING} --max-total-length -1": "max_total_length = '-1': expected greater than or equal",
    f"{SEEING} --max-regions -1": "max_regions = '-1': expected greater than or equal to 0",
}


@pytest.mark.parametrize("command", REFUSED)
def test_settings_that_are_missing_or_unknown(command, given, tmp_path, refusal):
    names = {"STUDENT": str(given / "student"), "GLUE": str(given / "glue")}
    words = [names.get(word, word) for word in command.split()]
    out = [] if words[0] == "info" else ["--out", str(tmp_path / "out")]
    assert REFUSED[command] in refusal(*words, *out)


def test_numbers_of_a_recipe_are_told_by_their_line(tmp_path, refusal):
    code = 'from groundling.recipes import step\nstep("finetune", name="a", td_weight=-1.0)\n'
    told = refusal("run", str(put(tmp_path / "s.py", code)), "--out", str(tmp_path / "out"))
    assert "s.py, line 2: a: td_weight = -1.0: expected greater than or equal to 0" in told


def every_class() -> Iterator[Any]:
    """Every class of settings of every command."""
    waiting = [type(one) for command in COMMANDS.values() for one in command.settings.values()]
    seen = set()
    while waiting:
        kind: Any = waiting.pop()
        if kind not in seen:
            seen.add(kind)
            inner = [one.annotation for one in setting_fields(kind).values()]
            waiting += [one for one in inner if is_dataclass(one)]
            yield kind


CLASSES = sorted(every_class(), key=lambda kind: kind.__qualname__)


@pytest.mark.parametrize("kind", CLASSES)
def test_every_number_has_a_range_in_which_its_default_is(kind: Any) -> None:
    assert issubclass(kind, Settings)
    for name, one in setting_fields(kind).items():
        described = str(one.annotation) + str(one.metadata)
        if re.search(r"\b(int|float)\b", described):
            assert re.search(r"Ge|Gt|Interval", described), name
            is_list = get_origin(one.annotation) is tuple
            is_open = Ellipsis in get_args(one.annotation)
            count = 1 if is_open or not is_list else len(get_args(one.annotation))
            with pytest.raises(InputError, match=rf"^{name} = nan"):
                kind(**{name: (nan,) * count if is_list else nan})
        if not is_dataclass(one.annotation):
            assert vars(kind(**{name: one.default}))[name] == one.default


@pytest.mark.parametrize("kind", CLASSES)
def test_every_list_of_texts_takes_a_lone_one(kind: Any) -> None:
    for one in settings_of(kind()):
        if one.field.annotation == tuple[str, ...]:
            config = replace_settings(kind(), **{one.name: "td_text"})
            assert setting_values(config)[one.name] == ("td_text",), (one.group, one.name)
