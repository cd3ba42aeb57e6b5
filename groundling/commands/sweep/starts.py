"""Whether what a row starts from has read answers that the row holds back. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from groundling.command.names import TOLD
from groundling.commands.sweep.parts import Source, references
from groundling.commands.sweep.steps import Step

OWN_SPLIT = ("train",)
"""What every task learns from where nobody names splits."""


@dataclass(frozen=True)
class Read:
    """Answers that a model has read: of which data, splits and examples."""

    by: str
    """What read them: a step, or the weights themselves."""
    data: tuple[str, ...]
    """References to the data."""
    splits: tuple[str, ...] = ()
    """Splits; empty: the task's own training split."""
    only: str = ""
    """The file of examples that were read alone; empty: all of the splits."""


def held_back(steps: Sequence[Step], sources: Mapping[str, Source]) -> list[str]:
    """A line for each fine-tuning whose start has read answers of its data that the fine-tuning itself holds back.

    Those are answers of training examples outside its partition, and of splits that it does not learn from.
    """
    return [
        f"{step.name}: {read.by} has read the right answers of {told}, which this row holds back"
        for step in steps
        if step.command == "finetune"
        for read in _read_by_the_start(step, steps, sources)
        for told in _beyond(read, step)
    ]


def _beyond(read: Read, step: Step) -> list[str]:
    """What was read beyond what a fine-tuning learns from; nothing where the data are others."""
    values = step.values
    data = references(values["data"])
    if not set(read.data) & set(data):
        return []
    found = []
    learned = values["train_splits"] or OWN_SPLIT
    more = [split for split in read.splits or OWN_SPLIT if split not in learned]
    if more:
        found.append(f"{' and '.join(more)} of {data[0]}")
    if values["partition"] and read.only != values["partition"]:
        found.append(f"{data[0]} outside {values['partition']}")
    if values["max_train"] and not read.only:
        found.append(f"{data[0]} beyond {values['max_train']:,} examples")
    return found


def _read_by_the_start(
    step: Step, steps: Sequence[Step], sources: Mapping[str, Source]
) -> list[Read]:
    """Every reading of answers by what a step starts from, and by what that started from."""
    start = str(step.values["model" if step.command == "finetune" else "student"])
    found = []
    for name in references(start):
        source = sources[name]
        found += [Read(source.title, (data,)) for data in references(source.answers)]
        if source.command == "finetune":
            made = Step(name, source.command, source.settings, Path(source.path))
            found += [_read(made), *_read_by_the_start(made, steps, sources)]
    for before in steps:
        if start.startswith(f"{before.out}/") and before.command in ("adapt", "pretrain"):
            if before.command == "pretrain" and _tells(before):
                found.append(_read(before))
            found += _read_by_the_start(before, steps, sources)
    return found


def _tells(step: Step) -> bool:
    """Whether a pre-training reads what is right."""
    answers = step.values["task_answers"]
    return answers == "judged" or (answers == "right" and step.values["task"] in TOLD)


def _read(step: Step) -> Read:
    values = step.values
    data = tuple(references(values["data"]))
    return Read(step.name, data, tuple(values["train_splits"]), values["partition"])
