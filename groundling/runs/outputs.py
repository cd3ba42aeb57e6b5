"""What commands leave behind: a run folder, a file, a folder of pages, or nothing. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from groundling.core.errors import InputError
from groundling.runs.folder import SETTINGS, open_run
from groundling.runs.progress import Work
from groundling.settings.fields import by_name, told

Inputs = Mapping[str, str | Path]
"""Files and folders by name, as a run's hashes are called."""
ByPrefix = Mapping[str, Any]
"""A command's settings by prefix, as `Command.settings` has them; its own are called `_own`."""


class Leaves:
    """What a command leaves behind: it opens that, and hands the command's function what to write with."""

    def made(
        self, function: Callable[..., Any], name: str, settings: ByPrefix, out: str | Path
    ) -> Any:
        """What the command's function returns, with notes; raises InputError if something else is in its place."""
        work = self.opened(name, Path(out))
        return work.with_notes(function(*settings.values(), work))

    def opened(self, name: str, out: Path) -> Work:
        """What to write with."""
        return Work()


@dataclass(frozen=True)
class NoOutput(Leaves):
    """It prints what it finds."""


@dataclass(frozen=True)
class OutputFile(Leaves):
    """A file, or a folder of pages or data, which the command's function writes, all of it or nothing."""

    own: tuple[str, ...] = ()
    """Of a folder: patterns of the files by which the command knows one that it wrote, and may write again; none: it \
writes a file."""

    def opened(self, name: str, out: Path) -> Work:
        """What to write with."""
        if self.own:
            _check_folder(out, name, self.own)
        return Work(out)


def _check_folder(out: Path, name: str, own: Sequence[str]) -> None:
    """Raises InputError for a file, a run's folder, and a folder of what the command did not write."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; --out names a folder")
    if (out / SETTINGS).exists():
        raise InputError(f"{out}: holds a run; choose another --out")
    is_own = any(any(out.glob(pattern)) for pattern in own)
    if out.exists() and any(out.iterdir()) and not is_own:
        raise InputError(f"{out}: exists, and is none of `groundling {name}`; choose another --out")


@dataclass(frozen=True)
class RunCollection(Leaves):
    """A folder of runs, which may become more: each of them has its own settings."""

    def opened(self, name: str, out: Path) -> Work:
        """What to write with."""
        return Work(open_run(out, "sweep", {}, {}))


def _nothing(*settings: Any) -> Inputs:
    return {}


@dataclass(frozen=True)
class ResumableRun(Leaves):
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
        cpu = any(by_name(own).get("cpu") for own in every)
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
