"""`groundling quickstart`: the whole path on a rendered world, offline, in minutes."""

from __future__ import annotations

from dataclasses import dataclass

from groundling.command import Command
from groundling.core.documented import documented


@documented
@dataclass(frozen=True)
class QuickstartConfig:
    """The whole path on a rendered world, offline, from nothing."""

    seed: int = 0
    """Draws another world, other scenes and other weights."""
    processes: int = 2
    """Runs side by side, one thread each."""
    full: bool = False
    """All arms, a blind teacher's too, and every probe, as in docs/results.md, section 1, in four times the time; \
otherwise one arm that transfers looks, beside the control."""
    scale: float = 1.0
    """Multiplies every number of steps; below 1 nothing is learned, which is for trying the machinery."""


COMMAND = Command(
    "quickstart",
    "the whole path on a rendered world, offline, in minutes",
    "groundling.studies.worlds.quickstart:quickstart",
    {"_own": QuickstartConfig()},
    speaks=True,
)
