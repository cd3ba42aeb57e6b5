"""Fine-tune a model on a task, over seeds, and report medians."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from accelerate import PartialState

from ..checkpoint import Checkpoints, load_head, save_heads
from ..config import FinetuneConfig, TrainConfig
from ..data.paired import RegionSamples
from ..data.regions import RegionStore
from ..data.samples import Example, TextSamples
from ..errors import InputError
from ..evaluate import evaluate
from ..find import named
from ..keyed import seed_of
from ..models.student import load_student
from ..runs import disk_errors, finished, open_run, write_json
from ..tasks import Task
from ..tasks.glue import from_hub
from ..tasks.table import own_task
from ..train import train


def finetune(config: FinetuneConfig, training: TrainConfig, out: str | Path) -> dict[str, Any]:
    """Fine-tune once per seed in `out/seed-N`, evaluate, and write medians to `out/result.json`; returns the result."""
    task_or_label = "task (or --text and --label for your own file)"
    for field, value in (("model", config.model), ("data", config.data), (task_or_label, config.task or config.label)):
        if not value:
            raise InputError(f"finetune needs --{field}")
    task = own_task(config) if config.label else named("tasks", Task, config.task).at(Path(config.data))
    state = PartialState(cpu=training.cpu)
    inputs = {"model": config.model, "data": config.data} | ({"dev": config.dev} if config.dev else {})
    inputs |= {"regions": str(Path(config.regions) / "manifest.json")} if config.regions else {}
    with state.main_process_first():
        settings = {**asdict(config), "train": asdict(training)}
        settings.pop("seeds")  # more seeds later are the same run, continued
        settings["train"].pop("seed")
        folder = open_run(out, "finetune", settings, inputs)

    splits: dict[str, list[Example]] = {}
    runs = []
    for seed in range(training.seed, training.seed + config.seeds):
        own = folder / f"seed-{seed}"
        own.mkdir(exist_ok=True)
        done = finished(own)
        if done is None:
            splits = splits or _read(task, config)
            student = load_student(config.model)
            done = one_run(student, task, splits, replace(training, seed=seed), own, config)
        runs.append(done)
    result = summary(task, runs, config)
    if state.is_main_process:
        write_json(folder / "result.json", result)
    return result


def one_run(
    student: Any,
    task: Task,
    splits: dict[str, list[Example]],
    training: TrainConfig,
    folder: Path,
    config: FinetuneConfig,
) -> dict[str, Any]:
    """One seed: train, evaluate on every dev split, write predictions; returns scores by split and metric."""
    torch.manual_seed(seed_of(training.seed, "init", task.name))
    objective = task.objective(student.sizes)
    if objective.pooler is not None and student.sizes.visual:  # a cross-modal model's was trained by `Match`
        load_head(Path(config.model), objective.pooler, "match.pooler")
    student.word_embeddings().requires_grad_(not config.freeze_words)
    text, clip = student.inputs(config.max_length)
    samples: dict[str, Any] = {split: TextSamples(examples, text, clip) for split, examples in splits.items()}
    if config.regions:
        samples = seen(samples, student, task, config)
    elif task.mark is not None:
        raise InputError(f"{task.name} asks for regions; pass --regions STORE")
    result = train(student, [objective], samples[task.train], training, folder)
    state = PartialState()
    scores = {}
    for split in samples:
        if split == task.train:
            continue
        found = evaluate(student, objective, task, samples[split])
        if state.is_main_process:
            found.write(folder / f"predictions_{split}.jsonl")
            if split in task.test:
                with disk_errors(folder / task.test[split]):
                    (folder / task.test[split]).write_text(
                        task.submission(split, found.ids, found.predictions), encoding="utf-8"
                    )
        if found.labels is not None:
            scores[split] = found.metrics | task.official(Path(config.data), split, found.ids, found.predictions)
            if np.ptp(found.predictions) == 0:
                scores[split]["constant"] = 1.0  # a collapsed run: reported, never dropped
    about = {"task": task.name, "metrics": [m.name for m in task.metrics], "splits": list(task.dev)}
    done = {"seed": training.seed, **about, "scores": scores, **result}
    if state.is_main_process:
        if config.save_model:
            with disk_errors(folder / "model"):
                student.export(folder / "model")
                save_heads(folder / "model", [objective])
        write_json(folder / "result.json", done)
        Checkpoints(folder / "checkpoints").clear()
    state.wait_for_everyone()
    return done


def seen(samples: dict[str, Any], student: Any, task: Task, config: FinetuneConfig) -> dict[str, Any]:
    """The same samples with their images' regions; raises InputError if the model reads none, or of another width."""
    store = config.regions
    if not student.sizes.regions:
        raise InputError(f"--regions {store}: this model reads no regions; expected a single-stream model")
    regions = RegionStore(store)
    if regions.width != student.sizes.regions:
        raise InputError(f"{store}: features are {regions.width} wide, the model reads {student.sizes.regions}")
    options = {"whole": student.whole, "most": config.most_regions, "mark": task.mark}
    options["phrases"] = task.form.reads == "phrase"
    return {k: RegionSamples(v, regions, **options) for k, v in samples.items()}


def summary(task: Task, runs: list[dict[str, Any]], config: FinetuneConfig) -> dict[str, Any]:
    """Every seed's scores and their medians, by split and metric."""
    medians: dict[str, dict[str, float]] = {}
    every: dict[str, dict[str, list[float]]] = {}
    for split in task.dev:
        present = [run for run in runs if split in run["scores"]]
        every[split] = {m.name: [run["scores"][split][m.name] for run in present] for m in task.metrics}
        for name, values in every[split].items():
            defined = [value for value in values if isfinite(value)]
            medians.setdefault(split, {})[name] = median(defined) if defined else float("nan")
    collapsed = [run["seed"] for run in runs if any("constant" in s for s in run["scores"].values())]
    return {
        "task": task.name,
        "version": task.version,
        "model": config.model,
        "headline": task.metrics[0].name,
        "seeds": [run["seed"] for run in runs],
        "scores": every,
        "median": medians,
        "collapsed_seeds": collapsed,
        "dropped_pieces": sum(run["dropped_pieces"] for run in runs),
    }


def _read(task: Task, config: FinetuneConfig) -> dict[str, list[Example]]:
    read: Callable[[str], list[Example]]
    if config.data == "hub":
        read = lambda split: from_hub(task, split)  # noqa: E731
    else:
        if not Path(config.data).exists():
            raise InputError(f"{config.data}: no such folder or file of data")
        read = lambda split: task.read(Path(config.data), split)  # noqa: E731
    wanted = [task.train, *task.dev, *(task.test if config.submit else ())]
    splits = {split: read(split) for split in wanted}
    if config.max_train and config.max_train < len(splits[task.train]):
        examples = splits[task.train]
        keep = np.linspace(0, len(examples) - 1, config.max_train).round().astype(int)
        splits[task.train] = [examples[i] for i in keep]
    return splits
