"""`groundling run`: plan and run a recipe; finished runs are not repeated. Nothing heavy is imported before a run
begins: plans and checks need no torch.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from groundling.command_line import COMMANDS, Command, RunCollection
from groundling.core.errors import InputError, prefix_errors, require_known
from groundling.core.registry import is_import_path, resolve_builtin
from groundling.recipes import Row, Step, Table, slug
from groundling.recipes.plan import (
    Recipe,
    exposure_notes,
    on_stand_ins,
    plan_json,
    plan_lines,
    shrink,
    state,
)
from groundling.runs.folder import read_result, write_json
from groundling.runs.jobs import Job, run_jobs
from groundling.runs.progress import CommandContext
from groundling.settings.fields import InputKind, Settings, required, settings


@settings
class RunConfig(Settings):
    """A recipe to run."""

    file: Annotated[str, InputKind.FILE, required] = ""
    """Python file that binds `TABLES`; `recipes/` holds those of the papers. Its code is run."""
    table: str = ""
    """Run only this table, e.g. "Table 2"; empty: all."""
    rows: tuple[str, ...] = ()
    """Run only these rows, by name; none: all."""
    seeds: Annotated[int, Ge(0)] = 0
    """Number of seeds of every fine-tuning; 0: as in the recipe."""
    processes: Annotated[int, Ge(1)] = 1
    """Parallel runs, one thread each."""
    plan: bool = False
    """Print every step, its settings beside the paper's, and missing data; run nothing."""
    miniature: bool = False
    """Run everything in about a minute: two steps per job, on small stand-ins for data and weights."""


def load_recipe(config: RunConfig, out: Path) -> Recipe:
    """The recipe of a file, with the tables, rows and seeds that `config` selects."""
    file = Path(config.file)
    sys.path.insert(0, str(file.parent))  # a recipe may import another one
    try:
        names = runpy.run_path(str(file))
        recipe = Recipe(names["TABLES"], names.get("PAPER", ""), out)
    except Exception as error:  # a recipe is the user's code, and can raise any exception
        lines = [
            one.lineno
            for one in traceback.extract_tb(error.__traceback__)
            if one.filename == str(file)
        ]
        where = f"{file}, line {lines[-1]}" if lines else str(file)
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        raise InputError(f"{where}: {kind}{error}") from None
    finally:
        sys.path.remove(str(file.parent))
    return select(recipe, config)


def select(recipe: Recipe, config: RunConfig) -> Recipe:
    """The recipe with the tables, rows and seeds of `config`; raises InputError for unknown names."""
    if config.table:
        names = [table.name for table in recipe.tables]
        require_known(config.table, names, f"no table is called {config.table!r}")
    tables = [one for one in recipe.tables if config.table in ("", one.name)]
    offered = dict.fromkeys(row.name for table in tables for row in table.rows)
    for name in config.rows:
        require_known(name, offered, f"no row is called {name!r}")
    chosen = config.rows or offered
    selected = []
    for table in tables:
        rows = [_with_seeds(row, config.seeds) for row in table.rows if row.name in chosen]
        selected += [Table(table.name, rows)] if rows else []
    return replace(recipe, tables=selected)


def _with_seeds(row: Row, seeds: int) -> Row:
    """The row with another number of seeds, if not 0; raises InputError if its steps are of one seed or of none."""
    if not seeds:
        return row
    steps = []
    for step in row.steps:
        if "seed" in step.settings:
            raise InputError(f"seeds: {step.name} has a seed of its own; change the recipe instead")
        if "seeds" not in step.values:
            raise InputError(f"seeds: {step.name} has no seeds; change the recipe instead")
        notes = dict(step.notes)
        if "seeds" in notes:
            reason = "changed on the command line"
            notes["seeds"] = replace(notes["seeds"], ours=seeds, reason=reason)
        steps.append(replace(step, settings={**step.settings, "seeds": seeds}, notes=notes))
    return replace(row, steps=tuple(steps))


def check(config: RunConfig, out: str | Path) -> None:
    """Raises InputError for a mistake in the recipe, and for missing data, before anything runs."""
    recipe = load_recipe(config, Path(out))
    recipe.steps()
    if not config.plan and not config.miniature:
        check_runs(recipe)


