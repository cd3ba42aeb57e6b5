"""Settings: frozen dataclasses, checked by pydantic.

A field declares type, range and default, and its docstring is its help, as in `batch: Annotated[int, Ge(1)] = 32`. The
command line, recipes, Python functions and their documentation are generated from these fields. Settings that belong
together form a group (a dataclass inside the settings of a command); everywhere each setting is addressed by its own
name alone. Imports nothing heavy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from enum import Enum
from functools import cache, wraps
from typing import Any, Literal, NamedTuple, TypeVar, dataclass_transform, get_args, get_origin

from pydantic import ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from groundling.core.errors import InputError, duplicates, require_known


class InputKind(Enum):
    """What a text setting names; the value is its placeholder in help."""

    FILE = "FILE"
    FOLDER = "FOLDER"
    PATH = "PATH"
    WEIGHTED = "FILE[=WEIGHT]"
    """A file or folder with its sampling weight."""
    NAMED = "[NAME=]FOLDER"
    """A folder with an optional name."""
    DATA = "FOLDER|hub"
    """Data of a task: a folder, a file, or `hub`, which downloads GLUE."""
    MODEL = "MODEL"
    """A model's folder or hub id, or MODULE:NAME of your own; in some commands the word `random`."""
    OBJECT = "NAME"
    """A name of the package's, such as a task, or MODULE:NAME of your own; editing its module makes another run."""
    COLUMN = "COLUMN"
    """A table column, or several separated by commas."""


required = "required"
"""Mark of a setting that must not be empty."""
may_repeat = "may repeat"
"""Mark of a list that may contain duplicates, because its values correspond to another list or are \
compared side by side."""


class Settings:
    """Base of all settings, which are made with the decorator `settings`."""

    @field_validator("*", mode="before")
    @classmethod
    def _convert(cls, value: object, info: ValidationInfo) -> object:
        """A path as text, a single text as a list of one, a typed number as the choice that it is."""
        field = setting_fields(cls)[str(info.field_name)]
        if get_origin(field.annotation) is tuple:
            words = value if isinstance(value, list | tuple) else [value] if value else []
            values = tuple(_plain(word) for word in words)
            is_open = Ellipsis in get_args(field.annotation)
            if is_open and may_repeat not in field.metadata and duplicates(values):
                raise ValueError(f"{duplicates(values)[0]} is given twice; remove one")
            return values
        if get_origin(field.annotation) is Literal:
            return {str(one): one for one in get_args(field.annotation)}.get(str(value), value)
        return _plain(value)


Made = TypeVar("Made")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def settings(kind: type[Made]) -> type[Made]:
    """Class decorator: a frozen dataclass whose values pydantic checks whenever one is made.

    Making one raises InputError for a value that its field does not allow.
    """
    config = ConfigDict(use_attribute_docstrings=True, allow_inf_nan=False)
    made: Any = dataclass(frozen=True, config=config)(kind)
    initialise = made.__init__

    @wraps(initialise)
    def checked(self: Made, *values: Any, **named: Any) -> None:
        try:
            initialise(self, *values, **named)
        except ValidationError as error:
            raise InputError(_describe(error)) from None

    made.__init__ = checked
    for base in kind.__mro__[1:]:  # pydantic reads only the docstrings in the class's own body
        for name, inherited in getattr(base, "__pydantic_fields__", {}).items():
            made.__pydantic_fields__[name].description = (
                made.__pydantic_fields__[name].description or inherited.description
            )
    checked_class: type[Made] = made
    return checked_class


def setting_fields(kind: type[Any]) -> Mapping[str, FieldInfo]:
    """The declared fields of a settings class, groups included, by name."""
    found: Mapping[str, FieldInfo] = kind.__pydantic_fields__
    return found


def _plain(value: object) -> object:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.item() if hasattr(value, "dtype") and hasattr(value, "item") else value


