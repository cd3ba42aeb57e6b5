"""Plan of a sweep: every command, its settings beside the paper's, data, steps, hours. Imports
nothing heavy.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from groundling.commands.sweep.schema import (
    Sweep,
    SweepInput,
    default_settings,
    format_setting,
    paper_mark,
    references,
)
from groundling.commands.sweep.steps import SweepStep, exposure_notes
from groundling.settings.fields import setting_values
from groundling.settings.training import TrainingArguments

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
"""Settings that a plan always shows, beside those that the file or the paper names."""
INPUTS = ("model", "student", "task")
"""Settings marked as inputs even if they name no data and no weights."""
REPLACED_BY = {"batch": "batch_tokens", "warmup_ratio": "warmup_steps", "epochs": "steps"}
"""Settings that a plan omits if another one replaces them."""
NEVER_SHOWN = ("display_name", "cpu", "seed")
"""Settings that a plan never shows, because they do not change what is reproduced."""

TOKENS_A_SECOND = {"base": 80_000, "large": 22_000}
"""Tokens and regions that one GPU trains on per second, by model size: a rough guess. Six \
floating-point operations per encoder weight (85 and 302 million) and token, at 40 trillion per \
second, a third of what a V100 reaches in half precision."""
REGIONS = 36
"""Default number of regions per row."""
ROWS = {"vcr": 4, "nlvr2": 2, "swag": 4}
"""Rows per example by kind of data: one per choice or image; one for other kinds."""
HOURS_NOTE = (
    "Hours are a rough guess: one GPU, 80,000 (base) or 22,000 (large) training tokens per second, without "
    "evaluation, teachers or ResNets. Measure a step on your GPU and pass --seconds-per-step."
)
LEGEND = "same: as in the paper; differs: with the reason; ours: not in the paper; input: data or weights, above."
WIDTH = 118


@dataclass(frozen=True)
class StepCost:
    """Cost of a sweep step; None where unknown."""

    examples: int | None
    """Training examples."""
    steps: int | None
    """Optimizer steps per seed."""
    hours: float | None
    """GPU hours of all seeds on one GPU."""


class SweepPlan:
    """A sweep's steps with costs and required data."""

    def __init__(
        self, sweep: Sweep, steps: Sequence[SweepStep], seconds_per_step: float = 0.0
    ) -> None:
        self.sweep = sweep
        self.steps = list(steps)
        self.seconds_per_step = seconds_per_step
        self.titles = sweep.titles
        self.costs = {step.name: self._cost(step) for step in self.steps}
        self.notes = exposure_notes(self.steps, sweep.sources)

    @cached_property
    def sources(self) -> list[SweepInput]:
        """Data and weights that the steps need, in the file's order."""
        needed = {name for step in self.steps for name in step.needs}
        return [source for name, source in self.sweep.sources.items() if name in needed]

    def _cost(self, step: SweepStep) -> StepCost:
        config, training = step.settings
        if training is None:
            return StepCost(None, None, None)
        examples = self._examples(config)
        if step.command == "pretrain" and config.text and examples:
            # An epoch counts captions; text without images is drawn as often.
            steps = _optimizer_steps(training, 2 * examples)
        else:
            steps = _optimizer_steps(training, examples)
        seconds = self.seconds_per_step or self._seconds(step)
        if steps is None or not seconds:
            return StepCost(examples, steps, None)
        return StepCost(examples, steps, step.values.get("seeds", 1) * steps * seconds / 3600)

    def _examples(self, config: Any) -> int | None:
        """Number of training examples as far as the file tells: of a partition, data or captions."""
        values = setting_values(config)
        counts = [
            sum(self.sweep.sources[name].examples for name in references(values.get(key, "")))
            for key in ("partition", "data", "captions", "text")
        ]
        known = next((count for count in counts if count), None)
        limit = values.get("limit_train", 0)
        return min(known, limit) if known and limit else known

    def _seconds(self, step: SweepStep) -> float | None:
        """Seconds per optimizer step on one GPU; None if model size or row length is unknown."""
        _, training = step.settings
        speed = TOKENS_A_SECOND.get(self._size(step))
        if speed is None:
            return None
        values = step.values
        if values.get("training_step") == "villa":
            speed /= 1 + values["adversarial_steps"]
        if values.get("batch_tokens"):
            return values["batch_tokens"] * training.gradient_accumulation_steps / speed
        kinds = [self.sweep.sources[name] for name in references(values.get("data", ""))]
        rows = ROWS.get(kinds[0].kind, 1) if kinds else 1
        tokens = kinds[0].tokens if kinds else 0
        if not tokens:
            has_regions = bool(values.get("regions"))
            regions = (values["max_regions"] or REGIONS) if has_regions else 0
            tokens = values["max_length"] + regions
        return training.batch * rows * tokens / speed

    def _size(self, step: SweepStep) -> str:
        """Size of a step's model, from the weights that it, or an earlier step, starts from."""
        values = step.values
        for key in ("model", "student"):
            for name in references(values.get(key, "")):
                if self.sweep.sources[name].size:
                    return self.sweep.sources[name].size
        before = {one.name: one for one in self.steps}
        for name in step.after:
            size = self._size(before[name])
            if size:
                return size
        return ""

    def rows(self, step: SweepStep) -> dict[str, dict[str, str]]:
        """Settings of a step to show: value, the paper's value, its section, and the mark."""
        defaults = setting_values(*default_settings(step.command))
        rows = {}
        for name, value in step.values.items():
            note = step.notes.get(name)
            is_stated = note is not None or name in ALWAYS_SHOWN or value != defaults[name]
            if name in NEVER_SHOWN or not is_stated:
                continue
            if step.values.get(REPLACED_BY.get(name, "")):
                continue
            rows[name] = {
                "here": format_setting(value, self.titles),
                "paper": note.printed if note else "-",
                "where": note.source if note else "-",
                "mark": "input"
                if name in INPUTS and not note
                else paper_mark(note, value, self.titles),
            }
        return rows

    @cached_property
    def shown_settings(self) -> dict[str, dict[str, dict[str, str]]]:
        """`rows` of every step, by its name."""
        return {step.name: self.rows(step) for step in self.steps}

    def as_json(self) -> dict[str, Any]:
        """The whole plan as JSON: sources, steps with all shown settings, and totals."""
        return {
            "paper": self.sweep.title,
            "sources": [_source_json(source) for source in self.sources],
            "jobs": [self._step_json(step) for step in self.steps],
            "notes": self.notes,
            "gpu_hours": _sum(cost.hours for cost in self.costs.values()),
            "basis": HOURS_NOTE,
        }

    def _step_json(self, step: SweepStep) -> dict[str, Any]:
        cost = self.costs[step.name]
        return {
            "name": step.name,
            "command": step.command,
            "after": list(step.after),
            "needs": list(step.needs),
            "out": str(step.out),
            "examples": cost.examples,
            "optimizer_steps": cost.steps,
            "seeds": step.values.get("seeds", 1),
            "gpu_hours": cost.hours,
            "settings": self.shown_settings[step.name],
        }

    def lines(self) -> list[str]:
        """The whole plan as plain text of at most 120 columns."""
        title = self.sweep.title or "A sweep"
        lines = [f"# {title}", ""]
        lines += self._source_lines()
        lines += self._job_lines()
        for note in self.notes:
            lines += [*textwrap.wrap(f"note: {note}", WIDTH), ""]
        return [*lines, *self._setting_lines()]

    def _source_lines(self) -> list[str]:
        if not self.sources:
            return []
        lines = ["## Data and weights", ""]
        rows = [("name", "title", "state", "path, and for missing ones where to obtain them")]
        for source in self.sources:
            about = source.path
            if _state(source) == "missing":
                about = f"{source.path}; {source.available_from}"
            rows.append((source.name, source.title, _state(source), about))
        return [*lines, *columns(rows, (24, 22, 9, 0)), ""]

    def _job_lines(self) -> list[str]:
        rows = [("job", "command", "examples", "steps", "seeds", "GPU hours")]
        for step in self.steps:
            rows.append((step.name, step.command, *self._cost_cells(step)))
        known = [cost.hours for cost in self.costs.values() if cost.hours is not None]
        trained = [step for step in self.steps if step.settings[1] is not None]
        total = f"{len(self.steps)} jobs; {_hours(sum(known))} GPU hours for {len(known)} of {len(trained)} trainings."
        widths = (0, 9, 9, 9, 5, 9)
        return [
            "## Jobs",
            "",
            *columns(rows, widths),
            "",
            total,
            *textwrap.wrap(HOURS_NOTE, WIDTH),
            "",
        ]

    def _cost_cells(self, step: SweepStep) -> tuple[str, str, str, str]:
        """Table cells of examples, steps, seeds and hours."""
        cost = self.costs[step.name]
        if step.settings[1] is None:
            return "-", "-", "-", "-"
        seeds = str(step.values.get("seeds", 1))
        return _number(cost.examples), _number(cost.steps), seeds, _hours(cost.hours)

    def _setting_lines(self) -> list[str]:
        """Settings beside the paper's: those shared by all runs, then by a task, a variant, and a
        single job.
        """
        lines = ["## Settings beside the paper's", "", LEGEND, ""]
        remaining = dict(self.shown_settings)
        for heading, names in self._groups():
            common = _common([remaining[name] for name in names])
            if not common:
                continue
            for name in names:
                remaining[name] = {
                    key: row for key, row in remaining[name].items() if key not in common
                }
            rows = [("setting", "here", "paper", "section", "")]
            for key, row in common.items():
                rows.append((key, row["here"], row["paper"], row["where"], row["mark"]))
            lines += [f"### {heading}", "", *columns(rows, (18, 26, 18, 18, 0)), ""]
        return lines

    def _groups(self) -> list[tuple[str, list[str]]]:
        """Jobs that may share settings, from large groups to single jobs."""
        tuned = [step for step in self.steps if step.task]
        groups: dict[str, list[str]] = {}
        for step in self.steps:
            if step.command == "adapt":
                groups.setdefault("Every adaptation", []).append(step.name)
        for step in tuned:
            groups.setdefault("Every fine-tuning", []).append(step.name)
        for step in tuned:
            groups.setdefault(f"Task {step.task}", []).append(step.name)
        for step in tuned:
            groups.setdefault(f"Variant {step.variant}", []).append(step.name)
        for step in self.steps:
            groups[f"Job {step.name}"] = [step.name]
        return list(groups.items())


