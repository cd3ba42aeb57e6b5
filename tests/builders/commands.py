"""Words of commands on sound inputs, with some of them changed."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file


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
