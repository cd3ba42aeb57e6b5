"""Settings as dataclasses: each field declares type, allowed values, default and help text. Imports
nothing heavy.

`batch: Annotated[int, at_least(1)] = 32` is a complete field; its help is the docstring below it.

The command line, recipes, Python functions, their stubs and their documentation are generated from
these fields. Values are checked when a settings object is made. Settings that belong together form
a group (a dataclass inside the settings of a command); on the command line and in a recipe each
setting is addressed by its own name alone (`make_settings` and `replace_settings` do the same in Python).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from groundling.core.errors import InputError, prefix_errors, require_known
from groundling.core.field_docs import with_field_docs


@dataclass(frozen=True)
class Range:
    """Allowed range of a number, or of every number in a list."""

    low: float
    """Lower bound."""
    high: float = math.inf
    """Upper bound; infinity itself is allowed only if `high` is infinite and `open_high` is \
False."""
    open_low: bool = False
    """Exclude the lower bound."""
    open_high: bool = True
    """Exclude the upper bound."""

    def __str__(self) -> str:
        if not self.open_high:
            return f"{self.low} to {self.high}"
        start = f"more than {self.low}" if self.open_low else f"at least {self.low}"
        return start if self.high == math.inf else f"{start} and below {self.high}"

    def __contains__(self, number: Any) -> bool:
        above = number > self.low if self.open_low else number >= self.low
        return above and (number < self.high if self.open_high else number <= self.high)


def at_least(low: float, below: float = math.inf) -> Range:
    """Numbers >= `low` and < `below`."""
    return Range(low, below)


def above(low: float, below: float = math.inf) -> Range:
    """Numbers > `low` and < `below`."""
    return Range(low, below, open_low=True)


def between(low: float, high: float) -> Range:
    """Numbers from `low` to `high`, both included."""
    return Range(low, high, open_high=False)


class InputKind(Enum):
    """What a text setting names; everything except a column must exist before a command begins."""

    FILE = "FILE"
    FOLDER = "FOLDER"
    PATH = "PATH"
    WEIGHTED = "FILE[=WEIGHT]"
    """A file or folder with its sampling weight."""
    NAMED = "[NAME=]FOLDER"
    """A folder with an optional name."""
    DATA = "FOLDER, file or hub"
    """Data of a task; `hub` downloads GLUE."""
    MODEL = "MODEL"
    """A model's folder or hub id, or MODULE:NAME of your own."""
    WEIGHTS = "MODEL, but not a run folder"
    MODEL_OR_RANDOM = "MODEL, or the word `random`"
    TASK = "TASK"
    """A task name, or MODULE:NAME."""
    ARCHITECTURE = "ARCHITECTURE"
    """The name of a vision-language architecture, or MODULE:NAME."""
    TRAINING_STEP = "TRAINING_STEP"
    """The name of a training step, or MODULE:NAME."""
    OBJECT = "MODULE:NAME"
    """An object of the user's own code."""
    COLUMN = "COLUMN"
    """A table column, or several separated by commas."""

    @property
    def metavar(self) -> str:
        """Placeholder for the value in help."""
        return self.value.partition(",")[0]


class FieldRule(Enum):
    """Further rules that a field declares."""

    REQUIRED = "required"
    MAY_REPEAT = "may repeat"
    UNNESTED = "unnested"


required = FieldRule.REQUIRED
"""The setting is required."""
may_repeat = FieldRule.MAY_REPEAT
"""A list that may contain duplicates, because its values correspond to another list or are \
compared side by side."""
unnested = FieldRule.UNNESTED
"""A group whose settings config.json stores at the level of the class that holds it."""


class InvalidSettingError(InputError):
    """Raised for a setting with a value that is not allowed."""

    def __init__(self, name: str, fault: str) -> None:
        """`fault`: the message after the setting's name."""
        self.name, self.fault = name, fault
        super().__init__(f"--{flag_name(name)}{fault}")

    def under(self, prefix: str) -> InvalidSettingError:
        """The same error with `prefix` before the flag name."""
        return InvalidSettingError(f"{prefix}{self.name}", self.fault)


