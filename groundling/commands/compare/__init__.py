"""`groundling compare`: adapt and fine-tune several arms beside the control, and judge them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from groundling.command import Command
from groundling.commands.adapt import ADAPTING, AdaptConfig
from groundling.commands.finetune import TUNING
from groundling.settings.fields import Input, Settings, at_least
from groundling.settings.inputs import OwnFile


@dataclass(frozen=True)
class CompareConfig(Settings):
    """Arms side by side: each is adapted, then fine-tuned or probed; the control `mlm` always takes part."""

    arms: tuple[str, ...] = ("xdbert", "contrastive")
    """Arms, as in `adapt --arm`; `mlm` is added in front."""
    control: bool = True
    """Add the control `mlm` (same text, steps and seeds, no teacher)."""
    tasks: tuple[str, ...] = ()
    """Tasks to fine-tune on, e.g. glue/rte glue/cola."""
    data: Annotated[str, Input.DATA] = ""
    """Folder with the tasks' official files, or, with --text and --label, your own csv, tsv, json or jsonl file."""
    own: OwnFile = field(default_factory=OwnFile)
    seeds: Annotated[int, at_least(1)] = 3
    """Fine-tuning runs per arm and task."""
    max_train: Annotated[int, at_least(0)] = 0
    """Use at most so many training examples per task; 0: all."""
    max_length: Annotated[int, at_least(0)] = 128
    """Pieces per input in fine-tuning."""
    processes: Annotated[int, at_least(1)] = 1
    """Runs side by side, one thread each."""


COMMAND = Command(
    "compare",
    "adapt and fine-tune several arms beside the control, and judge them",
    "groundling.commands.compare.run:compare",
    {"_own": CompareConfig(), "adapt": AdaptConfig(), "train": ADAPTING, "tune": TUNING},
    title="Judge",
    example="groundling compare --arms xdbert contrastive --tasks glue/rte glue/cola --data glue_data "
    "--adapt.student bert-base-uncased --adapt.teacher openai/clip-vit-base-patch32 "
    "--adapt.text my_text.txt --out runs/compare",
    common="arms tasks data text label seeds adapt.student adapt.teacher adapt.text train.steps tune.epochs processes",
    speaks=True,
)
