"""Ask a text encoder what it knows of a world's nouns: linear probes, a readout, and questions it is fine-tuned on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from groundling.commands.finetune import FinetuneConfig
from groundling.commands.finetune.run import one_run
from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.runs.run import Part, Run
from groundling.settings.training import TrainConfig
from groundling.studies.worlds.commands import ProbeConfig
from groundling.studies.worlds.linear_probes import (
    TEXTUAL,
    attributes_of,
    noun_states,
    read_nouns,
    readout,
)
from groundling.studies.worlds.tasks import ODD, questions_in
from groundling.tasks import Task
from groundling.vision_language.loading import load_student

LEARNED = 0.98
"""A probe has learned something if its training loss ends below this share of what guessing costs."""
READOUT = "readout/odd"
"""The odd one out, told by the linear probes of the nouns' looks."""
SPLITS = ("train", "dev", "test")

Splits = Mapping[str, Sequence[Example]]
"""A question's examples by split."""


def probe(config: ProbeConfig, training: TrainConfig, run: Run) -> dict[str, Any]:
    """Accuracy by probe on dev and test nouns, written to `result.json`; the encoder itself stays as it is.

    Linear probes and the readout are fixed by the encoder's states. A question is fine-tuned on `config.seeds` times:
    its accuracies are means over the seeds that learned anything, and None if none did. Raises InputError if the
    folder holds nothing to ask, or something that cannot be asked.
    """
    world = Path(config.data)
    tasks, rows = _asked(config, world)
    # Everything is read before anything is trained: a mistake in the last file is told at once.
    examples = {task.name: {split: task.read(world, split) for split in SPLITS} for task in tasks}
    for task in tasks:
        _check_batch(len(examples[task.name][task.train]), task.file(world, task.train), training)
    result: dict[str, Any] = {}
    if rows:
        result |= _read(config, rows, examples.get(ODD.name), world)
    for task in tasks:
        result[task.name] = _tuned(task, examples[task.name], config, training, run)
    return result


def _check_batch(count: int, file: Path, training: TrainConfig) -> None:
    """Raises InputError if a question has fewer examples than a step learns from."""
    if not training.batch_tokens and count < training.batch:
        raise InputError(
            f"{file}: {count} examples are fewer than one batch of {training.batch}; lower --batch"
        )


def _asked(config: ProbeConfig, world: Path) -> tuple[list[Task], list[dict[str, str]]]:
    """The questions of a folder, and its nouns with their attributes; raises InputError if it has neither."""
    tasks = questions_in(world, config.questions)
    has_nouns = (world / "probes" / "attribute.tsv").is_file()
    if not tasks and not has_nouns:
        raise InputError(
            f"{config.data}: nothing to ask; expected a folder `probes` with attribute.tsv or NAME_train.tsv, "
            "NAME_dev.tsv and NAME_test.tsv (`groundling data world` writes one)"
        )
    if config.columns and not has_nouns:
        raise InputError(f"--columns: {world / 'probes'} holds no attribute.tsv")
    return tasks, read_nouns(world, config.columns) if has_nouns else []


def _read(
    config: ProbeConfig, rows: list[dict[str, str]], odd: Splits | None, world: Path
) -> dict[str, Any]:
    """What frozen states tell: an attribute each, and from all looks together the odd one out."""
    states = noun_states(load_student(config.model, config.kind), rows, config.max_length)
    probes = attributes_of(rows)
    result: dict[str, Any] = {one.name: one.score(states, rows) for one in probes}
    looks = [one for one in probes if one.column != TEXTUAL]
    if odd is None or not looks:
        return result
    shares = [one.shares(states, rows) for one in looks]
    names = [row["noun"] for row in rows]
    scores = {
        split: readout(shares, names, odd[split], ODD.file(world, split))
        for split in ("dev", "test")
    }
    return result | {READOUT: {**scores, "chance": _chance(odd["test"])}}


def _tuned(
    task: Task, splits: Splits, config: ProbeConfig, training: TrainConfig, run: Run
) -> dict[str, Any]:
    """Accuracy of a question's fine-tuned probes, seed by seed, and the mean of those that learned something."""
    # Tuned, only the train nouns' word embeddings would move, and held-out nouns' lag.
    tuning = FinetuneConfig(
        model=config.model,
        data=config.data,
        max_length=config.max_length,
        freeze_words=True,
        kind=config.kind,
        save_model=False,
    )
    runs = []
    seeds = range(training.seed, training.seed + config.seeds)
    for seed in seeds:
        place = f"{task.name.removeprefix('world/')}/seed-{seed}"

        def one_seed(part: Part, seed: int = seed) -> dict[str, Any]:
            student = load_student(config.model, config.kind)
            return one_run(student, task, splits, replace(training, seed=seed), part, tuning)

        runs.append(run.part(place, one_seed, lambda done: _summary([done], splits)))
    return {"chance": _chance(splits["test"]), "seeds": list(seeds), **_summary(runs, splits)}


def _summary(runs: Sequence[Mapping[str, Any]], splits: Splits) -> dict[str, Any]:
    """Every seed's accuracies and whether it learned something, and the mean of those that did."""
    losses = [run["last"]["loss"] for run in runs]
    guessing = _guessing_loss(splits["train"])
    learned = [loss < LEARNED * guessing for loss in losses]
    scores = {
        split: [run["scores"][split]["accuracy"] for run in runs] for split in ("dev", "test")
    }
    told: dict[str, Any] = {}
    for split, values in scores.items():
        counted = [value for value, has_learned in zip(values, learned, strict=True) if has_learned]
        told[split] = mean(counted) if counted else None
        told[f"{split}_sd"] = stdev(counted) if len(counted) > 1 else None
    told |= {"scores": scores, "losses": losses, "guessing_loss": guessing, "learned": learned}
    return told


def _chance(examples: Sequence[Example]) -> float:
    """The accuracy of the best single answer."""
    return max(Counter(example.label for example in examples).values()) / len(examples)


def _guessing_loss(examples: Sequence[Example]) -> float:
    """Cross-entropy, nats, of who knows the labels' shares and nothing else; .693 for two equally frequent ones."""
    counts = Counter(example.label for example in examples).values()
    return -sum(count / len(examples) * log(count / len(examples)) for count in counts)
