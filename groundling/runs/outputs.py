"""What commands leave behind: a run folder, a file, a folder of pages, or nothing. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from groundling.runs.folder import open_run
from groundling.runs.progress import Work
from groundling.settings.fields import flat, told

Inputs = Mapping[str, str | Path]
"""Files and folders by name, as a run's hashes are called."""
ByPrefix = Mapping[str, Any]
"""A command's settings by prefix, as `Command.settings` has them; its own are called `_own`."""


@dataclass(frozen=True)
class Nothing:
    """It prints what it finds."""

    def made(
        self, function: Callable[..., Any], name: str, settings: ByPrefix, out: str | Path
    ) -> Any:
        """What the command's function returns, with notes."""
        work = Work()
        return work.with_notes(function(*settings.values(), work))


@dataclass(frozen=True)
class Written:
    """A file, or a folder of pages, which the command's function writes, all of it or nothing."""

    def made(
        self, function: Callable[..., Any], name: str, settings: ByPrefix, out: str | Path
    ) -> Any:
        """What the command's function returns, with notes."""
        work = Work(Path(out))
        return work.with_notes(function(*settings.values(), work))


@dataclass(frozen=True)
class Runs:
    """A folder of runs, which may become more: each of them has its own settings."""

    def made(
        self, function: Callable[..., Any], name: str, settings: ByPrefix, out: str | Path
    ) -> Any:
        """What the command's function returns; raises InputError if the folder holds something else."""
        work = Work(open_run(out, "sweep", {}, {}))
        return work.with_notes(function(*settings.values(), work))


def _nothing(*settings: Any) -> Inputs:
    return {}


@dataclass(frozen=True)
class RunFolder:
    """A folder that belongs to one run: opened, resumed, found finished."""

    inputs: Callable[..., Inputs] = _nothing
    """Of its settings: the files and folders whose hashes tell runs apart."""
    free: tuple[str, ...] = ()
    """Settings that do not tell runs apart, since results do not depend on them, or since they only ask for more; \
`train.seed` is the seed of the group `train`."""
    told: Callable[..., Mapping[str, Any]] | None = None
    """Of its settings: what tells runs apart beside hashes; None: all but the `free` ones."""
    makes: Sequence[str] | Callable[..., Sequence[str]] = ()
    """What the run leaves beside its result, or a function of its settings that tells."""
    grows: bool = False
    """Whether the same command may ask for more than a finished run has: it is then always called."""
    patience: timedelta | None = None
    """How long one process under torchrun waits for the others; None: as long as torch does."""

    def made(
        self, function: Callable[..., Any], name: str, settings: ByPrefix, out: str | Path
    ) -> Any:
        """The result of the run in the folder: of an earlier call, or else what the command's function makes now.

        Raises InputError if the folder holds another run.
        """
        from groundling.runs.run import Run

        every = list(settings.values())
        kept = self._told(settings) if self.told is None else self.told(*every)
        cpu = any(
            vars(group)[one.name] for own in every for group, one in flat(own) if one.name == "cpu"
        )
        makes = self.makes(*every) if callable(self.makes) else self.makes
        run = Run(out, name, kept, self.inputs(*every), cpu, makes, self.patience)
        if not self.grows and run.result is not None:
            return run.result
        return run.end(function(*every, run))

    def _told(self, settings: ByPrefix) -> dict[str, Any]:
        """The settings that tell runs apart: the command's own, and groups of others beside them."""
        kept: dict[str, Any] = {}
        for prefix, group in settings.items():
            name = prefix.lstrip("_")
            kept |= told(group) if name == "own" else {name: told(group)}
        for name in self.free:
            group, _, setting = name.rpartition(".")
            del (kept[group] if group else kept)[setting]
        return kept


Leaves = Nothing | Written | Runs | RunFolder
"""What a command may leave."""
