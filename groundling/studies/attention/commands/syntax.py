"""`groundling syntax`: which attention heads look from a word to the thing of its syntactic neighbour."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from groundling.command import Command
from groundling.core.documented import documented
from groundling.settings.fields import check_numbers, need
from groundling.studies.attention.settings import Attending


@documented
@dataclass(frozen=True)
class SyntaxConfig:
    """Whose attention heads are asked where the thing of a word's syntactic neighbour is, and by which parses."""

    attending: Attending = field(default_factory=Attending)
    data: str = ""
    """Folder with Flickr30k Entities' official files."""
    split: str = "val"
    """Which split: a list of images there."""
    parses: str = ""
    """Dependency parses of the captions: a CoNLL-U file of any parser's, a folder of such, spacy, stanza (or \
spacy:MODEL, stanza:LANGUAGE, where installed), or gold: the rendered world's own."""
    labels: Literal["stanford", "ud", "as-is"] = "stanford"
    """Relations are called and built as in Stanford's dependencies (the paper), as in Universal Dependencies, or as \
the parses have them."""
    other_phrases: bool = False
    """Ask words in other phrases with boxes, too; these have a thing of their own to look at."""
    active: float = 0.2
    """Heads that send no more than this share of their attention from a relation's words to regions are not chosen \
for it (the paper: 20 %); 0: all may be."""
    least_arcs: int = 50
    """Relations of fewer arcs are only counted."""
    unrelated: bool = True
    """Ask captions, too, that UNRELATED_CAPTIONS lists."""
    other_images: bool = True
    """Ask a second time beside the looks of other images, which doubles the time: what is still found then, no head \
has found by looking."""
    processes: int = 1
    """Processes that share the captions, on this machine; results do not depend on it. `torchrun` does the same."""
    write_captions: str = ""
    """Only write the captions to this file, one a line, for a parser of your own; nothing is asked."""


def check(config: SyntaxConfig, out: str | Path) -> None:
    """Raises InputError without data, and, but where captions are only written, without parses or a model."""
    need(config, "syntax", "data")
    check_numbers(config)
    if not config.write_captions:
        need(config, "syntax", "parses")
        need(config.attending, "syntax", "model")


COMMAND = Command(
    "syntax",
    "which attention heads look from a word to the thing of its syntactic neighbour",
    "groundling.studies.attention.syntax:syntax",
    {"_own": SyntaxConfig()},
    speaks=True,
    rules="groundling.studies.attention.commands.syntax:check",
)
