"""Arms side by side on the same text, steps and seeds, with the control that has no teacher: the simplest sweep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from groundling.command.names import arm_of
from groundling.commands.adapt import AdaptConfig
from groundling.commands.compare import CompareConfig
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.sweep.parts import Sweep, Tuning, Variant
from groundling.commands.sweep.ready import check_runs
from groundling.commands.sweep.steps import steps_of
from groundling.core.errors import InputError
from groundling.settings.training import TrainConfig

CONTROL = "mlm"


def compare(
    config: CompareConfig,
    adapting: AdaptConfig,
    training: TrainConfig,
    tuning: TrainConfig,
    out: str | Path,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Adapt every arm, fine-tune each on every task, and judge the arms against the first one.

    `training` is for adaptation, `tuning` for fine-tuning; finished parts are never done again.
    Raises InputError without tasks or data.
    """
    _check(config)
    arms = [CONTROL, *config.arms] if config.control else list(config.arms)
    arms = list(dict.fromkeys(arms))
    base = FinetuneConfig(
        data=config.data,
        max_train=config.max_train,
        max_length=config.max_length,
        save_model=False,
    )
    tasks = [replace(base, task=task) for task in config.tasks]
    if config.own.label:
        tasks = [replace(base, own=config.own, called=Path(config.data).stem)]
    what = Sweep(
        tuple(Variant(arm, replace(adapting, arm=arm), training) for arm in arms),
        tuple(Tuning(task, tuning) for task in tasks),
        config.seeds,
    )
    steps = steps_of(what, Path(out))
    check_runs(what, steps, Path(out))
    # Torch, which mistakes do without.
    from groundling.commands.sweep.jobs import sweep

    return sweep(what, steps, out, config.processes, say)


def _check(config: CompareConfig) -> None:
    """Raises InputError without data, for anything but tasks or a file of one's own, and for an unknown arm."""
    if not config.data or not (config.tasks or config.own.label):
        raise InputError(
            "compare needs --tasks and --data (or --data FILE, --text and --label for your own file)"
        )
    if config.tasks and config.own.label:
        raise InputError(
            f"compare: --label {config.own.label} makes a task of your own file; leave it or --tasks out"
        )
    for arm in config.arms:
        arm_of(arm)
