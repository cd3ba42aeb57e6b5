"""`groundling report`: the report of a training run, alone or beside its control."""

from __future__ import annotations

from typing import Annotated, Any

from groundling.command_line import Command, CommandOutput, write_run_report
from groundling.runs.folder import REPORT
from groundling.runs.progress import CommandContext
from groundling.settings.fields import InputKind, Settings, required, settings


@settings
class ReportConfig(Settings):
    """A run to report."""

    run: Annotated[str, InputKind.FOLDER, required] = ""
    """Folder of a run of adapt, finetune, pretrain or train-clip, finished or not."""
    control: Annotated[str, InputKind.FOLDER] = ""
    """Folder of another run: its curves and scores are shown beside the run's, and the settings that differ."""


def report(config: ReportConfig, work: CommandContext) -> dict[str, Any]:
    """Write `report.html` and `report.txt` into the run's folder, and print the text; returns their paths."""
    print(write_run_report(config.run, config.control).text())
    page, text = (f"{config.run}/{name}" for name in REPORT)
    print(f"\n{page}")
    return {"page": page, "text": text}


COMMAND = Command(
    "report",
    "report a training run: loss curves, scores, cost and settings, compared with its control's",
    "groundling.commands.report:report",
    {"_own": ReportConfig()},
    title="Judge",
    example="groundling report runs/adapted --control runs/control",
    common_flags="run control",
    positional=("--run",),
    prints_output=True,
    output=CommandOutput(),
)
