"""What a command is: its settings, what is told of them before it begins, and the function behind it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pkgutil import iter_modules
from typing import Any

from groundling.core.errors import InputError
from groundling.runs.outputs import CommandOutput, NoOutput
from groundling.runs.progress import is_main_process
from groundling.settings.fields import Settings, flag_name, flatten_settings, required
from groundling.settings.training import HubSettings

TITLES = ("Train", "Use", "Judge", "Data")
"""Of the core's commands, as help lists them."""


@dataclass(frozen=True)
class Command:
    """One command of the table."""

    name: str
    """As it is typed."""
    summary: str
    """What it does, in one line."""
    function_path: str
    """MODULE:NAME of the function that takes the settings and, last, the `CommandContext` or `Run` to write and to tell with."""
    settings: Mapping[str, Any]
    """Its settings by prefix of their flags, with their defaults; the prefix of names that begin with _ is left out."""
    title: str
    """Under which title help lists it: Train, Use, Judge or Data; of a study, what it is about."""
    example: str
    """A whole command line."""
    output: CommandOutput
    """What it leaves behind, which opens it and hands its function what to write with."""
    common_flags: str = ""
    """The flags that most people use, which help shows first, without the dashes before them."""
    positional: tuple[str, ...] = ()
    """The flags that the first bare words mean, as in `groundling regions my_photos`."""
    file: str = ""
    """The file that it writes, if nobody says which; empty: a run folder."""
    out_help: str = ""
    """What its `--out` is, in words, if neither a run folder nor a table."""
    validate: Callable[..., object] | None = None
    """Raises InputError for settings that do not go together, without loading torch; it takes them and `out`."""
    prints_output: bool = False
    """It prints for itself, and may return an exit status; of other commands the result is printed."""
    default_models: Callable[..., Mapping[str, str]] | None = None
    """Of its settings: by their flags, models that have a default and are read in some settings alone."""
    formatter: str = ""
    """MODULE:NAME of what a result is printed as, for people: a function of the result; empty: nothing of the kind."""

    def __call__(self, *values: Any) -> Any:
        """Its result for its settings, but for where a saved model goes, and its `out`: checked, then run.

        Raises InputError as `check` and `call`.
        """
        given = iter(values)
        every = [
            one if isinstance(one, HubSettings) else next(given) for one in self.settings.values()
        ]
        every += given
        self.check(every)
        return self.call(every)

    @property
    def has_out(self) -> bool:
        """Whether it has a run folder, or writes a file or folder."""
        return not isinstance(self.output, NoOutput)

    @property
    def default_out(self) -> str:
        """Where it writes if nobody says where."""
        return self.file or f"runs/{self.name.replace(' ', '-')}"

    @property
    def about_out(self) -> str:
        """What its `--out` is, in words."""
        if self.out_help:
            return self.out_help
        if self.file:
            return "File to write, a csv, tsv or jsonl by its ending; all of it or nothing."
        return "Run folder; the same command again goes on from what it has saved."

    def check(self, values: Sequence[Any]) -> None:
        """What can be told before torch is loaded, which takes seconds; `values`: its settings and its `out`.

        Raises InputError for settings that are missing or do not go together, and for files, folders, models and
        columns that are not there.
        """
        out = str(values[-1])
        if self.has_out and (not out or "\0" in out):
            raise InputError(f"--out {out!r}: names no file or folder")
        self.check_settings(values)
        for sharing in _shared(values):
            from groundling.models.hub import check_sharing

            check_sharing(sharing, _own(values))
        self.check_inputs_exist(values)

    def check_settings(self, values: Sequence[Any]) -> None:
        """Raises InputError for settings that are missing, or do not go together."""
        for group, one in flatten_settings(values[0]):
            if required in one.annotations and not vars(group)[one.name]:
                raise InputError(f"{self.name} needs --{flag_name(one.name)}")
        if self.validate is not None:
            self.validate(*_own(values))

    def check_inputs_exist(
        self, values: Sequence[Any], later: Callable[[str], bool] = lambda word: False
    ) -> None:
        """Raises InputError for files, folders, models and columns that are not there.

        `later` says of which words it is too early to ask.
        """
        from groundling.command_line.input_checks import check_inputs, check_model_exists

        for prefix, settings in zip(self.settings, values, strict=False):
            if isinstance(settings, Settings):  # an `out` comes last
                check_inputs(settings, flag_prefix(prefix), later)
        if self.default_models is not None:
            for flag, word in self.default_models(*_own(values)).items():
                check_model_exists(flag, word)

    def function(self) -> Callable[..., Any]:
        """The recipe itself; only now is what it needs imported."""
        return _imported(self.function_path)

    def call(self, values: Sequence[Any]) -> Any:
        """What its function makes of its settings, or what it made of them earlier, which is then in its run folder.

        What it saved goes to the hub, if it is to. Raises InputError where the function does, if the run folder holds
        another run, or if what it saved cannot go to the hub.
        """
        own = _own(values)
        result = self._made(own)
        if self.formatter and is_main_process():
            print(_imported(self.formatter)(result))
        for sharing in _shared(values):
            _imported(SHARE)(own[-1], sharing)
        return result

    def _made(self, own: Sequence[Any]) -> Any:
        settings, out = (own[:-1], own[-1]) if self.has_out else (own, "")
        names = [
            name for name, group in self.settings.items() if not isinstance(group, HubSettings)
        ]
        by_name = dict(zip(names, settings, strict=True))
        return self.output.run(self.function(), self.name, by_name, out)


