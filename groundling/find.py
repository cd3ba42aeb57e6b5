"""A name is a module path: what the package offers is what its folders hold."""

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import TypeVar

from groundling.errors import InputError

T = TypeVar("T")


def modules(folder: str) -> list[ModuleType]:
    """Every public module of a sub-package, e.g. `modules("objectives")`."""
    package = importlib.import_module(f"{__package__}.{folder}")
    names = sorted(
        m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")
    )
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]


def subclasses(folder: str, base: type[T]) -> dict[str, type[T]]:
    """Every class under `base` defined in the modules of a sub-package, by class name."""
    return {
        name: cls
        for module in modules(folder)
        for name, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, base) and cls is not base and cls.__module__ == module.__name__
    }


def instances(folder: str, kind: type[T]) -> dict[str, T]:
    """Every module-level object of a kind (or inside a module-level tuple), by its `name`."""
    found: dict[str, T] = {}
    for module in modules(folder):
        for value in vars(module).values():
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, kind):
                    found[item.name] = item  # type: ignore[attr-defined]
    return found


def named(folder: str, kind: type[T], name: str) -> T:
    """The object called `name`; raises InputError that lists what exists."""
    offered = instances(folder, kind)
    if name not in offered:
        raise InputError(
            f"no {folder.rstrip('s')} is called {name!r}; there are: {', '.join(sorted(offered))}"
        )
    return offered[name]
