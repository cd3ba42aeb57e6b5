"""`groundling info`: parameter counts of a published model or of a model folder."""

from __future__ import annotations

from typing import Annotated

from groundling.command_line import Command, CommandOutput
from groundling.settings.fields import Settings, required, settings


@settings
class ModelInfoConfig(Settings):
    """Model to describe."""

    name: Annotated[str, required] = ""
    """A preset (xdbert-bert-base, visualbert-base, ...) or a model folder."""
    json: bool = False
    """Print one JSON object."""


COMMAND = Command(
    "info",
    "parameter counts of a preset or a model folder",
    "groundling.commands.info.parameters:info",
    {"_own": ModelInfoConfig()},
    title="Use",
    example="groundling info xdbert-bert-base",
    common_flags="name json",
    output=CommandOutput(),
    positional=("--name",),
    prints_output=True,
)