def check_runs(recipe: Recipe) -> None:
    """Raises InputError for a step's settings that do not fit together, and for missing data or weights."""
    from groundling.tasks import Task

    inputs = recipe.inputs()
    for one in inputs:
        if state(one) == "missing":
            raise InputError(
                f"{one.name}: {one.path} does not exist; obtain it: {one.available_from} (--plan lists all)"
            )
    known = [*(one.path for one in inputs), f"{recipe.out}/"]
    for step in recipe.steps():
        command, values = COMMANDS[step.command], recipe.arguments(step)
        task = step.values.get("task", "")
        with prefix_errors(step.name):
            command.check_settings(values)
            command.check_inputs_exist(values, lambda word: any(path in word for path in known))
            if task and not is_import_path(task):
                resolve_builtin("tasks", Task, task)


def run(config: RunConfig, work: CommandContext) -> dict[str, Any]:
    """Run the recipe of a file, or one of its tables.

    With `plan` nothing is run, and the plan is printed and written to `plan.json`; with `miniature` everything runs on
    small stand-ins.
    """
    recipe = load_recipe(config, work.out)
    if config.plan:
        plan = plan_json(recipe)
        print("\n".join(plan_lines(plan)))
        write_json(work.out / "plan.json", plan)
        return plan
    if not config.miniature:
        return run_recipe(recipe, recipe.steps(), config.processes)
    recipe = on_stand_ins(recipe)
    return run_recipe(recipe, [shrink(step) for step in recipe.steps()], config.processes)


def run_recipe(recipe: Recipe, steps: Sequence[Step], processes: int) -> dict[str, Any]:
    """Run the steps that are not finished, and compare every row with the first of its table."""
    for note in [*exposure_notes(steps), *_few_seeds_notes(recipe)]:
        print(f"note: {note}")
    jobs = []
    for step in steps:
        after = tuple(one.name for one in recipe.before(step))
        jobs.append(Job(step.name, COMMANDS[step.command].call, (recipe.arguments(step),), after))
    run_jobs(jobs, processes, print)
    for step in steps:
        words = (read_result(recipe.out / step.path) or {}).get("words")
        if words:
            print(f"{step.path}: {words['read']:,} words read, of {words['total']:,} in its budget")
    verdicts = [_judge(table, recipe.out) for table in recipe.tables]
    return verdicts[0] if len(verdicts) == 1 else {"tables": verdicts}


def _few_seeds_notes(recipe: Recipe) -> list[str]:
    """Notes on tables whose verdicts cannot call any difference reliable."""
    from groundling.stats.verdict import few_seeds_note

    notes = []
    for table in recipe.tables:
        seeds = [
            step.values["seeds"]
            for row in table.rows
            for step in row.steps
            if "task" in step.values
        ]
        if len(table.rows) > 1 and seeds:
            found = few_seeds_note(min(seeds), len(table.columns))
            notes += [f"{table.name}: {note}" if table.name else note for note in found]
    return notes


def _judge(table: Table, out: Path) -> dict[str, Any]:
    from groundling.stats.verdict_report import collect_groups, write_verdict

    groups = {row.name: out / slug(row.name) for row in table.rows}
    published = {row.name: row.scores for row in table.rows}
    folder = out
    if table.name:
        print(f"\n{table.name}")
        folder = out / "tables" / slug(table.name)
    steps = [step for row in table.rows for step in row.steps]
    own = [step.values["task"] for step in steps if "task" in step.values]
    columns = table.columns if table.name else ()
    return write_verdict(collect_groups(groups, columns, own), folder, print, published)


COMMAND = Command(
    "run",
    "run a recipe: a paper's tables, or your own experiments; finished runs are not repeated",
    "groundling.commands.run:run",
    {"_own": RunConfig()},
    title="Judge",
    example="groundling run recipes/xdbert.py --plan",
    common_flags="file table rows seeds processes plan miniature",
    positional=("--file",),
    prints_output=True,
    validate=check,
    output=RunCollection(),
)
