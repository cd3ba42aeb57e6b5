"""`groundling ensemble`: several finished runs' probabilities, averaged and scored as one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from groundling.checks.names import check_name
from groundling.command import Command
from groundling.core.documented import documented
from groundling.settings.fields import need


@documented
@dataclass(frozen=True)
class EnsembleConfig:
    """Which finished runs are averaged."""

    runs: tuple[str, ...] = ()
    """Run folders of `finetune`, or single seeds' folders in them; every finished seed is a member."""
    task: str = ""
    """Task by name, e.g. vcr/answer, or MODULE:NAME of your own."""
    data: str = ""
    """Folder with the task's official files."""


def check(config: EnsembleConfig, out: str | Path) -> None:
    """Raises InputError without runs, a task or data, and for a task that there is not."""
    need(config, "ensemble", "runs", "task", "data")
    check_name("tasks", "Task", config.task)


COMMAND = Command(
    "ensemble",
    "several finished runs' probabilities, averaged and scored as one",
    "groundling.studies.clip_td.ensemble:ensemble",
    {"_own": EnsembleConfig()},
    positional=("--runs",),
    rules="groundling.studies.clip_td.commands.ensemble:check",
)
