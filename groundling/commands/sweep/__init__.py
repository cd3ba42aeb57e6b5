"""`groundling sweep`: run variants on tasks over seeds from a TOML file; finished runs are not
repeated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from groundling.command_line import Command
from groundling.runs.outputs import RunCollection
from groundling.settings.fields import InputKind, Settings, required, settings


@settings
class SweepConfig(Settings):
    """Runs of variants, tasks and seeds, from a TOML file."""

    file: Annotated[str, InputKind.FILE, required] = ""
    """TOML file with `[adapt]`, `[tune]`, `[tasks.NAME]`, `[variants.NAME]`; `sweeps/` holds \
those of the papers. A task of your own file has `data`, `text` and `label` in its table, like the \
flags of `finetune`."""
    table: str = ""
    """Run only this table of the file, e.g. "Table 2"; empty: all."""
    rows: tuple[str, ...] = ()
    """Run only these variants, by name; none: all."""
    seeds: Annotated[int, Ge(0)] = 0
    """Number of seeds, overriding the file; 0: as in the file."""
    processes: Annotated[int, Ge(1)] = 1
    """Parallel runs, one thread each."""
    plan: bool = False
    """Print every job, its settings beside the paper's, missing data, steps and hours; run \
nothing."""
    seconds_per_step: Annotated[float, Ge(0)] = 0.0
    """--plan: seconds per optimizer step, measured on your machine; 0: rough estimate from the \
model's size."""
    miniature: bool = False
    """Run everything in about a minute: two steps per job, on small stand-ins for the file's data \
and weights."""


def check(config: SweepConfig, out: str | Path) -> None:
    """Raises InputError for a mistake in the file, and for missing data, before anything runs."""
    from groundling.commands.sweep.run import check_runs, load_sweep

    sweep = load_sweep(config, Path(out))
    if not config.plan and not config.miniature:
        check_runs(sweep, Path(out))


COMMAND = Command(
    "sweep",
    "run variants on tasks over seeds, from a TOML file; finished runs are not repeated",
    "groundling.commands.sweep.run:sweep",
    {"_own": SweepConfig()},
    title="Judge",
    example="groundling sweep --file sweeps/xdbert.toml --plan",
    common_flags="file table rows seeds processes plan miniature",
    prints_output=True,
    validate=check,
    output=RunCollection(),
)
