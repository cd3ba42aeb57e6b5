"""A command's settings, filled from a table of a sweep's file. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from groundling.commands.adapt import ADAPTING, AdaptConfig
from groundling.commands.data_partition import PartitionConfig
from groundling.commands.finetune import TUNING, FinetuneConfig
from groundling.commands.pretrain import PRETRAINING, PretrainConfig
from groundling.commands.regions import RegionsConfig
from groundling.core.errors import InputError
from groundling.settings.fields import filled as fill
from groundling.studies.clip_td.commands import ShiftConfig

Filled = tuple[Any, Any]
"""A command's settings, and those of its training; None in the second place of a command that trains nothing."""

DEFAULTS: dict[str, Filled] = {
    "adapt": (AdaptConfig(), ADAPTING),
    "pretrain": (PretrainConfig(), PRETRAINING),
    "finetune": (FinetuneConfig(save_model=False), TUNING),  # hundreds of runs would fill a disk
    "regions": (RegionsConfig(), None),
    "partition": (PartitionConfig(), None),
    "shift": (ShiftConfig(), None),
}
"""The commands of a sweep, and their settings as they are if nobody says anything."""


def filled(defaults: Filled, values: object, where: str) -> Filled:
    """Two configurations with the values of one table; a key belongs to the one that has a setting of its name."""
    if not isinstance(values, Mapping):
        raise InputError(f"{where}: {values!r}, expected a table")
    first, second = fill(defaults, values, where)
    return first, second
