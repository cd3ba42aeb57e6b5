"""`groundling figures`: figures for papers from what `heads`, `syntax` and `modality` wrote."""

from __future__ import annotations

from dataclasses import dataclass

from groundling.command import Command
from groundling.core.documented import documented
from groundling.settings.fields import _list_lone_texts


@documented
@dataclass(frozen=True)
class FiguresConfig:
    """Which runs are drawn."""

    results: tuple[str, ...] = ()
    """Folders of finished runs of `heads`, `syntax` and `modality`."""
    formats: tuple[str, ...] = ("svg", "pdf", "png")
    """Which of these to write."""

    def __post_init__(self) -> None:
        _list_lone_texts(self, "results", "formats")


COMMAND = Command(
    "figures",
    "figures for papers from what `heads`, `syntax` and `modality` wrote",
    "groundling.studies.attention.figures:figures",
    {"_own": FiguresConfig()},
    positional=("--results",),
    writes="Folder of the figures; older ones of the same names are replaced.",
    needs=("results",),
)
