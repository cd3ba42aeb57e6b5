"""Recipes: experiments as Python. A recipe is a file that binds `TABLES`, and `PAPER` to a paper's title.

`groundling run FILE` plans and runs it. `paper` gives settings the values that a paper prints, `step` is one command
with its settings, a `Row` holds the fine-tunings of one model, and a `Table` compares its rows with the first one.
Imports nothing heavy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from groundling.command_line import COMMANDS
from groundling.command_line.names import published_scores
from groundling.core.errors import InputError, prefix_errors
from groundling.settings.fields import fill_settings, replace_settings, setting_values


# -- what a paper prints -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class PaperValue:
    """Value of one setting in a paper or in its authors' code."""

    printed: Any
    """The value as printed, or the data or weights that it names."""
    source: str
    """Section or table, or the file of the authors' code."""
    ours: Any = None
    """The value that runs; None: the printed one."""
    reason: str = ""
    """Why `ours` differs, or what else a reader must know."""

    def value(self, name: str, default: object) -> Any:
        """The value that runs; raises InputError for a difference without a reason."""
        if not self.reason and not self.agrees(default):
            raise InputError(
                f"{name} = {self.ours}, but the paper has {self.printed} ({self.source}); use the paper's value, or "
                "give the reason"
            )
        return read_printed(self.printed, default) if self.ours is None else self.ours

    def agrees(self, default: object) -> bool:
        """Whether the printed value runs."""
        return self.ours is None or self.ours == read_printed(self.printed, default)

    def mark(self, default: object) -> str:
        """In a plan: whether the printed value runs, and the reason."""
        word, sep = ("same", "; ") if self.agrees(default) else ("differs", ": ")
        return f"{word}{sep}{self.reason}" if self.reason else word


def paper(source: str, **values: Any) -> dict[str, PaperValue]:
    """Settings that a section, table or file prints: each as printed, or as a tuple of the printed value, ours where it
    differs, and the reason.
    """
    notes = {}
    for name, value in values.items():
        printed, *ours, reason = value if isinstance(value, tuple) else (value, "")
        notes[name] = PaperValue(printed, source, ours[0] if ours else None, reason)
    return notes


def read_printed(printed: Any, default: object) -> Any:
    """A printed value as one for a setting with this default: `8,000`, `10 %`, `yes`, `SGD`, or a list."""
    if not isinstance(printed, str):
        return printed
    text = re.sub(r"(\d),(?=\d{3}\b)", r"\1", printed.lower()).replace(" %", "%")
    words = [_read_word(word) for word in text.replace(",", " ").split()]
    if isinstance(default, tuple):
        return tuple(words)
    return words[0] if len(words) == 1 else printed.lower()


def _read_word(word: str) -> bool | float | str:
    if word in ("yes", "no"):
        return word == "yes"
    try:
        number = int(word) if word.isdigit() else float(word.removesuffix("%"))
    except ValueError:
        return word
    return number / 100 if word.endswith("%") else number


# -- data, weights and steps -------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Source:
    """What a setting may name instead of a path: data, weights, or the output of a step."""

    name: str
    """Unique in a recipe."""
    path: str
    """Of a step: its run folder, inside the recipe's folder."""
    prefix: str = field(default="", kw_only=True)
    suffix: str = field(default="", kw_only=True)
    """What the setting has before and after the path."""

    def __truediv__(self, part: str) -> Self:
        """A file or folder inside."""
        return replace(self, suffix=f"{self.suffix}/{part}")

    def named(self, name: str) -> Self:
        """For settings of the form NAME=FOLDER."""
        return replace(self, prefix=f"{name}=")

    def weighted(self, weight: float) -> Self:
        """For settings of the form FILE=WEIGHT."""
        return replace(self, suffix=f"{self.suffix}={weight}")


@dataclass(frozen=True, eq=False)
class Input(Source):
    """Data or weights; see `data` and `weights`."""

    title: str
    available_from: str = ""
    kind: str = ""
    """That of its stand-in in a miniature."""
    examples: int = 0
    """Number of training examples, from which a plan counts steps."""
    trained_on: Input | None = None
    """Data whose answers these weights have read."""
    made_by: Step | None = None


