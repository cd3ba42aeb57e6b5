"""Finds objects by name: built-in ones in the modules of a sub-package, or
`MODULE:NAME` of the user's own code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import sysconfig
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
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

# The user's own modules: their files and imports, found by parsing the source; no code is run.

PACKAGE = __name__.partition(".")[0]
"""The name of this package."""
INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed libraries, which a run records by version."""
MAIN = "__main__"
"""The main program's module, which Python loads without a module finder."""


def source_files(module: str) -> dict[str, Path]:
    """The files of a module and of the user's own modules that it imports, directly
    or indirectly, by module.

    Import statements anywhere in a file count; imports by a computed name are not detected. From
    installed libraries, only the package of `module` itself is included, and from groundling, whose
    version is recorded, the module alone. Empty for a module without a file.
    """
    root = _root(module)
    if root == PACKAGE:
        file = _file_of(module)
        return {} if file is None else {module: file}
    found: dict[str, Path] = {}
    visited: set[str] = set()
    todo = [module]
    while todo:
        for name in _with_packages(todo.pop()):
            if name in visited or not (_root(name) == root or is_user_module(_root(name))):
                continue
            visited.add(name)
            file = _file_of(name)
            if file is not None:
                found[name] = file
                todo += sorted(_imported(file, name, file.stem == "__init__"))
    return dict(sorted(found.items()))


def is_user_module(package: str) -> bool:
    """Whether a top-level package or module is the user's: not Python's, not
    installed, and not this package.
    """
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
    """The packages that contain a module, then the module: the order in which they are imported."""
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _file_of(module: str) -> Path | None:
    """The file of a module; None without one: a folder without `__init__.py`, an
    object, code typed in a shell.
    """
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
    """The spec of a module in its packages' `path` (None for a top-level module), or
    in the working directory.
    """
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
    """The names in a file's import statements: modules, and objects of
    modules, which may be modules.
    """
    if file.suffix != ".py":
        return set()
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return set()  # importing it reports the error
    package = module if is_package else module.rpartition(".")[0]
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            try:
                base = resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:  # more dots than it has packages
                continue
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return names


# -- the working directory ---------------------------------------------------------------------------------------------


class _WorkingDirectoryFinder:
    """Finds modules in a working directory: only those that the user named, and their imports.

    A library that checks whether another library is installed does not find a file of
    that name beside the data.
    """

    def __init__(self) -> None:
        self.places: dict[str, str] = {}
        """The folder of each top-level module."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a top-level module in `places`."""
        place = self.places.get(name)
        return PathFinder.find_spec(name, [place]) if place and path is None else None


_FINDER = _WorkingDirectoryFinder()


def allow_import(module: str) -> None:
    """Let Python import a module that the user named, and its imports, from the working directory.

    Installed modules come first: a file in the working directory never replaces a library.
    """
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)
    here = str(Path.cwd())
    # A folder without `__init__.py` has no file, but is a package.
    for name in {_root(module), *map(_root, source_files(module))}:
        if PathFinder.find_spec(name, [here]) is not None:
            _FINDER.places[name] = here


T = TypeVar("T")
IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""MODULE:NAME."""


def is_import_path(name: str) -> bool:
    """Whether a name is MODULE:NAME of the user's own module, and not a file or a hub id."""
    return IMPORT_PATH.fullmatch(name) is not None and not Path(name).exists()


@cache
def public_modules(folder: str) -> tuple[ModuleType, ...]:
    """The public modules of a sub-package, e.g. `public_modules("objectives")`, and of the
    studies' packages of that name.

    A study may have a module of that name instead; objects that only studies
    define have no sub-package.
    """
    root = __package__.partition(".")[0]
    package = importlib.import_module(root)
    studies = importlib.import_module(f"{root}.studies")
    places = {root: Path(package.__path__[0])}
    for name in sorted(_names(studies)):
        places[f"{studies.__name__}.{name}"] = Path(studies.__path__[0]) / name
    subpath = Path(*folder.split("."))
    modules: list[ModuleType] = []
    for parent, path in places.items():
        if (path / subpath).is_dir():
            package = importlib.import_module(f"{parent}.{folder}")
            names = sorted(_names(package))
            modules += [importlib.import_module(f"{package.__name__}.{name}") for name in names]
        elif (path / subpath).with_suffix(".py").exists():
            modules.append(importlib.import_module(f"{parent}.{folder}"))
    return tuple(modules)


def _names(package: ModuleType) -> list[str]:
    """The public modules and packages in a package."""
    names = (module.name for module in pkgutil.iter_modules(package.__path__))
    return [name for name in names if name[0] != "_"]


def registered(folder: str, kind: type[T]) -> dict[str, T]:
    """All module-level objects of a kind, also inside module-level tuples, by their `name`."""
    objects: dict[str, T] = {}
    for module in public_modules(folder):
        for value in vars(module).values():
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, kind):
                    objects[vars(item)["name"]] = item
    return objects


def resolve(folder: str, kind: type[T], name: str) -> T:
    """The object called `name` in a sub-package, or the user's own object MODULE:NAME.

    Only for names that the user gave; names in a file import nothing (see `resolve_builtin` and
    `check_trust`).

    Raises InputError, which lists the available names or describes the fault of the module.
    """
    return (
        import_object(name, kind) if is_import_path(name) else resolve_builtin(folder, kind, name)
    )


