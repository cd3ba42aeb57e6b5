"""The plan of a recipe: every step in order, its settings beside the paper's, and what it needs. Imports nothing
heavy.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from groundling.command_line.registered_names import TASKS_WITH_ANSWERS
from groundling.core.errors import InputError, require_known
from groundling.recipes.paper import PaperValue
from groundling.recipes.parts import (
    Input,
    Reference,
    Row,
    Step,
    Table,
    default_settings,
    format_setting,
    printed,
    references,
)
from groundling.settings.fields import setting_values

ALWAYS_SHOWN = (
    "lr",
    "batch",
    "schedule",
    "warmup_ratio",
    "weight_decay",
    "max_grad_norm",
    "max_length",
    "seeds",
)
"""Settings that a plan always shows, beside those that the recipe or the paper names."""
INPUTS = ("model", "student", "task")
"""Settings marked as inputs even if they name no data and no weights."""
REPLACED_BY = {"batch": "batch_tokens", "warmup_ratio": "warmup_steps", "epochs": "steps"}
"""Settings that a plan omits if another one replaces them."""
INPUT_FIELDS = ("name", "title", "path", "available_from")
NEVER_SHOWN = ("display_name", "cpu", "seed")
"""Settings that a plan never shows, because they do not change what is reproduced."""
LEGEND = "same: as in the paper; differs: with the reason; ours: not in the paper; input: data or weights, above."
WIDTH = 118
NAMED_STEPS = 3
"""Maximum number of steps that a plan names beside a setting."""
OWN_SPLIT = ("train",)
"""Default training split of every task."""


@dataclass(frozen=True)
class Recipe:
    """Tables of a paper, or of your own experiments."""

    tables: Sequence[Table]
    """What is run and judged."""
    title: str = ""
    """Title of the paper."""
    out: Path = Path()
    """Folder of all steps."""
    replaced: Mapping[str, Input] = field(default_factory=dict)
    """Stand-ins by the name of the input that they replace, in a miniature."""

    def place(self, source: Input | Step) -> str:
        """The path of an input, or of a step's output."""
        name = source.name if isinstance(source, Input) else source.makes
        if name in self.replaced:
            return self.replaced[name].path
        if isinstance(source, Input):
            return source.path
        return str(source.out if source.makes else self.out / source.out)

    def title_of(self, source: Input | Step) -> str:
        """The printed name of an input, or the path of a step's output."""
        return source.title if isinstance(source, Input) else self.place(source)

    def before(self, step: Step) -> list[Step]:
        """The steps that must finish before another one."""
        trained = [one.source for one in step.references if isinstance(one.source, Step)]
        inputs = [self.replaced.get(one.name, one) for one in step.inputs]
        made = [one.made_by for one in inputs if one.made_by is not None]
        return list(dict.fromkeys([*trained, *step.after, *made]))

    def steps(self) -> list[Step]:
        """Every step in starting order: table by table, column by column, each step after those that it needs.

        Raises InputError for two steps of the same name or folder.
        """
        ordered: dict[Step, None] = {}
        taken: dict[str, Step] = {}

        def add(step: Step) -> None:
            for key in (step.name, str(step.out)):
                other = taken.setdefault(key, step)
                if (step.command, step.values) != (other.command, other.values):
                    raise InputError(f"two different steps are called {key}; rename one")
            if taken[step.name] is step:
                for one in self.before(step):
                    add(one)
                ordered[step] = None

        for table in self.tables:
            for column in zip_longest(*(row.steps for row in table.rows)):
                for step in filter(None, column):
                    add(step)
        return list(ordered)

    def inputs(self) -> list[Input]:
        """The data and weights that the steps need, those of a name once."""
        return list({one.name: one for step in self.steps() for one in step.inputs}.values())

    def with_table(self, name: str) -> Recipe:
        """One table of the recipe; raises InputError if it does not exist."""
        require_known(name, [one.name for one in self.tables], f"no table is called {name!r}")
        return replace(self, tables=[one for one in self.tables if one.name == name])

    def with_rows(self, names: Collection[str]) -> Recipe:
        """Some rows of the tables; raises InputError for a name that no row has."""
        offered = dict.fromkeys(row.name for table in self.tables for row in table.rows)
        for name in names:
            require_known(name, offered, f"no row is called {name!r}")
        chosen = [
            replace(table, rows=[row for row in table.rows if row.name in names])
            for table in self.tables
        ]
        return replace(self, tables=[table for table in chosen if table.rows])

    def with_seeds(self, seeds: int) -> Recipe:
        """The same with another number of seeds; raises InputError for a recipe that counts its seeds itself."""
        tables = [
            replace(table, rows=[_with_seeds(row, seeds) for row in table.rows])
            for table in self.tables
        ]
        return replace(self, tables=tables)


