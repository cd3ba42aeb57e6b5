"""The texts of a task that a model is pre-trained on, with what is right, with any answer, or judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.forms import Answer, Choose, Classify
from groundling.data.samples import together, with_choice
from groundling.tasks import Task
from groundling.tasks.partitions import hidden_versions, taken


def task_texts(
    task: Task,
    folder: Path,
    tags: bool = False,
    partition: str = "",
    splits: Sequence[str] = (),
) -> list[Example]:
    """A task's training texts with what is right, for masked LM on its own images (VisualBERT Appendix A).

    A question is followed by its best answer (the release takes the answer apart into letters), a choice by the right
    one, a statement stands alone. With `tags` texts keep the places that name objects, and what these are; with
    `partition` they are those of that file's examples; `splits` are those of the task, if not its training split alone.
    Raises InputError if a multiple choice has no label.
    """
    texts = []
    for example in _within(task, folder, partition, _read(task, folder, splits)):
        if example.choices and not isinstance(example.label, int):
            raise InputError(
                f"{example.id}: a multiple choice without a label cannot be pre-trained on"
            )
        if isinstance(example.label, int) and example.choices:
            example = with_choice(example, example.label)
        elif isinstance(task.form, Answer):
            example = replace(example, pair=task.form.best(example.label) or None)
        texts.append(_as_text(example, tags))
    return _once(texts, task)


def _once(texts: Sequence[Example], task: Task) -> list[Example]:
    """The texts; where examples are phrases of captions, every caption stands there once (release: Flickr30k)."""
    if task.form.reads != "phrase":
        return list(texts)
    return list({(text.text, text.images): text for text in reversed(texts)}.values())[::-1]


def judged_texts(
    task: Task,
    folder: Path,
    tags: bool = False,
    partition: str = "",
    splits: Sequence[str] = (),
) -> list[Example]:
    """A task's training texts with labels that say whether they are right: choices, or statements, true or false.

    As VisualBERT's code pre-trains on VCR and NLVR2. Raises InputError for a task of another form.
    """
    form = task.form
    says_it = isinstance(form, Choose) or (isinstance(form, Classify) and len(form.labels) == 2)
    if not says_it or task.mark is not None:
        raise InputError(
            f"--task-answers judged: texts of {task.name} are neither right nor wrong; expected a multiple choice "
            "(vcr) or statements that are true or false (nlvr2)"
        )
    examples = _within(task, folder, partition, _read(task, folder, splits))
    without = [example.id for example in examples if example.label is None]
    if without:
        raise InputError(f"{without[0]}: nobody says whether it is right ({len(without)} such)")
    return [replace(_as_text(example, tags), label=example.label) for example in examples]


def unlabelled_texts(
    task: Task,
    folder: Path,
    tags: bool = False,
    partition: str = "",
    splits: Sequence[str] = (),
) -> list[tuple[Example, ...]]:
    """All versions of each of a task's training texts that somebody could write who has not seen the labels.

    A question with choices is an example with all of them; a question without stands alone. With `partition` they are
    those of that file's examples; `splits` as for `task_texts`.
    """
    examples = _read(task, folder, splits)
    inside = {example.id for example in _within(task, folder, partition, examples)}
    pairs = zip(examples, hidden_versions(examples, task, folder, splits), strict=True)
    kept = [versions for example, versions in pairs if example.id in inside]
    texts = [tuple(_as_text(example, tags) for example in versions) for versions in kept]
    first = {text.id for text in _once([versions[0] for versions in texts], task)}
    return [versions for versions in texts if versions[0].id in first]


def _read(task: Task, folder: Path, splits: Sequence[str]) -> list[Example]:
    return together({split: task.read(folder, split) for split in splits or (task.train,)})


def _within(
    task: Task, folder: Path, partition: str, examples: Sequence[Example]
) -> Sequence[Example]:
    return taken(examples, Path(partition), task, folder) if partition else examples


def _as_text(example: Example, tags: bool) -> Example:
    """The example without its label, and, but with `tags`, without the places that name objects or phrases."""
    text = replace(example, label=None, gold=None, official="")
    if tags and example.objects:
        return text
    return replace(text, tags=(), choice_tags=(), objects=0, names=(), mentioned=())
