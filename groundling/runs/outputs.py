"""What commands leave behind: a run folder, a file, a folder of pages, or nothing. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from groundling.core.errors import InputError
from groundling.runs.folder import SETTINGS, open_run
from groundling.runs.progress import CommandContext
from groundling.settings.fields import config_dict, setting_values

Inputs = Mapping[str, str | Path]
"""Files and folders by name, as a run's hashes are called."""
ByPrefix = Mapping[str, Any]
"""A command's settings by prefix, as `Command.settings` has them; its own are called `_own`."""


class CommandOutput:
    """What a command leaves behind: it opens that, and hands the command's function what to write with."""

    def run(
        self, function: Callable[..., Any], name: str, settings: ByPrefix, out: str | Path
    ) -> Any:
        """What the command's function returns, with notes; raises InputError if something else is in its place."""
        work = self.open(name, Path(out))
        return work.with_notes(function(*settings.values(), work))

    def open(self, name: str, out: Path) -> CommandContext:
        """What to write with."""
        return CommandContext()


@dataclass(frozen=True)
class NoOutput(CommandOutput):
    """It prints what it finds."""


@dataclass(frozen=True)
class OutputFile(CommandOutput):
    """A file, or a folder of pages or data, which the command's function writes, all of it or nothing."""

    own_patterns: tuple[str, ...] = ()
    """Of a folder: patterns of the files by which the command knows one that it wrote, and may write again; none: it \
writes a file."""

    def open(self, name: str, out: Path) -> CommandContext:
        """What to write with."""
        if self.own_patterns:
            _check_folder(out, name, self.own_patterns)
        return CommandContext(out)


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
class RunCollection(CommandOutput):
    """A folder of runs, which may become more: each of them has its own settings."""

    def open(self, name: str, out: Path) -> CommandContext:
        """What to write with."""
        return CommandContext(open_run(out, "sweep", {}, {}))


def _nothing(*settings: Any) -> Inputs:
    return {}


@dataclass(frozen=True)
class ResumableRun(CommandOutput):
    """A folder that belongs to one run: opened, resumed, found finished."""

    inputs: Callable[..., Inputs] = _nothing
    """Of its settings: the files and folders whose hashes tell runs apart."""
    ignored_settings: tuple[str, ...] = ()
    """Settings that do not tell runs apart, since results do not depend on them, or since they only ask for more; \
`train.seed` is the seed of the group `train`."""
    identity: Callable[..., Mapping[str, Any]] | None = None
    """Of its settings: what tells runs apart beside hashes; None: all but the `free` ones."""
    artifacts: Sequence[str] | Callable[..., Sequence[str]] = ()
    """What the run leaves beside its result, or a function of its settings that tells."""
    extendable: bool = False
    """Whether the same command may ask for more than a finished run has: it is then always called."""
    timeout: timedelta | None = None
    """How long one process under torchrun waits for the others; None: as long as torch does."""

    def run(
        self, function: Callable[..., Any], name: str, settings: ByPrefix, out: str | Path
    ) -> Any:
        """The result of the run in the folder: of an earlier call, or else what the command's function makes now.

        Raises InputError if the folder holds another run.
        """
        from groundling.runs.run import Run

        every = list(settings.values())
        kept = self._told(settings) if self.identity is None else self.identity(*every)
        cpu = any(setting_values(own).get("cpu") for own in every)
        makes = self.artifacts(*every) if callable(self.artifacts) else self.artifacts
        run = Run(out, name, kept, self.inputs(*every), cpu, makes, self.timeout)
        if not self.extendable and run.result is not None:
            return run.result
        return run.end(function(*every, run))

    def _told(self, settings: ByPrefix) -> dict[str, Any]:
        """The settings that tell runs apart: the command's own, and groups of others beside them."""
        kept: dict[str, Any] = {}
        for prefix, group in settings.items():
            name = prefix.lstrip("_")
            kept |= config_dict(group) if name == "own" else {name: config_dict(group)}
        for name in self.ignored_settings:
            group, _, setting = name.rpartition(".")
            del (kept[group] if group else kept)[setting]
        return kept
