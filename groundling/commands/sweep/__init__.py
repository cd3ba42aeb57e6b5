"""`groundling sweep`: a list of runs over variants, tasks and seeds; does what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from groundling.command_line import Command
from groundling.runs.outputs import RunCollection
from groundling.settings.fields import InputKind, Settings, at_least, required


@dataclass(frozen=True)
class SweepConfig(Settings):
    """A list of runs over variants, tasks and seeds, from a TOML file."""

    file: Annotated[str, InputKind.FILE, required] = ""
    """TOML with `[adapt]`, `[tune]`, `[tasks.NAME]`, `[variants.NAME]`; `sweeps/` holds those of the papers. A task \
of your own file has `data`, `text` and `label` in its table, as `finetune` has them as flags."""
    table: str = ""
    """Only this table of the file's, e.g. "Table 2"; empty: all."""
    rows: tuple[str, ...] = ()
    """Only these variants, by name; none: all."""
    seeds: Annotated[int, at_least(0)] = 0
    """Overrides the file's number of seeds; 0 does not."""
    processes: Annotated[int, at_least(1)] = 1
    """Runs side by side, one thread each."""
    plan: bool = False
    """Run nothing: print every job, its settings beside the paper's, what is missing, steps and hours."""
    seconds_per_step: Annotated[float, at_least(0)] = 0.0
    """--plan: seconds of an optimizer step, measured on your machine; 0: a rough guess from the model's size."""
    miniature: bool = False
    """Run everything in a minute, two steps a job, on small stand-ins for the data and weights that the file names."""


def check(config: SweepConfig, out: str | Path) -> None:
    """Raises InputError for a mistake in the file, and for data that is missing, before anything runs."""
    from groundling.commands.sweep.run import check_runs, read

    what = read(config, Path(out))
    if not config.plan and not config.miniature:
        check_runs(what, Path(out))


COMMAND = Command(
    "sweep",
    "a list of runs over variants, tasks and seeds; does what is missing",
    "groundling.commands.sweep.run:sweep",
    {"_own": SweepConfig()},
    title="Judge",
    example="groundling sweep --file sweeps/xdbert.toml --plan",
    common_flags="file table rows seeds processes plan miniature",
    prints_output=True,
    validate=check,
    output=RunCollection(),
)
