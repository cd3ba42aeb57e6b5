"""What can be wrong with a sweep's settings, data and weights, told before torch is loaded and anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from groundling.checks.inputs import check_inputs
from groundling.checks.names import arm_of
from groundling.commands.adapt import check as check_adapt
from groundling.commands.data_partition import check as check_partition
from groundling.commands.finetune import check as check_finetune
from groundling.commands.pretrain import check as check_pretrain
from groundling.commands.regions import check as check_regions
from groundling.commands.sweep.parts import Sweep, references
from groundling.commands.sweep.plan import Plan, missing
from groundling.commands.sweep.steps import Step
from groundling.core.errors import InputError
from groundling.studies.clip_td.commands import check_data_shift as check_shift

RULES: Mapping[str, Callable[..., Any]] = {
    "adapt": check_adapt,
    "pretrain": check_pretrain,
    "finetune": check_finetune,
    "regions": check_regions,
    "partition": check_partition,
    "shift": check_shift,
}
"""The rules of each command of a sweep."""


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
        config, training = step.settings
        settings = [config] if training is None else [config, training]
        try:
            RULES[step.command](*settings, step.out)
        except InputError as error:
            raise InputError(f"{step.name}: {error}") from None
    absent = missing(Plan(what, steps))
    if absent:
        first = absent[0]
        more = f" ({len(absent) - 1} more are missing: --plan)" if len(absent) > 1 else ""
        raise InputError(f"{first.name}: {first.path} is not there; get it: {first.get}{more}")
    for step in steps:
        try:
            check_inputs(step.settings[0], later=lambda word: _is_made(word, out))
        except InputError as error:
            raise InputError(f"{step.name}: {error}") from None


def _is_made(word: str, out: Path) -> bool:
    """Whether a word stands for data or weights of a table, or is what an earlier step writes."""
    return bool(references(word)) or Path(word).is_relative_to(out)
