"""`groundling compare`: adapt and fine-tune several arms beside the control, and judge them."""

from __future__ import annotations

from dataclasses import dataclass, field

from groundling.command import Command
from groundling.commands.adapt import ADAPTING, AdaptConfig
from groundling.commands.finetune import TUNING
from groundling.core.documented import documented
from groundling.settings.inputs import OwnFile


@documented
@dataclass(frozen=True)
class CompareConfig:
    """Arms side by side: each is adapted, then fine-tuned or probed; the control `mlm` always takes part."""

    arms: tuple[str, ...] = ("xdbert", "contrastive")
    """Arms, as in `adapt --arm`; `mlm` is added in front."""
    control: bool = True
    """Add the control `mlm` (same text, steps and seeds, no teacher)."""
    tasks: tuple[str, ...] = ()
    """Tasks to fine-tune on, e.g. glue/rte glue/cola."""
    data: str = ""
    """Folder with the tasks' official files, or, with --text and --label, your own csv, tsv, json or jsonl file."""
    own: OwnFile = field(default_factory=OwnFile)
    seeds: int = 3
    """Fine-tuning runs per arm and task."""
    max_train: int = 0
    """Use at most so many training examples per task; 0: all."""
    max_length: int = 128
    """Pieces per input in fine-tuning."""
    processes: int = 1
    """Runs side by side, one thread each."""


COMMAND = Command(
    "compare",
    "adapt and fine-tune several arms beside the control, and judge them",
    "groundling.commands.compare.run:compare",
    {"_own": CompareConfig(), "adapt": AdaptConfig(), "train": ADAPTING, "tune": TUNING},
    speaks=True,
)
