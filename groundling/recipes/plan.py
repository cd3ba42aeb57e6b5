"""The plan of a recipe: every step in order, its settings beside the paper's, and what it needs; and its miniature.

Imports nothing heavy.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from groundling.command_line.names import TASKS_WITH_ANSWERS
from groundling.core.errors import InputError
from groundling.core.registry import public_modules
from groundling.recipes import (
    Input,
    Source,
    Step,
    Table,
    default_settings,
    format_setting,
    sources_in,
    title_of,
)
from groundling.settings.fields import setting_values
from groundling.settings.training import count_steps

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
"""Settings that a plan shows beside those that the recipe or the paper names."""
NEVER_SHOWN = ("display_name", "cpu", "seed")
"""Settings that do not change what is reproduced."""
REPLACED_BY = {"batch": "batch_tokens", "warmup_ratio": "warmup_steps", "epochs": "steps"}
"""Settings that a plan omits if another one replaces them."""
INPUTS = ("model", "student", "task")
"""Settings marked as inputs even if they name no data and no weights."""
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
    title: str = ""
    """Title of the paper."""
    out: Path = Path()
    """Folder of all steps."""
    stand_ins: Mapping[str, Input] = field(default_factory=dict)
    """In a miniature: what replaces each input, by its name."""

    def place(self, source: Source) -> str:
        """The path of an input, or of a step's output."""
        makes = source.makes if isinstance(source, Step) else source.name
        if makes in self.stand_ins:
            return self.stand_ins[makes].path
        return source.path if makes else str(self.out / source.path)

    def arguments(self, step: Step) -> list[Any]:
        """The arguments of a step's command: settings and output."""
        return [*step.typed(self.place), self.place(step)]

    def before(self, step: Step) -> list[Step]:
        """The steps that must finish before another one."""
        trained = [one for one in step.sources if isinstance(one, Step)]
        inputs = [self.stand_ins.get(one.name, one) for one in step.inputs]
        made = [one.made_by for one in inputs if one.made_by is not None]
        return list({one.name: one for one in (*trained, *step.after, *made)}.values())

    def steps(self) -> list[Step]:
        """Every step in starting order: table by table, column by column, each step after those that it needs.

        Raises InputError for two different steps of one name.
        """
        ordered: dict[str, Step] = {}

        def add(step: Step) -> None:
            other = ordered.get(step.name)
            if other is None:
                for one in self.before(step):
                    add(one)
                ordered[step.name] = step
            elif self.arguments(other) != self.arguments(step):
                raise InputError(f"two different steps are called {step.name}; rename one")

        for table in self.tables:
            for column in zip_longest(*(row.steps for row in table.rows)):
                for step in filter(None, column):
                    add(step)
        return list(ordered.values())

    def inputs(self) -> list[Input]:
        """The data and weights that the steps need, those of a name once."""
        return list({one.name: one for step in self.steps() for one in step.inputs}.values())


# The plan as data.


def plan_json(recipe: Recipe) -> dict[str, Any]:
    """The whole plan: inputs, steps with all shown settings, and notes."""
    steps = recipe.steps()
    fields = ("name", "title", "path", "available_from")
    return {
        "paper": recipe.title,
        "inputs": [
            {name: vars(source)[name] for name in fields} | {"state": state(source)}
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
                "optimizer_steps": steps_of(step),
                "seeds": step.values.get("seeds", 1),
                "settings": setting_rows(recipe, step),
            }
            for step in steps
        ],
        "notes": exposure_notes(steps),
    }


def state(source: Input) -> str:
    """Whether an input exists, and where it comes from if not."""
    if Path(source.path).exists():
        return "present"
    if source.made_by is not None:
        return "made here"
    is_hub_id = source.name.startswith("weights:") and not source.available_from
    return "hub id" if is_hub_id else "missing"


