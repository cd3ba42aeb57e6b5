"""Flags of a command: parsing and help, generated from the fields of its settings. Imports nothing
heavy.
"""

from __future__ import annotations

import argparse
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from difflib import get_close_matches
from shutil import get_terminal_size
from typing import Any, NamedTuple

from groundling.command_line import Command, flag_prefix
from groundling.core.errors import InputError, prefix_errors
from groundling.settings.fields import (
    Setting,
    canonical_name,
    flag_name,
    format_value,
    replace_settings,
    settings_of,
)

HELP = ("-h", "--help")
HELP_ALL = "--help-all"
DRY_RUN = "--dry-run"
OUT = "out"
WIDTH = 120
"""Maximum line length of help."""
INDENT = 26
"""Column at which a flag's help text begins."""
SHORT_TEXT = 100
"""Maximum number of characters of a flag's help in `--help`, if that would be too long otherwise."""
SHORT_HELP = 45
"""Maximum number of lines of `--help`."""


class Flag(NamedTuple):
    """A flag of a command."""

    prefix: str
    """Key of its settings in `Command.settings`."""
    setting: Setting
    """The setting that it sets, with its default."""

    @property
    def name(self) -> str:
        """The flag without the leading dashes."""
        return flag_prefix(self.prefix) + flag_name(self.setting.name)

    @property
    def metavar(self) -> str:
        """Placeholder for the value in help."""
        setting = self.setting
        if setting.choices:
            return f"{{{','.join(map(str, setting.choices))}}}"
        kind = str(setting.field.annotation)
        plain = "N" if "int" in kind else "NUMBER" if "float" in kind else "TEXT"
        one = setting.input.metavar if setting.input else plain
        return f"[{one} ...]" if setting.length == -1 else " ".join([one] * (setting.length or 1))


def listed_flags(command: Command) -> dict[str, Flag]:
    """The flags that `--help-all` lists, by name, without `--out`."""
    flags = flags_of(command)
    if command.more_flags is None:
        return flags
    listed = {*command.common_flags.split(), *command.more_flags.split()}
    return {name: one for name, one in flags.items() if name in listed}


def flags_of(command: Command) -> dict[str, Flag]:
    """A flag for every setting of a command, by name, without `--out`."""
    flags = [
        Flag(prefix, one)
        for prefix, settings in command.settings.items()
        for one in settings_of(settings)
    ]
    return {one.name: one for one in flags}


# -- parsing -----------------------------------------------------------------------------------------------------------


def parse_flags(command: Command, words: Sequence[str]) -> list[Any]:
    """The command's settings from the words typed after its name, and its `out`, if it has one.

    Raises InputError for an unknown flag, and for a value that is not allowed.
    """
    flags = flags_of(command)
    parser = _parser(command, flags)
    advice = f"see `groundling {command.name} --help`"
    try:
        namespace, unknown = parser.parse_known_args([*_expanded(command, words, flags)])
    except argparse.ArgumentError as error:
        raise InputError(f"{error.argument_name}: {error.message}; {advice}") from None
    if unknown:
        raise InputError(f"{_unknown_message(unknown[0], command, flags)}; {advice}")
    typed = vars(namespace)
    values: dict[str, dict[str, object]] = defaultdict(dict)
    for name in typed.keys() & flags.keys():
        values[flags[name].prefix][flags[name].setting.name] = typed[name]
    settings = []
    for prefix, default in command.settings.items():
        with prefix_errors(prefix) if flag_prefix(prefix) else nullcontext():
            settings.append(replace_settings(default, **values[prefix]))
    return [*settings, typed.get(OUT, command.default_out)] if command.has_out else settings


def _parser(command: Command, flags: Mapping[str, Flag]) -> argparse.ArgumentParser:
    """Separates flags from values, which stay text until the settings are made."""
    parser = argparse.ArgumentParser(
        add_help=False,
        allow_abbrev=False,
        exit_on_error=False,
        argument_default=argparse.SUPPRESS,
    )
    for name, one in flags.items():
        if one.setting.field.annotation is bool:
            parser.add_argument(f"--{name}", dest=name, action=argparse.BooleanOptionalAction)
        else:
            count = one.setting.length
            nargs = "*" if count == -1 else count
            parser.add_argument(f"--{name}", dest=name, nargs=nargs)
    if command.has_out:
        parser.add_argument(f"--{OUT}")
    return parser


def _expanded(command: Command, words: Sequence[str], flags: Mapping[str, Flag]) -> Iterator[str]:
    """The words with positional flags written out, and flags in the spelling of help."""
    rest = list(words)
    given: set[str] = set()
    for flag in command.positional:
        if rest and not rest[0].startswith("-"):
            given.add(flag[2:].replace("-", "_"))
            yield from (flag, rest.pop(0))
    names = {name.replace("-", "_") for name in flags}
    asked = {word[2:].partition("=")[0].replace("-", "_") for word in rest}
    for word in rest:
        flag, equals_sign, value = word.partition("=")
        if not flag.startswith("--"):
            yield word
            continue
        name = canonical_name(flag[2:].replace("-", "_"), names, asked)
        if name in given:  # the second list would replace the first in silence
            raise InputError(f"--{flag_name(name)}: is given twice; remove one")
        given.add(name)
        yield f"--{flag_name(name)}{equals_sign}{value}"


