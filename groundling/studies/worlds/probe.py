"""Probes of a text encoder's knowledge about a world's nouns: linear probes, a readout, and fine-tuned questions.

Linear probes predict a noun's attributes from its hidden state: fitted on train nouns, with the ridge penalty chosen on
dev nouns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from math import log
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from groundling.commands.finetune import FinetuneConfig
from groundling.commands.finetune.run import FineTuning
from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.runs.run import Run
from groundling.settings.training import TrainingArguments
from groundling.stats.linear_probes import (
    SPLITS,
    TEXTUAL,
    fit_probes,
    noun_states,
    read_nouns,
    score_readout,
)
from groundling.studies.worlds.commands import ProbeConfig
from groundling.studies.worlds.tasks import ODD, questions_in
from groundling.tasks import Task
from groundling.training.batch_sampler import check_batch
from groundling.vision_language.loading import load_encoder

LEARNED = 0.98
"""A fine-tuned probe trained if its final training loss is below this share of the guessing loss."""
READOUT = "readout/odd"
"""Odd-one-out questions, answered by the linear probes of the nouns' visual attributes."""
ExamplesBySplit = Mapping[str, Sequence[Example]]
"""A question's examples by split."""


def probe(config: ProbeConfig, training: TrainingArguments, run: Run) -> dict[str, Any]:
    """Accuracy by probe on dev and test nouns, written to `result.json`; the encoder's folder does not change.

    Linear probes and the readout are deterministic. Each question is fine-tuned with `config.seeds` seeds: accuracies
    are means over the seeds whose probe trained, and None if none did. Raises InputError if the folder contains no
    probes or an invalid one.
    """
    world = Path(config.data)
    tasks = questions_in(world, config.questions)
    has_nouns = (world / "probes" / "attribute.tsv").is_file()
    if not tasks and not has_nouns:
        raise InputError(
            f"{config.data}: no probes; expected a folder `probes` with attribute.tsv or NAME_train.tsv, "
            "NAME_dev.tsv and NAME_test.tsv (`groundling data make-world` writes one)"
        )
    rows = read_nouns(world, config.columns) if has_nouns else []
    # All files are read before training, to report errors early.
    examples = {task.name: {split: task.read(world, split) for split in SPLITS} for task in tasks}
    for task in tasks:
        if not training.batch_tokens:
            count = len(examples[task.name][task.train])
            check_batch(task.file(world, task.train), count, training.batch)
    result: dict[str, Any] = {}
    if rows:
        result |= _run_linear_probes(config, rows, examples.get(ODD.name))
    for task in tasks:
        result[task.name] = _run_fine_tuned_probes(task, examples[task.name], config, training, run)
    return result


def _run_linear_probes(
    config: ProbeConfig, rows: list[dict[str, str]], odd: ExamplesBySplit | None
) -> dict[str, Any]:
    """Results of the probes of frozen states: one per attribute, and the readout of all visual attributes."""
    states = noun_states(load_encoder(config.model, config.model_format), rows, config.max_length)
    probes = fit_probes(states, rows)
    result: dict[str, Any] = {name: one.score() for name, one in probes.items()}
    visual = [one for one in probes.values() if one.column != TEXTUAL]
    if odd is not None and visual:
        names = [row["noun"] for row in rows]
        scores = {split: score_readout(visual, names, odd[split]) for split in ("dev", "test")}
        result[READOUT] = {**scores, "chance": _chance(odd["test"])}
    return result


def _run_fine_tuned_probes(
    task: Task, splits: ExamplesBySplit, config: ProbeConfig, training: TrainingArguments, run: Run
) -> dict[str, Any]:
    """Accuracy of a question's fine-tuned probes for every seed, and the mean of the seeds whose probe trained."""
    # Word embeddings are frozen, since training would update only those of train nouns.
    settings = FinetuneConfig(
        model=config.model,
        data=config.data,
        max_length=config.max_length,
        freeze_word_embeddings=True,
        model_format=config.model_format,
        save_model=False,
    )
    seeds = range(training.seed, training.seed + config.seeds)
    tuning = FineTuning(task, settings, training, run, splits)
    place = task.name.removeprefix("world/")
    runs = [run.part(f"{place}/seed-{seed}", partial(tuning.run_seed, seed)) for seed in seeds]
    summary: dict[str, Any] = {"chance": _chance(splits["test"]), "seeds": list(seeds)}
    losses = [one["train_metrics"]["loss"] for one in runs]
    guessing = _guessing_loss(splits["train"])
    learned = [loss < LEARNED * guessing for loss in losses]
    scores = {
        split: [one["scores"][split]["accuracy"] for one in runs] for split in ("dev", "test")
    }
    for split, values in scores.items():
        trained = [value for value, has_learned in zip(values, learned, strict=True) if has_learned]
        summary[split] = mean(trained) if trained else None
        summary[f"{split}_sd"] = stdev(trained) if len(trained) > 1 else None
    more = {"losses": losses, "guessing_loss": guessing, "learned": learned}
    return summary | {"scores": scores, **more}


def _chance(examples: Sequence[Example]) -> float:
    return max(Counter(example.label for example in examples).values()) / len(examples)


def _guessing_loss(examples: Sequence[Example]) -> float:
    """Entropy of the label distribution in nats; 0.693 for two equally frequent labels."""
    counts = Counter(example.label for example in examples).values()
    return -sum(count / len(examples) * log(count / len(examples)) for count in counts)