def _with_seeds(row: Row, seeds: int) -> Row:
    steps = []
    for step in row.steps:
        if "seed" in step.settings:
            raise InputError(f"seeds: {step.name} has a seed of its own; change the recipe instead")
        notes = dict(step.notes)
        if "seeds" in notes:
            notes["seeds"] = replace(
                notes["seeds"], ours=seeds, reason="changed on the command line"
            )
        steps.append(replace(step, settings={**step.settings, "seeds": seeds}, notes=notes))
    return replace(row, steps=tuple(steps))


# Settings beside the paper's.


def setting_rows(recipe: Recipe, step: Step) -> dict[str, dict[str, str]]:
    """Settings of a step to show: value, the paper's value, its section, and the mark."""
    defaults = setting_values(*default_settings(step.command))
    rows = {}
    for name, value in step.values.items():
        note = step.notes.get(name)
        is_stated = note is not None or name in ALWAYS_SHOWN or value != defaults[name]
        is_replaced = bool(step.values.get(REPLACED_BY.get(name, "")))
        if name in NEVER_SHOWN or not is_stated or is_replaced:
            continue
        rows[name] = {
            "here": format_setting(value, recipe.title_of),
            "paper": printed(note) if note else "-",
            "where": note.source if note else "-",
            "mark": _mark(name, value, note, defaults[name]),
        }
    return rows


def _mark(name: str, value: Any, note: PaperValue | None, default: object) -> str:
    if note is None:
        is_input = any(isinstance(one.source, Input) for one in references(value))
        return "input" if is_input or name in INPUTS else "ours"
    if note.agrees(default):
        return f"same; {note.reason}" if note.reason else "same"
    return f"differs: {note.reason}"


def count_examples(step: Step) -> int | None:
    """Number of training examples as far as the recipe tells: of a partition, data, captions or text."""
    if "steps" not in step.values:
        return None  # it trains nothing
    for key in ("partition", "data", "captions", "text"):
        sources = [one.source for one in references(step.values.get(key))]
        count = sum(one.examples for one in sources if isinstance(one, Input))
        if count:
            limit = step.values.get("limit_train", 0)
            return min(count, limit) if limit else count
    return None


def count_steps(step: Step) -> int | None:
    """Optimizer steps per seed; None for a command that trains nothing, and where the examples are unknown."""
    values = step.values
    examples = count_examples(step)
    if examples is None or values["steps"] or values.get("batch_tokens"):
        return values.get("steps") or None
    if step.command == "pretrain" and values["text"]:
        examples *= 2  # an epoch counts captions; text without images is drawn as often
    # Rounded as `batch_sampler.plan_batches` rounds.
    return max(1, math.floor(round(values["epochs"] * examples / values["batch"], 10)))


def state(source: Input) -> str:
    """Whether an input exists, and where it comes from if not."""
    if Path(source.path).exists():
        return "present"
    if source.made_by is not None:
        return "made here"
    return (
        "hub id" if source.name.startswith("weights:") and not source.available_from else "missing"
    )


