"""Commands as Python functions: the flags of `groundling adapt` are the keywords of `groundling.adapt`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, NamedTuple

from groundling.command_line import COMMANDS, Command
from groundling.core.errors import InputError, rename_flags_to_keywords
from groundling.core.field_docs import FieldDoc, field_docs, format_fields
from groundling.settings.fields import fill_settings, flatten_settings

Text = str | os.PathLike[str]
"""What a setting takes that is a text: a path does as well."""
Texts = Text | Sequence[Text]
"""What a setting takes that is a list of texts: a single one does as well."""


def function_name(command: str) -> str:
    """What a command's function is called."""
    return command.replace("-", "_").replace(" ", "_")


def command_of(name: str) -> str:
    """The command whose function has this name."""
    with_space = name.replace("_", " ")  # which leaves studies alone, if it is one of the core's
    if with_space in COMMANDS:
        return with_space
    return {function_name(command): command for command in COMMANDS}[name]


def function_of(name: str) -> Callable[..., Any]:
    """The function of keywords that is called so: a command.

    It returns what the command prints, which is what `result.json` holds of a run, and raises InputError where the
    command would name a mistake.
    """
    command = COMMANDS[command_of(name)]
    settings = keywords_of(name)
    kinds = {one.doc.name: one.kind for one in settings}
    switches = [name for name, kind in kinds.items() if kind is bool]
    where = f"groundling.{name}"

    def call(**values: object) -> Any:
        given = dict(values)
        out = [given.pop("out", command.default_out)] if command.has_out else []
        if not all(isinstance(place, str | os.PathLike) for place in out):
            raise InputError(f"{where}: out = {out[0]!r}, expected a text or a path")
        with rename_flags_to_keywords(kinds, switches, given):
            groups = {
                prefix: _group(given.pop(prefix, {}), prefix, where) for prefix in _groups(name)
            }
            own = fill_settings(list(_own(name).values()), given, where)
            made = dict(zip(_own(name), own, strict=True))
            for prefix, some in groups.items():
                default = [command.settings[prefix]]
                made |= {prefix: fill_settings(default, some, f"{where}: {prefix}")[0]}
            places = [str(place) for place in out]
            every = [*(made[prefix] for prefix in command.settings), *places]
            command.check(every)
            return command.call(every)

    parameters = [
        Parameter(one.doc.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=one.kind)
        for one in settings
    ]
    call.__dict__["__signature__"] = Signature(parameters)
    call.__name__ = call.__qualname__ = name
    call.__module__ = "groundling"
    call.__doc__ = _explained(name, command, [one.doc for one in settings])
    return call


def _own(name: str) -> dict[str, Any]:
    """A command's settings that are keywords of its function, with their defaults."""
    settings = COMMANDS[command_of(name)].settings
    return {prefix: one for prefix, one in settings.items() if prefix.startswith("_")}


def _groups(name: str) -> list[str]:
    """A command's settings of other commands, each of which is one keyword, and takes a mapping."""
    return [prefix for prefix in COMMANDS[command_of(name)].settings if not prefix.startswith("_")]


def _group(value: object, prefix: str, where: str) -> dict[str, object]:
    """Settings of one group; raises InputError if they are no mapping."""
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: {prefix} = {value!r}, expected settings by name, as a dict")
    return {str(key): one for key, one in value.items()}


class FunctionKeyword(NamedTuple):
    """A keyword of a command's function."""

    doc: FieldDoc
    """Its name, type and default as they are written, and its help."""
    kind: Any
    """Its type."""
    default: object
    """What it is if nobody says."""


def keywords_of(name: str) -> list[FunctionKeyword]:
    """The settings of a command's function; `out`, if it has one, is the last."""
    command = COMMANDS[command_of(name)]
    found: list[FunctionKeyword] = []
    for config in _own(name).values():
        for group, one in flatten_settings(config):
            kind: Any = type(group)
            (told,) = (field for field in field_docs(kind) if field.name == one.name)
            default = vars(group)[one.name]
            found.append(FunctionKeyword(told._replace(default=repr(default)), one.kind, default))
    for prefix in _groups(name):
        names = ", ".join(one.name for _, one in flatten_settings(command.settings[prefix]))
        about = f"Settings by name, as the flags `--{prefix}.` have them: {names}."
        told = FieldDoc(prefix, "Mapping[str, Any]", "{}", about)
        found.append(FunctionKeyword(told, Mapping[str, Any], {}))
    if command.has_out:
        told = FieldDoc("out", "str", repr(command.default_out), command.about_out)
        found.append(FunctionKeyword(told, str, command.default_out))
    return found


def _explained(name: str, command: Command, told: Sequence[FieldDoc]) -> str:
    """The docstring of a command's function."""
    lines = [
        f"{command.summary[0].upper()}{command.summary[1:]}.",
        "",
        f"The command `groundling {command_of(name)}`, with its flags as keywords. A setting of several texts takes",
        "a lone one, too, and a path stands for its text.",
        "",
        "Settings:",
        *format_fields(told),
        "",
        "Returns:",
        "    What the command prints: of a run, what `result.json` in its folder holds.",
        "",
        "Raises:",
        "    InputError: A setting is unknown or does not fit, or what the command reads is not as it should be.",
    ]
    return "\n".join(lines)
