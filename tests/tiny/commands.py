"""Words of commands on sound inputs, with some of them changed; every flag that a command has."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from groundling.cli import COMMANDS
from groundling.settings.fields import settings_of


def adapting_with(given: Path, out: Path, **changes: object) -> list[object]:
    flags = {
        "student": given / "student",
        "teacher": given / "teacher",
        "text": given / "text.txt",
        "steps": 2,
        "batch": 4,
        "max-length": 40,
        "out": out,
    } | changes
    return ["adapt", "--cpu", *(x for name, value in flags.items() for x in (f"--{name}", value))]


def tuning_with(given: Path, out: Path, **changes: object) -> list[object]:
    flags = {
        "model": given / "student",
        "task": "glue/rte",
        "data": given / "glue",
        "steps": 1,
        "batch": 4,
        "out": out,
    }
    return [
        "finetune",
        "--cpu",
        *(x for name, value in (flags | changes).items() for x in (f"--{name}", value)),
    ]


def same(out: Path, whole: dict[str, torch.Tensor]) -> bool:
    found = load_file(out / "model" / "model.safetensors")
    return found.keys() == whole.keys() and all(torch.equal(found[k], whole[k]) for k in whole)


def flags_of(command: str) -> dict[str, str]:
    """Every flag of a command's settings, of their groups too, and the docstring of its field."""
    flags = {}
    for prefix, settings in COMMANDS[command].settings.items():
        start = "" if prefix.startswith("_") else f"{prefix}."
        for one in settings_of(settings):
            flag = f"--{start}{one.name.replace('_', '-')}"
            assert flag not in flags, f"{command}: two settings are called {flag}"
            flags[flag] = one.help
    return flags
