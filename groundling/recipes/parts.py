"""Parts of a recipe: data and weights, steps, rows and tables. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from groundling.command_line import COMMANDS
from groundling.command_line.registered_names import published_scores
from groundling.core.errors import prefix_errors
from groundling.recipes.paper import PaperValue
from groundling.settings.fields import fill_settings, replace_settings, setting_values


class Referable:
    """What a setting may refer to: data, weights, the output of a step, or a part of it."""

    def __truediv__(self, part: str) -> Reference:
        """A file or folder inside."""
        whole = self if isinstance(self, Reference) else Reference(self)
        return replace(whole, suffix=f"{whole.suffix}/{part}")

    def named(self, name: str) -> Reference:
        """For settings of the form NAME=FOLDER."""
        return replace(reference_to(self), prefix=f"{name}=")

    def weighted(self, weight: float) -> Reference:
        """For settings of the form FILE=WEIGHT."""
        whole = reference_to(self)
        return replace(whole, suffix=f"{whole.suffix}={weight}")


@dataclass(frozen=True)
class Reference(Referable):
    """Data, weights or a step in a setting."""

    source: Any
    """An `Input` or a `Step`."""
    prefix: str = ""
    suffix: str = ""


def reference_to(value: Referable) -> Reference:
    """The reference that a setting holds; a step as a value is its trained model."""
    if isinstance(value, Reference):
        return value
    return Reference(value, suffix="/model" if isinstance(value, Step) else "")


@dataclass(frozen=True, eq=False)
class Input(Referable):
    """Data or weights; see `data` and `weights`."""

    name: str
    path: str
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
class Step(Referable):
    """One command with its settings; see `step`."""

    command: str
    name: str
    out: Path
    """Run folder, inside the recipe's folder."""
    settings: Mapping[str, Any]
    """The settings that differ from the defaults; those with inputs and steps hold `Reference`s."""
    notes: Mapping[str, PaperValue] = field(default_factory=dict)
    """The paper's values."""
    after: tuple[Step, ...] = ()
    """Steps that must finish first, beside those whose outputs it reads."""
    makes: str = ""
    """The data that it makes, by name; `out` is their path."""

    @cached_property
    def values(self) -> dict[str, Any]:
        """Every setting, defaults included."""
        return {**setting_values(*default_settings(self.command)), **self.settings}

    @cached_property
    def references(self) -> list[Reference]:
        """The references of all settings."""
        return references(list(self.settings.values()))

    @property
    def inputs(self) -> list[Input]:
        """The data and weights that it reads."""
        sources = dict.fromkeys(one.source for one in self.references)
        return [one for one in sources if isinstance(one, Input)]

    def typed(self, place: Callable[[Input | Step], str]) -> list[Any]:
        """The command's settings objects; `place` gives the paths of inputs and steps.

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


def references(value: Any) -> list[Reference]:
    """The references in a setting's value, or in several."""
    if isinstance(value, list | tuple):
        return [found for one in value for found in references(one)]
    return [value] if isinstance(value, Reference) else []


def fill(value: Any, place: Callable[[Input | Step], str]) -> Any:
    """A setting's value with texts in place of inputs and steps."""
    if isinstance(value, list | tuple):
        return tuple(fill(one, place) for one in value)
    if isinstance(value, Reference):
        return f"{value.prefix}{place(value.source)}{value.suffix}"
    return value


def title_of(source: Input | Step) -> str:
    """What a paper calls an input; of a step its folder."""
    return source.title if isinstance(source, Input) else str(source.out)


def format_setting(value: Any, place: Callable[[Input | Step], str] = title_of) -> str:
    """A setting's value in a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(format_setting(one, place) for one in value)
    if isinstance(value, float):
        return f"{value:g}".replace("e-0", "e-")
    return str(fill(value, place))


def printed(note: PaperValue) -> str:
    """A paper's value as text."""
    return format_setting(_normal(note.printed))


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
    maker = None
    if made_by is not None:
        command, values = made_by
        made = step(command, values, name=f"data:{name}: make", out=path)
        maker = replace(made, makes=f"data:{name}")
    return Input(f"data:{name}", path, title or name, available_from, made_by=maker, **more)


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
    given, notes = {}, {}
    for key, value in settings(*groups, **values).items():
        default = defaults.get(key)
        if isinstance(value, PaperValue):
            notes[key] = value
            with prefix_errors(name):
                value = value.value(key, default)
        given[key] = _normal(value, isinstance(default, tuple))
    made = Step(command, name, Path(out or slug(name)), given, notes, tuple(after))
    typed = setting_values(*made.typed(title_of))  # now, while the line of the recipe is known
    texts = {key: typed[key] for key, value in given.items() if isinstance(value, str)}
    return replace(made, settings={**given, **texts})  # a number may be written as text


def _normal(value: Any, is_list: bool = False) -> Any:
    """A value as a step holds it: a list as a tuple, an input or step as its reference."""
    if isinstance(value, list | tuple):
        return tuple(_normal(one) for one in value)
    value = reference_to(value) if isinstance(value, Referable) else value
    return (value,) if is_list and value else value


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
    """Its fine-tunings, one after the other, in its folder (`slug(name)`)."""
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
        steps = [one.values for row in self.rows for one in row.steps]
        return list(dict.fromkeys(one["display_name"] or one["task"] for one in steps))
