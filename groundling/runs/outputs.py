"""Outputs of commands: a run folder, a file, a folder of pages, or nothing. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from groundling.core.errors import InputError
from groundling.core.registry import files_of_object, is_import_path
from groundling.runs.folder import SETTINGS, open_run
from groundling.runs.progress import CommandContext, DryRunEnd
from groundling.settings.fields import InputKind, setting_values, settings_of

Inputs = Mapping[str, str | Path]
"""Files and folders of a run by name, whose sizes and times identify it."""
ByPrefix = Mapping[str, Any]
"""A command's settings by prefix, as in `Command.settings`; its own have the key `_own`."""


class CommandOutput:
    """Output of a command: opens it and calls the command's function; by itself, of one that only prints."""

    def run(
        self, function: Callable[..., Any], name: str, settings: ByPrefix, out: str | Path
    ) -> Any:
        """The result of the command's function, with notes."""
        work = self.open(name, Path(out))
        return work.with_notes(_result(function, settings, work))

    def open(self, name: str, out: Path) -> CommandContext:
        """The object for output and notes."""
        return CommandContext()


def _result(function: Callable[..., Any], settings: ByPrefix, work: CommandContext) -> Any:
    try:
        return function(*settings.values(), work)
    except DryRunEnd as end:
        return {"dry_run": str(end), "read": work.counts}


@dataclass(frozen=True)
class OutputFile(CommandOutput):
    """A file, or a folder of pages or data, written atomically by the command's function."""

    own_patterns: tuple[str, ...] = ()
    """Folder: patterns of files by which the command recognises its own earlier output, which it \
may replace; none: it writes a file."""

    def open(self, name: str, out: Path) -> CommandContext:
        """The object for output and notes."""
        is_own = any(any(out.glob(pattern)) for pattern in self.own_patterns)
        is_used = out.is_file() or (out.is_dir() and any(out.iterdir()))
        if self.own_patterns and is_used and (not is_own or (out / SETTINGS).exists()):
            raise InputError(f"{out}: exists and was not written by `groundling {name}`")
        return CommandContext(out)


class RunCollection(CommandOutput):
    """A folder of runs, each with its own settings; more may be added."""

    def open(self, name: str, out: Path) -> CommandContext:
        """The object for output and notes."""
        return CommandContext(open_run(out, "recipe", {}, {}))


@dataclass(frozen=True)
class ResumableRun(CommandOutput):
    """A folder of one run, which can be resumed."""

    inputs: Callable[..., Inputs] = lambda *settings: {}
    """From the settings: files and folders whose sizes and times identify the run."""
    ignored_settings: tuple[str, ...] = ()
    """Settings that do not identify the run, because results do not depend on them or they only \
extend the run; `train.seed` is the seed of the group `train`."""
    extendable: bool = False
    """Whether the same command may extend a finished run: its function is then always called."""
    timeout: timedelta | None = None
    """How long a process under torchrun waits for the others; None: torch's default."""

    def run(
        self, function: Callable[..., Any], name: str, settings: ByPrefix, out: str | Path
    ) -> Any:
        """The result of the run in the folder, from an earlier call or made now."""
        from groundling.runs.jobs import process_state
        from groundling.runs.run import Run

        groups = list(settings.values())
        cpu = any(setting_values(own).get("cpu") for own in groups)
        inputs = {**self.inputs(*groups), **_module_files(groups)}
        identity = self._identity(settings, process_state(cpu, self.timeout).num_processes)
        run = Run(out, name, identity, inputs, cpu, self.timeout)
        if not self.extendable and run.result is not None:
            return run.result
        return run.end(_result(function, settings, run))

    def _identity(self, settings: ByPrefix, processes: int) -> dict[str, Any]:
        """The settings that identify the run: the command's own, and other groups beside them.

        The number of processes is one if batches are counted in tokens: each process then has its own per step.
        """
        identity: dict[str, Any] = {}
        for prefix, group in settings.items():
            name = prefix.lstrip("_")
            values = setting_values(group)
            if values.get("batch_tokens"):
                values["processes"] = processes
            identity |= values if name == "own" else {name: values}
        for name in self.ignored_settings:
            group, _, setting = name.rpartition(".")
            del (identity[group] if group else identity)[setting]
        return identity


MODULE = "module "
"""Beginning of the name of an input that is a module of the user's own."""


def _module_files(configs: Sequence[object]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for one in (each for config in configs for each in settings_of(config)):
        if one.input in (InputKind.OBJECT, InputKind.MODEL):
            words = one.value.split("+") if isinstance(one.value, str) else one.value
            for name in filter(is_import_path, words):
                files |= {MODULE + key: file for key, file in files_of_object(name).items()}
    return files
