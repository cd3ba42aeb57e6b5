"""Settings as dataclasses: what one is, may be and means stands in its field. Imports nothing heavy.

`batch: Annotated[int, at_least(1)] = 32` is a whole field; its help is the text below it.

The command line, sweeps, Python functions, their stubs and documents are made from these fields, and whoever makes
settings has their values checked. Settings that travel together are groups of their own inside a command's settings;
on the command line and in a sweep's file every setting is called by its own name alone (`configured` and `changed` do
the same in Python).
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
    """What a number, or every number of a list, may be."""

    low: float
    """The smallest."""
    high: float = math.inf
    """The largest; infinity itself is in no range but one that names it."""
    open_low: bool = False
    """All but the smallest itself."""
    open_high: bool = True
    """All but the largest itself."""

    def __str__(self) -> str:
        if not self.open_high:
            return f"{self.low} to {self.high}"
        start = f"more than {self.low}" if self.open_low else f"at least {self.low}"
        return start if self.high == math.inf else f"{start} and below {self.high}"

    def __contains__(self, number: Any) -> bool:
        above = number > self.low if self.open_low else number >= self.low
        return above and (number < self.high if self.open_high else number <= self.high)


def at_least(low: float, below: float = math.inf) -> Range:
    """Numbers from `low` on, up to those below another."""
    return Range(low, below)


def above(low: float, below: float = math.inf) -> Range:
    """Numbers above `low`, up to those below another."""
    return Range(low, below, open_low=True)


def between(low: float, high: float) -> Range:
    """Numbers from `low` to `high`, both included."""
    return Range(low, high, open_high=False)


class InputKind(Enum):
    """What a text names; but for columns, that is to be there before a command begins."""

    FILE = "FILE"
    FOLDER = "FOLDER"
    PATH = "PATH"
    WEIGHTED = "FILE[=WEIGHT]"
    """A file or folder, and how often a step reads it."""
    NAMED = "[NAME=]FOLDER"
    """A folder, and what it is called."""
    DATA = "FOLDER, file or hub"
    """Of a task; `hub` is where GLUE comes from."""
    MODEL = "MODEL"
    """A folder or the hub's id of a model, or MODULE:NAME of one's own."""
    WEIGHTS = "MODEL, no run's folder, which has its model inside"
    MODEL_OR_RANDOM = "MODEL, or the word `random`"
    TASK = "TASK"
    """A task's name, or MODULE:NAME."""
    DESIGN = "DESIGN"
    """The name of a vision-language model's design, or MODULE:NAME."""
    INNER = "INNER_STEP"
    """The name of an inner step of training, or MODULE:NAME."""
    OBJECT = "MODULE:NAME"
    """An object of the user's own."""
    COLUMN = "COLUMN"
    """Of a table, or several by comma."""

    @property
    def metavar(self) -> str:
        """What help shows in place of a value."""
        return self.value.partition(",")[0]


class FieldRule(Enum):
    """What else a field says of its setting."""

    NEEDED = "needed"
    MAY_REPEAT = "may repeat"
    UNNESTED = "unnested"


required = FieldRule.NEEDED
"""A command does nothing without it."""
may_repeat = FieldRule.MAY_REPEAT
"""A list in which a thing may stand twice: what belongs side by side, or to another list."""
unnested = FieldRule.UNNESTED
"""A group whose settings config.json has beside those of the class that holds it."""


class InvalidSettingError(InputError):
    """A setting whose value is none that it may have."""

    def __init__(self, name: str, fault: str) -> None:
        """`fault`: what follows the setting's name."""
        self.name, self.fault = name, fault
        super().__init__(f"--{flag_name(name)}{fault}")

    def under(self, prefix: str) -> InvalidSettingError:
        """The same of a command in which `prefix` stands before the flags of these settings."""
        return InvalidSettingError(f"{prefix}{self.name}", self.fault)


