"""A name is a module path: what the package offers is what its folders hold, and `MODULE:NAME` is yours."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Collection, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TypeGuard, TypeVar

from groundling.core.errors import InputError, first_line, nearest
from groundling.core.own_code import code_of, importable

T = TypeVar("T")
OUTSIDE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""MODULE:NAME."""


def is_outside(name: str) -> bool:
    """Whether a name means an object of the user's own module, and not a file or a hub id."""
    return OUTSIDE.fullmatch(name) is not None and not Path(name).exists()


@cache
def modules(folder: str) -> tuple[ModuleType, ...]:
    """Every public module of a sub-package, e.g. `modules("objectives")`, and of the studies' packages of its name.

    A study may have a module of that name instead, and of what studies alone offer there is no sub-package.
    """
    root = __package__.partition(".")[0]
    package = importlib.import_module(root)
    studies = importlib.import_module(f"{root}.studies")
    houses = {root: Path(package.__path__[0])}
    for name in sorted(_names(studies)):
        houses[f"{studies.__name__}.{name}"] = Path(studies.__path__[0]) / name
    inside = Path(*folder.split("."))
    found: list[ModuleType] = []
    for house, place in houses.items():
        if (place / inside).is_dir():
            package = importlib.import_module(f"{house}.{folder}")
            names = sorted(_names(package))
            found += [importlib.import_module(f"{package.__name__}.{name}") for name in names]
        elif (place / inside).with_suffix(".py").exists():
            found.append(importlib.import_module(f"{house}.{folder}"))
    return tuple(found)


def _names(package: ModuleType) -> list[str]:
    """The public modules and packages in a package."""
    names = (module.name for module in pkgutil.iter_modules(package.__path__))
    return [name for name in names if name[0] != "_"]


def instances(folder: str, kind: type[T]) -> dict[str, T]:
    """Every module-level object of a kind (or inside a module-level tuple), by its `name`."""
    offered: dict[str, T] = {}
    for module in modules(folder):
        for value in vars(module).values():
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, kind):
                    offered[vars(item)["name"]] = item
    return offered


def named(folder: str, kind: type[T], name: str) -> T:
    """The object called `name` in a sub-package, or of your own module if it is written MODULE:NAME.

    Only for names that the user gave: on a file's word, nothing is imported (`stock`, `check_trust`). Raises InputError
    that lists what exists, or says what is wrong with the module.
    """
    return outside(name, kind) if is_outside(name) else stock(folder, kind, name)


def noun(folder: str) -> str:
    """What messages call an object of a sub-package."""
    word = folder.rpartition(".")[2]
    return {"vision_language": "join"}.get(word, word.rstrip("s").replace("_", " "))


def stock(folder: str, kind: type[T], name: str) -> T:
    """The object called `name` in a sub-package, and in no other module; raises InputError that lists what exists."""
    offered = instances(folder, kind)
    if name not in offered:
        what = noun(folder)
        there = ", ".join(sorted(offered))
        raise InputError(
            f"no {what} is called {name!r}; there are: {there}{nearest(name, offered)}"
        )
    return offered[name]


def outside(name: str, kind: type[T]) -> T:
    """The object NAME of an importable module, from `MODULE:NAME`; the working directory counts as importable.

    Raises InputError if there is no such module or object, if importing the module fails, or if the object is of
    another kind.
    """
    if OUTSIDE.fullmatch(name) is None:
        raise InputError(f"{name!r}: expected MODULE:NAME")
    path, _, attribute = name.partition(":")
    importable(path)
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise InputError(
            f"{name}: the module {path!r} cannot be imported ({first_line(error)}); expected MODULE:NAME"
        ) from None
    except (Exception, SystemExit) as error:  # a module of the user's can fail in any way
        raise InputError(
            f"{name}: importing {path!r} failed ({type(error).__name__}: {first_line(error)})"
        ) from None
    if attribute not in vars(module):
        offered = [other for other in vars(module) if not other.startswith("_")]
        there = ", ".join(offered) or "nothing"
        hint = nearest(attribute, offered)
        raise InputError(f"{name}: the module {path!r} has no {attribute!r}; it has: {there}{hint}")
    value = vars(module)[attribute]
    if not isinstance(value, kind):
        raise InputError(f"{name}: expected a {kind.__name__}, found {described(value)}")
    return value


def code_behind(name: str) -> dict[str, Path]:
    """The files of the user's code behind MODULE:NAME, told without importing any: the module's, under this name, and
    those of the user's own modules that it imports, under theirs.
    """
    module = name.partition(":")[0]
    return {name if one == module else one: file for one, file in code_of(module).items()}


def check_trust(asked: Sequence[str], trust: Collection[str], file: Path) -> None:
    """Raises InputError, which begins with the file, if it asks for objects MODULE:NAME that the user did not name.

    `asked` has what the file says, empty where it says nothing; `trust` what the user named.
    """
    named_there = [name for name in asked if name]
    for name in named_there:
        if OUTSIDE.fullmatch(name) is None:
            raise InputError(f"{file}: {name!r:.60}, expected MODULE:NAME; is it damaged?")
    strange = [name for name in dict.fromkeys(named_there) if name not in trust]
    if strange:
        names = " ".join(strange)
        raise InputError(
            f"{file}: asks for {names}, code that is no part of groundling and runs as soon as it is imported; if you "
            f"trust it, pass --trust {names}"
        )


def built(name: str, fits: Callable[[object], TypeGuard[T]], expected: str) -> T:
    """What MODULE:NAME is, or makes: a class or a function is called without arguments.

    Raises InputError as `outside`, if the call would need arguments, or if the outcome does not fit; `expected` names
    what would have fitted.
    """
    value = outside(name, object)
    is_maker = isinstance(value, type) or (callable(value) and not fits(value))
    if is_maker and callable(value):
        try:
            inspect.signature(value).bind()
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{name}: it cannot be made without arguments ({error}); write MODULE:NAME of an object"
            ) from None
        value = _made(name, value)
    if not fits(value):
        raise InputError(f"{name}: expected {expected}, found {described(value)}")
    return value


def _made(name: str, maker: Callable[[], object]) -> object:
    """What a maker of the user's returns; InputError if it fails."""
    try:
        return maker()
    except (Exception, SystemExit) as error:  # it can fail in any way
        raise InputError(
            f"{name}: making it failed ({type(error).__name__}: {first_line(error)})"
        ) from None


def described(value: object) -> str:
    """What a message calls a value that does not fit: a class by its own name, anything else by its type's."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"
