"""Settings of a run, as dataclasses; their docstrings are the command line's help. Imports nothing heavy.

Settings that travel together are groups of their own inside a command's settings; on the command line and in a sweep's
file every setting is called by its own name alone (`configured` and `changed` do the same in Python).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass, replace
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from groundling.core.errors import InputError, nearest

Settings = TypeVar("Settings")


@cache  # the plan of a paper asks for them a hundred thousand times
def _fields(kind: Any) -> tuple[Field[Any], ...]:
    return fields(kind)


@cache
def _has_fields(kind: Any) -> bool:
    return is_dataclass(kind)


def _is_group(value: object) -> bool:
    kind: Any = type(value)
    return _has_fields(kind)


def flat(config: object) -> list[tuple[object, Field[Any]]]:
    """Every single setting of a configuration, those of its groups too, with the group that holds it."""
    found: list[tuple[object, Field[Any]]] = []
    if not _is_group(config):
        return found
    kind: Any = type(config)
    for one in _fields(kind):
        value = config.__dict__[one.name]
        if _is_group(value):
            found += flat(value)
        else:
            found.append((config, one))
    return found


def changed(config: Settings, /, **values: object) -> Settings:
    """A copy with some settings changed, each by its own name, in whichever group it stands.

    Raises InputError for a name that there is not.
    """
    names = {one.name for _, one in flat(config)}
    for name in values:
        if name not in names:
            raise InputError(
                f"no setting is called {name!r}; there are: {', '.join(sorted(names))}{nearest(name, names)}"
            )
    return _changed(config, values)


def _changed(config: Any, values: dict[str, object]) -> Any:
    new = {}
    kind: Any = type(config)
    for one in _fields(kind):
        value = config.__dict__[one.name]
        if _is_group(value):
            new[one.name] = _changed(value, values)
        elif one.name in values:
            new[one.name] = values[one.name]
    return replace(config, **new)


def configured(kind: type[Settings], /, **values: object) -> Settings:
    """A configuration with some settings other than the default, each by its own name: as the flags of a command."""
    return changed(kind(), **values)


def filled(defaults: Sequence[Any], values: Mapping[str, object], where: str) -> list[Any]:
    """Configurations with some settings other than the default; each name belongs to the one that has it.

    Raises InputError, which begins with `where`, for a name that there is not, and for a value that does not fit.
    """
    if not values:
        return list(defaults)
    holders = {
        one.name: (place, group)
        for place, config in enumerate(defaults)
        for group, one in flat(config)
    }
    new: list[dict[str, object]] = [{} for _ in defaults]
    for name, value in values.items():
        if name not in holders:
            raise InputError(
                f"{where}: unknown key {name!r}; expected one of {', '.join(sorted(holders))}{nearest(name, holders)}"
            )
        place, group = holders[name]
        _check_value(group, name, value, where)
        new[place][name] = value
    pairs = zip(defaults, new, strict=True)
    settings = [changed(config, **some) if some else config for config, some in pairs]
    try:
        for config in settings:
            check_numbers(config)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return settings


@cache
def hints(kind: Any) -> dict[str, Any]:
    """The types of a configuration's settings by name."""
    return get_type_hints(kind)


def _check_value(group: Any, name: str, value: object, where: str) -> None:
    """Raises InputError for a value of another type than the setting's default, or none of its choices."""
    before = vars(group)[name]
    kind: Any = type(group)
    # Whole epochs are a whole number in many defaults.
    kinds = (int, float) if hints(kind)[name] is float else (type(before),)
    wrong_bool = isinstance(value, bool) and not isinstance(before, bool)
    if not isinstance(value, kinds) or wrong_bool:
        raise InputError(f"{where}: {name} = {value!r}, expected a value like {before!r}")
    hint = hints(kind)[name]
    if isinstance(value, tuple):
        _check_members(get_args(hint), name, value, where)
    if get_origin(hint) is Literal and value not in get_args(hint):
        raise InputError(
            f"{where}: {name} = {value!r}, expected one of {', '.join(get_args(hint))}"
        )


def _check_members(
    members: Sequence[object], name: str, value: tuple[object, ...], where: str
) -> None:
    """Raises InputError for a list of others than the texts or numbers that belong there, or too many or few."""
    kinds = (str,) if members[0] is str else (int, float)
    word = "texts" if members[0] is str else "numbers"
    if Ellipsis not in members:
        word = f"{len(members)} {word}"
    fits = all(isinstance(one, kinds) and not isinstance(one, bool) for one in value)
    if not fits or (Ellipsis not in members and len(value) != len(members)):
        raise InputError(f"{where}: {name} = {list(value)!r}, expected a list of {word}")


