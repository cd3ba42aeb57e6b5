"""Commands as Python functions: the flags of `groundling adapt` are the keywords of
`groundling.adapt`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from textwrap import TextWrapper
from typing import Any

from groundling.command_line import COMMANDS, Command
from groundling.core.errors import InputError, convert_os_errors
from groundling.settings.fields import fill_settings, settings_of

Text = str | os.PathLike[str]
"""A string setting; a path is accepted too."""
Texts = Text | Sequence[Text]
"""A list of strings; a single string is accepted too."""


DRY_RUN = "dry_run"


def command_of(name: str) -> str:
    """The command of a function name."""
    with_space = name.replace("_", " ")  # imports no study, if it is a core command
    if with_space in COMMANDS:
        return with_space
    return {one.function_name: name for name, one in COMMANDS.items()}[name]


def function_of(name: str) -> Callable[..., Any]:
    """The function of this name, which runs a command with its flags as keywords.

    It returns what the command prints, for a run the content of `result.json`, and raises
    InputError as the command does.
    """
    command = COMMANDS[command_of(name)]
    declared = keywords_of(name)
    where = f"groundling.{name}"

    def call(**values: object) -> Any:
        keywords: dict[str, Any] = dict(values)
        out = [keywords.pop("out", command.default_out)] if command.has_out else []
        is_dry = keywords.pop(DRY_RUN, False) if command.has_out else False
        if not all(isinstance(place, str | os.PathLike) for place in out):
            raise InputError(f"{where}: out = {out[0]!r}, expected a string or a path")
        with convert_os_errors():
            made = {}
            for prefix, default in _groups(command).items():
                group = keywords.pop(prefix, {})
                if not isinstance(group, Mapping):
                    raise InputError(
                        f"{where}: {prefix} = {group!r}, expected settings by name, as a dict"
                    )
                made[prefix] = fill_settings([default], group, f"{where}: {prefix}")[0]
            own = _own(command)
            made |= dict(zip(own, fill_settings([*own.values()], keywords, where), strict=True))
            every = [*(made[prefix] for prefix in command.settings), *map(str, out)]
            command.check(every)
            return command.rehearse(every) if is_dry is True else command.call(every)

    call.__dict__["__signature__"] = Signature([*declared.values()])
    call.__name__ = call.__qualname__ = name
    call.__module__ = "groundling"
    call.__doc__ = _docstring(command)
    return call


def _own(command: Command) -> dict[str, Any]:
    """A command's settings that are keywords of its function, with their defaults."""
    return {name: one for name, one in command.settings.items() if name.startswith("_")}


def _groups(command: Command) -> dict[str, Any]:
    """Settings of other commands; each is one keyword that takes a mapping."""
    return {name: one for name, one in command.settings.items() if not name.startswith("_")}


def keywords_of(name: str) -> dict[str, Parameter]:
    """The keywords of a command's function with types and defaults; `out`, if it has one, comes last."""
    command = COMMANDS[command_of(name)]
    found: dict[str, tuple[Any, Any]] = {
        one.name: (one.field.annotation, one.value)
        for config in _own(command).values()
        for one in settings_of(config)
    }
    found |= {prefix: (Mapping[str, Any], {}) for prefix in _groups(command)}
    if command.has_out:
        found |= {"out": (str, command.default_out), DRY_RUN: (bool, False)}
    return {
        name: Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in found.items()
    }


def _docstring(command: Command) -> str:
    lines = [
        f"{command.summary[0].upper()}{command.summary[1:]}.",
        "",
        f"The command `groundling {command.name}`, with its flags as keywords. A setting that takes",
        "a list of strings also takes a single string, and paths are accepted as strings.",
        "",
        "Settings:",
    ]
    for config in _own(command).values():
        for one in settings_of(config):
            kind = re.sub(r"Annotated\[(\w+),[^]]*\]", r"\1", str(one.field.annotation))
            kind = kind.replace("typing.", "")
            kind = getattr(one.field.annotation, "__name__", kind) if "[" not in kind else kind
            lines += [f"    {one.name}: {kind} = {one.value!r}", *_WRAPPER.wrap(one.help)]
    for prefix, group in _groups(command).items():
        names = ", ".join(one.name for one in settings_of(group))
        lines += [f"    {prefix}: a dict of settings: {names}."]
    if command.has_out:
        lines += [
            f"    out: str = {command.default_out!r}",
            *_WRAPPER.wrap(command.about_out),
            f"    {DRY_RUN}: bool = False",
            *_WRAPPER.wrap("Read the inputs, return what they are, and stop before anything long."),
        ]
    return "\n".join(
        [
            *lines,
            "",
            "Returns:",
            "    What the command prints; for a run, the content of `result.json` in its folder.",
            "",
            "Raises:",
            "    InputError: A setting is unknown or not allowed, or an input is missing or malformed.",
        ]
    )


_WRAPPER = TextWrapper(
    100, initial_indent=" " * 8, subsequent_indent=" " * 8, break_on_hyphens=False
)
