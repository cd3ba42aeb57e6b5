"""`groundling data check`: what is wrong with a folder of data, before any training."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from groundling.command import Command
from groundling.core.errors import InputError
from groundling.runs.leaves import Nothing
from groundling.runs.work import Work
from groundling.settings.fields import Input, Settings, needed
from groundling.settings.inputs import CaptionColumns, OwnFile


@dataclass(frozen=True)
class CheckConfig(Settings):
    """Which folder is looked through."""

    folder: Annotated[str, Input.FOLDER, needed] = ""
    """Folder of data in any layout that the library reads; nothing in it is changed. Exit status 1 if anything is \
wrong with it."""
    columns: CaptionColumns = field(default_factory=CaptionColumns)
    own: OwnFile = field(default_factory=OwnFile)


def data_check(config: CheckConfig, work: Work) -> int:
    """Print what the folder holds and its faults; exit status 1 if there are any, else 0."""
    from groundling.check.folder import check
    from groundling.check.places import Flags

    if bool(config.own.text) != bool(config.own.label):
        raise InputError("data check: --text and --label are of one file; pass both or none")
    report = check(Path(config.folder), Flags(config.columns, config.own))
    print(f"{config.folder}: {report.layout}")
    for line in [*report.lines, *report.files]:
        print(f"  {line}")
    for line in report.problems:
        print(f"  problem: {line}", file=sys.stderr)
    return 0 if report.ok else 1


COMMAND = Command(
    "data check",
    "what is wrong with a folder of data, before any training",
    "groundling.commands.data_check:data_check",
    {"_own": CheckConfig()},
    title="Data",
    example="groundling data check my_data",
    common="folder text label image",
    positional=("--folder",),
    speaks=True,
    leaves=Nothing(),
)
