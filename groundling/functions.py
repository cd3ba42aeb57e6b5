"""Commands as Python functions: the flags of `groundling adapt` are the keywords of `groundling.adapt`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Any, NamedTuple, get_args

from groundling.cli import COMMANDS, Command, out_of
from groundling.config import filled, flat, hints
from groundling.documented import Told, fields_told, listed
from groundling.errors import InputError

Text = str | os.PathLike[str]
"""What a setting takes that is a text: a path does as well."""
Texts = Text | Sequence[Text]
"""What a setting takes that is a list of texts: a single one does as well."""


def function_of(name: str) -> Callable[..., Any]:
    """A command as a function of keywords.

    It returns what the command prints, which is what `result.json` holds of a run, and raises InputError where the
    command would name a mistake.
    """
    command = COMMANDS[name]
    told = settings_of(name)
    kinds = {one.told.name: one.kind for one in told}

    def call(**values: object) -> Any:
        given = {key: _given(value, kinds.get(key)) for key, value in values.items()}
        out = [given.pop("out", out_of(name)[0])] if command.out else []
        if not all(isinstance(place, str) for place in out):
            raise InputError(f"groundling.{name}: out = {out[0]!r}, expected a text or a path")
        configs = filled(list(command.settings.values()), given, f"groundling.{name}")
        settings = [*configs, *out]
        command.check(name, settings)
        return command.call(settings)

    parameters = [
        Parameter(one.told.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=one.kind)
        for one in told
    ]
    call.__dict__["__signature__"] = Signature(parameters)
    call.__name__ = call.__qualname__ = name
    call.__module__ = "groundling"
    call.__doc__ = _explained(name, command, [one.told for one in told])
    return call


class Setting(NamedTuple):
    """A keyword of a command's function."""

    told: Told
    """Its name, type and default as they are written, and its help."""
    kind: Any
    """Its type."""
    default: object
    """What it is if nobody says."""


def settings_of(name: str) -> list[Setting]:
    """A command's settings; `out`, if it has one, is the last."""
    found: list[Setting] = []
    for config in COMMANDS[name].settings.values():
        for group, one in flat(config):
            kind: Any = type(group)
            (told,) = (field for field in fields_told(kind) if field.name == one.name)
            default = vars(group)[one.name]
            found.append(
                Setting(told._replace(default=repr(default)), hints(kind)[one.name], default)
            )
    if COMMANDS[name].out:
        place, about = out_of(name)
        found.append(Setting(Told("out", "str", repr(place), about), str, place))
    return found


def _given(value: object, kind: Any) -> object:
    """A value as the command would have it of its flag: no paths, no lists, no lone text where several may stand."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str) and get_args(kind) == (str, ...):
        return (value,) if value else ()
    if isinstance(value, (list, tuple)):
        return tuple(_given(one, None) for one in value)
    return value


def _explained(name: str, command: Command, told: Sequence[Told]) -> str:
    """The docstring of a command's function."""
    lines = [
        f"{command.summary[0].upper()}{command.summary[1:]}.",
        "",
        f"The command `groundling {name}`, with its flags as keywords. A setting of several texts takes a lone one,",
        "too, and a path stands for its text.",
        "",
        "Settings:",
        *listed(told),
        "",
        "Returns:",
        "    What the command prints: of a run, what `result.json` in its folder holds.",
        "",
        "Raises:",
        "    InputError: A setting is unknown or does not fit, or what the command reads is not as it should be.",
    ]
    return "\n".join(lines)
