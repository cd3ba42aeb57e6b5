"""Run a sweep: variants on tasks over seeds; finished parts are not repeated.

Nothing heavy is imported before a run begins: plans and checks need no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from groundling.command_line.registered_names import parse_arm
from groundling.command_line.registered_names import published_scores as reported
from groundling.commands.sweep import SweepConfig
from groundling.commands.sweep.file import read_sweep
from groundling.commands.sweep.plan import SweepPlan, missing
from groundling.commands.sweep.schema import (
    VERDICTS,
    CommandSettings,
    Sweep,
    SweepInput,
    TableSpec,
    command_arguments,
    find_command,
    references,
    resolve_references,
    slug,
)
from groundling.commands.sweep.steps import SweepStep, check_notes, steps_of
from groundling.core.errors import InputError, require_known
from groundling.core.registry import registered
from groundling.runs.folder import write_json
from groundling.runs.jobs import Job, run_jobs
from groundling.runs.progress import CommandContext
from groundling.settings.fields import replace_settings, settings_of

# A sweep's miniature: reduced settings, and stand-ins for data and weights.

SIDE = 32
"""Image side in pixels, for models that read pixels."""
LENGTH = 48
"""Maximum tokens per text."""

SMALL: dict[str, Callable[[Any], Any]] = {
    "steps": lambda _: 2,
    "batch": lambda batch: min(batch, 4),
    "gradient_accumulation_steps": lambda _: 1,
    "freeze_encoder_steps": lambda steps: min(steps, 1),
    "schedule_steps": lambda _: 0,
    "precision": lambda _: "fp32",
    "cpu": lambda _: True,
    "max_length": lambda length: min(length, LENGTH),
    "shortest_edge": lambda _: SIDE,
    "longest_edge": lambda _: 0,
    # The world's captions have no Karpathy splits, and the rendered questions no VCR categories.
    "caption_splits": lambda _: (),
    "per_stratum": lambda number: min(number, 4),
    "stratify_by": lambda _: "total",
}
"""Reduced value of a setting in a miniature, given its value."""


def shrink_settings(settings: CommandSettings) -> CommandSettings:
    """A command's settings for two short steps on a CPU."""
    shrunk = []
    for config in settings:
        new = {}
        for one in settings_of(config):
            if one.name in SMALL:
                new[one.name] = SMALL[one.name](one.value)
        shrunk.append(replace_settings(config, **new) if new else config)
    return shrunk[0], shrunk[1]


@dataclass(frozen=True)
class StandInMaker:
    """Maker of small stand-ins for a sweep's data and weights, in a study's `stand_ins`."""

    name: str
    """What they are made from."""
    make: Callable[[Sequence[SweepInput], Path], tuple[dict[str, SweepInput], list[str]]]
    """From sources and a folder: sources with the paths of stand-ins in the folder, by name, and \
notes on them. Raises InputError for an unsupported kind."""


def stand_in(
    sources: Sequence[SweepInput], folder: Path
) -> tuple[dict[str, SweepInput], list[str]]:
    """The sources with the paths of their stand-ins in `folder`, and notes on them; raises
    InputError as `make`.
    """
    (one,) = registered("stand_ins", StandInMaker).values()
    return one.make(sources, folder)


def sweep(config: SweepConfig, work: CommandContext) -> dict[str, Any]:
    """Run the sweep of a TOML file, or one of its tables; `--seeds` overrides all seeds of the
    file.

    With `plan` nothing is run, and the plan is printed and written to `plan.json`; with `miniature`
    everything runs on small stand-ins.
    """
    sweep = load_sweep(config, work.out)
    if config.plan:
        plan = SweepPlan(sweep, steps_of(sweep, work.out), config.seconds_per_step)
        print("\n".join(plan.lines()))
        content = plan.as_json()
        write_json(work.out / "plan.json", content)
        return content
    if config.miniature:
        sweep = _on_stand_ins(sweep, work.out)
    steps = steps_of(sweep, work.out)
    if config.miniature:
        steps = [replace(step, settings=shrink_settings(step.settings)) for step in steps]
    return run_all(sweep, steps, work.out, config.processes)


def load_sweep(config: SweepConfig, out: Path) -> Sweep:
    """The sweep of a file, restricted to a table or rows, with another number of seeds.

    Raises InputError for a mistake in the file, and for an unknown table or row.
    """
    sweep = read_sweep(config.file)
    check_notes(steps_of(sweep, out), sweep)
    if config.table:
        offered = [table.name for table in sweep.tables]
        require_known(
            config.table, offered, f"--table {config.table}: {config.file} has no such table"
        )
        tables = tuple(table for table in sweep.tables if table.name == config.table)
        sweep = replace(sweep, tables=tables)
    if config.rows:
        sweep = replace(sweep, tables=_rows_of(sweep, config.rows))
    if config.seeds:
        tasks = tuple(replace(task, seeds=0) for task in sweep.tasks)
        sweep = replace(sweep, seeds=config.seeds, tasks=tasks)
    return sweep


