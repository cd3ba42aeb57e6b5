"""Ask a text encoder what it knows of the rendered world: linear probes, visual questions, text-only controls."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from groundling.config import FinetuneConfig, ProbeConfig, TrainConfig
from groundling.errors import InputError
from groundling.find import instances
from groundling.load import load_student
from groundling.models.text import load_text_encoder
from groundling.recipes.finetune import one_run
from groundling.runs import finished, open_run, write_json
from groundling.tasks import Task
from groundling.tasks.attribute import ATTRIBUTES, noun_states, read_nouns


def probe(config: ProbeConfig, training: TrainConfig, out: str | Path) -> dict[str, Any]:
    """Accuracy by probe on dev and test nouns, written to `out/result.json`; the encoder itself stays as it is."""
    if not config.model or not config.data:
        raise InputError("probe needs --model and --data FOLDER_OF_A_WORLD")
    if not (Path(config.data) / "probes").is_dir():
        raise InputError(
            f"{config.data}: no rendered world; expected a folder `probes` (see `groundling data world`)"
        )
    inputs = {"model": config.model, "data": str(Path(config.data) / "probes")}
    folder = open_run(out, "probe", {**asdict(config), "train": asdict(training)}, inputs)
    if (done := finished(folder)) is not None:
        return done
    rows = read_nouns(Path(config.data))
    features = noun_states(load_text_encoder(config.model), rows, config.max_length)
    result: dict[str, Any] = {p.name: p.score(features, rows) for p in ATTRIBUTES}
    # Tuned, only the train nouns' word embeddings would move, and held-out nouns' lag.
    settings = FinetuneConfig(
        model=config.model, data=config.data, max_length=config.max_length, freeze_words=True
    )
    for name, task in instances("tasks", Task).items():
        if not name.startswith("world/"):
            continue
        splits = {split: task.read(Path(config.data), split) for split in ("train", "dev", "test")}
        own = folder / name.removeprefix("world/")
        own.mkdir(exist_ok=True)
        run = finished(own) or one_run(
            load_student(config.model), task, splits, training, own, settings
        )
        result[name] = {split: run["scores"][split]["accuracy"] for split in ("dev", "test")} | {
            "chance": 0.5
        }
    write_json(folder / "result.json", result)
    return result
