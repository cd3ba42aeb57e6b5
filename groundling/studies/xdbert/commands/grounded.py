"""`groundling grounded`: do gains go with the share of visually grounded words?."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from groundling.command import Command
from groundling.core.documented import documented


@documented
@dataclass(frozen=True)
class GroundedConfig:
    """Which runs are split into improved and worsened examples."""

    base: str = ""
    """Run folder of the control."""
    other: str = ""
    """Run folder of the model that may have gained."""
    task: str = ""
    """Task by name, e.g. glue/rte."""
    data: str = ""
    """Folder with the task's official files."""
    counts: str = ""
    """Table of `groundling data counts`."""
    tokenizer: str = ""
    """Tokenizer of that table: hub id or folder."""
    threshold: int = 100
    """Grounded is what occurs more often than this in the captions (the paper: 100, in COCO's 414,113)."""
    variant: Literal["pieces", "inherit", "words"] = "pieces"
    """Pieces by themselves (the paper), pieces that inherit their word's status, or words."""


COMMAND = Command(
    "grounded",
    "do gains go with the share of visually grounded words?",
    "groundling.studies.xdbert.grounded:grounded",
    {"_own": GroundedConfig()},
    needs=("base", "other", "task", "data", "counts", "tokenizer"),
)
