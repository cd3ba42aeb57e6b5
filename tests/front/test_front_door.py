"""`import groundling`: fast, lazy, typed; commands as functions; what `help()` says of fields; the page made of it."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import pydoc
import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import documents
import pytest
from tiny.commands import flags_of

import groundling
from groundling.api import command_of, function_names
from groundling.cli import COMMANDS, main
from groundling.commands.adapt import ADAPTING, AdaptConfig
from groundling.core import batch
from groundling.core.batch import Batch, OutputSizes, Tokens
from groundling.core.errors import InputError
from groundling.settings.fields import make_settings
from groundling.settings.training import TrainingArguments

PACKAGE = Path(groundling.__file__).parent
ROOT = PACKAGE.parent
HERE = dir(groundling)
PYTHON = r"^```python\n(.*?)^```$"
FUNCTIONS = [name for name in function_names() if name not in groundling.PLACES]


@pytest.mark.parametrize("name", HERE)
def test_every_name_is_there(name: str) -> None:
    value = getattr(groundling, name)
    assert value is getattr(groundling, name)
    if name != "__version__":
        assert callable(value)
        assert inspect.getdoc(value)
        assert (value.__name__, type(value) is ModuleType) == (name, False)


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Bach'; did you mean Batch\?$"):
        groundling.Bach  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'xyzzy'$"):
        groundling.xyzzy  # noqa: B018
    assert not hasattr(groundling, "_adapt")
    with pytest.raises(ImportError, match="cannot import name 'Bach'"):
        from groundling import Bach  # noqa: F401
    from groundling.core import errors  # a module is still found

    assert errors.InputError is groundling.InputError


def test_editors_know_what_is_imported_late() -> None:
    assert (PACKAGE / "py.typed").exists()
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (late,) = (node for node in tree.body if isinstance(node, ast.If))
    told = {alias.name: one.module for one in late.body for alias in one.names}
    assert told == groundling.PLACES


# -- commands as functions -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_does_what_its_command_does(name: str, called: list[tuple]) -> None:
    assert getattr(groundling, name)() == {"said": 1}
    assert main(command_of(name).name.split()) == 0
    assert called[0] == called[1]


def test_no_module_takes_a_functions_name() -> None:
    """Whoever imports a module of the package puts it under its name there."""
    modules = {path.stem for path in PACKAGE.iterdir()}
    assert modules.isdisjoint(groundling.__all__)


def test_settings_of_other_commands_are_dicts(called: list[tuple]) -> None:
    groundling.compare(arms=["l1"], adapt={"student": Path("s"), "text": ("a",)}, tune={"steps": 3})
    words = "compare --arms l1 --adapt.student s --adapt.text a --tune.steps 3"
    assert main(words.split()) == 0
    assert called[0] == called[1]
    with pytest.raises(InputError, match=r"^groundling.compare: tune: unknown key 'stps'.*steps\?"):
        groundling.compare(tune={"stps": 3})


def test_keywords_fill_the_settings(called: list[tuple]) -> None:
    out = Path("here")
    made = groundling.adapt(
        student=Path("s"), text="a.txt", arm="l1", pooling="mean", betas=[0.9, 0.98], lr=1, out=out
    )
    assert made == {"said": 1}
    groundling.adapt(text=[Path("a.txt"), "b.txt"])
    groundling.adapt(text="")
    (config, training, folder), (several, *_), (none, *_) = called
    wanted = {"student": "s", "text": ("a.txt",), "arm": "l1", "pooling": "mean"}
    assert config == make_settings(AdaptConfig, **wanted)
    assert training == replace(ADAPTING, betas=(0.9, 0.98), lr=1)
    assert folder == "here"
    assert (several.text, none.text) == (("a.txt", "b.txt"), ())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"studnt": "s"}, r"unknown key 'studnt'; did you mean student\?; there are: .*"),
        (
            {"steps": 1.5},
            r"steps = 1\.5: expected a valid integer, got a number with a fractional part",
        ),
        ({"text": [1]}, "text = 1: expected a valid string"),
        ({"betas": (0.9,)}, r"betas: field required"),
    ],
)
def test_a_mistake_is_one_line(values: dict[str, Any], message: str, called: list[tuple]) -> None:
    with pytest.raises(InputError, match=f"^groundling.adapt: {message}$"):
        groundling.adapt(**values)
    assert called == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_setting_is_a_keyword(name: str) -> None:
    function, command = getattr(groundling, name), command_of(name)
    told = {flag: text for flag, text in flags_of(command.name).items() if "." not in flag}
    groups = [f"--{prefix}" for prefix in command.settings if not prefix.startswith("_")]
    last = ["--out", "--dry-run"][: 2 * command.has_out]
    keywords = [f"--{key.replace('_', '-')}" for key in inspect.signature(function).parameters]
    assert keywords == [*told, *groups, *last]
    page = " ".join(pydoc.render_doc(function, renderer=pydoc.plaintext).split())
    assert [text for text in told.values() if text not in page] == []


# -- fields ---------------------------------------------------------------------------------------------------------
def public(module: ModuleType) -> list[type]:
    """The public dataclasses and named tuples of a module's own."""
    return [
        value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and (is_dataclass(value) or hasattr(value, "_fields"))
    ]


