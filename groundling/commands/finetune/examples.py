"""The examples of a task that a run reads: which splits, which few of them, and which without their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from groundling.commands.finetune import FinetuneConfig
from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.find import described, named
from groundling.core.forms import Classify
from groundling.data.regions.paired import check_mentioned
from groundling.data.samples import thinned, together, untagged
from groundling.tasks import Task
from groundling.tasks.glue import from_hub
from groundling.tasks.partitions import left_over, taken
from groundling.tasks.table import own_task

Splits = Mapping[str, Sequence[Example]]
"""Examples by split."""


def task_of(config: FinetuneConfig) -> Task:
    """The task by its name, or the one that the user's own file makes; raises InputError for an unknown one."""
    if config.own.label:
        return own_task(Path(config.data), config.own)
    return named("tasks", Task, config.task).at(Path(config.data))


def trained_on(task: Task, config: FinetuneConfig) -> list[str]:
    """The splits that are evaluated although they are learned from; raises InputError for a split there is not."""
    learned = task.learned(config.train_splits)
    return [split for split in task.dev if split in learned]


def read_splits(task: Task, config: FinetuneConfig) -> dict[str, list[Example]]:
    """Every split that is wanted, the training one cut to `max_train`."""
    folder = Path(config.data)
    if config.data != "hub" and not folder.exists():
        raise InputError(f"{config.data}: no such folder or file of data")
    learned = config.train_splits or (task.train,)
    wanted = [*learned, *task.dev]
    if config.submit:
        wanted += task.test
    parts = {}
    for split in dict.fromkeys(wanted):
        if config.data == "hub":
            parts[split] = from_hub(task, split)
        else:
            parts[split] = _checked(task, split, task.read(folder, split))
    examples = together({split: parts[split] for split in learned})
    few = examples
    if config.partition:
        few = taken(examples, Path(config.partition), task, folder)
    rest = _unlabelled(examples, few, task, config) if config.unlabelled else []
    parts[task.train] = [*thinned(few, config.max_train), *rest]
    if config.regions.mentioned:
        check_mentioned(parts[task.train], task.name, config.regions.tags)
    if config.regions.tags:
        return parts
    return {split: [untagged(example) for example in some] for split, some in parts.items()}


def _checked(task: Task, split: str, examples: object) -> list[Example]:
    """What a task's reader returned; raises InputError if these are not examples, or a class is none of the form's."""
    if not isinstance(examples, list):
        raise InputError(
            f"{task.name}: `read` returned {described(examples)} for {split!r}, expected a list of Example"
        )
    classes = len(task.form.labels) if isinstance(task.form, Classify) else 0
    for example in examples:
        if not isinstance(example, Example):
            raise InputError(
                f"{task.name}: `read` returned {described(example)} among those of {split!r}, expected an Example"
            )
        label = example.label
        if classes and label is not None and label not in range(classes):
            raise InputError(
                f"{task.name}: {example.id} of {split!r} has the label {label!r}, expected a number from 0 to "
                f"{classes - 1}, or None"
            )
    return examples


def _unlabelled(
    examples: Sequence[Example], few: Sequence[Example], task: Task, config: FinetuneConfig
) -> list[Example]:
    """The training examples outside the partition, which keep no label; raises InputError if there are none."""
    if task.mark is not None:
        raise InputError(
            f"--unlabelled {config.unlabelled}: the labels of {task.name} come with the regions and cannot be withheld"
        )
    rest = left_over(examples, few, task, Path(config.data))
    if not rest:
        raise InputError(
            f"--unlabelled {config.unlabelled}: {config.partition} takes all {len(examples)} training examples of "
            f"{task.name}, so that none is left without a label"
        )
    return rest
