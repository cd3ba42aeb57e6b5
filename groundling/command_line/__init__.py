"""A command: its settings, the checks before it starts, and the function behind it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from pkgutil import iter_modules
from tempfile import TemporaryDirectory
from typing import Any

from groundling.core.errors import InputError, convert_errors, printable
from groundling.core.registry import files_of_object, is_import_path
from groundling.runs.folder import LOG, REPORT, SETTINGS, open_run, write_whole
from groundling.runs.progress import (
    CommandContext,
    DryRunEnd,
    dry_run,
    is_main_process,
    print_notes,
)
from groundling.runs.report import Report
from groundling.settings.fields import InputKind, required, setting_values, settings_of

Inputs = Mapping[str, str | Path]
"""Files and folders of a run by name, which identify it, as `input_state` says."""
ByPrefix = Mapping[str, Any]
"""A command's settings by prefix, as in `Command.settings`; its own have the key `_own`."""


class CommandOutput:
    """Output of a command: opens it and calls the command's function; by itself, of one that only prints."""

    def run(
        self, function: Callable[..., Any], name: str, settings: ByPrefix, out: str | Path
    ) -> Any:
        """The result of the command's function, with notes."""
        work = self.open(name, Path(out))
        return work.with_notes(result_of(function, settings, work))

    def open(self, name: str, out: Path) -> CommandContext:
        """The object for output and notes."""
        return CommandContext()


def result_of(function: Callable[..., Any], settings: ByPrefix, work: CommandContext) -> Any:
    """The function's result or, where a dry run ended it, what was read and would be done."""
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
    """From the settings: files and folders that identify the run."""
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
        result = run.end(result_of(function, settings, run))
        if (run.folder / LOG).exists() or any(run.folder.glob(f"seed-*/{LOG}")):
            _try_report(run.folder)
        return result

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


def write_run_report(folder: str | Path, control: str | Path = "") -> Report:
    """Write `report.html` and `report.txt` of a training run into its folder, beside its `control`; returns the report.

    Raises InputError for a folder of no run that has trained.
    """
    from groundling.runs.run_report import flat_settings, make_report, read_training_run

    with convert_errors(f"{folder}: not the files of a training run"):
        run = read_training_run(folder)
        defaults: dict[str, Any] = {}
        if run.command in COMMANDS:
            groups = COMMANDS[run.command].settings.values()
            defaults = flat_settings(setting_values(*groups))
        report = make_report(run, defaults, read_training_run(control) if control else None)
    page, text = (run.folder / name for name in REPORT)
    report.write(page)
    write_whole(text, report.text() + "\n")
    return report


def _try_report(folder: Path) -> None:
    if not is_main_process():
        return
    try:
        write_run_report(folder)
    except Exception as error:  # also what a full disk or a library raises
        print_notes([f"the run is finished, but has no report ({error})"])


TITLES = ("Train", "Use", "Judge", "Data")
"""Sections of the core's commands in help, in order."""


