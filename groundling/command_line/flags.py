"""Flags of a command: parsing and help, generated from the fields of its settings. Imports nothing
heavy.
"""

from __future__ import annotations

import argparse
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from shutil import get_terminal_size
from typing import Any, Literal, NamedTuple

from groundling.command_line import Command, flag_prefix
from groundling.core.errors import InputError, qualify_flags
from groundling.core.field_docs import field_docs, summary_of
from groundling.settings.fields import (
    InvalidSettingError,
    Setting,
    flag_name,
    flatten_settings,
    format_value,
    prefixed_flags,
    replace_settings,
    required,
)

HELP = frozenset({"-h", "--help"})
DRY_RUN = "--dry-run"
OUT = "out"
WIDTH = 120
"""Maximum line length of help."""
INDENT = 26
"""Column at which a flag's help text begins."""


class Flag(NamedTuple):
    """A flag of a command."""

    prefix: str
    """Key of its settings in `Command.settings`."""
    setting: Setting
    """The setting that it sets."""
    group: type[Any]
    """The class that declares the setting."""
    default: object
    """Default value."""

    @property
    def name(self) -> str:
        """The flag without the leading dashes."""
        return flag_prefix(self.prefix) + flag_name(self.setting.name)


def flags_of(command: Command) -> list[Flag]:
    """Every flag of a command's settings, without `--out`."""
    return [
        Flag(prefix, one, type(group), vars(group)[one.name])
        for prefix, settings in command.settings.items()
        for group, one in flatten_settings(settings)
    ]


# -- parsing -----------------------------------------------------------------------------------------------------------


def parse_flags(command: Command, words: Sequence[str]) -> list[Any]:
    """The command's settings from the words typed after its name, and its `out`, if it has one.

    Raises InputError for an unknown flag, and for a value that is not allowed.
    """
    flags = {one.name: one for one in flags_of(command)}
    parser = _parser(command, flags)
    try:
        namespace, unknown = parser.parse_known_args(
            [*map(_number, _expand_positional(command, words))]
        )
    except argparse.ArgumentError as error:
        reason = error.message.replace("ignored explicit argument", "takes no value, found")
        message = f"{error.argument_name}: {reason}"
        raise InputError(f"{message}; see `groundling {command.name} --help`") from None
    if unknown:
        raise InputError(_unknown_message(unknown[0], command, flags))
    typed_words = {name: _without_blank(words) for name, words in vars(namespace).items()}
    values: dict[str, dict[str, object]] = defaultdict(dict)
    for name, flag in flags.items():
        if name in typed_words:
            values[flag.prefix][flag.setting.name] = _parse_value(flag, typed_words[name])
    settings = [_make_settings(*item, values[item[0]]) for item in command.settings.items()]
    return [*settings, typed_words.get(OUT, command.default_out)] if command.has_out else settings


class _StoreOnce(argparse.Action):
    """Stores a flag's value and refuses the flag a second time."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if hasattr(namespace, self.dest):
            raise argparse.ArgumentError(self, "is given twice; remove one")
        setattr(namespace, self.dest, values)


def _parser(command: Command, flags: Mapping[str, Flag]) -> argparse.ArgumentParser:
    """Separates flags from values, which stay text; for a switch given twice the last one counts."""
    parser = argparse.ArgumentParser(
        add_help=False,
        allow_abbrev=False,
        exit_on_error=False,
        argument_default=argparse.SUPPRESS,
    )
    for name, one in flags.items():
        if one.setting.kind is bool:
            parser.add_argument(f"--{name}", dest=name, action="store_true")
            parser.add_argument(_negated(name), dest=name, action="store_false")
        else:
            count: int | Literal["*"] | None = one.setting.count
            nargs = "*" if count == -1 else count
            parser.add_argument(f"--{name}", dest=name, nargs=nargs, action=_StoreOnce)
    if command.has_out:
        parser.add_argument(f"--{OUT}", action=_StoreOnce)
    return parser


def _number(word: str) -> str:
    """A negative number with a blank before it; argparse takes -1e-5 and -inf for flags otherwise."""
    try:
        float(word)
    except ValueError:
        return word
    return f" {word}" if word.startswith("-") else word


def _without_blank(words: Any) -> Any:
    """The typed words without the blank of `_number`."""
    if isinstance(words, list):
        return [_without_blank(word) for word in words]
    return words[1:] if isinstance(words, str) and words == _number(words[1:]) else words


def _expand_positional(command: Command, words: Sequence[str]) -> list[str]:
    """The words with positional flags written out, and `_` in flags replaced by `-`."""
    rest = list(words)
    named = []
    for flag in command.positional:
        if not rest or rest[0].startswith("-"):
            break
        named += [flag, rest.pop(0)]
    return [*named, *map(_with_dashes, rest)]


def _with_dashes(word: str) -> str:
    flag, equals_sign, value = word.partition("=")
    return flag.replace("_", "-") + equals_sign + value if flag.startswith("--") else word


def _negated(name: str) -> str:
    """`--no-object-tags` for `object-tags`, `--adapt.no-masked-lm` for `adapt.masked-lm`."""
    prefix, dot, last = name.rpartition(".")
    return f"--{prefix}{dot}no-{last}"


def _parse_value(flag: Flag, words: Any) -> object:
    """The value of a flag's words."""
    try:
        return flag.setting.parse(words)
    except InvalidSettingError as error:
        raise error.under(flag_prefix(flag.prefix)) from None


