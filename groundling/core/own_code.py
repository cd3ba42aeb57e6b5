"""Modules of the user's own: where they lie and what they import, told by reading them; nothing is run for it."""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType

PACKAGE = __name__.partition(".")[0]
"""This one."""
INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed libraries, which a run knows by their versions."""
MAIN = "__main__"
"""The program that runs, which Python knows without having found it."""


def code_of(module: str) -> dict[str, Path]:
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
            if name in seen or not (_root(name) == root or is_own(_root(name))):
                continue
            seen.add(name)
            file = _file_of(name)
            if file is not None:
                found[name] = file
                todo += sorted(_imported(file, name, file.stem == "__init__"))
    return dict(sorted(found.items()))


def is_own(package: str) -> bool:
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
        if isinstance(finder, _Here) or not hasattr(finder, "find_spec"):
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


class _Here:
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


_HERE = _Here()


def importable(module: str) -> None:
    """Let Python import a module that the user named, and what it imports, from the working directory.

    What is found elsewhere comes first: a file there must not stand in for a library.
    """
    if _HERE not in sys.meta_path:
        sys.meta_path.append(_HERE)
    here = str(Path.cwd())
    # A folder without `__init__.py` has no file, and is a package all the same.
    for name in {_root(module), *map(_root, code_of(module))}:
        if PathFinder.find_spec(name, [here]) is not None:
            _HERE.places[name] = here
