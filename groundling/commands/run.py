"""`groundling run`: plan and run a recipe; finished runs are not repeated. Nothing heavy is imported before a run
begins: plans and checks need no torch.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from groundling.command_line import COMMANDS, Command
from groundling.core.errors import InputError, prefix_errors
from groundling.core.registry import is_import_path, resolve_builtin
from groundling.recipes.miniature import on_stand_ins, shrink
from groundling.recipes.parts import Step, Table, slug
from groundling.recipes.plan import Recipe, exposure_notes, plan_json, plan_lines, state
from groundling.runs.folder import write_json
from groundling.runs.jobs import Job, run_jobs
from groundling.runs.outputs import RunCollection
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
    if not file.is_file():
        raise InputError(f"{file}: no such file")
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
    recipe = recipe.with_table(config.table) if config.table else recipe
    recipe = recipe.with_rows(config.rows) if config.rows else recipe
    return recipe.with_seeds(config.seeds) if config.seeds else recipe


def check(config: RunConfig, out: str | Path) -> None:
    """Raises InputError for a mistake in the recipe, and for missing data, before anything runs."""
    recipe = load_recipe(config, Path(out))
    recipe.steps()
    if not config.plan and not config.miniature:
        check_runs(recipe)


def check_runs(recipe: Recipe) -> None:
    """Raises InputError, naming the step, for settings that do not fit together, and for missing data or weights."""
    inputs = recipe.inputs()
    absent = [one for one in inputs if state(one) == "missing"]
    known = [*(one.path for one in inputs), f"{recipe.out}/"]

    def is_known(word: str) -> bool:
        return any(path in word for path in known)

    for step in recipe.steps():
        with prefix_errors(step.name):
            _check_task(step.values.get("task", ""))
    for check_step in (Command.check_settings, partial(Command.check_inputs_exist, skip=is_known)):
        for step in recipe.steps():
            with prefix_errors(step.name):
                check_step(COMMANDS[step.command], arguments(recipe, step))
        if absent:
            more = f" ({len(absent) - 1} more are missing: --plan)" if len(absent) > 1 else ""
            raise InputError(
                f"{absent[0].name}: {absent[0].path} does not exist; obtain it: {absent[0].available_from}{more}"
            )


def _check_task(name: str) -> None:
    """Raises InputError for an unknown task, which would end the recipe hours later."""
    from groundling.tasks import Task

    if name and not is_import_path(name):
        resolve_builtin("tasks", Task, name)


def arguments(recipe: Recipe, step: Step) -> list[Any]:
    """The arguments of a step's command: settings and output."""
    return [*step.typed(recipe.place), recipe.place(step)]


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
    for note in exposure_notes(steps):
        print(f"note: {note}")
    jobs = []
    for step in steps:
        after = tuple(one.name for one in recipe.before(step))
        jobs.append(Job(step.name, COMMANDS[step.command].call, (arguments(recipe, step),), after))
    run_jobs(jobs, processes, print)
    verdicts = [_judge(table, recipe.out) for table in recipe.tables]
    return verdicts[0] if len(verdicts) == 1 else {"tables": verdicts}


def _judge(table: Table, out: Path) -> dict[str, Any]:
    """The verdicts of one table, in its own folder if it has a name."""
    from groundling.stats.verdict_report import collect_groups, write_verdict

    groups = {row.name: out / slug(row.name) for row in table.rows}
    published = {row.name: row.scores for row in table.rows}
    folder = out
    if table.name:
        print(f"\n{table.name}")
        folder = out / "tables" / slug(table.name)
    own = [step.values["task"] for row in table.rows for step in row.steps]
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
