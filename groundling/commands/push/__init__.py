"""`groundling push`: put what a run saved on Hugging Face's hub, with a card of how it was made."""

from __future__ import annotations

from dataclasses import dataclass

from groundling.command import Command
from groundling.core.documented import documented
from groundling.runs.leaves import Nothing


@documented
@dataclass(frozen=True)
class PushConfig:
    """Which run's model goes to Hugging Face's hub."""

    run: str = ""
    """Run folder of `adapt`, `teach`, `pretrain` or `finetune`."""
    to: str = ""
    """OWNER/NAME of the repository there; made if it is not there."""
    seed: int = -1
    """Of a fine-tuning: which seed; -1: the best one on the development split."""
    private: bool = False
    """Make a new repository private; otherwise it is public, unless the owner's own default says otherwise."""


COMMAND = Command(
    "push",
    "put what a run saved on Hugging Face's hub, with a card of how it was made",
    "groundling.commands.push.run:push",
    {"_own": PushConfig()},
    positional=("--run",),
    out=False,
    needs=("run", "to"),
    leaves=Nothing(),
)