@dataclass(frozen=True)
class Command:
    """One command of the table."""

    name: str
    """As typed."""
    summary: str
    """One-line description."""
    function_path: str
    """MODULE:NAME of its function, which takes the settings and, last, the `CommandContext` or `Run` for \
output and notes."""
    settings: Mapping[str, Any]
    """Default settings by flag prefix; a prefix that begins with _ is not shown."""
    title: str
    """Section in help: Train, Use, Judge or Data; for a study, its topic."""
    example: str
    """A complete command line."""
    output: CommandOutput
    """The output that it writes; opens it and calls the function."""
    common_flags: str = ""
    """Most used flags, shown first in help, without the leading dashes."""
    positional: tuple[str, ...] = ()
    """Flags that the first bare words fill, as in `groundling regions my_photos`."""
    file: str = ""
    """Default output file; empty: the command writes a run folder."""
    out_help: str = ""
    """Help of `--out`, if it is neither a run folder nor a table."""
    validate: Callable[..., object] | None = None
    """Raises InputError for settings that do not fit together, without loading torch; takes the settings and `out`."""
    prints_output: bool = False
    """It prints its own output and may return an exit status; for other commands the result is printed."""
    formatter: str = ""
    """MODULE:NAME of a function that formats the result for people; empty: none."""

    def __call__(self, *values: Any) -> Any:
        """Check the settings and run the command; `values` are its settings and its `out`."""
        self.check(values)
        return self.call(values)

    @property
    def function_name(self) -> str:
        """Its name as a function of `import groundling`."""
        return self.name.replace("-", "_").replace(" ", "_")

    @property
    def has_out(self) -> bool:
        """Whether it writes a run folder, a file or a folder."""
        return type(self.output) is not CommandOutput

    @property
    def default_out(self) -> str:
        """Default `--out`."""
        return self.file or f"runs/{self.name.replace(' ', '-')}"

    @property
    def about_out(self) -> str:
        """Help of `--out`."""
        if self.out_help:
            return self.out_help
        if self.file:
            return "Output file; its ending decides between csv, tsv and jsonl."
        return "Run folder; running the same command again resumes."

    def check(self, values: Sequence[Any]) -> None:
        """Raises InputError for settings that do not fit together, and for inputs that do not exist.

        `values`: the settings and `out`.
        """
        if self.has_out and not values[-1]:
            raise InputError("out: empty; expected the name of a file or folder")
        self.check_settings(values)
        self.check_inputs_exist(values)

    def check_settings(self, values: Sequence[Any]) -> None:
        """Raises InputError for settings that are missing or do not fit together."""
        for one in settings_of(values[0]):
            if required in one.field.metadata and not one.value:
                raise InputError(f"{self.name} needs {one.name}")
        if self.validate is not None:
            self.validate(*values)

    def check_inputs_exist(
        self, values: Sequence[Any], skip: Callable[[str], bool] = lambda path: False
    ) -> None:
        """Raises InputError for files, folders and models that do not exist; `skip` decides which are not checked."""
        from groundling.command_line.names import check_inputs

        for prefix, settings in zip(self.settings, values, strict=False):  # the last value is `out`
            check_inputs(settings, flag_prefix(prefix), skip)

    def function(self) -> Callable[..., Any]:
        """The function, imported now together with what it needs."""
        return _import_function(self.function_path)

    def rehearse(self, values: Sequence[Any]) -> Any:
        """What the command read and would do next, without training or writing; tokenised texts stay in the cache."""
        with TemporaryDirectory() as folder, dry_run():
            return self.call([*values[:-1], str(Path(folder) / Path(values[-1]).name)])

    def call(self, values: Sequence[Any]) -> Any:
        """The function's result, or the result of an earlier run of the same folder."""
        settings, out = (values[:-1], values[-1]) if self.has_out else (values, "")
        by_name = dict(zip(self.settings, settings, strict=True))
        result = self.output.run(self.function(), self.name, by_name, out)
        is_rehearsal = isinstance(result, dict) and "dry_run" in result
        if self.formatter and is_main_process() and not is_rehearsal:
            print(printable(_import_function(self.formatter)(result)))
        return result


class Commands(Mapping[str, Command]):
    """Every command by name, the core's before each study's.

    The core's commands are in the modules of `groundling.commands`, one module per first word of
    the name; a module is imported when its command is looked up, which imports no study. A study's
    commands are the `COMMANDS` of its module `commands`.
    """

    def __init__(self) -> None:
        self._core = {_first_word(one): one for one in _submodules("groundling.commands")}

    def __getitem__(self, name: str) -> Command:
        word = name.partition(" ")[0]
        own = _module_commands(self._core[word]) if word in self._core else {}
        # A first word of the core's alone, such as `data`, is no study's command.
        return own[name] if name in own or (own and name == word) else _study_commands()[name]

    def __iter__(self) -> Iterator[str]:
        core = [name for module in self._core.values() for name in _module_commands(module)]
        yield from sorted(core, key=lambda name: TITLES.index(self[name].title))
        yield from _study_commands()

    def __len__(self) -> int:
        return sum(1 for _ in self)


@cache
def _module_commands(module: str) -> dict[str, Command]:
    word = _first_word(module)
    every = vars(importlib.import_module(module)).values()
    commands = [one for one in every if isinstance(one, Command)]
    return {one.name: one for one in commands if one.name.partition(" ")[0] == word}


def _first_word(module: str) -> str:
    return module.rpartition(".")[2].replace("_", "-")


@cache
def _study_commands() -> dict[str, Command]:
    commands: list[Command] = []
    for study in _submodules("groundling.studies"):
        commands += vars(importlib.import_module(f"{study}.commands"))["COMMANDS"]
    return {command.name: command for command in commands}


def _submodules(package: str) -> list[str]:
    return [
        one.name for one in iter_modules(importlib.import_module(package).__path__, f"{package}.")
    ]


COMMANDS = Commands()
"""Every command of `groundling`."""


def flag_prefix(prefix: str) -> str:
    """The part of a flag before the setting's own name."""
    return "" if prefix.startswith("_") else f"{prefix}."


def _import_function(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    function: Callable[..., Any] = vars(importlib.import_module(module))[name]
    return function