@dataclass(frozen=True)
class Setting:
    """A setting as its field declares it."""

    name: str
    """Field name."""
    kind: Any
    """Type of the value."""
    annotations: tuple[object, ...] = ()
    """Further annotations of the field: a `Range`, an `InputKind`, `FieldRule`s."""

    @property
    def choices(self) -> tuple[Any, ...]:
        """Allowed values; empty: not restricted to a fixed set."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def element_type(self) -> Any:
        """Type of a list's elements, or of the value itself."""
        return get_args(self.kind)[0] if get_origin(self.kind) is tuple else self.kind

    @property
    def count(self) -> int | None:
        """Length of a list; -1: any length; None: the value is not a list."""
        if get_origin(self.kind) is not tuple:
            return None
        members = get_args(self.kind)
        return -1 if members[-1] is Ellipsis else len(members)

    @property
    def range(self) -> Range | None:
        """Allowed range of the numbers."""
        return next((mark for mark in self.annotations if isinstance(mark, Range)), None)

    @property
    def input(self) -> InputKind | None:
        """What the texts name."""
        return next((mark for mark in self.annotations if isinstance(mark, InputKind)), None)

    def convert(self, value: object) -> object:
        """The value in the form that the settings store: a path as text, a single text as a list of
        one.

        Raises InvalidSettingError for a value that is not allowed.
        """
        if self.count is not None:
            return self._convert_list(value)
        value = _plain_number(value)
        if self.element_type is str and isinstance(value, os.PathLike):
            return os.fspath(value)
        self._check((value,), value)
        return value

    def parse(self, words: Any) -> object:
        """The value of a typed word, or of several for a list; switches arrive as bools.

        Raises InvalidSettingError for a word that is not a number, or not one of the choices.
        """
        if self.kind is bool:
            return words
        if self.count is not None:
            return tuple(self._parse_word(one, " ".join(words)) for one in words)
        return self._parse_word(words, words)

    def _parse_word(self, word: str, whole: str) -> object:
        if self.choices:
            by_text = {str(one): one for one in self.choices}
            return by_text.get(word, word)  # `convert` refuses other words
        try:
            return self.element_type(word)
        except ValueError:
            raise self._error(whole, self.type_name) from None

    def _convert_list(self, value: object) -> tuple[object, ...]:
        if self.element_type is str and isinstance(value, str | os.PathLike):
            value = (value,) if os.fspath(value) else ()
        if not isinstance(value, list | tuple):
            raise self._error(repr(value), self.type_name)
        every = tuple(
            os.fspath(one)
            if self.element_type is str and isinstance(one, os.PathLike)
            else _plain_number(one)
            for one in value
        )
        self._check(every, list(every))
        if self.count not in (-1, len(every)):
            raise self._error(format_value(every), self.type_name)
        if self.count == -1 and may_repeat not in self.annotations:
            duplicate = next((one for one in every if every.count(one) > 1), None)
            if duplicate is not None:
                raise InvalidSettingError(self.name, f": {duplicate} is given twice; remove one")
        return every

    def _check(self, every: tuple[object, ...], value: object) -> None:
        """Raises InvalidSettingError for a value of the wrong type, outside the choices, or out of range."""
        if self.choices:
            if not all(any(is_same(one, each) for each in self.choices) for one in every):
                raise self._error(
                    format_value(every), f"one of {', '.join(map(str, self.choices))}"
                )
            return
        kinds = (int, float) if self.element_type is float else self.element_type
        for one in every:
            if not isinstance(one, kinds) or (
                isinstance(one, bool) and self.element_type is not bool
            ):
                raise self._error(repr(value), self.type_name)
            if isinstance(one, str) and "\0" in one:
                raise self._error(repr(value), "a string without NUL bytes")
            if isinstance(one, int) and abs(one) >= INTEGER_BOUND:
                raise self._error("a number of more than 18 digits", "a smaller one")
        if self.range is not None and not all(one in self.range for one in every):
            numbers = [one for one in every if isinstance(one, float)]
            finite = "" if all(map(math.isfinite, numbers)) else ", and a finite number"
            raise self._error(format_value(every), f"{self.range}{finite}")

    def _error(self, found: str, expected: str) -> InvalidSettingError:
        return InvalidSettingError(self.name, f" = {found}, expected {expected}")

    @property
    def type_name(self) -> str:
        """The expected type in words."""
        if self.count is None:
            return _TYPE_NAMES.get(self.element_type, "a group of settings")
        return f"{'a list of' if self.count == -1 else 'two'} {_PLURAL_NAMES[self.element_type]}"