def kind_name(folder: str) -> str:
    """The word for an object of a sub-package in messages."""
    word = folder.rpartition(".")[2]
    return {"vision_language": "architecture", "families": "family"}.get(
        word, word.rstrip("s").replace("_", " ")
    )


def resolve_builtin(folder: str, kind: type[T], name: str) -> T:
    """The object called `name` in a sub-package, never the user's own.

    Raises InputError, which lists the available names.
    """
    offered = registered(folder, kind)
    require_known(name, sorted(offered), f"no {kind_name(folder)} is called {name!r}")
    return offered[name]


def import_object(name: str, kind: type[T]) -> T:
    """Import the object of `MODULE:NAME`; modules in the working directory can be imported too.

    Raises InputError if there is no such module or object, if the import fails, or if the
    object is of another kind.
    """
    if IMPORT_PATH.fullmatch(name) is None:
        raise InputError(f"{name!r}: expected MODULE:NAME")
    path, _, attribute = name.partition(":")
    allow_import(path)
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise InputError(
            f"{name}: the module {path!r} cannot be imported ({first_line(error)}); expected MODULE:NAME"
        ) from None
    except (Exception, SystemExit) as error:  # a user's module can raise any exception
        raise InputError(
            f"{name}: importing {path!r} failed ({type(error).__name__}: {first_line(error)})"
        ) from None
    if attribute not in vars(module):
        offered = [other for other in vars(module) if not other.startswith("_")]
        listing = ", ".join(offered) or "nothing"
        hint = did_you_mean(attribute, offered)
        raise InputError(
            f"{name}: the module {path!r} has no {attribute!r}; it has: {listing}{hint}"
        )
    value = vars(module)[attribute]
    if not isinstance(value, kind):
        raise InputError(
            f"{name}: expected {kind_with_article(kind)}, found {describe_value(value)}"
        )
    return value


def files_of_object(name: str) -> dict[str, Path]:
    """The files of the user's code for MODULE:NAME, by module, without importing any.

    Includes the module's file, under `name`, and those of the user's own modules that it imports.
    """
    module = name.partition(":")[0]
    return {name if one == module else one: file for one, file in source_files(module).items()}


def check_trust(names: Sequence[str], trusted: Collection[str], file: Path) -> None:
    """Raises InputError, which begins with the file, if it names objects MODULE:NAME
    that the user does not trust.

    `names` are those in the file, some of which may be empty; `trusted` are those that the
    user gave.
    """
    nonempty = [name for name in names if name]
    for name in nonempty:
        if IMPORT_PATH.fullmatch(name) is None:
            raise InputError(f"{file}: {name!r:.60}, expected MODULE:NAME; the file may be damaged")
    untrusted = [name for name in dict.fromkeys(nonempty) if name not in trusted]
    if untrusted:
        listing = " ".join(untrusted)
        raise InputError(
            f"{file}: needs {listing}, which is not part of groundling and runs code when imported; if you "
            f"trust it, pass --trust {listing}"
        )


def instantiate(
    name: str,
    is_valid: Callable[[object], TypeGuard[T]],
    expected: str,
    options: Mapping[str, str] | None = None,
) -> T:
    """The object of MODULE:NAME; a class or function is called to make it, without arguments.

    One with a required parameter gets `options` as its argument, if they are not None.

    Raises InputError as `import_object`, if the call would need arguments, or if the result does not fit;
    `expected` describes a valid result.
    """
    value = import_object(name, object)
    is_factory = isinstance(value, type) or (callable(value) and not is_valid(value))
    if is_factory and callable(value):
        with convert_errors(
            f"{name}: cannot be called without arguments",
            advice="; write MODULE:NAME of an object",
        ):
            arguments = [options] if options is not None and _needs_one_argument(value) else []
            inspect.signature(value).bind(*arguments)
        value = _call_factory(name, partial(value, *arguments))
    if not is_valid(value):
        raise InputError(f"{name}: expected {expected}, found {describe_value(value)}")
    return value


POSITIONAL = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
"""Kinds of parameters that a call can give by position."""


def _needs_one_argument(factory: Callable[..., object]) -> bool:
    """Whether a class or function has exactly one positional parameter without a default."""
    parameters = inspect.signature(factory).parameters.values()
    required = [one for one in parameters if one.default is one.empty and one.kind in POSITIONAL]
    return len(required) == 1


def _call_factory(name: str, factory: Callable[[], object]) -> object:
    """The result of calling the user's class or function; raises InputError if the call fails."""
    # The user's code can raise any exception.
    with prefix_errors(name), convert_errors("the call failed", errors=(Exception, SystemExit)):
        return factory()


def describe_value(value: object) -> str:
    """A value of the wrong kind, in words for a message: a class by its name,
    anything else by its type's name.
    """
    return (
        f"the class {value.__name__}" if isinstance(value, type) else kind_with_article(type(value))
    )


def kind_with_article(kind: type) -> str:
    """A kind with its article, e.g. "a Task"."""
    name = kind.__name__
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"


def require_instance(value: object, kind: type[T], message: str) -> T:
    """The value, if it is of a kind; else raises InputError: `message`, which precedes the
    value in words, and the expected kind.
    """
    if not isinstance(value, kind):
        raise InputError(f"{message} {describe_value(value)}, expected {kind_with_article(kind)}")
    return value
