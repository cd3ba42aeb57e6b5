"""A list of runs, over variants, tasks and seeds: what is done is never repeated, what is missing is completed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from groundling.commands.sweep import SweepConfig
from groundling.commands.sweep.file import read_sweep
from groundling.commands.sweep.parts import PaperTable, Sweep
from groundling.commands.sweep.plan import Plan
from groundling.commands.sweep.ready import check_runs
from groundling.commands.sweep.steps import check_notes, steps_of
from groundling.core.errors import InputError, nearest
from groundling.runs.folder import open_run, write_json


def run_sweep(
    config: SweepConfig, out: str | Path, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """The sweep of a TOML file, all of it or one table's; `--seeds` overrides the file's, those of single tasks too.

    With `plan` nothing is run, but printed and written to `out/plan.json`; with `miniature` everything is run on small
    stand-ins. Raises InputError for a mistake in the file, and for data that is missing, before anything runs.
    """
    what = read_sweep(config.file)
    check_notes(steps_of(what, Path(out)), what)
    what = _narrowed(what, config)
    if config.plan:
        return _show(what, config, Path(out), say)
    steps = steps_of(what, Path(out))
    if not config.miniature:
        check_runs(what, steps, Path(out))
    # Torch, which plans and mistakes do without.
    from groundling.commands.sweep.jobs import miniature, sweep

    if config.miniature:
        return miniature(what, out, config.processes, say)
    return sweep(what, steps, out, config.processes, say)


def _narrowed(what: Sweep, config: SweepConfig) -> Sweep:
    """What of the file is wanted: a table, some rows, other numbers of seeds.

    Raises InputError for a table or row that the file does not have.
    """
    if config.table:
        offered = [table.name for table in what.tables]
        if config.table not in offered:
            raise InputError(
                f"--table {config.table}: {config.file} has no such table; "
                f"there are: {', '.join(offered) or 'none'}"
            )
        tables = tuple(table for table in what.tables if table.name == config.table)
        what = replace(what, tables=tables)
    if config.rows:
        what = replace(what, tables=_rows_of(what, config))
    if config.seeds:
        tunings = tuple(replace(tuning, seeds=0) for tuning in what.tunings)
        what = replace(what, seeds=config.seeds, tunings=tunings)
    return what


def _rows_of(what: Sweep, config: SweepConfig) -> tuple[PaperTable, ...]:
    offered = list(dict.fromkeys(row for table in what.judged() for row in table.rows))
    for row in config.rows:
        if row not in offered:
            raise InputError(
                f"--rows {row}: no such variant; there are: {', '.join(offered)}{nearest(row, offered)}"
            )
    kept = []
    for table in what.judged():
        rows = tuple(row for row in table.rows if row in config.rows)
        if rows:
            kept.append(replace(table, rows=rows))
    return tuple(kept)


def _show(
    what: Sweep, config: SweepConfig, out: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    plan = Plan(what, steps_of(what, out), config.seconds_per_step)
    say("\n".join(plan.lines()))
    content = plan.as_json()
    write_json(open_run(out, "sweep", {}, {}) / "plan.json", content)
    return content
