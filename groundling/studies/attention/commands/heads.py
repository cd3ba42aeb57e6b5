"""`groundling heads`: which attention heads look where a phrase's own thing is: every head as a classifier."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from groundling.checks.names import check_name
from groundling.command import Command
from groundling.core.documented import documented
from groundling.settings.fields import check_numbers, need
from groundling.studies.attention.settings import Attending


@documented
@dataclass(frozen=True)
class HeadsConfig:
    """Whose attention heads are asked where a phrase's own thing is, and how."""

    attending: Attending = field(default_factory=Attending)
    task: str = "flickr30k"
    """A task whose answer is a region: flickr30k (any of a phrase's boxes counts), flickr30k/merged (the box around \
them), refcoco+, refcoco, refcocog (the whole expression is the phrase), or MODULE:NAME."""
    data: str = ""
    """Folder with the task's official files."""
    split: str = "val"
    """Which split: of Flickr30k Entities a list of images there."""
    query: Literal["last", "mean"] = "last"
    """Where in a phrase heads are asked: at its last piece, or the mean over its pieces."""
    active: float = 0.2
    """Heads that send no more than this share of their attention from phrases to regions are not chosen (the paper: \
20 %); 0: all may be."""
    unrelated: bool = True
    """Flickr30k Entities: ask captions, too, that UNRELATED_CAPTIONS lists."""
    other_images: bool = True
    """Ask a second time beside the looks of other images, which doubles the time: what is still found then, no head \
has found by looking."""
    processes: int = 1
    """Processes that share the texts, on this machine; results do not depend on it. `torchrun` does the same."""


def check(config: HeadsConfig, out: str | Path) -> None:
    """Raises InputError without a model or data, and for a task that there is not."""
    need(config, "heads", "data")
    need(config.attending, "heads", "model")
    check_name("tasks", "Task", config.task)
    check_numbers(config)


COMMAND = Command(
    "heads",
    "which attention heads look where a phrase's own thing is: every head as a classifier",
    "groundling.studies.attention.heads:heads",
    {"_own": HeadsConfig()},
    speaks=True,
    rules="groundling.studies.attention.commands.heads:check",
)
