"""The command line: finds the command, parses its flags, runs it, and prints the result.

Heavy imports wait until a command runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from groundling import __version__
from groundling.command_line import COMMANDS
from groundling.command_line.flags import (
    DRY_RUN,
    HELP,
    HELP_ALL,
    command_help,
    command_list,
    parse_flags,
)
from groundling.core.errors import InputError, convert_os_errors, printable, require_known
from groundling.runs.folder import json_text
from groundling.runs.progress import is_main_process


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; an InputError prints one line on stderr and exits with status 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name, rest = _command(words)
    try:
        with convert_os_errors():
            status = _run(name, rest) if name else _no_command(words)
            sys.stdout.flush()  # raise BrokenPipeError here, not at exit (`groundling --help | head`)
            return status
    except InputError as error:
        print(f"groundling: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        message = "stopped; nothing was written"
        if name and COMMANDS[name].has_out and not COMMANDS[name].file:
            message = "stopped; run the same command again to resume"
        print(f"groundling: {message}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `groundling adapt --help | head`
        # The interpreter flushes stdout again at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _command(words: Sequence[str]) -> tuple[str, list[str]]:
    names = [" ".join(words[:count]) for count in (1, 2)]
    name = next((one for one in names if one in COMMANDS), "")
    return name, list(words[len(name.split()) :])


def _no_command(words: Sequence[str]) -> int:
    first = words[0] if words else HELP[0]
    family = {name: one for name, one in COMMANDS.items() if name.startswith(first + " ")}
    if first in HELP:
        print(command_list(COMMANDS))
    elif first == "--version":
        print(__version__)
    elif family and words[1:] in ([], ["-h"], ["--help"]):
        print(command_list(family))
    else:
        name = " ".join(words[:2]) if family else first
        require_known(name, COMMANDS, f"no command {name!r}")
    return 0


def _run(name: str, arguments: list[str]) -> int:
    command = COMMANDS[name]
    if HELP_ALL in arguments or any(word in arguments for word in HELP):
        print(command_help(command, HELP_ALL in arguments))
        return 0
    is_dry = command.has_out and DRY_RUN in arguments
    values = parse_flags(command, [word for word in arguments if not is_dry or word != DRY_RUN])
    command.check(values)
    _silence_transformers()
    command.function()
    result = command.rehearse(values) if is_dry else command.call(values)
    if command.prints_output and not is_dry:
        return result if isinstance(result, int) else 0
    if is_main_process():
        print(printable(result) if isinstance(result, str) else json_text(result, indent=2))
    return 0


def _silence_transformers() -> None:
    """Without bars and warnings of transformers in logs, also where a command imports it later."""
    if "transformers" not in sys.modules:
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()  # which transformers asks when it is imported
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        return
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()


if __name__ == "__main__":
    sys.exit(main())