@dataclass(frozen=True)
class Setting:
    """A setting as its field declares it."""

    name: str
    """What it is called."""
    kind: Any
    """Its type."""
    annotations: tuple[object, ...] = ()
    """What its field says of it: a `Range`, an `InputKind`, `FieldRule`s."""

    @property
    def choices(self) -> tuple[Any, ...]:
        """What it may be; empty: not only some things."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def element_type(self) -> Any:
        """The type of what stands in a list, or its own."""
        return get_args(self.kind)[0] if get_origin(self.kind) is tuple else self.kind

    @property
    def count(self) -> int | None:
        """How many a list holds; -1: any number; None: it is none."""
        if get_origin(self.kind) is not tuple:
            return None
        members = get_args(self.kind)
        return -1 if members[-1] is Ellipsis else len(members)

    @property
    def range(self) -> Range | None:
        """What its numbers may be."""
        return next((mark for mark in self.annotations if isinstance(mark, Range)), None)

    @property
    def input(self) -> InputKind | None:
        """What its texts name."""
        return next((mark for mark in self.annotations if isinstance(mark, InputKind)), None)

    def convert(self, value: object) -> object:
        """The value as the setting has it: a path is its text, a lone text a list of one.

        Raises InvalidSettingError for what it may not be.
        """
        if self.count is not None:
            return self._list(value)
        value = _plain_number(value)
        if self.element_type is str and isinstance(value, os.PathLike):
            return os.fspath(value)
        self._check((value,), value)
        return value

    def parse(self, words: Any) -> object:
        """The value of a word as it is typed, or of several where it is a list; a switch is one already.

        Raises InvalidSettingError for what is no number, or none of the choices.
        """
        if self.kind is bool:
            return words
        if self.count is not None:
            return tuple(self._word(one, " ".join(words)) for one in words)
        return self._word(words, words)

    def _word(self, word: str, whole: str) -> object:
        if self.choices:
            known = {str(one): one for one in self.choices}
            return known.get(word, word)  # which `fitted` refuses
        try:
            return self.element_type(word)
        except ValueError:
            raise self._wrong(whole, self.type_name) from None

    def _list(self, value: object) -> tuple[object, ...]:
        if self.element_type is str and isinstance(value, str | os.PathLike):
            value = (value,) if os.fspath(value) else ()
        if not isinstance(value, list | tuple):
            raise self._wrong(repr(value), self.type_name)
        every = tuple(
            os.fspath(one)
            if self.element_type is str and isinstance(one, os.PathLike)
            else _plain_number(one)
            for one in value
        )
        self._check(every, list(every))
        if self.count not in (-1, len(every)):
            raise self._wrong(format_value(every), self.type_name)
        if self.count == -1 and may_repeat not in self.annotations:
            twice = next((one for one in every if every.count(one) > 1), None)
            if twice is not None:
                raise InvalidSettingError(self.name, f": {twice} is there twice; leave one out")
        return every

    def _check(self, every: tuple[object, ...], value: object) -> None:
        """Raises InvalidSettingError if one of the values is of another type, none of the choices, or out of the range."""
        if self.choices:
            if not all(any(is_same(one, each) for each in self.choices) for one in every):
                raise self._wrong(
                    format_value(every), f"one of {', '.join(map(str, self.choices))}"
                )
            return
        kinds = (int, float) if self.element_type is float else self.element_type
        for one in every:
            if not isinstance(one, kinds) or (
                isinstance(one, bool) and self.element_type is not bool
            ):
                raise self._wrong(repr(value), self.type_name)
            if isinstance(one, str) and "\0" in one:
                raise self._wrong(repr(value), "a text without NUL bytes")
            if isinstance(one, int) and abs(one) >= LARGEST:
                raise self._wrong("a number of more than 18 digits", "a smaller one")
        if self.range is not None and not all(one in self.range for one in every):
            numbers = [one for one in every if isinstance(one, float)]
            finite = "" if all(map(math.isfinite, numbers)) else ", and a finite number"
            raise self._wrong(format_value(every), f"{self.range}{finite}")

    def _wrong(self, told: str, expected: str) -> InvalidSettingError:
        return InvalidSettingError(self.name, f" = {told}, expected {expected}")

    @property
    def type_name(self) -> str:
        """What it holds, in words."""
        if self.count is None:
            return _WORDS.get(self.element_type, "settings of their own")
        return f"{'a list of' if self.count == -1 else 'two'} {_MANY[self.element_type]}"


def _plain_number(value: object) -> object:
    """A number as Python has it, such as one of NumPy's; anything else as it is."""
    if type(value) in (int, float, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


LARGEST = 2**63
"""No whole number is this large: libraries below hold them in 64 bits, and floats end somewhere."""
_WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
_MANY = {str: "texts", int: "whole numbers", float: "numbers"}


@cache
def declared_settings(kind: Any) -> Mapping[str, Setting]:
    """The settings of a class by name, groups among them."""
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
    """What every dataclass of settings is: checked when it is made, and documented by its fields."""

    def __init_subclass__(cls) -> None:
        with_field_docs(cls)

    def __post_init__(self) -> None:
        """Raises InvalidSettingError for a value that its field does not allow."""
        kind: Any = type(self)
        for name, default in _defaults(kind):
            value = self.__dict__[name]
            if value is not default:  # the plan of a paper makes a hundred thousand of them
                fitted = declared_settings(kind)[name].convert(value)
                if fitted is not value:
                    object.__setattr__(self, name, fitted)  # the class is frozen


Some = TypeVar("Some")


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
    """Every single setting of a configuration, those of its groups too, with the group that holds it."""
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
    """The value of every single setting of configurations, those of their groups too."""
    return {
        one.name: vars(group)[one.name]
        for config in configs
        for group, one in flatten_settings(config)
    }


def config_dict(config: object) -> dict[str, Any]:
    """A configuration as config.json has it: a mapping for each group, but of those that are `unnested`."""
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
    """What the single settings of a class are called, those of its groups too."""
    found: set[str] = set()
    for one in declared_settings(kind).values():
        found |= setting_names(one.kind) if _has_fields(one.kind) else {one.name}
    return frozenset(found)


def replace_settings(config: Some, /, **values: object) -> Some:
    """A copy with some settings changed, each by its own name, in whichever group it stands.

    Raises InputError for a name that there is not, and for a value that does not fit.
    """
    kind: Any = type(config)
    names = setting_names(kind)
    for name in values:
        require_known(name, sorted(names), f"no setting is called {name!r}")
    return _changed(config, values)


def _changed(config: Any, values: Mapping[str, object]) -> Any:
    """The same, or what is there already where nothing of it changes."""
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


def make_settings(kind: type[Some], /, **values: object) -> Some:
    """A configuration with some settings other than the default, each by its own name: as the flags of a command."""
    return replace_settings(kind(), **values)


def fill_settings(defaults: Sequence[Any], values: Mapping[str, object], where: str) -> list[Any]:
    """Configurations with some settings other than the default; each name belongs to the one that has it.

    Raises InputError, which begins with `where`, for a name that there is not, and for a value that does not fit.
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
    """Raises InputError naming the first of a command's settings that is empty and must not be."""
    values = setting_values(config)
    for name in names:
        if not values[name]:
            raise InputError(f"{command} needs --{flag_name(name)}")


def refuse_settings(flags: Mapping[str, object], why: str) -> None:
    """Raises InputError for the first of some flags that is given something, with `why` it says nothing here."""
    for flag, value in flags.items():
        if value:
            told = flag if value is True else f"{flag} {format_value(value)}"
            raise InputError(f"{told}: {why}")


def flag_name(name: str) -> str:
    """How a setting is spelt on the command line, without the dashes before it."""
    return name.replace("_", "-")


def prefixed_flags(prefix: str, settings: object) -> dict[str, str]:
    """What the flags of some settings are called in a command in which `prefix` stands before them, by their own."""
    return {
        flag_name(one.name): prefix + flag_name(one.name) for _, one in flatten_settings(settings)
    }


def is_same(one: object, other: object) -> bool:
    """Whether two values are equal and of one type: 1 is not True."""
    return type(one) is type(other) and one == other


def format_value(value: object) -> str:
    """A value as one types it."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