def _make_settings(prefix: str, default: Any, values: Mapping[str, object]) -> Any:
    """Settings with some values; errors name the flags of the command."""
    try:
        return replace_settings(default, **values)
    except InvalidSettingError as error:
        raise error.under(flag_prefix(prefix)) from None
    except InputError as error:
        raise InputError(
            qualify_flags(str(error), prefixed_flags(flag_prefix(prefix), default))
        ) from None


def _unknown_message(word: str, command: Command, flags: Mapping[str, Flag]) -> str:
    """Message for a word that is neither a flag of the command nor a value."""
    bare = word.partition("=")[0].lstrip("-").replace("_", "-")
    names = [*flags, *[OUT][: command.has_out]]
    same = [one for one in names if one.rpartition(".")[2] == bare]
    similar = same or [one for one in names if bare in one.split("-")]
    similar = similar or get_close_matches(bare, names, 1)
    hint = f"; did you mean {' or '.join(f'--{one}' for one in similar)}?" if similar else ""
    fault = "has no flag" if word.startswith("-") else "takes no argument"
    return f"{command.name} {fault} {word.strip()!r}{hint}; see `groundling {command.name} --help`"


# -- help --------------------------------------------------------------------------------------------------------------


def command_list(commands: Mapping[str, Command]) -> str:
    """Output of `groundling --help`: commands by section."""
    titles: dict[str, list[Command]] = defaultdict(list)
    for one in commands.values():
        titles[one.title].append(one)
    parts = ["usage: groundling COMMAND [FLAGS]; `groundling COMMAND --help` explains the flags"]
    for title, some in titles.items():
        parts.append("\n".join([f"{title}:", *(f"  {one.name:<16}{one.summary}" for one in some)]))
    return "\n\n".join(parts)


def command_help(command: Command) -> str:
    """Output of `--help`: usage, an example, the most used flags, and the rest in groups."""
    bare = "".join(f" {_metavar(one)}" for one in _positional(command))
    end = "" if command.summary.endswith("?") else "."
    parts = [
        f"usage: groundling {command.name}{bare} [FLAGS]",
        f"{command.summary[0].upper()}{command.summary[1:]}{end}",
        f"example:\n  {command.example}",
    ]
    flags = {one.name: one for one in flags_of(command)}
    common = [flags.pop(name) for name in command.common_flags.split()]
    out = [
        _entry(f"--{OUT} PATH", command.about_out, f"default: {command.default_out}")
    ] * command.has_out
    out += [
        _entry(DRY_RUN, "Read the inputs, print what they are, and stop before anything long.")
    ] * len(out)
    parts.append("\n".join(["most used flags:", *map(_flag_help, common), *out]))
    groups: dict[tuple[str, type[Any]], list[Flag]] = {
        (prefix, type(settings)): [] for prefix, settings in command.settings.items()
    }
    for one in flags.values():
        groups.setdefault((one.prefix, one.group), []).append(one)
    for (prefix, group), some in groups.items():
        if some:
            parts.append("\n".join([_title(prefix, group), *map(_flag_help, some)]))
    return "\n\n".join(parts)


def _positional(command: Command) -> Iterator[Setting]:
    known = {f"--{one.name}": one.setting for one in flags_of(command)}
    return (known[flag] for flag in command.positional)


def _title(prefix: str, group: type[Any]) -> str:
    """Heading of a group of flags: the docstring of its class."""
    first = " ".join(summary_of(group).split("\n\n")[0].split()).rstrip(".")
    return f"{first} (--{flag_prefix(prefix)}NAME):" if flag_prefix(prefix) else f"{first}:"


def _flag_help(flag: Flag) -> str:
    """A flag with its value, help, range and default."""
    (doc,) = (one for one in field_docs(flag.group) if one.name == flag.setting.name)
    remarks = [str(flag.setting.range)] if flag.setting.range else []
    is_required = required in flag.setting.annotations
    if is_required:
        remarks.append("required")
    if flag.setting.kind is bool:
        remarks.append(f"default: {'on' if flag.default else 'off'}")
        return _entry(f"--{flag.name}/{_negated(flag.name)}", doc.text, *remarks)
    if not is_required and flag.default not in ("", ()):
        remarks.append(f"default: {format_value(flag.default)}")
    return _entry(f"--{flag.name} {_metavar(flag.setting)}", doc.text, *remarks)


def _metavar(setting: Setting) -> str:
    """Placeholder for the value in help."""
    if setting.choices:
        return f"{{{','.join(map(str, setting.choices))}}}"
    plain = {int: "N", float: "NUMBER"}.get(setting.element_type, "TEXT")
    one = setting.input.metavar if setting.input else plain
    return f"[{one} ...]" if setting.count == -1 else " ".join([one] * (setting.count or 1))


def _entry(flag: str, text: str, *remarks: str) -> str:
    """A flag with its help text beside or below it."""
    about = f"{text} ({'; '.join(remarks)})" if remarks else text
    lines = textwrap.wrap(
        about,
        min(WIDTH, get_terminal_size().columns) - INDENT,
        break_on_hyphens=False,
        break_long_words=False,
    )
    head = f"  {flag}"
    beside = len(head) < INDENT - 1
    first = f"{head:<{INDENT}}{lines[0]}" if beside else head
    return "\n".join([first, *(" " * INDENT + line for line in lines[beside:])])