def _describe(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    cause = fault.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return str(cause)
    name = str(fault["loc"][0]) if fault["loc"] else "settings"
    value = "" if fault["type"] == "missing" else f" = {fault['input']!r:.200}"
    words = str(cause) if cause else fault["msg"][0].lower() + fault["msg"][1:]
    return f"{name}{value}: {words.replace('input should be', 'expected')}"


Config = TypeVar("Config")


class Setting(NamedTuple):
    """A single setting of a configuration."""

    group: type[Any]
    """The class that declares it."""
    name: str
    value: Any
    """Its value in the configuration."""
    field: FieldInfo
    """Its declaration: annotation, metadata and description."""

    @property
    def default(self) -> Any:
        """The default of its class, which a command may replace by another."""
        return self.field.default

    @property
    def help(self) -> str:
        """Its docstring on one line."""
        return " ".join((self.field.description or "").split())

    @property
    def choices(self) -> tuple[Any, ...]:
        """Allowed values; empty: not restricted to a fixed set."""
        kind = self.field.annotation
        return get_args(kind) if get_origin(kind) is Literal else ()

    @property
    def length(self) -> int | None:
        """Number of values of a list; -1: any number; None: the value is not a list."""
        if get_origin(self.field.annotation) is not tuple:
            return None
        members = get_args(self.field.annotation)
        return -1 if members[-1] is Ellipsis else len(members)

    @property
    def input(self) -> InputKind | None:
        """What the texts name."""
        return next((mark for mark in self.field.metadata if isinstance(mark, InputKind)), None)


def settings_of(config: object) -> list[Setting]:
    """Every single setting of a configuration, those of nested groups included; once if groups share it."""
    found: dict[str, Setting] = {}
    if not isinstance(config, Settings):
        return []
    for name, info in setting_fields(type(config)).items():
        value = vars(config)[name]
        inside = settings_of(value) if isinstance(value, Settings) else []
        for one in inside or [Setting(type(config), name, value, info)]:
            found.setdefault(one.name, one)
    return list(found.values())


@cache
def setting_names(kind: Any) -> frozenset[str]:
    """Names of every single setting of a class, nested groups included."""
    return frozenset(one.name for one in settings_of(kind()))


def setting_values(*configs: object) -> dict[str, Any]:
    """Values of every single setting of some configurations, nested groups included."""
    return {one.name: one.value for config in configs for one in settings_of(config)}


def fill_settings(defaults: Sequence[Any], values: Mapping[str, object]) -> list[Any]:
    """As `replace_settings`, for several configurations without common names."""
    names: frozenset[str] = frozenset().union(*(setting_names(one.__class__) for one in defaults))
    for name in values:
        require_known(name, sorted(names), f"unknown key {name!r}")
    return [_changed(config, values) for config in defaults]


def replace_settings(config: Config, /, **values: object) -> Config:
    """A copy with some settings changed, each addressed by its own name, whichever group holds it.

    Raises InputError for an unknown name, and for a value that is not allowed.
    """
    changed: Config = fill_settings([config], values)[0]
    return changed


def _changed(config: Any, values: Mapping[str, object]) -> Any:
    if setting_names(config.__class__).isdisjoint(values):
        return config
    new = {name: value for name, value in values.items() if name in vars(config)}
    for name, value in vars(config).items():
        if isinstance(value, Settings):
            new[name] = _changed(value, values)
    return replace(config, **new)


def make_settings(kind: type[Config], /, **values: object) -> Config:
    """A configuration with some settings other than the default, each addressed by its own name."""
    return replace_settings(kind(), **values)


def require_settings(config: object, command: str, *names: str) -> None:
    """Raises InputError naming the first of some required settings that is empty."""
    values = setting_values(config)
    for name in names:
        if not values[name]:
            raise InputError(f"{command} needs {name}")


def refuse_settings(config: object, reason: str, *names: str) -> None:
    """Raises InputError, ending in `reason`, for the first of these settings, or of all, that is not the default."""
    for one in settings_of(config):
        if one.value != one.default and (not names or one.name in names):
            given = one.name if one.value is True else f"{one.name}={format_value(one.value)}"
            raise InputError(f"{given}: {reason}")


def flag_name(name: str) -> str:
    """The setting's flag, without the leading dashes."""
    return name.replace("_", "-")


def format_value(value: object) -> str:
    """A value as typed on the command line."""
    if not isinstance(value, tuple):
        return str(value)
    return " ".join(f'"{one}"' if " " in str(one) else str(one) for one in value)
