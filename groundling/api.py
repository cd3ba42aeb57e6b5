"""Commands as Python functions: the flags of `groundling adapt` are the keywords of `groundling.adapt`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter, Signature
from typing import Any

from groundling.command_line import COMMANDS, Command, flag_prefix
from groundling.core.errors import convert_os_errors, prefix_errors
from groundling.settings.fields import (
    fill_settings,
    replace_settings,
    settings_of,
)


def function_names() -> list[str]:
    """Names of all commands as functions."""
    return sorted(one.function_name for one in COMMANDS.values())


def command_of(name: str) -> Command:
    """The command of a function name; raises KeyError if there is none."""
    one_word = name.replace("_", "-")
    two_words = one_word.replace("-", " ", 1)
    return COMMANDS[two_words if two_words in COMMANDS else one_word]


def function_of(name: str) -> Callable[..., Any]:
    """The function of this name, which runs a command with its flags as keywords; KeyError if there is none.

    It returns what the command prints, for a run the content of `result.json`, and raises
    InputError as the command does.
    """
    command = command_of(name)

    def call(**keywords: Any) -> Any:
        is_dry = command.has_out and keywords.pop("dry_run", False)
        with convert_os_errors():
            with prefix_errors(f"groundling.{name}"):
                values = _values(command, keywords)
            command.check(values)
            return command.rehearse(values) if is_dry else command.call(values)

    call.__dict__["__signature__"] = Signature([one for one, _ in _keywords(command)])
    call.__name__ = call.__qualname__ = name
    call.__module__ = "groundling"
    call.__doc__ = _docstring(command)
    return call


def _values(command: Command, keywords: dict[str, Any]) -> list[Any]:
    out = [str(keywords.pop("out", command.default_out))] if command.has_out else []
    made = {}
    for prefix, default in command.settings.items():
        if flag_prefix(prefix):
            with prefix_errors(prefix):
                made[prefix] = replace_settings(default, **keywords.pop(prefix, {}))
    own = [prefix for prefix in command.settings if prefix not in made]
    filled = fill_settings([command.settings[prefix] for prefix in own], keywords)
    made |= dict(zip(own, filled, strict=True))
    return [*(made[prefix] for prefix in command.settings), *out]


def _keywords(command: Command) -> Iterator[tuple[Parameter, str]]:
    last: list[tuple[str, Any, Any, str]] = []
    for prefix, config in command.settings.items():
        fields = settings_of(config)
        if flag_prefix(prefix):
            names = ", ".join(one.name for one in fields)
            last.append((prefix, Mapping[str, Any], {}, f"A dict of settings: {names}."))
            continue
        for one in fields:
            yield _parameter(one.name, one.field.annotation, one.value), one.help
    if command.has_out:
        about = "Read the inputs, return what they are, and stop before anything long."
        last.append(("out", str, command.default_out, command.about_out))
        last.append(("dry_run", bool, False, about))
    for name, kind, default, text in last:
        yield _parameter(name, kind, default), text


def _parameter(name: str, kind: Any, default: object) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _docstring(command: Command) -> str:
    lines = []
    for one, text in _keywords(command):
        filled = textwrap.fill(text, 92, break_on_hyphens=False)
        lines += [f"    {one}", textwrap.indent(filled, " " * 8)]
    settings = "\n".join(lines)
    return f"""{command.summary[0].upper()}{command.summary[1:]}.

The command `groundling {command.name}`, with its flags as keywords. A setting that takes
a list of strings also takes a single string, and paths are accepted as strings.

Settings:
{settings}

Returns:
    What the command prints; for a run, the content of `result.json` in its folder.

Raises:
    InputError: A setting is unknown or not allowed, or an input is missing or malformed.
"""