@dataclass(frozen=True, eq=False)
class Step(Source):
    """One command with its settings; see `step`."""

    command: str
    settings: Mapping[str, Any]
    """The settings that differ from the defaults; some hold a `Source`."""
    notes: Mapping[str, PaperValue] = field(default_factory=dict)
    """The paper's values."""
    after: tuple[Step, ...] = ()
    """Steps that must finish first, beside those whose outputs it reads."""
    makes: str = ""
    """The name of the data that it makes, at its `path`."""

    @cached_property
    def values(self) -> dict[str, Any]:
        """Every setting, defaults included."""
        return {**setting_values(*default_settings(self.command)), **self.settings}

    @cached_property
    def sources(self) -> list[Source]:
        """All that its settings name."""
        return sources_in(list(self.settings.values()))

    @property
    def inputs(self) -> list[Input]:
        """The data and weights that it reads, each once."""
        found = {one.name: one for one in self.sources if isinstance(one, Input)}
        return list(found.values())

    def typed(self, place: Callable[[Source], str]) -> list[Any]:
        """The command's settings objects; `place` gives the paths of sources.

        Raises InputError for an unknown setting, and for a value that is not allowed.
        """
        texts = {name: fill(value, place) for name, value in self.settings.items()}
        with prefix_errors(self.name):
            return fill_settings(default_settings(self.command), texts)


def default_settings(command: str) -> list[Any]:
    """A command's default settings, its own and those of training."""
    settings = COMMANDS[command].settings
    own = settings["_own"]
    if command == "finetune":
        own = replace_settings(own, save_model=False)  # hundreds of models would fill a disk
    return [own, *(settings[group] for group in ("_train",) if group in settings)]


def sources_in(value: Any) -> list[Source]:
    """All that a setting's value names, or several values."""
    if isinstance(value, list | tuple):
        return [found for one in value for found in sources_in(one)]
    return [value] if isinstance(value, Source) else []


def fill(value: Any, place: Callable[[Source], str]) -> Any:
    """A setting's value with texts in place of sources; of a step the model, if no other part is named."""
    if isinstance(value, list | tuple):
        return tuple(fill(one, place) for one in value)
    if isinstance(value, Source):
        part = "/model" if isinstance(value, Step) and not value.suffix else value.suffix
        return f"{value.prefix}{place(value)}{part}"
    return value


def title_of(source: Source) -> str:
    """What a paper calls an input; of a step its folder."""
    return source.title if isinstance(source, Input) else source.path


def format_setting(value: Any, place: Callable[[Source], str] = title_of) -> str:
    """A setting's value in a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(format_setting(one, place) for one in value)
    if isinstance(value, float):
        return f"{value:g}".replace("e-0", "e-")
    return str(fill(value, place))


def slug(name: str) -> str:
    """A name as a folder name."""
    letters = (letter if letter.isalnum() or letter in "+-." else "-" for letter in name)
    return "".join(letters).strip("-")


def data(
    name: str,
    path: str,
    title: str = "",
    available_from: str = "",
    *,
    made_by: tuple[str, Mapping[str, Any]] | None = None,
    **more: Any,
) -> Input:
    """Data that steps read; if they do not exist, they are available from somewhere, or `made_by` a command and its
    settings. `title` is the paper's name for them, and `more` are further fields of `Input`.
    """
    whole = f"data:{name}"
    maker = None
    if made_by is not None:
        command, values = made_by
        maker = replace(step(command, values, name=f"{whole}: make", out=path), makes=whole)
    return Input(whole, path, title or name, available_from, made_by=maker, **more)


def weights(name: str, path: str, title: str = "", available_from: str = "", **more: Any) -> Input:
    """Weights that steps start from: a folder, or without `available_from` a hub id; `more` are fields of `Input`."""
    return Input(f"weights:{name}", path, title or name, available_from, **more)


def settings(*groups: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    """Settings of several groups; later ones replace earlier ones, but a paper's value stays beside a setting."""
    merged: dict[str, Any] = {}
    for group in (*groups, values):
        for name, value in group.items():
            before = merged.get(name)
            if isinstance(before, PaperValue) and not isinstance(value, PaperValue):
                value = replace(before, ours=value, reason="")
            merged[name] = value
    return merged


