"""Adds the attribute docstrings of a class's fields to its `help()`. Imports nothing heavy.

Python discards attribute docstrings; they are read from the source when `help()` asks for them.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterable
from functools import cache
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

Class = TypeVar("Class", bound=type[Any])


class FieldDoc(NamedTuple):
    """A field of a class, as written in its source."""

    name: str
    """Its name."""
    kind: str
    """Its type annotation."""
    default: str
    """Its default, as written; empty if it has none."""
    text: str
    """Its docstring, on one line; for a field of a documented class without one,
    the summary of that class.
    """


def with_field_docs(kind: Class) -> Class:
    """The class, with a `__doc__` (and so a `help()`) that also lists its
    fields with their docstrings.

    A decorator, placed above `@dataclass` or above any other class with annotated fields.
    """
    # mypy expects `__doc__` to be a str; Python calls the descriptor whenever it is read.
    type.__setattr__(kind, "__doc__", _ClassDocstring(inspect.cleandoc(kind.__doc__ or "")))
    return kind


def field_docs(kind: type[Any]) -> list[FieldDoc]:
    """The public fields of a class, inherited ones first; empty if its source is not available."""
    found: dict[str, FieldDoc] = {}
    package = kind.__module__.partition(".")[0]
    for one in reversed(kind.__mro__):
        if (
            one.__module__.partition(".")[0] == package
        ):  # fields of a library's own classes are not listed
            found |= _own_fields(one)
    return list(found.values())


def format_fields(docs: Iterable[FieldDoc]) -> list[str]:
    """Docstring lines: each field with its type and default, and its docstring below."""
    lines = []
    for one in docs:
        default = f" = {one.default}" if one.default else ""
        lines += [f"    {one.name}: {one.kind}{default}", *_WRAPPER.wrap(one.text)]
    return lines


def summary_of(kind: type[Any]) -> str:
    """The class's docstring as written, without its fields."""
    written = vars(kind).get("__doc__")
    return (
        written.summary if isinstance(written, _ClassDocstring) else inspect.cleandoc(written or "")
    )


_WRAPPER = textwrap.TextWrapper(
    100, initial_indent=" " * 8, subsequent_indent=" " * 8, break_on_hyphens=False
)


class _ClassDocstring:
    """A class's `__doc__`, assembled when it is read."""

    def __init__(self, summary: str) -> None:
        self.summary = summary

    def __get__(self, instance: object, owner: type[Any]) -> str:
        attributes = vars(owner)
        if "__dataclass_fields__" in attributes and "__match_args__" not in attributes:
            return self.summary  # `dataclass` reads the docstring while it builds the class
        docs = field_docs(owner)
        return (
            "\n".join([self.summary, "", "Fields:", *format_fields(docs)]) if docs else self.summary
        )


def _own_fields(kind: type[Any]) -> dict[str, FieldDoc]:
    """The fields in the class's own body, by name."""
    node = _classes(kind.__module__).get(kind.__qualname__)
    body = [] if node is None else node.body
    found: dict[str, FieldDoc] = {}
    for line, below in zip_longest(body, body[1:]):
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
            continue
        if not line.target.id.startswith("_"):
            default = "" if line.value is None else _default(line.value)
            name, hint = line.target.id, _plain(line.annotation)
            found[name] = FieldDoc(name, hint, default, _text(below) or _of_group(kind, hint))
    return found


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """The classes in a module's source, by name; empty if it has no source, as in a shell."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):
        return {}
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _plain(annotation: ast.expr) -> str:
    """A type annotation without the metadata of `Annotated`."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        inside = annotation.slice
        annotation = inside.elts[0] if isinstance(inside, ast.Tuple) else inside
    return ast.unparse(annotation)


def _of_group(kind: type[Any], hint: str) -> str:
    """The summary of a field's class, if that class is documented and in the module of `kind`."""
    group = vars(sys.modules[kind.__module__]).get(hint)
    written = vars(group).get("__doc__") if isinstance(group, type) else None
    if not isinstance(written, _ClassDocstring):
        return ""
    first, *_ = written.summary.split("\n\n")
    return f"{' '.join(first.split())} See `{hint}`."


def _default(value: ast.expr) -> str:
    """A default as written; for `field(default_factory=dict)`, the value that the factory makes."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        keywords = {one.arg: ast.unparse(one.value) for one in value.keywords}
        factory = keywords.get("default_factory")
        return f"{factory}()" if factory else keywords.get("default", "")
    return ast.unparse(value)


def _text(below: ast.stmt | None) -> str:
    """The string of a docstring statement, on one line; empty for any other statement."""
    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
        return " ".join(str(below.value.value).split())
    return ""
