"""The command line: one table of commands, one parser; flags and help come from the dataclasses they fill.

Heavy imports wait until a command runs.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import field, is_dataclass, make_dataclass
from difflib import get_close_matches
from io import StringIO
from itertools import dropwhile, takewhile
from typing import Annotated, Any, cast, get_type_hints

from groundling import __version__
from groundling.command import Command, commands
from groundling.core.documented import summary_of
from groundling.core.errors import InputError, first_line, nearest
from groundling.runs.folder import json_text
from groundling.runs.progress import heard, is_first
from groundling.settings.fields import flat

COMMANDS = commands()
"""Every command of `groundling`."""


def out_of(name: str) -> tuple[str, str]:
    """Where a command writes if nobody says where, and what its `--out` is, in words."""
    command = COMMANDS[name]
    place = command.file or f"runs/{name.replace(' ', '-')}"
    if command.writes:
        return place, command.writes
    if command.file:
        return place, "File to write, a csv, tsv or jsonl by its ending; all of it or nothing."
    about = "Run folder; the same command again goes on from what it has saved."
    return place, about


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a mistake of the user's is one line on stderr and exit status 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name, rest = _command(words)
    try:
        status = _run(name, rest) if name else _no_command(words)
        sys.stdout.flush()  # a closed pipe, as of `groundling --help | head`, is met here and not at the end
        return status
    except InputError as error:
        print(f"groundling: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        stopped = "stopped; nothing is written"
        if name and COMMANDS[name].out and not COMMANDS[name].file:
            stopped = "stopped; the same command goes on from what it has saved"
        print(f"groundling: {stopped}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # as of `groundling adapt --help | head`
        # The interpreter flushes stdout once more at its end, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # beside the readers, which name their file themselves
        reason = error.strerror or first_line(error)
        file = error.filename or "a file"
        print(f"groundling: {file}: cannot be read or written ({reason})", file=sys.stderr)
        return 2


def _usage(commands: Mapping[str, Command]) -> str:
    lines = [
        "usage: groundling COMMAND [options]; `groundling COMMAND --help` lists the options",
        "",
    ]
    lines += [f"  {name:<16}{command.summary}" for name, command in commands.items()]
    return "\n".join(lines)


def _command(words: Sequence[str]) -> tuple[str, list[str]]:
    """The command that the words begin with, of one word or two, and the rest; an empty name if there is none."""
    for count in (2, 1):
        name = " ".join(words[:count])
        if name in COMMANDS:
            return name, list(words[count:])
    return "", []


def _no_command(words: Sequence[str]) -> int:
    """What to say where no command is named; help or the version, if that is what was asked for."""
    if not words or words[0] in {"-h", "--help"}:
        print(_usage(COMMANDS))
        return 0
    if words[0] == "--version":
        print(__version__)
        return 0
    family = {name: one for name, one in COMMANDS.items() if name.startswith(words[0] + " ")}
    asked = any(word in {"-h", "--help"} for word in words)
    if family:
        print(_usage(family), file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    hint = nearest(words[0], COMMANDS)
    there = ", ".join(COMMANDS)
    print(f"groundling: no command {words[0]!r}; there are: {there}{hint}", file=sys.stderr)
    return 2


def _run(name: str, arguments: list[str]) -> int:
    command = COMMANDS[name]
    values = _parse(name, command, _with_flags(command, arguments))
    command.check(values)
    command.function()
    _quiet()
    with heard(name):
        result = command.call(values)
    if command.speaks:
        return result if isinstance(result, int) else 0
    if is_first():
        print(result if isinstance(result, str) else json_text(result, indent=2))
    return 0


def _with_flags(command: Command, arguments: Sequence[str]) -> list[str]:
    """The arguments, with their flags before the first bare words."""
    named = []
    rest = list(arguments)
    for flag in command.positional:
        if not rest or rest[0].startswith("-"):
            break
        named += [flag, rest.pop(0)]
    return [*named, *rest]


def _parse(name: str, command: Command, arguments: Sequence[str]) -> list[Any]:
    """The command's settings, filled from flags, and its run folder, if it has one.

    Groups inside settings have no prefix, the settings themselves may have.
    """
    import tyro

    members: list[Any] = []
    for prefix, default in command.settings.items():
        kind: Any = _with_plain_groups(type(default))
        start = kind(**vars(default))
        # The summary is given, or the parser would look for one in the source, whatever command it parses.
        about = summary_of(kind)
        if prefix.startswith("_"):
            kind = Annotated[kind, tyro.conf.arg(name="", help=about), tyro.conf.OmitArgPrefixes]
        else:
            kind = Annotated[kind, tyro.conf.arg(help=about)]
        members.append((prefix.lstrip("_"), kind, field(default=start)))
    if command.out:
        place, about = out_of(name)
        out = Annotated[str, tyro.conf.arg(help=about)]
        members.append(("out", out, field(default=place)))
    options = make_dataclass("Options", members, frozen=True)
    parsed: Any
    said = StringIO()
    try:
        with redirect_stderr(said):
            parsed, unknown = tyro.cli(
                options,
                prog=f"groundling {name}",
                description=command.summary,
                args=list(arguments),
                return_unknown_args=True,
            )
    except SystemExit as done:
        if not done.code:
            raise
        told = re.sub(r"^Error parsing (\w+): --", r"--\1.", _unframed(said.getvalue()))
        raise InputError(f"{told}; see `groundling {name} --help`") from None
    if unknown:
        raise InputError(_unknown(unknown[0], name, command))
    values = vars(parsed)
    settings: list[Any] = []
    for prefix, default in command.settings.items():
        filled = values.pop(prefix.lstrip("_"))
        settings.append(type(default)(**vars(filled)))
    return settings + list(values.values())


def _unframed(box: str) -> str:
    """The first thing that the parser says below its box's title, in one line; plain terminals get lines for a box."""
    rows = [re.sub(r"^[│|] *| *[│|]$", "", row) for row in box.strip().splitlines()]
    below = dropwhile(_is_rule, rows[1:])
    said = takewhile(lambda row: not _is_rule(row), below)
    return " ".join(" ".join(said).split()).rstrip(".")


