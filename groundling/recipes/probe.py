"""Ask a text encoder what it knows of the rendered world: linear probes, visual questions, text-only controls."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from groundling.config import FinetuneConfig, ProbeConfig, TrainConfig, need
from groundling.errors import InputError
from groundling.find import instances
from groundling.recipes.finetune import one_run
from groundling.recipes.lifecycle import Run
from groundling.runs import finished
from groundling.students import load_student
from groundling.tasks import Task
from groundling.tasks.attribute import ATTRIBUTES, noun_states, read_nouns


def probe(config: ProbeConfig, training: TrainConfig, out: str | Path) -> dict[str, Any]:
    """Accuracy by probe on dev and test nouns, written to `out/result.json`; the encoder itself stays as it is.

    Raises InputError if the folder holds no rendered world.
    """
    need(config, "probe", "model", "data")
    world = Path(config.data)
    if not (world / "probes").is_dir():
        raise InputError(
            f"{config.data}: no rendered world; expected a folder `probes` (see `groundling data world`)"
        )
    settings = {**asdict(config), "train": asdict(training)}
    inputs: dict[str, str | Path] = {"model": config.model, "data": world / "probes"}
    run = Run(out, "probe", settings, inputs, training.cpu)
    if run.result is not None:
        return run.result
    nouns = read_nouns(world)
    states = noun_states(load_student(config.model, config.kind), nouns, config.max_length)
    result: dict[str, Any] = {one.name: one.score(states, nouns) for one in ATTRIBUTES}
    # Tuned, only the train nouns' word embeddings would move, and held-out nouns' lag.
    tuning = FinetuneConfig(
        model=config.model,
        data=config.data,
        max_length=config.max_length,
        freeze_words=True,
        kind=config.kind,
        save_model=False,
    )
    for name, task in instances("tasks", Task).items():
        if name.startswith("world/"):
            result[name] = _asked(task, tuning, training, run.folder)
    return run.finish(result)


def _asked(
    task: Task, tuning: FinetuneConfig, training: TrainConfig, folder: Path
) -> dict[str, float]:
    """Accuracy of a fine-tuned probe on both splits."""
    probe_folder = folder / task.name.removeprefix("world/")
    probe_folder.mkdir(exist_ok=True)
    done = finished(probe_folder)
    if done is None:
        splits = {split: task.read(Path(tuning.data), split) for split in ("train", "dev", "test")}
        student = load_student(tuning.model, tuning.kind)
        done = one_run(student, task, splits, training, probe_folder, tuning)
    scores = {split: done["scores"][split]["accuracy"] for split in ("dev", "test")}
    return {**scores, "chance": 0.5}
