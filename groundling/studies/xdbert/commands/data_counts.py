"""`groundling data counts`: how often captions have each word, for `grounded`."""

from __future__ import annotations

from dataclasses import dataclass, field

from groundling.command import Command
from groundling.core.documented import documented
from groundling.settings.inputs import CaptionColumns


@documented
@dataclass(frozen=True)
class CountsConfig:
    """Which captions are counted."""

    captions: tuple[str, ...] = ()
    """Files or folders of captions, as `teach` reads them; the paper uses MSCOCO's."""
    columns: CaptionColumns = field(default_factory=CaptionColumns)
    caption_splits: tuple[str, ...] = ()
    """Karpathy's json: which of its splits to count, e.g. `train restval`."""
    tokenizer: str = ""
    """Tokenizer whose pieces are counted: hub id or folder."""


COMMAND = Command(
    "data counts",
    "how often captions have each word, for `grounded`",
    "groundling.studies.xdbert.count:count",
    {"_own": CountsConfig()},
    needs=("captions", "tokenizer"),
)
