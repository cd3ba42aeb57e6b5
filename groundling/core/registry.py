"""A name is a module path: what the package offers is what its folders hold, and `MODULE:NAME` is yours."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import sysconfig
from collections.abc import Callable, Collection, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import TypeGuard, TypeVar

from groundling.core.errors import (
    InputError,
    convert_errors,
    did_you_mean,
    first_line,
    prefix_errors,
    require_known,
)

# Modules of the user's own: where they lie and what they import, told by reading them; nothing is run for it.

PACKAGE = __name__.partition(".")[0]
"""This one."""
INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed libraries, which a run knows by their versions."""
MAIN = "__main__"
"""The program that runs, which Python knows without having found it."""


def source_files(module: str) -> dict[str, Path]:
    """The files of a module and of all of the user's own modules that it imports, and these import, by module.

    Import statements count wherever they stand; what a module imports by a computed name is not known. Of installed
    libraries only the package of `module` itself counts, and of groundling, whose version a run knows, the module
    alone. Empty for a module without a file.
    """
    root = _root(module)
    if root == PACKAGE:
        alone = _file_of(module)
        return {} if alone is None else {module: alone}
    found: dict[str, Path] = {}
    seen: set[str] = set()
    todo = [module]
    while todo:
        for name in _with_packages(todo.pop()):
            if name in seen or not (_root(name) == root or is_user_module(_root(name))):
                continue
            seen.add(name)
            file = _file_of(name)
            if file is not None:
                found[name] = file
                todo += sorted(_imported(file, name, file.stem == "__init__"))
    return dict(sorted(found.items()))


def is_user_module(package: str) -> bool:
    """Whether a top-level package or module is the user's: neither Python's nor installed, nor this package."""
    if package in sys.stdlib_module_names or package == PACKAGE:
        return False
    spec = _find(package, None)
    if spec is None:
        return False
    places = [spec.origin] if spec.has_location else spec.submodule_search_locations
    return any(place is not None and not _is_installed(Path(place)) for place in places or ())


def _is_installed(place: Path) -> bool:
    if not INSTALLED.isdisjoint(place.parts):
        return True
    return place.is_relative_to(sysconfig.get_path("stdlib"))


def _root(module: str) -> str:
    return module.partition(".")[0]


def _with_packages(module: str) -> list[str]:
    """A module after the packages that it lies in, which are imported before it."""
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _file_of(module: str) -> Path | None:
    """The file of a module; None if there is none: a folder without `__init__.py`, an object, what is typed in."""
    if module == MAIN:
        file = vars(sys.modules[MAIN]).get("__file__")
        return Path(file) if file else None
    spec: ModuleSpec | None = None
    path: Sequence[str] | None = None
    for name in _with_packages(module):
        if spec is not None:
            path = spec.submodule_search_locations
            if path is None:
                return None
        spec = _find(name, path)
        if spec is None:
            return None
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


def _find(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """As Python would find a module in its packages' `path`, None for all; at last in the working directory."""
    if not name.rpartition(".")[2].isidentifier():
        return None
    for finder in sys.meta_path:
        if isinstance(finder, _WorkingDirectoryFinder) or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return PathFinder.find_spec(name, [str(Path.cwd())]) if path is None else None


def _imported(file: Path, module: str, is_package: bool) -> set[str]:
    """What the import statements of a file name: modules, and objects of modules, which might be modules."""
    if file.suffix != ".py":
        return set()
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return set()  # to import it says what is wrong
    package = module if is_package else module.rpartition(".")[0]
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            try:
                base = resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:  # out of its packages
                continue
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return names


# -- the working directory ---------------------------------------------------------------------------------------------


class _WorkingDirectoryFinder:
    """Finds those modules of a working directory that the user named, and what they import, and nothing else there.

    A library that looks whether another one is installed does not find a file of that name beside the data.
    """

    def __init__(self) -> None:
        self.places: dict[str, str] = {}
        """The folder of each top-level module."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Of a top-level module that is known."""
        place = self.places.get(name)
        return PathFinder.find_spec(name, [place]) if place and path is None else None


_HERE = _WorkingDirectoryFinder()


def allow_import(module: str) -> None:
    """Let Python import a module that the user named, and what it imports, from the working directory.

    What is found elsewhere comes first: a file there must not stand in for a library.
    """
    if _HERE not in sys.meta_path:
        sys.meta_path.append(_HERE)
    here = str(Path.cwd())
    # A folder without `__init__.py` has no file, and is a package all the same.
    for name in {_root(module), *map(_root, source_files(module))}:
        if PathFinder.find_spec(name, [here]) is not None:
            _HERE.places[name] = here


T = TypeVar("T")
OUTSIDE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""MODULE:NAME."""


def is_import_path(name: str) -> bool:
    """Whether a name means an object of the user's own module, and not a file or a hub id."""
    return OUTSIDE.fullmatch(name) is not None and not Path(name).exists()


@cache
def public_modules(folder: str) -> tuple[ModuleType, ...]:
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


def registered(folder: str, kind: type[T]) -> dict[str, T]:
    """Every module-level object of a kind (or inside a module-level tuple), by its `name`."""
    offered: dict[str, T] = {}
    for module in public_modules(folder):
        for value in vars(module).values():
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, kind):
                    offered[vars(item)["name"]] = item
    return offered


