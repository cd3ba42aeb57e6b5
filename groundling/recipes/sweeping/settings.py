"""A command's settings, filled from a table of a sweep's file. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from groundling.config import (
    PRETRAINING,
    TUNING,
    AdaptConfig,
    FinetuneConfig,
    PartitionConfig,
    PretrainConfig,
    RegionsConfig,
    ShiftConfig,
    TrainConfig,
    changed,
    check_numbers,
    flat,
)
from groundling.errors import InputError

Filled = tuple[Any, Any]
"""A command's settings, and those of its training; None in the second place of a command that trains nothing."""

DEFAULTS: dict[str, Filled] = {
    "adapt": (AdaptConfig(), TrainConfig()),
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
    holders = {
        one.name: (place, group)
        for place, config in enumerate(defaults)
        for group, one in flat(config)
    }
    new: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for key, value in values.items():
        if key not in holders:
            names = ", ".join(sorted(holders))
            raise InputError(f"{where}: unknown key {key!r}; expected one of {names}")
        place, group = holders[key]
        new[place][key] = tuple(value) if isinstance(value, list) else value
        _check_value(group, key, new[place][key], where)
    first, second = defaults
    settings = changed(first, **new[0]), changed(second, **new[1]) if new[1] else second
    try:
        check_numbers(settings[0])
        check_numbers(settings[1])
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return settings


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _check_value(group: object, key: str, value: object, where: str) -> None:
    """Raises InputError for a value of another type than the setting's default, or none of its choices."""
    before = vars(group)[key]
    kinds = (int, float) if isinstance(before, float) else (type(before),)
    wrong_bool = isinstance(value, bool) and not isinstance(before, bool)
    if not isinstance(value, kinds) or wrong_bool:
        raise InputError(f"{where}: {key} = {value!r}, expected a value like {before!r}")
    kind: Any = type(group)
    hint = _hints(kind)[key]
    if isinstance(value, tuple):
        _check_members(get_args(hint), key, value, where)
    if get_origin(hint) is Literal and value not in get_args(hint):
        raise InputError(f"{where}: {key} = {value!r}, expected one of {', '.join(get_args(hint))}")


def _check_members(
    members: Sequence[object], key: str, value: tuple[object, ...], where: str
) -> None:
    """Raises InputError for a list of others than the texts or numbers that belong there, or too many or few."""
    kinds = (str,) if members[0] is str else (int, float)
    word = "texts" if members[0] is str else "numbers"
    if Ellipsis not in members:
        word = f"{len(members)} {word}"
    fits = all(isinstance(one, kinds) and not isinstance(one, bool) for one in value)
    if not fits or (Ellipsis not in members and len(value) != len(members)):
        raise InputError(f"{where}: {key} = {list(value)!r}, expected a list of {word}")
