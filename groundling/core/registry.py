"""Finds objects by name: built-in ones in the modules of a sub-package, or `MODULE:NAME` of the user's own code."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TypeGuard, TypeVar

from groundling.core.errors import InputError, convert_errors, prefix_errors, require_known

T = TypeVar("T")
IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""MODULE:NAME."""
LIBRARIES = ("open_clip:", "timm:", "vectors:")
"""What a teacher's source may begin with instead of a module."""


def is_import_path(name: str) -> bool:
    """Whether a name is MODULE:NAME of the user's own module, and not a file, a hub id or a library's model."""
    if name.startswith(LIBRARIES):
        return False
    return IMPORT_PATH.fullmatch(name) is not None and not Path(name).exists()


@cache
def public_modules(folder: str) -> tuple[ModuleType, ...]:
    """The public modules of a sub-package, e.g. `public_modules("objectives")`, and those of that name in studies.

    A study may have a module of that name instead; objects that only studies define have no sub-package.
    """
    root = __package__.partition(".")[0]
    studies = importlib.import_module(f"{root}.studies")
    modules: list[ModuleType] = []
    for parent in (root, *(f"{root}.studies.{name}" for name in _names(studies))):
        place = f"{parent}.{folder}"
        if find_spec(place) is not None:
            found = importlib.import_module(place)
            is_package = hasattr(found, "__path__")
            inside = [f"{place}.{name}" for name in _names(found)] if is_package else [place]
            modules += map(importlib.import_module, inside)
    return tuple(modules)


def _names(package: ModuleType) -> list[str]:
    names = (module.name for module in pkgutil.iter_modules(package.__path__))
    return sorted(name for name in names if name[0] != "_")


def registered(folder: str, kind: type[T]) -> dict[str, T]:
    """All module-level objects of a kind, also inside module-level tuples, by their `name`.

    Raises ValueError for two with one name.
    """
    objects: dict[str, T] = {}
    for module in public_modules(folder):
        for value in vars(module).values():
            for item in value if isinstance(value, tuple) else (value,):
                if (
                    isinstance(item, kind)
                    and objects.setdefault(vars(item)["name"], item) is not item
                ):
                    raise ValueError(
                        f"{module.__name__}: a second {kind.__name__} {vars(item)['name']!r}"
                    )
    return objects


def resolve(folder: str, kind: type[T], name: str) -> T:
    """The object called `name` in a sub-package, or the user's own object MODULE:NAME.

    Only for names that the user gave; names in a file import nothing (`resolve_builtin`, `check_trust`).
    """
    return (
        import_object(name, kind) if is_import_path(name) else resolve_builtin(folder, kind, name)
    )


def resolve_builtin(folder: str, kind: type[T], name: str) -> T:
    """The object called `name` in a sub-package, never the user's own."""
    offered = registered(folder, kind)
    word = re.sub("(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()
    require_known(
        name, sorted(offered), f"no {word} is called {name!r}", ", or MODULE:NAME of your own"
    )
    return offered[name]


def import_object(name: str, kind: type[T]) -> T:
    """Import the object of `MODULE:NAME`; modules in the working directory can be imported too."""
    if IMPORT_PATH.fullmatch(name) is None:
        raise InputError(f"{name!r}: expected MODULE:NAME")
    path, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last, so that no file beside the data replaces a library
    # A user's module can raise any exception.
    problem = f"{name}: the module {path!r} cannot be imported"
    with convert_errors(problem, errors=(Exception, SystemExit)):
        module = importlib.import_module(path)
    offered = [other for other in vars(module) if not other.startswith("__")]
    require_known(attribute, offered, f"{name}: the module {path!r} has no {attribute!r}")
    return require_instance(vars(module)[attribute], kind, f"{name}: found")


def files_of_object(name: str) -> dict[str, Path]:
    """The file of the module of MODULE:NAME, under `name`; empty for code typed in a shell.

    Imports the module; what it imports in turn is not among the files.
    """
    import_object(name, object)
    file = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
    return {name: Path(file)} if file else {}


def check_trust(names: Sequence[str], trusted: Collection[str], file: Path) -> None:
    """Raises InputError if a file names objects MODULE:NAME that the user does not trust.

    `names` are those in the file, some of which may be empty; `trusted` are those that the user gave.
    """
    untrusted = [name for name in dict.fromkeys(names) if name and name not in trusted]
    if untrusted:
        listing = " ".join(untrusted)
        raise InputError(
            f"{file}: needs {listing}, which is not part of groundling and runs code when imported; if you "
            f"trust it, pass trust={listing}"
        )


def instantiate(
    name: str,
    is_valid: Callable[[object], TypeGuard[T]],
    expected: str,
    options: Mapping[str, str] | None = None,
) -> T:
    """The object of MODULE:NAME; a class or function is called to make it, with `options` if it needs an argument.

    `expected` describes a valid result in messages.
    """
    value = import_object(name, object)
    if callable(value) and (isinstance(value, type) or not is_valid(value)):
        # The user's code can raise any exception.
        with prefix_errors(name), convert_errors("the call failed", errors=(Exception, SystemExit)):
            arguments: list[Mapping[str, str]] = []
            try:
                inspect.signature(value).bind()
            except TypeError:  # it needs an argument
                arguments = [] if options is None else [options]
            value = value(*arguments)
    if not is_valid(value):
        raise InputError(f"{name}: expected {expected}, found {describe_value(value)}")
    return value


def describe_value(value: object) -> str:
    """A value of the wrong kind in a message: a class by its name, anything else by its type's name."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def require_instance(value: object, kind: type[T], message: str) -> T:
    """The value, if it is of a kind; else raises InputError: `message`, the value in words, and the expected kind."""
    if not isinstance(value, kind):
        raise InputError(f"{message} {describe_value(value)}, expected {kind.__name__}")
    return value
