"""`groundling vcr`: VCR's joint score and server file, from runs on its answers and on its rationales."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from groundling.command import Command
from groundling.core.documented import documented
from groundling.core.errors import InputError
from groundling.settings.fields import need


@documented
@dataclass(frozen=True)
class VcrConfig:
    """Which runs on VCR's two tasks are scored together."""

    answers: str = ""
    """Run folder of `finetune --task vcr/answer`."""
    rationales: str = ""
    """Run folder of `finetune --task vcr/rationale`; its seeds go with the same ones of the other."""
    data: str = ""
    """Folder with VCR's official files."""
    split: str = "val"
    """What is scored; of `test`, whose labels are secret, the server's file is written (`finetune --submit` before)."""
    both: str = ""
    """Instead of --answers and --rationales: run folder of `finetune --task vcr`, one model for both."""


def check(config: VcrConfig, out: str | Path) -> None:
    """Raises InputError without the runs on both tasks."""
    need(config, "vcr", "data")
    if not config.both:
        need(config, "vcr", "answers", "rationales")
    elif config.answers or config.rationales:
        raise InputError(
            f"vcr: --both {config.both} answers and gives reasons; leave out --answers and --rationales"
        )


COMMAND = Command(
    "vcr",
    "VCR's joint score and server file, from runs on its answers and on its rationales",
    "groundling.studies.clip_td.vcr:vcr",
    {"_own": VcrConfig()},
    rules="groundling.studies.clip_td.commands.vcr:check",
)