def count_examples(step: Step) -> int | None:
    """Number of training examples as far as the recipe tells: of a partition, data, captions or text."""
    if "steps" not in step.values:
        return None  # it trains nothing
    for key in ("partition", "data", "captions", "text"):
        sources = sources_in(step.values.get(key))
        count = sum(one.examples for one in sources if isinstance(one, Input))
        if count:
            limit = step.values.get("limit_train", 0)
            return min(count, limit) if limit else count
    return None


def steps_of(step: Step) -> int | None:
    """Optimizer steps per seed; None for a command that trains nothing, and where the examples are unknown."""
    values = step.values
    examples = count_examples(step)
    if examples is None or values["steps"] or values.get("batch_tokens"):
        return values.get("steps") or None
    if step.command == "pretrain" and values["text"]:
        examples *= 2  # an epoch counts captions; text without images is drawn as often
    return count_steps(values["epochs"], examples / values["batch"])


def setting_rows(recipe: Recipe, step: Step) -> dict[str, dict[str, str]]:
    """Settings of a step to show: value, the paper's value, its section, and the mark."""

    def shown_name(source: Source) -> str:
        return recipe.place(source) if isinstance(source, Step) else title_of(source)

    defaults = setting_values(*default_settings(step.command))
    rows = {}
    for name, value in step.values.items():
        note = step.notes.get(name)
        is_stated = note is not None or name in ALWAYS_SHOWN or value != defaults[name]
        is_replaced = bool(step.values.get(REPLACED_BY.get(name, "")))
        if name in NEVER_SHOWN or not is_stated or is_replaced:
            continue
        if note is not None:
            mark = note.mark(defaults[name])
        else:
            is_input = any(isinstance(one, Input) for one in sources_in(value))
            mark = "input" if is_input or name in INPUTS else "ours"
        rows[name] = {
            "here": format_setting(value, shown_name),
            "paper": format_setting(note.printed) if note else "-",
            "where": note.source if note else "-",
            "mark": mark,
        }
    return rows


# Answers that a fine-tuning holds out, but a model before it has read.


def exposure_notes(steps: Sequence[Step]) -> list[str]:
    """A line for each fine-tuning that starts from a model which has read answers that the fine-tuning hides.

    These are answers of training examples outside its partition, and of splits that it is not trained on.
    """
    return [
        f"{step.name}: {model} has read the right answers of {hidden}, which this row holds out"
        for step in steps
        if step.command == "finetune"
        for model, read in _readers(step)
        for hidden in _hidden_data(read, step.values)
    ]


def _readers(step: Step) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Everything that has read answers before a step's starting model: its name, and the settings of its data."""
    for source in sources_in(step.values["student" if step.command == "adapt" else "model"]):
        before = source.made_by if isinstance(source, Input) else source
        if isinstance(source, Input) and source.trained_on is not None:
            yield source.title, {"data": source.trained_on}
        if isinstance(before, Step):
            answers = before.values.get("task_answers")
            tells_answers = answers == "right" and before.values["task"] in TASKS_WITH_ANSWERS
            if before.command == "finetune" or answers == "judged" or tells_answers:
                yield source.name, before.values
            yield from _readers(before)


def _hidden_data(read: Mapping[str, Any], tuned: Mapping[str, Any]) -> list[str]:
    """The data that a model has read and a fine-tuning is not trained on; empty if the data sets differ."""

    def names(values: Mapping[str, Any], setting: str) -> list[str]:
        return [one.name for one in sources_in(values.get(setting))]

    data = names(tuned, "data")
    partition = names(tuned, "partition")
    if not set(names(read, "data")) & set(data):
        return []
    hidden = []
    learned = tuned["train_splits"] or OWN_SPLIT
    more = [split for split in read.get("train_splits") or OWN_SPLIT if split not in learned]
    if more:
        hidden.append(f"{' and '.join(more)} of {data[0]}")
    if partition and names(read, "partition") != partition:
        hidden.append(f"{data[0]} outside {partition[0]}")
    if tuned["limit_train"] and not read.get("partition"):
        hidden.append(f"{data[0]} beyond {tuned['limit_train']:,} examples")
    return hidden


