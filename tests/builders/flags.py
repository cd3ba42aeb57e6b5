"""The flags of a command."""

from __future__ import annotations

from groundling.cli import COMMANDS
from groundling.core.documented import fields_told
from groundling.settings.fields import flat


def flags_of(command: str) -> dict[str, str]:
    """Every flag of a command's settings, of their groups too, and the docstring of its field."""
    flags = {}
    for prefix, settings in COMMANDS[command].settings.items():
        start = "" if prefix.startswith("_") else f"{prefix}."
        for group, one in flat(settings):
            flag = f"--{start}{one.name.replace('_', '-')}"
            assert flag not in flags, f"{command}: two settings are called {flag}"
            told = {field.name: field.text for field in fields_told(type(group))}
            flags[flag] = told[one.name]
    return flags