def _is_rule(row: str) -> bool:
    return re.search(r"\w", row) is None


def _unknown(word: str, name: str, command: Command) -> str:
    """What to say of a word that is no flag of a command's, nor a flag's value."""
    flag, _, _ = word.partition("=")
    there = []
    for prefix, settings in command.settings.items():
        before = "" if prefix.startswith("_") else f"{prefix}."
        there += [before + one.name.replace("_", "-") for _, one in flat(settings)]
    bare = flag.lstrip("-").replace("_", "-")
    alike = [one for one in there if one.rpartition(".")[2] == bare] or get_close_matches(
        bare, there, 1
    )
    hint = f"; did you mean {' or '.join(f'--{one}' for one in alike)}?" if alike else ""
    kind = "flag" if word.startswith("-") else "place for"
    return f"{name} has no {kind} {word!r}{hint}; see `groundling {name} --help`"


def _with_plain_groups(kind: type[Any]) -> type[Any]:
    """The same settings for the parser, in which a group's flags lack the group's name: `--adapt.mask-rate`."""
    import tyro

    groups: dict[str, Any] = {}
    hints: dict[str, Any] = get_type_hints(kind)
    for name, hint in hints.items():
        if is_dataclass(hint):
            about = summary_of(cast(type, hint))
            groups[name] = Annotated[hint, tyro.conf.arg(name="", help=about)]
    # Its own words alone: the parser finds those of every field by itself.
    return type(kind.__name__, (kind,), {"__annotations__": groups, "__doc__": summary_of(kind)})


def _quiet() -> None:
    """No progress bars or advice of a library that a recipe uses; those that do without are not slowed by it."""
    if "transformers" not in sys.modules:
        return
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()


if __name__ == "__main__":
    sys.exit(main())