def _common(tables: Sequence[dict[str, dict[str, str]]]) -> dict[str, dict[str, str]]:
    """Rows that are equal in all tables."""
    first, *others = tables
    return {name: row for name, row in first.items() if all(one.get(name) == row for one in others)}


def _optimizer_steps(training: TrainingArguments, examples: int | None) -> int | None:
    if training.steps:
        return training.steps
    if examples is None or vars(training).get("batch_tokens"):
        return None
    # Rounded as `batch_sampler.count_steps` rounds.
    return max(1, math.floor(round(training.epochs * examples / training.batch, 10)))


def _state(source: SweepInput) -> str:
    if Path(source.path).exists():
        return "present"
    if source.command:
        return "made here"
    return "missing" if source.available_from else "hub id"


def missing(plan: SweepPlan) -> list[SweepInput]:
    """Data and weights that the user must obtain first."""
    return [source for source in plan.sources if _state(source) == "missing"]


def _source_json(source: SweepInput) -> dict[str, Any]:
    return {
        "name": source.name,
        "title": source.title,
        "path": source.path,
        "state": _state(source),
        "available_from": source.available_from,
    }


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _hours(value: float | None) -> str:
    return "?" if value is None else f"{value:,.1f}"


def _sum(values: Iterable[float | None]) -> float:
    return math.fsum(value for value in values if value is not None)


def columns(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """Rows as lines of at most 120 columns, cells wrapped; the column of width 0 gets the remaining
    room.

    The first row is the heading.
    """
    rest = WIDTH - sum(widths) - 2 * (len(widths) - 1)
    sizes = [width or rest for width in widths]
    lines = []
    for number, row in enumerate(rows):
        cells = [textwrap.wrap(cell, size) or [""] for cell, size in zip(row, sizes, strict=True)]
        for place in range(max(len(cell) for cell in cells)):
            parts = [
                (cell[place] if place < len(cell) else "").ljust(size)
                for cell, size in zip(cells, sizes, strict=True)
            ]
            lines.append("  ".join(parts).rstrip())
        if number == 0:
            lines.append("  ".join("-" * size for size in sizes))
    return lines
