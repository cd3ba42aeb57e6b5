"""Whether the parts of a sweep fit together: what they call each other, and their folders. Imports nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from groundling.command.names import TASKS
from groundling.commands.sweep.parts import (
    PRETRAIN_OF,
    PRETRAININGS,
    VERDICTS,
    PaperTable,
    Sweep,
    Variant,
    references,
    slug,
)
from groundling.core.errors import InputError, nearest
from groundling.core.find import is_outside


def check_fits(what: Sweep, path: str | Path) -> None:
    """Raises InputError naming the table of the file whose reference, row, column, score or start does not exist."""
    _check_references(what, path)
    _check_tasks(what, path)
    for table in what.tables:
        _check_table(what, table, path)
    tasks = [tuning.name for tuning in what.tunings]
    for variant in what.variants:
        for column in variant.scores:
            if re.sub(r" \(\w+\)$", "", column) not in tasks:
                raise InputError(
                    f'{path}, [variants."{variant.name}"]: scores: no task is called {column!r}; '
                    f"there are: {', '.join(tasks)}, each also as `NAME (SPLIT)`"
                )
    _check_chains(what, path)


def _check_references(what: Sweep, path: str | Path) -> None:
    """Raises InputError for a reference to data or weights that no table describes, and for a table in vain."""
    found = set(references([*_settings_of(what), [one.model for one in what.variants]]))
    for name in sorted(found):
        if name not in what.sources:
            raise InputError(f"{path}: {name}, but there is no [{_table(name)}] table")
    for name in what.sources:
        if name not in found:
            raise InputError(f"{path}, [{_table(name)}]: no setting refers to {name}")


def _check_tasks(what: Sweep, path: str | Path) -> None:
    """Raises InputError for settings of a task that there is not; whether your own is there, only its import tells."""
    holders = {f'[tasks."{one.name}"]': one.finetune for one in what.tunings}
    holders |= {f'[pretrain."{one.name}"]': one.settings[0] for one in what.pretrainings}
    holders |= {f"[{_table(one.name)}]": one.settings[0] for one in what.sources.values()}
    for where, config in holders.items():
        name = vars(config).get("task", "") if config is not None else ""
        if name and not is_outside(name) and name not in TASKS:
            offered = ", ".join(sorted(TASKS))
            raise InputError(
                f"{path}, {where}: no task is called {name!r}; there are: {offered}{nearest(name, TASKS)}"
            )


def _table(reference: str) -> str:
    return reference.replace(":", ".")


def _settings_of(what: Sweep) -> list[object]:
    """All that may refer to data and weights."""
    held: list[object] = [one.settings[0] for one in what.sources.values()]
    held += [one.answers for one in what.sources.values()]
    held += [one.settings[0] for one in what.pretrainings]
    for variant in what.variants:
        held += [variant.adapt, dict(variant.tune)]
    return [*held, *(tuning.finetune for tuning in what.tunings)]


def _check_table(what: Sweep, table: PaperTable, path: str | Path) -> None:
    """Raises InputError for a row that is no variant, or a column that is no task."""
    variants = [variant.name for variant in what.variants]
    tasks = [tuning.name for tuning in what.tunings]
    for key, kind, names, offered in (
        ("rows", "variants", table.rows, variants),
        ("columns", "tasks", table.columns, tasks),
    ):
        for name in names:
            if name not in offered:
                raise InputError(
                    f'{path}, [tables."{table.name}"]: {key}: no [{kind}."{name}"]; '
                    f"there are: {', '.join(offered)}"
                )


def _check_chains(what: Sweep, path: str | Path) -> None:
    """Raises InputError for a `pretrain of` that does not exist or comes round to itself."""
    before = {one.name: one.settings[0].student for one in what.pretrainings}
    starts = {f'[variants."{one.name}"]': one.model for one in what.variants}
    starts |= {f'[pretrain."{name}"]': student for name, student in before.items()}
    for where, start in starts.items():
        seen: list[str] = []
        while start.startswith(PRETRAIN_OF):
            name = start.removeprefix(PRETRAIN_OF)
            if name not in before:
                offered = ", ".join(before) or "none"
                raise InputError(f'{path}, {where}: no [pretrain."{name}"]; there are: {offered}')
            if name in seen:
                circle = " of ".join([*seen, name])
                raise InputError(f"{path}, {where}: pretrain of {circle} comes round to itself")
            seen.append(name)
            start = before[name]


def check_folders(what: Sweep) -> None:
    """Raises InputError for two variants, tasks or pre-trainings with one folder, and for a joint of nothing.

    So it does for a name that leaves the sweep's folder (`..`), or is that folder itself.
    """
    for kind, names, taken in (
        ("variants", [one.name for one in what.variants], [PRETRAININGS, VERDICTS]),
        ("tasks", [one.name for one in what.tunings], []),
        ("pre-trainings", [one.name for one in what.pretrainings], []),
    ):
        folders = [*taken, *(slug(name) for name in names)]
        for name in names:
            _check_inside(kind, name)
            if folders.count(slug(name)) > 1:
                raise InputError(f"two {kind} would share the folder {slug(name)}; rename {name!r}")
    for table in what.tables:
        if table.name or len(what.tables) > 1:  # a file without tables has one of no name
            _check_inside("tables", table.name)
    _check_joints(what.variants)


def _check_inside(kind: str, name: str) -> None:
    """Raises InputError for a name whose folder would not be one inside the sweep's."""
    if not slug(name).strip("."):
        raise InputError(f"{kind}: {name!r} names no folder inside the sweep's; rename it")


def _check_joints(variants: Sequence[Variant]) -> None:
    """Raises InputError for the joint of a variant that keeps none."""
    with_joint = [variant.name for variant in variants if variant.adapt.crossing.save_joint]
    for variant in variants:
        if variant.joint_of and variant.joint_of not in with_joint:
            raise InputError(
                f"{variant.name}: model is the joint of {variant.joint_of!r}, which is no variant with save_joint"
            )