def _plain_number(value: object) -> object:
    """A NumPy or other number as a Python number; any other value unchanged."""
    if type(value) in (int, float, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


INTEGER_BOUND = 2**63
"""Upper bound on integers, which libraries store in 64 bits."""
_TYPE_NAMES = {str: "a string", bool: "true or false", int: "a whole number", float: "a number"}
_PLURAL_NAMES = {str: "strings", int: "whole numbers", float: "numbers"}


@cache
def declared_settings(kind: Any) -> Mapping[str, Setting]:
    """The settings of a class by name, groups included."""
    found = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        marks = hint.__metadata__ if get_origin(hint) is Annotated else ()
        plain = get_args(hint)[0] if marks else hint
        found[name] = Setting(name, plain, marks)
    return found


@cache
def _defaults(kind: Any) -> tuple[tuple[str, object], ...]:
    return tuple((one.name, one.default) for one in fields(kind))


class Settings:
    """Base of all settings dataclasses: values are checked on creation, fields are documented."""

    def __init_subclass__(cls) -> None:
        with_field_docs(cls)

    def __post_init__(self) -> None:
        """Raises InvalidSettingError for a value that its field does not allow."""
        kind: Any = type(self)
        for name, default in _defaults(kind):
            value = self.__dict__[name]
            if value is not default:  # a paper's plan creates a hundred thousand of these objects
                converted = declared_settings(kind)[name].convert(value)
                if converted is not value:
                    object.__setattr__(self, name, converted)  # the class is frozen


Config = TypeVar("Config")


@cache
def _fields(kind: Any) -> tuple[Field[Any], ...]:
    return fields(kind)


@cache
def _has_fields(kind: Any) -> bool:
    return is_dataclass(kind)


def _is_group(value: object) -> bool:
    kind: Any = type(value)
    return _has_fields(kind)


def flatten_settings(config: object) -> list[tuple[object, Setting]]:
    """Every single setting of a configuration with the group that holds it, nested groups included."""
    found: list[tuple[object, Setting]] = []
    if not _is_group(config):
        return found
    kind: Any = type(config)
    for name, one in declared_settings(kind).items():
        value = config.__dict__[name]
        if _is_group(value):
            found += flatten_settings(value)
        else:
            found.append((config, one))
    return found


def setting_values(*configs: object) -> dict[str, Any]:
    """Values of every single setting of some configurations, nested groups included."""
    return {
        one.name: vars(group)[one.name]
        for config in configs
        for group, one in flatten_settings(config)
    }


def config_dict(config: object) -> dict[str, Any]:
    """A configuration as config.json stores it: one mapping per group; `unnested` groups are merged
    into their parent.
    """
    found: dict[str, Any] = {}
    kind: Any = type(config)
    for name, one in declared_settings(kind).items():
        value = vars(config)[name]
        if not _is_group(value):
            found[name] = value
        elif unnested in one.annotations:
            found |= config_dict(value)
        else:
            found[name] = config_dict(value)
    return found


@cache
def setting_names(kind: Any) -> frozenset[str]:
    """Names of all single settings of a class, nested groups included."""
    found: set[str] = set()
    for one in declared_settings(kind).values():
        found |= setting_names(one.kind) if _has_fields(one.kind) else {one.name}
    return frozenset(found)


def replace_settings(config: Config, /, **values: object) -> Config:
    """A copy with some settings changed, each addressed by its own name, whichever group holds it.

    Raises InputError for an unknown name, and for a value that is not allowed.
    """
    kind: Any = type(config)
    names = setting_names(kind)
    for name in values:
        require_known(name, sorted(names), f"no setting is called {name!r}")
    return _changed(config, values)


def _changed(config: Any, values: Mapping[str, object]) -> Any:
    """A copy with the changes that apply, or the same object if none does."""
    new = {}
    kind: Any = type(config)
    for one in _fields(kind):
        value = config.__dict__[one.name]
        if _is_group(value):
            group = _changed(value, values)
            if group is not value:
                new[one.name] = group
        elif one.name in values:
            new[one.name] = values[one.name]
    return replace(config, **new) if new else config


def make_settings(kind: type[Config], /, **values: object) -> Config:
    """A configuration with some settings other than the default, each addressed by its own name, as
    by a command's flags.
    """
    return replace_settings(kind(), **values)


def fill_settings(defaults: Sequence[Any], values: Mapping[str, object], where: str) -> list[Any]:
    """Configurations with some settings other than the default; each name is assigned to the
    configuration that has it.

    Raises InputError, which begins with `where`, for an unknown name, and for a value that is not
    allowed.
    """
    if not values:
        return list(defaults)
    holders = {
        one.name: place
        for place, config in enumerate(defaults)
        for _, one in flatten_settings(config)
    }
    new: list[dict[str, object]] = [{} for _ in defaults]
    for name, value in values.items():
        require_known(name, sorted(holders), f"{where}: unknown key {name!r}")
        new[holders[name]][name] = value
    pairs = zip(defaults, new, strict=True)
    with prefix_errors(where):
        try:
            return [_changed(config, some) if some else config for config, some in pairs]
        except InvalidSettingError as error:
            raise InputError(f"{error.name}{error.fault}") from None


def require_settings(config: object, command: str, *names: str) -> None:
    """Raises InputError naming the first of some required settings that is empty."""
    values = setting_values(config)
    for name in names:
        if not values[name]:
            raise InputError(f"{command} needs --{flag_name(name)}")


def refuse_settings(flags: Mapping[str, object], reason: str) -> None:
    """Raises InputError, ending in `reason`, for the first of some flags that was given a value."""
    for flag, value in flags.items():
        if value:
            text = flag if value is True else f"{flag} {format_value(value)}"
            raise InputError(f"{text}: {reason}")


def flag_name(name: str) -> str:
    """The setting's flag, without the leading dashes."""
    return name.replace("_", "-")


def prefixed_flags(prefix: str, settings: object) -> dict[str, str]:
    """Flag names of some settings in a command that puts `prefix` before them, by their plain flag
    names.
    """
    return {
        flag_name(one.name): prefix + flag_name(one.name) for _, one in flatten_settings(settings)
    }


def is_same(one: object, other: object) -> bool:
    """Whether two values are equal and of the same type: 1 is not True."""
    return type(one) is type(other) and one == other


def format_value(value: object) -> str:
    """A value as typed on the command line."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