def resolve(folder: str, kind: type[T], name: str) -> T:
    """The object called `name` in a sub-package, or of your own module if it is written MODULE:NAME.

    Only for names that the user gave: on a file's word, nothing is imported (`stock`, `check_trust`). Raises InputError
    that lists what exists, or says what is wrong with the module.
    """
    return (
        import_object(name, kind) if is_import_path(name) else resolve_builtin(folder, kind, name)
    )


def kind_name(folder: str) -> str:
    """What messages call an object of a sub-package."""
    word = folder.rpartition(".")[2]
    return {"vision_language": "join"}.get(word, word.rstrip("s").replace("_", " "))


def resolve_builtin(folder: str, kind: type[T], name: str) -> T:
    """The object called `name` in a sub-package, and in no other module; raises InputError that lists what exists."""
    offered = registered(folder, kind)
    require_known(name, sorted(offered), f"no {kind_name(folder)} is called {name!r}")
    return offered[name]


def import_object(name: str, kind: type[T]) -> T:
    """The object NAME of an importable module, from `MODULE:NAME`; the working directory counts as importable.

    Raises InputError if there is no such module or object, if importing the module fails, or if the object is of
    another kind.
    """
    if OUTSIDE.fullmatch(name) is None:
        raise InputError(f"{name!r}: expected MODULE:NAME")
    path, _, attribute = name.partition(":")
    allow_import(path)
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
        hint = did_you_mean(attribute, offered)
        raise InputError(f"{name}: the module {path!r} has no {attribute!r}; it has: {there}{hint}")
    value = vars(module)[attribute]
    if not isinstance(value, kind):
        raise InputError(
            f"{name}: expected {kind_with_article(kind)}, found {describe_value(value)}"
        )
    return value


def files_of_object(name: str) -> dict[str, Path]:
    """The files of the user's code behind MODULE:NAME, told without importing any: the module's, under this name, and
    those of the user's own modules that it imports, under theirs.
    """
    module = name.partition(":")[0]
    return {name if one == module else one: file for one, file in source_files(module).items()}


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


def instantiate(name: str, fits: Callable[[object], TypeGuard[T]], expected: str) -> T:
    """What MODULE:NAME is, or makes: a class or a function is called without arguments.

    Raises InputError as `outside`, if the call would need arguments, or if the outcome does not fit; `expected` names
    what would have fitted.
    """
    value = import_object(name, object)
    is_maker = isinstance(value, type) or (callable(value) and not fits(value))
    if is_maker and callable(value):
        with convert_errors(
            f"{name}: it cannot be made without arguments",
            advice="; write MODULE:NAME of an object",
        ):
            inspect.signature(value).bind()
        value = _made(name, value)
    if not fits(value):
        raise InputError(f"{name}: expected {expected}, found {describe_value(value)}")
    return value


def _made(name: str, maker: Callable[[], object]) -> object:
    """What a maker of the user's returns; InputError if it fails."""
    # It can fail in any way.
    with prefix_errors(name), convert_errors("making it failed", errors=(Exception, SystemExit)):
        return maker()


def describe_value(value: object) -> str:
    """What a message calls a value that does not fit: a class by its own name, anything else by its type's."""
    return (
        f"the class {value.__name__}" if isinstance(value, type) else kind_with_article(type(value))
    )


def kind_with_article(kind: type) -> str:
    """An object of a class, in words."""
    name = kind.__name__
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"


def require_kind(value: object, kind: type[T], told: str) -> T:
    """The value, if it is of a kind; raises InputError, with what is `told` before what it is, if it is not."""
    if not isinstance(value, kind):
        raise InputError(f"{told} {describe_value(value)}, expected {kind_with_article(kind)}")
    return value
