"""Commands and settings of the papers study: model descriptions."""

from __future__ import annotations

from typing import Annotated

from groundling.command_line import Command
from groundling.runs.outputs import CommandOutput
from groundling.settings.fields import Settings, required, settings


@settings
class ModelInfoConfig(Settings):
    """Model to describe."""

    name: Annotated[str, required] = ""
    """A preset (xdbert-bert-base, visualbert-base, ...) or a model folder."""
    json: bool = False
    """Print one JSON object."""


INFO = Command(
    "info",
    "parameter counts of a preset or a model folder",
    "groundling.studies.papers.info:info",
    {"_own": ModelInfoConfig()},
    title="Papers: their models",
    example="groundling info xdbert-bert-base",
    common_flags="name json",
    output=CommandOutput(),
    positional=("--name",),
    prints_output=True,
)


COMMANDS = (INFO,)
