"""The runs of a sweep, side by side, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from groundling.commands.sweep.miniature import small, stand_in
from groundling.commands.sweep.parts import VERDICTS, PaperTable, Sweep, resolved, slug
from groundling.commands.sweep.plan import Plan
from groundling.commands.sweep.settings import command_of, values_of
from groundling.commands.sweep.steps import Step, steps_of
from groundling.runs.folder import open_run
from groundling.runs.jobs import Job, run_jobs
from groundling.stats.judging import judge_folders
from groundling.stats.published import published as reported


def sweep(
    what: Sweep,
    steps: Sequence[Step],
    out: str | Path,
    processes: int = 1,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Run what is missing of its steps into `out/VARIANT/...`, then judge every variant against its table's first one.

    Raises InputError as `check_runs`, which whoever reads the settings calls before torch is loaded.
    """
    return _run(what, steps, Path(out), processes, say)


def miniature(
    what: Sweep, out: str | Path, processes: int = 1, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """The whole sweep on small stand-ins, made in `out/stand-ins`, two steps a job; no number of it means anything.

    Raises InputError for data or weights of a kind that nothing can stand in for.
    """
    needed = Plan(what, steps_of(what, Path(out))).sources
    folder = open_run(out, "sweep", {}, {})
    stood_in, notes = stand_in(needed, folder / "stand-ins")
    for note in notes:
        say(f"note: {note}")
    tunings = tuple(replace(tuning, seeds=0) for tuning in what.tunings)
    what = replace(what, sources={**what.sources, **stood_in}, seeds=1, tunings=tunings)
    steps = [replace(step, settings=small(step.settings)) for step in steps_of(what, folder)]
    return _run(what, steps, folder, processes, say)


def _run(
    what: Sweep, steps: Sequence[Step], out: Path, processes: int, say: Callable[[str], None]
) -> dict[str, Any]:
    for note in Plan(what, steps).notes:
        say(f"note: {note}")
    # Variants, tasks and seeds may grow: each run checks its own settings.
    folder = open_run(out, "sweep", {}, {})
    run_jobs([_job(step, what) for step in steps], processes, say)
    judged = [_judge(what, table, folder, say) for table in what.judged()]
    return judged[0] if len(judged) == 1 else {"tables": judged}


def _job(step: Step, what: Sweep) -> Job:
    config, training = step.settings
    settings = resolved(config, what.sources), training
    values = values_of(settings, step.out)
    return Job(step.name, command_of(step.command), tuple(values), step.after)


def _judge(
    what: Sweep, table: PaperTable, folder: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """The verdicts of one table, in a folder of its own if the file has several."""
    variants = [variant for variant in what.variants if variant.name in table.rows]
    variants.sort(key=lambda variant: table.rows.index(variant.name))
    groups = {variant.name: folder / slug(variant.name) for variant in variants}
    papers = reported()
    published = {
        variant.name: {**papers.get(variant.published, {}), **dict(variant.scores)}
        for variant in variants
    }
    if table.name:
        say(f"\n{table.name}")
        folder = folder / VERDICTS / slug(table.name)
    own = [tuning.finetune.task for tuning in what.tunings]
    columns = table.columns if table.name else ()
    return judge_folders(groups, folder, say, published, columns, trust=own)