class Commands(Mapping[str, Command]):
    """Every command by name, the core's before each study's.

    The core's are those in the modules of `groundling.commands`, each named after the first word of its commands; a
    module is imported when a command of it is asked for by name: that imports no study. A study's commands are the
    `COMMANDS` of its module `commands`.
    """

    def __init__(self) -> None:
        self._core = {_first_word(one): one for one in _inside("groundling.commands")}

    def __getitem__(self, name: str) -> Command:
        command = self.core_command(name)
        return _of_studies()[name] if command is None else command

    def core_command(self, name: str) -> Command | None:
        """A command of the core; None: there is none of that name."""
        word = name.partition(" ")[0]
        return _in_module(self._core[word]).get(name) if word in self._core else None

    def first(self, names: Sequence[str]) -> str:
        """The first of some names that is a command's, the studies' if it is none of the core's; empty: no one's."""
        core = next((name for name in names if self.core_command(name)), "")
        return core or next((name for name in names if name in self), "")

    def __iter__(self) -> Iterator[str]:
        core = [name for module in self._core.values() for name in _in_module(module)]
        yield from sorted(core, key=lambda name: TITLES.index(self[name].title))
        yield from _of_studies()

    def __len__(self) -> int:
        return sum(1 for _ in self)


@cache
def _in_module(module: str) -> dict[str, Command]:
    """The commands of a module of the core, without those that it imports."""
    word = _first_word(module)
    every = vars(importlib.import_module(module)).values()
    commands = [one for one in every if isinstance(one, Command)]
    return {one.name: one for one in commands if one.name.partition(" ")[0] == word}


def _first_word(module: str) -> str:
    """The first word of a module's commands: `train-clip` of `train_clip`."""
    return module.rpartition(".")[2].replace("_", "-")


@cache
def _of_studies() -> dict[str, Command]:
    every: list[Command] = []
    for study in _inside("groundling.studies"):
        every += vars(importlib.import_module(f"{study}.commands"))["COMMANDS"]
    return {command.name: command for command in every}


def _inside(package: str) -> list[str]:
    """The modules and packages in a package."""
    return [
        one.name for one in iter_modules(importlib.import_module(package).__path__, f"{package}.")
    ]


COMMANDS = Commands()
"""Every command of `groundling`."""


def flag_prefix(prefix: str) -> str:
    """What stands before the flags of some of a command's settings."""
    return "" if prefix.startswith("_") else f"{prefix}."


def _imported(place: str) -> Callable[..., Any]:
    """The function of MODULE:NAME."""
    module, _, name = place.partition(":")
    function: Callable[..., Any] = vars(importlib.import_module(module))[name]
    return function


def _own(values: Sequence[Any]) -> list[Any]:
    """What a recipe takes: what is done with a saved model is no affair of its."""
    return [value for value in values if not isinstance(value, HubSettings)]


def _shared(values: Sequence[Any]) -> list[HubSettings]:
    """Where the model goes, if it is to go anywhere and this process is the one that sends it."""
    shared = [one for one in values if isinstance(one, HubSettings) and one.push_to_hub]
    return shared if is_main_process() else []


SHARED = {"_share": HubSettings()}
"""Settings of commands that save a model."""
SHARE = "groundling.commands.push:push_after_run"
"""What sends a saved model to the hub, by its run folder and these settings."""