def _unknown_message(word: str, command: Command, flags: Mapping[str, Flag]) -> str:
    """Message for a word that is neither a flag of the command nor a value."""
    bare = word.partition("=")[0].lstrip("-")
    names = [*flags, *[OUT][: command.has_out]]
    similar = [one for one in names if one.rpartition(".")[2] == bare]
    similar = similar or get_close_matches(bare, names, 1)
    hint = f"; did you mean {' or '.join(f'--{one}' for one in similar)}?" if similar else ""
    fault = "has no flag" if word.startswith("-") else "takes no argument"
    return f"{command.name} {fault} {word!r}{hint}"


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
    """Output of `--help`, which fits one screen: usage, an example, and the flags that most people use."""
    flags = flags_of(command)
    common = {"flags": [flags[name] for name in command.common_flags.split()]}
    rest = len(listed_flags(command)) - len(common["flags"])
    more = f"{rest} more flags: groundling {command.name} {HELP_ALL}" if rest else ""
    text = _page(command, common, more)
    is_long = len(text.splitlines()) > SHORT_HELP
    return _page(command, common, more, is_short=True) if is_long else text


def full_help(command: Command) -> str:
    """Output of `--help-all`: the flags, in the groups of their settings."""
    flags = listed_flags(command)
    groups: dict[tuple[str, type[Any]], list[Flag]] = {
        (prefix, type(settings)): [] for prefix, settings in command.settings.items()
    }
    for one in flags.values():
        groups.setdefault((one.prefix, one.setting.group), []).append(one)
    titled = {_title(prefix, group): some for (prefix, group), some in groups.items() if some}
    rest = len(flags_of(command)) - len(flags)
    place = f"help(groundling.{command.function_name})"
    return _page(
        command, titled, f"{rest} more settings, for recipes and Python: {place}" if rest else ""
    )


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, 2, INDENT, min(WIDTH, get_terminal_size().columns))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


def _page(
    command: Command, groups: Mapping[str, Sequence[Flag]], more: str, is_short: bool = False
) -> str:
    """Usage, summary, example, groups of flags by title, and `more`."""
    flags = flags_of(command)
    bare = "".join(f" {flags[flag[2:]].metavar}" for flag in command.positional)
    summary = f"{command.summary[0].upper()}{command.summary[1:]}"
    parser = argparse.ArgumentParser(
        usage=f"groundling {command.name}{bare} [FLAGS]",
        description=f"{summary}{'' if summary[-1] == '?' else '.'}\n\nexample:\n  {command.example}",
        epilog=more,
        formatter_class=_Formatter,
        add_help=False,
    )
    for title, some in groups.items():
        listed = parser.add_argument_group(title)
        for flag in some:
            about = _about(flag, is_short).replace("%", "%%")
            if flag.setting.field.annotation is bool:
                listed.add_argument(f"--[no-]{flag.name}", action="store_true", help=about)
            else:
                listed.add_argument(f"--{flag.name}", metavar=flag.metavar, help=about)
    if command.has_out:
        own = parser.add_argument_group("output")
        about = f"{command.about_out} (default: {command.default_out})"
        own.add_argument(f"--{OUT}", metavar="PATH", help=about)
        about = "Read the inputs, print what they are, and stop before anything long."
        own.add_argument(DRY_RUN, action="store_true", help=about)
    return parser.format_help().rstrip()


def _title(prefix: str, group: type[Any]) -> str:
    """Heading of a group of flags: the docstring of its class."""
    first = " ".join((group.__doc__ or "").split("\n\n")[0].split()).rstrip(".")
    return f"{first} (--{flag_prefix(prefix)}NAME)" if flag_prefix(prefix) else first


def _about(flag: Flag, is_short: bool) -> str:
    """A flag's help, range and default."""
    setting = flag.setting
    text = setting.help
    if is_short:
        text = textwrap.shorten(text, SHORT_TEXT, placeholder=" ...")
    remarks = list(range_words(setting.field.metadata))
    if setting.is_required:
        remarks.append("required")
    elif isinstance(setting.value, bool):
        remarks.append(f"default: {'on' if setting.value else 'off'}")
    elif setting.value not in ("", ()):
        remarks.append(f"default: {format_value(setting.value)}")
    return f"{text} ({'; '.join(remarks)})" if remarks else text


def range_words(metadata: Sequence[object]) -> Iterator[str]:
    """The bounds that a field declares, in words."""
    for sign, bound in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")):
        for mark in metadata:
            value = getattr(mark, sign, None)
            if value is not None:
                yield f"{bound} {value:g}"