def plan_json(recipe: Recipe) -> dict[str, Any]:
    """The whole plan: inputs, steps with all shown settings, and notes."""
    steps = recipe.steps()
    return {
        "paper": recipe.title,
        "inputs": [
            {name: vars(source)[name] for name in INPUT_FIELDS} | {"state": state(source)}
            for source in recipe.inputs()
        ],
        "steps": [
            {
                "name": step.name,
                "command": step.command,
                "after": [one.name for one in recipe.before(step)],
                "needs": [one.name for one in step.inputs],
                "out": recipe.place(step),
                "examples": count_examples(step),
                "optimizer_steps": count_steps(step),
                "seeds": step.values.get("seeds", 1),
                "settings": setting_rows(recipe, step),
            }
            for step in steps
        ],
        "notes": exposure_notes(steps),
    }


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """A plan as text."""
    lines = [f"# {plan['paper'] or 'A recipe'}", ""]
    inputs = [("name", "title", "state", "path, and for missing ones where to obtain them")]
    for one in plan["inputs"]:
        advice = f"; {one['available_from']}" if one["state"] == "missing" else ""
        inputs.append((one["name"], one["title"], one["state"], one["path"] + advice))
    if plan["inputs"]:
        lines += ["## Data and weights", "", *_aligned(inputs), ""]
    steps = [("step", "command", "examples", "steps", "seeds")]
    for one in plan["steps"]:
        counts = (one["examples"], one["optimizer_steps"], one["seeds"])
        steps.append((one["name"], one["command"], *map(_count, counts)))
    lines += ["## Steps", "", *_aligned(steps), ""]
    for note in plan["notes"]:
        lines += [*textwrap.wrap(f"note: {note}", WIDTH), ""]
    return [*lines, *_setting_lines(plan["steps"])]


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows = [rows[0], ["-" * width for width in widths[:-1]] + ["-"], *rows[1:]]
    return ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in rows]


def _setting_lines(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Settings beside the paper's, by command, each once with the steps that have it."""
    lines = ["## Settings beside the paper's", "", LEGEND, ""]
    for command in dict.fromkeys(one["command"] for one in steps):
        own = [one for one in steps if one["command"] == command]
        names: dict[tuple[str, ...], list[str]] = {}
        for one in own:
            for setting, shown in one["settings"].items():
                names.setdefault((setting, *shown.values()), []).append(one["name"])
        rows: list[tuple[str, ...]] = [("setting", "here", "paper", "section", "", "steps")]
        for row, some in names.items():
            listed = ", ".join(some) if len(some) <= NAMED_STEPS else f"{len(some)} of {len(own)}"
            rows.append((*row, listed))
        lines += [f"### {command}", "", *_aligned(rows), ""]
    return lines


# Answers that a fine-tuning holds out, but a model before it has read.


def exposure_notes(steps: Sequence[Step]) -> list[str]:
    """A line for each fine-tuning that starts from a model which has read answers that the fine-tuning hides.

    These are answers of training examples outside its partition, and of splits that it is not trained on.
    """
    return [
        f"{step.name}: {model} has read the right answers of {hidden}, which this row holds out"
        for step in steps
        if step.command == "finetune"
        for model, reader in _readers(step)
        for hidden in _hidden_data(reader, step)
    ]


def _readers(step: Step) -> list[tuple[str, Step | Input]]:
    """Everything that has read answers before a step's starting model: its name, and the step or weights."""
    readers: list[tuple[str, Step | Input]] = []
    for reference in references(step.values["student" if step.command == "adapt" else "model"]):
        source = reference.source
        before = source if isinstance(source, Step) else source.made_by
        if isinstance(source, Input) and source.trained_on is not None:
            readers.append((source.title, source))
        if before is not None:
            if _reads_answers(before):
                readers.append((source.name, before))
            readers += _readers(before)
    return readers


def _reads_answers(step: Step) -> bool:
    answers = step.values.get("task_answers")
    tells_answers = answers == "right" and step.values["task"] in TASKS_WITH_ANSWERS
    return step.command == "finetune" or answers == "judged" or tells_answers


def _names(value: Any) -> tuple[str, ...]:
    return tuple(one.source.name for one in references(value))


def _hidden_data(reader: Step | Input, step: Step) -> list[str]:
    """The data that a model has read and a fine-tuning is not trained on; empty if the data sets differ."""
    values = step.values
    read: Mapping[str, Any] = {"train_splits": (), "partition": ""}
    if isinstance(reader, Step):
        read = reader.values
    elif reader.trained_on is not None:
        read = {**read, "data": Reference(reader.trained_on)}
    data = _names(values["data"])
    if not set(_names(read["data"])) & set(data):
        return []
    hidden = []
    partition = _names(values["partition"])
    learned = values["train_splits"] or OWN_SPLIT
    more = [split for split in read["train_splits"] or OWN_SPLIT if split not in learned]
    if more:
        hidden.append(f"{' and '.join(more)} of {data[0]}")
    if partition and _names(read["partition"]) != partition:
        hidden.append(f"{data[0]} outside {partition[0]}")
    if values["limit_train"] and not read["partition"]:
        hidden.append(f"{data[0]} beyond {values['limit_train']:,} examples")
    return hidden