def need(config: object, command: str, *names: str) -> None:
    """Raises InputError naming the first of a command's settings that is empty and must not be."""
    values = {one.name: group.__dict__[one.name] for group, one in flat(config)}
    for name in names:
        if not values[name]:
            raise InputError(f"{command} needs --{_flag(name)}")


def _list_lone_texts(config: object, *names: str) -> None:
    """Turns a lone text, as Python code may write it, into a list of one, and an empty one into none."""
    for name in names:
        value = config.__dict__[name]
        if isinstance(value, str):
            object.__setattr__(config, name, (value,) if value else ())  # the class is frozen


Numbers = Callable[[float], bool]


EXPECTED: tuple[tuple[str, Numbers, tuple[str, ...]], ...] = (
    (
        "at least 1",
        lambda value: value >= 1,
        (
            *("batch", "accumulate", "save_every", "log_every"),
            *("words", "cross_layers", "adversarial_passes", "join_captions", "at_once"),
            *("processes", "least_arcs", "line_points"),
            *("patch", "projection", "vocabulary", "size", "vision", "text", "draws", "best"),
            *("held", "train", "most"),
        ),
    ),
    ("at least 3, for a start, a piece and an end", lambda value: value >= 3, ("window",)),
    (
        "more than 0",
        lambda value: 0 < value < math.inf,
        ("epochs", "epsilon", "temperature", "td_temperature", "scale"),
    ),
    (
        "0 to 1",
        lambda value: 0 <= value <= 1,
        ("warmup", "mask_rate", "active", "overlap", "stated"),
    ),
    (
        "at least 0 and below 1",
        lambda value: 0 <= value < 1,
        ("betas", "momentum", "head_share", "shift"),
    ),
    (
        "at least 0",
        lambda value: 0 <= value < math.inf,
        (
            *("steps", "batch_tokens", "lr", "milestones", "milestone_factor", "warmup_steps"),
            *("horizon", "weight_decay", "head_lr", "head_start", "clip"),
            *("distill_weight", "distill_warmup", "sentence", "word", "max_windows", "td_weight"),
            "retain",
            *("adversarial_size", "adversarial_kl", "hard_negatives", "most_questions", "windows"),
            *("most_examples", "explained", "most_regions", "budget"),
            *("eval_every", "patience", "threshold", "least", "side", "long_side", "max_length"),
            *("max_texts", "most_pairs", "top", "seconds_per_step"),
        ),
    ),
    ("at least 0, or -1 for what fits", lambda value: value >= -1, ("workers",)),
    ("at least 0, or inf for all", lambda value: value >= 0, ("cache_gb",)),
)
"""What numbers settings may be: in words, as a test, and which settings, of any command."""


EXPECTED_OF = {name: (words, fits) for words, fits, names in EXPECTED for name in names}
"""The same by setting."""


NUMERIC = re.compile(r"(tuple\[)?(int|float)\b")
"""Types of settings that are numbers; the same name may stand for something else in another command."""


@cache
def _numbers(kind: Any) -> frozenset[str]:
    """The settings of a group that are numbers."""
    return frozenset(one.name for one in _fields(kind) if NUMERIC.match(str(one.type)))


def check_numbers(config: object, prefix: str = "") -> None:
    """Raises InputError naming the flag of a number that is out of its range, in whichever group it stands.

    Of numbers without a range of their own, NaN and infinity are none. `prefix` stands before the flag's name.
    """
    for group, one in flat(config):
        kind: Any = type(group)
        if one.name not in _numbers(kind):
            continue
        value = vars(group)[one.name]
        words, fits = EXPECTED_OF.get(one.name, ("a finite number", math.isfinite))
        every = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(number, (int, float)) and fits(number) for number in every):
            raise InputError(f"--{prefix}{_flag(one.name)} = {_spelt(value)}, expected {words}")


MAY_REPEAT = frozenset(
    {"text", "model", "regions", "heads", "predictions", "published", "ids", "ids_as"}
)
"""Lists in which a thing may stand twice: what belongs side by side, or to another list."""


def check_lists(config: object, prefix: str = "") -> None:
    """Raises InputError naming the flag of a list in which something stands twice, where that changes nothing.

    `prefix` stands before the flag's name.
    """
    for group, one in flat(config):
        value = vars(group)[one.name]
        kind: Any = type(group)
        is_list = isinstance(value, tuple) and get_args(hints(kind)[one.name])[1:] == (...,)
        if not is_list or one.name in MAY_REPEAT:
            continue
        twice = next((each for each in value if value.count(each) > 1), None)
        if twice is not None:
            raise InputError(f"--{prefix}{_flag(one.name)}: {twice} is there twice; leave one out")


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _spelt(value: object) -> str:
    """A value as one types it."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
