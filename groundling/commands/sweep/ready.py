"""What can be wrong with a sweep's settings, data and weights, told before torch is loaded and anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from groundling.command.names import arm_of
from groundling.commands.sweep.parts import Sweep, references
from groundling.commands.sweep.plan import Plan, missing
from groundling.commands.sweep.settings import command_of, values_of
from groundling.commands.sweep.steps import Step
from groundling.core.errors import InputError


def check_runs(what: Sweep, steps: Sequence[Step], out: Path) -> None:
    """Raises InputError, naming the step, for settings that do not fit, and for data and weights that are not there."""
    for variant in what.variants:
        arm_of(variant.adapt.arm)
    for tuning in what.tunings:
        if not tuning.finetune.data:
            raise InputError(
                f"{tuning.name} needs `data`, the folder of its official files, or your own file"
            )
    for step in steps:
        try:
            values = values_of(step.settings, step.out)
            command_of(step.command).check_together(values)
        except InputError as error:
            raise InputError(f"{step.name}: {error}") from None
    absent = missing(Plan(what, steps))
    if absent:
        first = absent[0]
        more = f" ({len(absent) - 1} more are missing: --plan)" if len(absent) > 1 else ""
        raise InputError(f"{first.name}: {first.path} is not there; get it: {first.get}{more}")
    for step in steps:
        try:
            values = values_of(step.settings, step.out)
            command_of(step.command).check_there(values, later=lambda word: _is_made(word, out))
        except InputError as error:
            raise InputError(f"{step.name}: {error}") from None


def _is_made(word: str, out: Path) -> bool:
    """Whether a word stands for data or weights of a table, or is what an earlier step writes."""
    return bool(references(word)) or Path(word).is_relative_to(out)
