"""`groundling attention`: how diverse the attention of two cross-modal models is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from groundling.checks.names import check_name
from groundling.command import Command
from groundling.core.documented import documented
from groundling.core.errors import InputError


@documented
@dataclass(frozen=True)
class AttentionConfig:
    """Which cross-modal models' attention maps are compared."""

    a: str = ""
    """Folder `joint` of `adapt --save-joint`."""
    b: str = ""
    """The other one, e.g. without clip_tokens."""
    text: tuple[str, ...] = ()
    """Files of sentences, as for `adapt`."""
    task: str = ""
    """In place of --text: a task, whose development texts or pairs are read, e.g. glue/rte (XDBERT's Table 9)."""
    data: str = ""
    """--task: folder of its official files."""
    special: bool = False
    """The picture has rows of [CLS] and [SEP], too, as Table 9 has; the numbers are of the text's own pieces."""
    max_texts: int = 400
    """Use at most so many sentences, evenly spaced; at least 200 are needed."""
    max_length: int = 128
    """Pieces per sentence."""


def check(config: AttentionConfig, out: str | Path) -> None:
    """Raises InputError without two models, or texts."""
    if not config.a or not config.b:
        raise InputError(
            "attention needs --a and --b, each a folder `joint` of `adapt --save-joint`"
        )
    if bool(config.text) == bool(config.task and config.data):
        raise InputError("attention needs --text FILE [FILE ...], or --task with --data")
    check_name("tasks", "Task", config.task)


COMMAND = Command(
    "attention",
    "how diverse the attention of two cross-modal models is",
    "groundling.studies.xdbert.attention:attention",
    {"_own": AttentionConfig()},
    rules="groundling.studies.xdbert.commands.attention:check",
)
