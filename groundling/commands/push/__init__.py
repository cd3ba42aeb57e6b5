"""`groundling push`: put what a run saved on Hugging Face's hub, with a card of how it was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from groundling.command import Command
from groundling.runs.leaves import Nothing
from groundling.settings.fields import Input, Settings, at_least, needed


@dataclass(frozen=True)
class PushConfig(Settings):
    """Which run's model goes to Hugging Face's hub."""

    run: Annotated[str, Input.FOLDER, needed] = ""
    """Run folder of `adapt`, `teach`, `pretrain` or `finetune`."""
    to: Annotated[str, needed] = ""
    """OWNER/NAME of the repository there; made if it is not there."""
    seed: Annotated[int, at_least(-1)] = -1
    """Of a fine-tuning: which seed; -1: the best one on the development split."""
    private: bool = False
    """Make a new repository private; otherwise it is public, unless the owner's own default says otherwise."""


COMMAND = Command(
    "push",
    "put what a run saved on Hugging Face's hub, with a card of how it was made",
    "groundling.commands.push.run:push",
    {"_own": PushConfig()},
    title="Use",
    example="groundling push runs/my_clip --to my-name/my-clip",
    common="run to seed private",
    positional=("--run",),
    out=False,
    leaves=Nothing(),
)
