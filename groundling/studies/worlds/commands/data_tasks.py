"""`groundling data tasks`: a rendered world as six vision-and-language data sets, with captions and boxes."""

from __future__ import annotations

from dataclasses import dataclass

from groundling.command import Command
from groundling.core.documented import documented
from groundling.studies.worlds.commands.data_world import WorldConfig


@documented
@dataclass(frozen=True)
class TasksConfig:
    """A rendered world as six vision-and-language data sets with captions, boxes, and a small untrained BERT."""

    train: int = 4000
    """Most examples of a training split."""
    held: int = 1000
    """Most examples of a held-out split."""
    shortcut: float = 0.0
    """Share of VCR's questions, 0 to 1, whose wrong answers are of no kind that was asked for: their text tells."""


COMMAND = Command(
    "data tasks",
    "a rendered world as six vision-and-language data sets, with captions and boxes",
    "groundling.studies.worlds.render:render_tasks",
    {"_own": TasksConfig(), "world": WorldConfig()},
    speaks=True,
)
