"""Whether gains go with the share of visually grounded words, as a command (XDBERT, Figure 4 and Appendix D)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.find import named
from groundling.models.loading import load_tokenizer
from groundling.runs.folder import write_whole
from groundling.runs.report import Section, write_report
from groundling.runs.run import Run
from groundling.stats.finished_runs import collect
from groundling.stats.verdict import Runs
from groundling.studies.xdbert.commands import GroundedConfig
from groundling.studies.xdbert.gains import Split, analyse, figure, listing, null_split, split
from groundling.studies.xdbert.word_counts import Grounding
from groundling.tasks import Task


def grounded(config: GroundedConfig, out: str | Path) -> dict[str, Any]:
    """Compare the grounded ratios of examples that a model improves with those that it worsens.

    Writes `out/result.json` (returned), the box plot as `grounded.html` and `grounded.png`, and the most extreme
    examples as `examples.md`. Raises InputError if a setting is missing, a run folder has no finished run of the task,
    or runs and data do not hold the same examples.
    """
    task = named("tasks", Task, config.task)
    base = _runs_of(config.task, "base", config.base)
    other = _runs_of(config.task, "other", config.other)
    examples = _examples(task, config, base, other)
    seeds = [seed for seed in base.seeds if seed in other.seeds]
    if len(seeds) < 2:
        raise InputError(f"{len(seeds)} seeds are in both run folders, at least 2 are needed")
    grounding = Grounding.read(config.counts, load_tokenizer(config.tokenizer), config.threshold)
    run = Run(out, "grounded", asdict(config), {"counts": config.counts})
    folder = run.folder

    right_base = base.right(seeds)
    right_other = other.right(seeds)
    ratios = np.array([grounding.ratio(e.text, e.pair, config.variant) for e in examples])
    lengths = [len(e.text) + len(e.pair or "") for e in examples]
    gains = analyse(ratios, right_base, right_other, lengths, base.labels)
    result = {"task": task.name, "seeds": seeds, **gains}

    picture = figure(
        _by_group(ratios, split(right_base, right_other)),
        _by_group(ratios, null_split(right_base)),
        folder / "grounded.png",
    )
    sections = [
        Section("Figure 4", figure=picture),
        Section("Groups of examples", rows=_group_rows(gains)),
    ]
    title = f"Visually grounded ratio of {task.name}"
    write_report(folder / "grounded.html", title, sections)
    markdown = listing(grounding, examples, right_base, right_other, variant=config.variant)
    write_whole(folder / "examples.md", markdown)
    return run.finish(result)


def _runs_of(task: str, name: str, folder: str) -> Runs:
    by_task = collect(name, folder, (task,))
    if task not in by_task:
        raise InputError(f"{folder}: no finished run of {task}; there are {', '.join(by_task)}")
    runs, _ = by_task[task]
    return runs


def _examples(task: Task, config: GroundedConfig, base: Runs, other: Runs) -> list[Example]:
    """The task's development examples in the order of the runs."""
    by_id = {example.id: example for example in task.read(Path(config.data), task.dev[0])}
    if base.ids != other.ids or set(base.ids) != set(by_id):
        raise InputError(
            f"{config.base}, {config.other} and {config.data} do not hold the same examples"
        )
    return [by_id[name] for name in base.ids]


def _by_group(ratios: np.ndarray, parts: Split) -> dict[str, np.ndarray]:
    return {name: ratios[group] for name, group in parts._asdict().items()}


def _group_rows(gains: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row for each group of the models and of the null split."""
    rows = []
    for comparison in ("models", "null"):
        for name, summary in gains[comparison]["groups"].items():
            row = {"": f"{comparison}: {name}"}
            for key, value in summary.items():
                row[key] = "-" if value is None else f"{value:.3g}"
            rows.append(row)
    return rows