# The plan as text.


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """A plan as text."""
    inputs = [("name", "title", "state", "path, and for missing ones where to obtain them")]
    for one in plan["inputs"]:
        advice = f"; {one['available_from']}" if one["state"] == "missing" else ""
        inputs.append((one["name"], one["title"], one["state"], one["path"] + advice))
    steps = [("step", "command", "examples", "steps", "seeds")]
    for one in plan["steps"]:
        counts = (one["examples"], one["optimizer_steps"], one["seeds"])
        shown = ("-" if count is None else f"{count:,}" for count in counts)
        steps.append((one["name"], one["command"], *shown))
    lines = [f"# {plan['paper'] or 'A recipe'}", ""]
    lines += [
        "## Data and weights",
        "",
        *_aligned(inputs),
        "",
        "## Steps",
        "",
        *_aligned(steps),
        "",
    ]
    for note in plan["notes"]:
        lines += [*textwrap.wrap(f"note: {note}", WIDTH), ""]
    lines += ["## Settings beside the paper's", "", LEGEND, ""]
    for command in dict.fromkeys(one["command"] for one in plan["steps"]):
        own = [one for one in plan["steps"] if one["command"] == command]
        lines += [f"### {command}", "", *_aligned(_setting_rows(own)), ""]
    return lines


def _setting_rows(steps: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    names: dict[tuple[str, ...], list[str]] = {}
    for step in steps:
        for setting, shown in step["settings"].items():
            names.setdefault((setting, *shown.values()), []).append(step["name"])
    rows: list[tuple[str, ...]] = [("setting", "here", "paper", "section", "", "steps")]
    for row, some in names.items():
        listed = ", ".join(some) if len(some) <= NAMED_STEPS else f"{len(some)} of {len(steps)}"
        rows.append((*row, listed))
    return rows


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows = [rows[0], ["-" * width for width in widths[:-1]] + ["-"], *rows[1:]]
    return ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in rows]


# A recipe's miniature: reduced settings, and stand-ins for data and weights.

SIDE = 32
"""Image side in pixels of a miniature, for models that read pixels."""
LENGTH = 48
"""Maximum tokens per text of a miniature."""
SMALL: dict[str, Callable[[Any], Any]] = {
    "steps": lambda _: 2,
    "seeds": lambda _: 1,
    "batch": lambda batch: min(batch, 4),
    "gradient_accumulation_steps": lambda _: 1,
    "freeze_encoder_steps": lambda steps: min(steps, 1),
    "schedule_steps": lambda _: 0,
    "precision": lambda _: "fp32",
    "cpu": lambda _: True,
    "max_length": lambda length: min(length, LENGTH),
    "shortest_edge": lambda _: SIDE,
    "longest_edge": lambda _: 0,
    # The world's captions have no Karpathy splits, and the rendered questions no VCR categories.
    "caption_splits": lambda _: (),
    "per_stratum": lambda number: min(number, 4),
    "stratify_by": lambda _: "total",
}
"""Reduced value of a setting in a miniature, given its value."""


def on_stand_ins(recipe: Recipe) -> Recipe:
    """The recipe on small stand-ins, which a study makes in its folder; its scores mean nothing.

    Raises InputError for data or weights of an unsupported kind.
    """
    (study,) = public_modules("stand_ins")
    return replace(
        recipe, stand_ins=study.make_stand_ins(recipe.inputs(), recipe.out / "stand-ins")
    )


def shrink(step: Step) -> Step:
    """A step that takes two optimizer steps on a CPU."""
    small = {name: SMALL[name](value) for name, value in step.values.items() if name in SMALL}
    return replace(step, settings={**step.settings, **small})
