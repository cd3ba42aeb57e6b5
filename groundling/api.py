"""Commands as Python functions: the flags of `groundling adapt` are the keywords of
`groundling.adapt`.
"""

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
"""A string setting; a path is accepted too."""
Texts = Text | Sequence[Text]
"""A list of strings; a single string is accepted too."""


DRY_RUN = "dry_run"


def function_name(command: str) -> str:
    """The function name of a command."""
    return command.replace("-", "_").replace(" ", "_")


def command_of(name: str) -> str:
    """The command of a function name."""
    with_space = name.replace("_", " ")  # imports no study, if it is a core command
    if with_space in COMMANDS:
        return with_space
    return {function_name(command): command for command in COMMANDS}[name]


def function_of(name: str) -> Callable[..., Any]:
    """The function of this name, which runs a command with its flags as keywords.

    It returns what the command prints, for a run the content of `result.json`, and raises
    InputError as the command does.
    """
    command = COMMANDS[command_of(name)]
    settings = keywords_of(name)
    kinds = {one.doc.name: one.kind for one in settings}
    switches = [name for name, kind in kinds.items() if kind is bool]
    where = f"groundling.{name}"

    def call(**values: object) -> Any:
        keywords = dict(values)
        out = [keywords.pop("out", command.default_out)] if command.has_out else []
        is_dry = keywords.pop(DRY_RUN, False) if command.has_out else False
        if not all(isinstance(place, str | os.PathLike) for place in out):
            raise InputError(f"{where}: out = {out[0]!r}, expected a string or a path")
        with rename_flags_to_keywords(kinds, switches, keywords):
            groups = {
                prefix: _group(keywords.pop(prefix, {}), prefix, where) for prefix in _groups(name)
            }
            own = fill_settings(list(_own(name).values()), keywords, where)
            settings = dict(zip(_own(name), own, strict=True))
            for prefix, some in groups.items():
                default = [command.settings[prefix]]
                settings |= {prefix: fill_settings(default, some, f"{where}: {prefix}")[0]}
            places = [str(place) for place in out]
            every = [*(settings[prefix] for prefix in command.settings), *places]
            command.check(every)
            return command.rehearse(every) if is_dry is True else command.call(every)

    parameters = [
        Parameter(one.doc.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=one.kind)
        for one in settings
    ]
    call.__dict__["__signature__"] = Signature(parameters)
    call.__name__ = call.__qualname__ = name
    call.__module__ = "groundling"
    call.__doc__ = _docstring(name, command, [one.doc for one in settings])
    return call


def _own(name: str) -> dict[str, Any]:
    """A command's settings that are keywords of its function, with their defaults."""
    settings = COMMANDS[command_of(name)].settings
    return {prefix: one for prefix, one in settings.items() if prefix.startswith("_")}


def _groups(name: str) -> list[str]:
    """Prefixes of settings of other commands; each is one keyword that takes a mapping."""
    return [prefix for prefix in COMMANDS[command_of(name)].settings if not prefix.startswith("_")]


def _group(value: object, prefix: str, where: str) -> dict[str, object]:
    """Settings of one group; raises InputError if they are not a mapping."""
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: {prefix} = {value!r}, expected settings by name, as a dict")
    return {str(key): one for key, one in value.items()}


class KeywordParameter(NamedTuple):
    """A keyword of a command's function."""

    doc: FieldDoc
    """Name, type, default and help as written."""
    kind: Any
    """Type."""
    default: object
    """Default value."""


def keywords_of(name: str) -> list[KeywordParameter]:
    """The keywords of a command's function; `out`, if it has one, comes last."""
    command = COMMANDS[command_of(name)]
    found: list[KeywordParameter] = []
    for config in _own(name).values():
        for group, one in flatten_settings(config):
            kind: Any = type(group)
            (doc,) = (field for field in field_docs(kind) if field.name == one.name)
            default = vars(group)[one.name]
            found.append(KeywordParameter(doc._replace(default=repr(default)), one.kind, default))
    for prefix in _groups(name):
        names = ", ".join(one.name for _, one in flatten_settings(command.settings[prefix]))
        about = f"Settings by name, like the flags `--{prefix}.NAME`: {names}."
        doc = FieldDoc(prefix, "Mapping[str, Any]", "{}", about)
        found.append(KeywordParameter(doc, Mapping[str, Any], {}))
    if command.has_out:
        doc = FieldDoc("out", "str", repr(command.default_out), command.about_out)
        found.append(KeywordParameter(doc, str, command.default_out))
        about = "Read the inputs, return what they are, and stop before anything long."
        found.append(KeywordParameter(FieldDoc(DRY_RUN, "bool", "False", about), bool, False))
    return found


def _docstring(name: str, command: Command, docs: Sequence[FieldDoc]) -> str:
    """The docstring of a command's function."""
    lines = [
        f"{command.summary[0].upper()}{command.summary[1:]}.",
        "",
        f"The command `groundling {command_of(name)}`, with its flags as keywords. A setting that takes",
        "a list of strings also takes a single string, and paths are accepted as strings.",
        "",
        "Settings:",
        *format_fields(docs),
        "",
        "Returns:",
        "    What the command prints; for a run, the content of `result.json` in its folder.",
        "",
        "Raises:",
        "    InputError: A setting is unknown or not allowed, or an input is missing or malformed.",
    ]
    return "\n".join(lines)
