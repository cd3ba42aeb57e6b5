"""`groundling verdict`: judge runs against a control's: intervals, permutation, one plain sentence each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from groundling.command import Command
from groundling.core.errors import InputError
from groundling.data.corpora.weighted_files import named_folder
from groundling.runs.leaves import Written
from groundling.settings.fields import Input, Settings, may_repeat
from groundling.stats.published import published


@dataclass(frozen=True)
class VerdictConfig(Settings):
    """Which runs are compared."""

    runs: Annotated[tuple[str, ...], Input.NAMED] = ()
    """Run folders, each FOLDER or NAME=FOLDER, the control first; each is searched for finished seeds."""
    published: Annotated[tuple[str, ...], may_repeat] = ()
    """NAME=SYSTEM: a system of the paper whose numbers stand beside that group's, e.g. XDBERT=XDBERT-b."""
    trust: tuple[str, ...] = ()
    """MODULE:NAME of every task of your own whose metric is your own, too; of all others nothing is imported."""


def check(config: VerdictConfig, out: str | Path) -> None:
    """Raises InputError for fewer than two groups, two of one name, and an unknown published system."""
    if len(groups_of(config)) < 2:
        raise InputError(
            "verdict needs --runs CONTROL_FOLDER OTHER_FOLDER [...], each FOLDER or NAME=FOLDER"
        )
    for text in config.published:
        name, _, system = text.partition("=")
        if system not in published():
            raise InputError(f"--published {name}={system}: there are {', '.join(published())}")


def groups_of(config: VerdictConfig) -> dict[str, str]:
    """The run folders of a verdict by name; raises InputError for two of one name."""
    groups: dict[str, str] = {}
    for text in config.runs:
        name, folder = named_folder(text)
        if not name:
            name = Path(folder).name
        if name in groups:
            raise InputError(f"--runs: two groups are called {name!r}; write NAME=FOLDER")
        groups[name] = folder
    return groups


COMMAND = Command(
    "verdict",
    "judge runs against a control's: intervals, permutation, one plain sentence each",
    "groundling.commands.verdict.run:verdict",
    {"_own": VerdictConfig()},
    title="Judge",
    example="groundling verdict --runs runs/control runs/xdbert --out runs/verdict",
    common="runs published",
    speaks=True,
    rules=check,
    leaves=Written(),
)
