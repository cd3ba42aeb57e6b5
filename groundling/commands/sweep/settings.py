"""A sweep's commands, and their settings, filled from a table of its file. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from groundling.command import COMMANDS, Command
from groundling.core.errors import InputError
from groundling.settings.fields import changed
from groundling.settings.fields import filled as fill

Filled = tuple[Any, Any]
"""A command's settings, and those of its training; None in the second place of a command that trains nothing."""
DATA = "data "
"""What commands' names begin with that make data; a sweep's file has the rest of the name."""
MAKERS = ("regions", "finetune")
"""Other commands that a `[data.NAME]` may be made by."""


def command_of(word: str) -> Command:
    """The command that a sweep's file calls so: `adapt`, or `partition`, which makes data."""
    return COMMANDS[word] if word in COMMANDS else COMMANDS[DATA + word]


def makers() -> Sequence[str]:
    """What a sweep's file calls the commands that a `[data.NAME]` may be made by."""
    data = [name.removeprefix(DATA) for name, one in COMMANDS.items() if _makes_data(one)]
    return [*MAKERS, *data]


def _makes_data(command: Command) -> bool:
    """Whether it writes data, from settings of no other command."""
    writes = command.out and not command.file
    return command.name.startswith(DATA) and writes and set(command.settings) == {"_own"}


def defaults_of(word: str) -> Filled:
    """A command's settings as they are if nobody says anything."""
    settings = command_of(word).settings
    own = settings["_own"]
    if word == "finetune":
        own = changed(own, save_model=False)  # hundreds of runs would fill a disk
    return own, settings.get("_train")


def values_of(settings: Filled, out: Path) -> list[Any]:
    """What a command is called with."""
    return [*(group for group in settings if group is not None), out]


def filled(defaults: Filled, values: object, where: str) -> Filled:
    """Two configurations with the values of one table; a key belongs to the one that has a setting of its name."""
    if not isinstance(values, Mapping):
        raise InputError(f"{where}: {values!r}, expected a table")
    own, *training = fill([group for group in defaults if group is not None], values, where)
    return own, training[0] if training else None
