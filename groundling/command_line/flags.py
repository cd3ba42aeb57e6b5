"""Flags of a command: parsing and help, generated from the fields of its settings. Imports nothing heavy."""

from __future__ import annotations

import argparse
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import takewhile
from shutil import get_terminal_size
from typing import Any, NamedTuple

from groundling.command_line import Command, flag_prefix
from groundling.core.errors import InputError, did_you_mean, duplicates, prefix_errors
from groundling.settings.fields import (
    Setting,
    flag_name,
    format_value,
    replace_settings,
    required,
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
FEW = 3
"""Maximum number of flags of one ending that a message offers."""
SHORT_TEXT = 160
"""Maximum number of characters of a flag's help in `--help`."""


class Flag(NamedTuple):
    """A flag of a command."""

    prefix: str
    """Key of its settings in `Command.settings`."""
    setting: Setting
    """The setting that it sets, with its default."""

    @property
    def title(self) -> str:
        """Heading of its group in help: the docstring of the class that declares it."""
        about = " ".join((self.setting.group.__doc__ or "").split("\n\n")[0].split()).rstrip(".")
        prefix = flag_prefix(self.prefix)
        return f"{about} (--{prefix}NAME)" if prefix else about

    @property
    def metavar(self) -> str:
        """Placeholder for one value in help."""
        setting = self.setting
        if setting.choices:
            return f"{{{','.join(map(str, setting.choices))}}}"
        kind = str(setting.field.annotation)
        plain = "N" if "int" in kind else "NUMBER" if "float" in kind else "TEXT"
        return setting.input.value if setting.input else plain

    @property
    def help(self) -> str:
        """Its setting's docstring and default."""
        setting = self.setting
        value = format_value(setting.value)
        if required in setting.field.metadata and not value:
            return f"{setting.help} (required)"
        return f"{setting.help} (default: {value})" if value else setting.help


def flags_of(command: Command) -> dict[str, Flag]:
    """A flag for every setting of a command, by name, without `--out`."""
    return {
        flag_prefix(prefix) + flag_name(one.name): Flag(prefix, one)
        for prefix, settings in command.settings.items()
        for one in settings_of(settings)
    }


# -- parsing -----------------------------------------------------------------------------------------------------------
def parse_flags(command: Command, words: Sequence[str]) -> list[Any]:
    """The command's settings from the words typed after its name, and its `out`, if it has one.

    Raises InputError for an unknown flag, and for a value that is not allowed.
    """
    flags = flags_of(command)
    parser = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, exit_on_error=False, argument_default=argparse.SUPPRESS
    )
    for name, flag in flags.items():
        _add_flag(parser, name, flag)
    if command.has_out:
        parser.add_argument(f"--{OUT}")
    advice = f"see `groundling {command.name} --help`"
    try:
        words = _normalised(command, words)
        namespace, unknown = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise InputError(f"{error.argument_name}: {error.message}; {advice}") from None
    if unknown:
        fault = "has no flag" if unknown[0].startswith("-") else "takes no argument"
        hint = _near(unknown[0].partition("=")[0].lstrip("-"), list(flags))
        raise InputError(f"{command.name} {fault} {unknown[0]!r}{hint}; {advice}")
    typed = vars(namespace)
    out = [typed.pop(OUT, command.default_out)] if command.has_out else []
    values: dict[str, dict[str, object]] = defaultdict(dict)
    for name, value in typed.items():
        values[flags[name].prefix][name.rpartition(".")[2].replace("-", "_")] = value
    settings = []
    for prefix, default in command.settings.items():
        with prefix_errors(prefix) if flag_prefix(prefix) else nullcontext():
            settings.append(replace_settings(default, **values[prefix]))
    return [*settings, *out]


def _near(word: str, flags: Sequence[str]) -> str:
    # `--images` is `--teacher-images`, although `--voken-images` is spelled more alike
    ending = [f"--{name}" for name in flags if name.endswith(f"-{word}")]
    if 1 < len(ending) <= FEW:
        return f"; did you mean {' or '.join(ending)}?"
    return did_you_mean(word, flags).replace("mean ", "mean --")


def _add_flag(parser: argparse._ActionsContainer, name: str, flag: Flag, help: str = "") -> None:
    count = flag.setting.length
    options: dict[str, Any] = {"nargs": "*" if count == -1 else count, "metavar": flag.metavar}
    if flag.setting.field.annotation is bool:
        options = {"action": argparse.BooleanOptionalAction}
    parser.add_argument(f"--{name}", dest=name, help=help, **options)


def _normalised(command: Command, words: Sequence[str]) -> list[str]:
    bare = list(takewhile(lambda word: not word.startswith("-"), words))[: len(command.positional)]
    pairs = zip(command.positional, bare, strict=False)
    normal = [word for pair in pairs for word in pair]
    for word in words[len(bare) :]:
        flag, equals_sign, value = word.partition("=")
        is_flag = flag.startswith("--")
        normal.append(f"{flag_name(flag)}{equals_sign}{value}" if is_flag else word)
    flags = [word.partition("=")[0] for word in normal if word.startswith("--")]
    for flag in duplicates(flags):  # the second list would replace the first in silence
        raise InputError(f"{flag}: is given twice; remove one")
    return normal


# -- help --------------------------------------------------------------------------------------------------------------
def command_list(commands: Mapping[str, Command]) -> str:
    """Output of `groundling --help`: commands by section."""
    titles: dict[str, list[str]] = defaultdict(list)
    for one in commands.values():
        titles[one.title].append(f"  {one.name:<16}{one.summary}")
    parts = ["usage: groundling COMMAND [FLAGS]; `groundling COMMAND --help` explains the flags"]
    parts += ["\n".join([f"{title}:", *lines]) for title, lines in titles.items()]
    return "\n\n".join(parts)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, 2, INDENT, min(WIDTH, get_terminal_size().columns))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


def command_help(command: Command, shows_all: bool = False) -> str:
    """Output of `--help`: the flags that most people use, on one screen; of `--help-all`: every flag by group."""
    flags = flags_of(command)
    common = command.common_flags.split()
    groups: dict[str, list[str]] = defaultdict(list)
    for name in flags if shows_all else common:
        groups[flags[name].title if shows_all else "flags"].append(name)
    rest = 0 if shows_all else len(flags) - len(common)
    bare = "".join(f" {flags[flag[2:]].metavar}" for flag in command.positional)
    summary = f"{command.summary[0].upper()}{command.summary[1:]}"
    parser = argparse.ArgumentParser(
        usage=f"groundling {command.name}{bare} [FLAGS]",
        description=f"{summary}{'' if summary[-1] == '?' else '.'}\n\nexample:\n  {command.example}",
        epilog=f"{rest} more flags: groundling {command.name} {HELP_ALL}" if rest else "",
        formatter_class=_Formatter,
        add_help=False,
    )
    for title, names in groups.items():
        group = parser.add_argument_group(title)
        for name in names:
            text = flags[name].help.replace("%", "%%")
            if not shows_all:
                text = textwrap.shorten(text, SHORT_TEXT, placeholder=" ...")
            _add_flag(group, name, flags[name], text)
    if command.has_out:
        group = parser.add_argument_group("output")
        about = f"{command.about_out} (default: {command.default_out})"
        group.add_argument(f"--{OUT}", metavar="PATH", help=about)
        about = "Read the inputs, print what they are, and stop before anything long."
        group.add_argument(DRY_RUN, action="store_true", help=about)
    return parser.format_help().rstrip()