def step(
    command: str,
    *groups: Mapping[str, Any],
    name: str,
    out: str = "",
    after: Sequence[Step] = (),
    **values: Any,
) -> Step:
    """A command with settings from `groups` and keywords, in the folder `out` or one called after its `name`.

    A setting refers to data, weights and other steps by these objects; a step as a value is its model, and
    `step / "joint"` another part of its output. Steps that it refers to, and those in `after`, come first. Raises
    InputError for an unknown setting, a value that is not allowed, or one unlike the paper's without a reason.
    """
    defaults = setting_values(*default_settings(command))
    given, notes = settings(*groups, **values), {}
    for key, value in given.items():
        if isinstance(value, PaperValue):
            notes[key] = value
            with prefix_errors(name):
                given[key] = value.value(key, defaults.get(key))
    made = Step(name, out or slug(name), command, given, notes, tuple(after))
    typed = setting_values(*made.typed(title_of))  # now, while the line of the recipe is known
    read = {
        key: value if sources_in(value) else typed.get(key, value) for key, value in given.items()
    }
    return replace(made, settings=read)


def pretrain(name: str, *groups: Mapping[str, Any], **values: Any) -> Step:
    """A pre-training, from which rows or further pre-trainings start."""
    folder = f"pretrain/{slug(name)}"
    return step("pretrain", *groups, name=f"pretrain {name}", out=folder, **values)


def adapt(name: str, *groups: Mapping[str, Any], **values: Any) -> Step:
    """The adaptation of the row called `name`."""
    folder = f"{slug(name)}/adapt"
    return step("adapt", *groups, name=f"{slug(name)}: adapt", out=folder, **values)


@dataclass(frozen=True)
class Row:
    """A row of a table: one model, fine-tuned on the table's tasks."""

    name: str
    """Name in reports."""
    steps: tuple[Step, ...]
    """Its fine-tunings or `pairs`, one after the other, in its folder (`slug(name)`)."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Scores in the paper, in the metric's own units, by task and by `TASK (SPLIT)`."""


def row(
    name: str,
    model: Any,
    tasks: Mapping[str, Mapping[str, Any]],
    *groups: Mapping[str, Any],
    scores: Mapping[str, float] | None = None,
    published: str = "",
    **values: Any,
) -> Row:
    """A row: `model` fine-tuned on every task.

    `tasks` has settings by the task's name in reports; `groups` and `values` replace them in this row. `scores` are the
    paper's, by task and by `TASK (SPLIT)`, or those of a `published` system.
    """
    steps = []
    for task, own in tasks.items():
        merged = settings(own, *groups, model=model, **values)
        if "label" not in merged:  # else the user's own file makes the task
            merged.setdefault("task", task)
        if merged.get("task") != task:
            merged["display_name"] = task
        folder = f"{slug(name)}/{slug(task)}"
        steps.append(step("finetune", merged, name=f"{slug(name)}: {task}", out=folder))
    shown = {**published_scores().get(published, {}), **(scores or {})}
    return Row(name, tuple(steps), shown)


@dataclass(frozen=True)
class Table:
    """A table: rows that are compared with the first one, the control."""

    name: str
    """Number in the paper; empty: the recipe's only table, whose verdict is in the recipe's own folder."""
    rows: Sequence[Row]

    @property
    def columns(self) -> list[str]:
        """The tasks' names in reports, in order."""
        steps = [one.values for row in self.rows for one in row.steps if "task" in one.values]
        return list(dict.fromkeys(one["display_name"] or one["task"] for one in steps))
