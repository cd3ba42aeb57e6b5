"""What is wrong with a folder of data, told before any training."""

from __future__ import annotations

import sys
from pathlib import Path

from groundling.check.folder import check
from groundling.check.places import Flags
from groundling.commands.data_check import CheckConfig
from groundling.core.errors import InputError
from groundling.runs.work import Work


def data_check(config: CheckConfig, work: Work) -> int:
    """Print what the folder holds and its faults; exit status 1 if there are any, else 0."""
    if bool(config.own.text) != bool(config.own.label):
        raise InputError("data check: --text and --label are of one file; pass both or none")
    report = check(Path(config.folder), Flags(config.columns, config.own))
    print(f"{config.folder}: {report.layout}")
    for line in [*report.lines, *report.files]:
        print(f"  {line}")
    for line in report.problems:
        print(f"  problem: {line}", file=sys.stderr)
    return 0 if report.ok else 1
