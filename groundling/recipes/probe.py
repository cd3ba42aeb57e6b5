"""Ask a text encoder what it knows of the rendered world: linear probes, visual questions, text-only controls."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config import FinetuneConfig, ProbeConfig, TrainConfig
from ..errors import InputError
from ..find import instances
from ..models.text import load_text_encoder
from ..runs import finished, open_run, write_json
from ..tasks import Task
from ..tasks.attribute import ATTRIBUTES, noun_states, read_nouns
from .finetune import one_run


def probe(config: ProbeConfig, training: TrainConfig, out: str | Path) -> dict[str, Any]:
    """Accuracy by probe on dev and test nouns, written to `out/result.json`; the encoder itself stays as it is."""
    if not config.model or not config.data:
        raise InputError("probe needs --model and --data FOLDER_OF_A_WORLD")
    if not (Path(config.data) / "probes").is_dir():
        raise InputError(f"{config.data}: no rendered world; expected a folder `probes` (see `groundling data world`)")
    inputs = {"model": config.model, "data": str(Path(config.data) / "probes")}
    out = open_run(out, "probe", {**asdict(config), "train": asdict(training)}, inputs)
    if (done := finished(out)) is not None:
        return done
    rows = read_nouns(Path(config.data))
    features = noun_states(load_text_encoder(config.model), rows, config.max_length)
    result: dict[str, Any] = {p.name: p.score(features, rows) for p in ATTRIBUTES}
    settings = FinetuneConfig(model=config.model, data=config.data, max_length=config.max_length)
    for name, task in instances("tasks", Task).items():
        if not name.startswith("world/"):
            continue
        splits = {split: task.read(Path(config.data), split) for split in (task.train, *task.dev)}
        folder = out / name.removeprefix("world/")
        folder.mkdir(exist_ok=True)
        run = finished(folder) or one_run(load_text_encoder(config.model), task, splits, training, folder, settings)
        result[name] = {split: run["scores"][split]["accuracy"] for split in task.dev} | {"chance": 0.5}
    write_json(out / "result.json", result)
    return result