@pytest.fixture(scope="session")
def make_api() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_api", ROOT / "docs" / "make_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_field_is_explained(make_api: ModuleType) -> None:
    paths = {path for places in make_api.SECTIONS.values() for path in places}
    modules = [importlib.import_module(path) for path in sorted(paths)]
    places = {
        type(one).__module__ for command in COMMANDS.values() for one in command.settings.values()
    }
    settings = [importlib.import_module(place) for place in sorted(places)]
    kinds = [kind for module in [*settings, *modules] for kind in public(module)]
    assert {Batch, Tokens, OutputSizes, AdaptConfig, TrainingArguments, groundling.Task} <= set(
        kinds
    )
    for kind in kinds:
        named = [one.name for one in fields(kind)] if is_dataclass(kind) else kind._fields
        told = {one.name: one.text for one in make_api.field_docs(kind)}
        hints = get_type_hints(kind)  # a field of a documented class needs no text of its own
        missing = [
            name
            for name in named
            if not (told[name] or getattr(hints[name], "__module__", "").startswith("groundling"))
        ]
        assert missing == [], kind


# -- the page --------------------------------------------------------------------------------------------------------
def test_every_public_name_is_on_the_page(make_api: ModuleType) -> None:
    page = make_api.page()
    for name in HERE:
        is_there = f"### `{name}`\n" in page or f"- `{name}`: " in page
        assert name == "__version__" or is_there, name
    for kind in public(batch):
        assert f"### `{kind.__name__}`\n" in page


def test_all_that_examples_import_is_public(make_api: ModuleType) -> None:
    page = (ROOT / "docs/stability.md").read_text(encoding="utf-8")
    listed = {
        (module, name)
        for module, names in re.findall(r"^\| `(groundling[\w.]+)` \| (.*) \|$", page, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    assert [one for one in listed if not hasattr(importlib.import_module(one[0]), one[1])] == []
    on_page = {
        (module, name)
        for section in make_api.SECTIONS.values()
        for module, names in section.items()
        for name in names.split()
    }
    codes = [
        code
        for page in documents.PAGES
        for code in re.findall(PYTHON, page.read_text(), re.DOTALL | re.MULTILINE)
    ]
    codes.append((ROOT / "examples/my_recipe.py").read_text())
    imported = {
        (node.module, name.name)
        for code in codes
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("groundling.")
        for name in node.names
    }
    assert len(imported) > 30
    assert (
        imported - listed - on_page - {(place, name) for name, place in groundling.PLACES.items()}
        == set()
    )