def _rows_of(sweep: Sweep, variants: Sequence[str]) -> tuple[TableSpec, ...]:
    offered = list(dict.fromkeys(row for table in sweep.verdict_tables() for row in table.rows))
    for row in variants:
        require_known(row, offered, f"--rows {row}: no such variant")
    tables = []
    for table in sweep.verdict_tables():
        rows = tuple(row for row in table.rows if row in variants)
        if rows:
            tables.append(replace(table, rows=rows))
    return tuple(tables)


def _on_stand_ins(sweep: Sweep, out: Path) -> Sweep:
    """The sweep on small stand-ins, made in `out/stand-ins`; its scores mean nothing.

    Raises InputError for data or weights of an unsupported kind.
    """
    sources = SweepPlan(sweep, steps_of(sweep, out)).sources
    stand_ins, notes = stand_in(sources, out / "stand-ins")
    for note in notes:
        print(f"note: {note}")
    tasks = tuple(replace(task, seeds=0) for task in sweep.tasks)
    return replace(sweep, sources={**sweep.sources, **stand_ins}, seeds=1, tasks=tasks)


def check_runs(
    sweep: Sweep, out: Path, rewrite: Callable[[str, str], str] = lambda command, message: message
) -> None:
    """Raises InputError, naming the step, for settings that do not fit together, and for missing data
    or weights.

    `rewrite(command, message)` replaces the flags in a step's message by those that the user typed.
    """
    steps = steps_of(sweep, out)
    for variant in sweep.variants:
        try:
            parse_arm(variant.adapt.arm)
        except InputError as error:
            raise InputError(rewrite("adapt", str(error))) from None
    for task in sweep.tasks:
        if not task.finetune.data:
            raise InputError(
                f"{task.name} needs `data`, the folder of its official files or your own file"
            )
    for step in steps:
        try:
            values = command_arguments(step.settings, step.out)
            find_command(step.command).check_settings(values)
        except InputError as error:
            raise InputError(f"{step.name}: {rewrite(step.command, str(error))}") from None
    absent = missing(SweepPlan(sweep, steps))
    if absent:
        first = absent[0]
        more = f" ({len(absent) - 1} more are missing: --plan)" if len(absent) > 1 else ""
        raise InputError(
            f"{first.name}: {first.path} does not exist; obtain it: {first.available_from}{more}"
        )
    for step in steps:
        try:
            values = command_arguments(step.settings, step.out)
            find_command(step.command).check_inputs_exist(
                values, skip=lambda word: _is_made(word, out)
            )
        except InputError as error:
            raise InputError(f"{step.name}: {rewrite(step.command, str(error))}") from None


def _is_made(word: str, out: Path) -> bool:
    """Whether a word refers to data or weights of a table, or to the output of an earlier step."""
    return bool(references(word)) or Path(word).is_relative_to(out)


def run_all(sweep: Sweep, steps: Sequence[SweepStep], out: Path, processes: int) -> dict[str, Any]:
    """Run the missing steps into `out/VARIANT/...`; compare every variant with the first of its
    table.
    """
    for note in SweepPlan(sweep, steps).notes:
        print(f"note: {note}")
    run_jobs([_job(step, sweep) for step in steps], processes, print)
    verdicts = [_judge(sweep, table, out) for table in sweep.verdict_tables()]
    return verdicts[0] if len(verdicts) == 1 else {"tables": verdicts}


def _job(step: SweepStep, sweep: Sweep) -> Job:
    """The job of a step, whose settings have been checked."""
    config, training = step.settings
    values = command_arguments((resolve_references(config, sweep.sources), training), step.out)
    return Job(step.name, find_command(step.command).call, (values,), step.after)


def _judge(sweep: Sweep, table: TableSpec, folder: Path) -> dict[str, Any]:
    """The verdicts of one table, in its own folder if the file has several tables."""
    from groundling.stats.verdict_report import judge_folders

    variants = [variant for variant in sweep.variants if variant.name in table.rows]
    variants.sort(key=lambda variant: table.rows.index(variant.name))
    groups = {variant.name: folder / slug(variant.name) for variant in variants}
    papers = reported()
    published = {
        variant.name: {**papers.get(variant.published, {}), **dict(variant.scores)}
        for variant in variants
    }
    if table.name:
        print(f"\n{table.name}")
        folder = folder / VERDICTS / slug(table.name)
    own = [task.finetune.task for task in sweep.tasks]
    columns = table.columns if table.name else ()
    return judge_folders(groups, folder, print, published, columns, trust=own)
