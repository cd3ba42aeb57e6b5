"""`groundling data check`: what is wrong with a folder of data, before any training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from groundling.command import Command
from groundling.runs.leaves import Nothing
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


COMMAND = Command(
    "data check",
    "what is wrong with a folder of data, before any training",
    "groundling.commands.data_check.run:data_check",
    {"_own": CheckConfig()},
    title="Data",
    example="groundling data check my_data",
    common="folder text label image",
    positional=("--folder",),
    out=False,
    speaks=True,
    leaves=Nothing(),
)
