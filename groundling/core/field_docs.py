"""What `help()` says of a class's fields: the text that stands below each of them in its source. Imports nothing heavy.

Python throws such texts away. Here they are read again from the source, and not before somebody asks.
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
    """A field of a class, as its source tells it."""

    name: str
    """What it is called."""
    kind: str
    """Its type, as it is annotated."""
    default: str
    """Its default, as it is written; empty if it has none."""
    text: str
    """What stands below it, on one line; of a group of fields without one, what its class says of itself."""


def with_field_docs(kind: Class) -> Class:
    """The class itself, whose `__doc__`, and with it `help()`, lists its fields too, each with its own text.

    A decorator that stands above `@dataclass`, or above a class of any other kind with annotated fields.
    """
    # mypy holds `__doc__` for a text; Python asks what is there for one whenever it is read.
    type.__setattr__(kind, "__doc__", _LazyDoc(inspect.cleandoc(kind.__doc__ or "")))
    return kind


def field_docs(kind: type[Any]) -> list[FieldDoc]:
    """The public fields of a class, inherited ones first; none if its source is not at hand."""
    found: dict[str, FieldDoc] = {}
    package = kind.__module__.partition(".")[0]
    for one in reversed(kind.__mro__):
        if (
            one.__module__.partition(".")[0] == package
        ):  # what a library's own classes have is its affair
            found |= _own_fields(one)
    return list(found.values())


def format_fields(told: Iterable[FieldDoc]) -> list[str]:
    """Lines of a docstring: each field with its type and default, and its text below it."""
    lines = []
    for one in told:
        default = f" = {one.default}" if one.default else ""
        lines += [f"    {one.name}: {one.kind}{default}", *_WRAPPER.wrap(one.text)]
    return lines


def summary_of(kind: type[Any]) -> str:
    """The class's docstring as it is written, without its fields."""
    written = vars(kind).get("__doc__")
    return written.summary if isinstance(written, _LazyDoc) else inspect.cleandoc(written or "")


_WRAPPER = textwrap.TextWrapper(
    100, initial_indent=" " * 8, subsequent_indent=" " * 8, break_on_hyphens=False
)


class _LazyDoc:
    """A class's `__doc__` that is put together when it is read."""

    def __init__(self, summary: str) -> None:
        self.summary = summary

    def __get__(self, instance: object, owner: type[Any]) -> str:
        has = vars(owner)
        if "__dataclass_fields__" in has and "__match_args__" not in has:
            return self.summary  # `dataclass`, at work on the class, asks whether there is any
        told = field_docs(owner)
        return (
            "\n".join([self.summary, "", "Fields:", *format_fields(told)]) if told else self.summary
        )


def _own_fields(kind: type[Any]) -> dict[str, FieldDoc]:
    """What the body of the class itself says, by field."""
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
    """The classes in a module's source by name; none if it has no source, as a shell has none."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):
        return {}
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _plain(annotation: ast.expr) -> str:
    """A type without what else `Annotated` says of it."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        inside = annotation.slice
        annotation = inside.elts[0] if isinstance(inside, ast.Tuple) else inside
    return ast.unparse(annotation)


def _of_group(kind: type[Any], hint: str) -> str:
    """What the class of a field says of itself, if it is a documented one and stands in the module of `kind`."""
    group = vars(sys.modules[kind.__module__]).get(hint)
    written = vars(group).get("__doc__") if isinstance(group, type) else None
    if not isinstance(written, _LazyDoc):
        return ""
    first, *_ = written.summary.split("\n\n")
    return f"{' '.join(first.split())} See `{hint}`."


def _default(value: ast.expr) -> str:
    """A default as it is written; of `field(default_factory=dict)` what is made."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        given = {word.arg: ast.unparse(word.value) for word in value.keywords}
        made = given.get("default_factory")
        return f"{made}()" if made else given.get("default", "")
    return ast.unparse(value)


def _text(below: ast.stmt | None) -> str:
    """The text that a statement is, on one line; empty if it is something else."""
    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
        return " ".join(str(below.value.value).split())
    return ""
