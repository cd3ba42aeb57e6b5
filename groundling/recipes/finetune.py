"""Fine-tune a model on a task, over seeds, and report medians."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from accelerate import PartialState

from groundling.batch import Example
from groundling.checkpoint import Checkpoints, load_head, save_heads
from groundling.config import FinetuneConfig, OwnFile, TrainConfig
from groundling.data.paired import RegionSamples
from groundling.data.pictures import Pictured
from groundling.data.regions import RegionStore
from groundling.data.samples import TextSamples
from groundling.errors import InputError
from groundling.evaluate import evaluate
from groundling.find import named
from groundling.joins.end_to_end import EndToEnd
from groundling.joins.readouts import PLAIN, Readout, answer_rows, readout
from groundling.keyed import seed_of
from groundling.load import load_student
from groundling.models.single_stream import SingleStream, join_to
from groundling.objectives.supervised import Supervised
from groundling.recipes.adapt import vocabulary
from groundling.runs import disk_errors, finished, open_run, write_json
from groundling.tasks import Task
from groundling.tasks.glue import from_hub
from groundling.tasks.table import own_notes, own_task
from groundling.train import train


def finetune(config: FinetuneConfig, training: TrainConfig, out: str | Path) -> dict[str, Any]:
    """Fine-tune once per seed in `out/seed-N`, evaluate, and write medians to `out/result.json`; returns the result."""
    task_or_label = "task (or --text and --label for your own file)"
    for field, value in (
        ("model", config.model),
        ("data", config.data),
        (task_or_label, config.task or config.label),
    ):
        if not value:
            raise InputError(f"finetune needs --{field}")
    if config.images and not config.regions:
        raise InputError(
            f"--images {config.images}: pass --regions STORE, too, which says where to look"
        )
    notes: list[str] = []
    if config.label:
        columns = own_file(config)
        task = own_task(Path(config.data), columns)
        notes = own_notes(Path(config.data), columns)
    else:
        task = named("tasks", Task, config.task).at(Path(config.data))
    state = PartialState(cpu=training.cpu)
    for note in notes if state.is_main_process else ():
        print(f"note: {note}", file=sys.stderr)
    inputs = {"model": config.model, "data": config.data} | (
        {"dev": config.dev} if config.dev else {}
    )
    inputs |= {"regions": str(Path(config.regions) / "manifest.json")} if config.regions else {}
    inputs |= {"images": config.images} if config.images else {}
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
            student = _student(config, seed)
            done = one_run(student, task, splits, replace(training, seed=seed), own, config)
        runs.append(done)
    result = summary(task, runs, config)
    if notes:
        result["notes"] = notes
    if state.is_main_process:
        write_json(folder / "result.json", result)
    return result


def own_file(config: FinetuneConfig) -> OwnFile:
    """Which columns of one's own file are read."""
    return OwnFile(
        text=config.text,
        label=config.label,
        image=config.image,
        form=config.form,
        dev=config.dev,
        group=config.group,
    )


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
    single = isinstance(student, SingleStream)
    read = (
        readout(student.join.kind, task.name, bool(config.regions))
        if single and not config.plain_head
        else PLAIN
    )
    objective = task.objective(student.sizes, read)
    for layer, name in objective.starts() if student.sizes.visual else ():
        load_head(Path(config.model), layer, name)
    if single:
        splits = _made_for(student, objective, read, splits)
    student.word_embeddings().requires_grad_(not config.freeze_words)
    text, clip = student.inputs(config.max_length)
    samples: dict[str, Any] = {
        split: TextSamples(examples, text, clip) for split, examples in splits.items()
    }
    if config.regions:
        samples = seen(samples, student, task, config, apart=read.at == "pair")
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
            if task.test.get(split):
                with disk_errors(folder / task.test[split]):
                    (folder / task.test[split]).write_text(
                        task.submission(split, found.ids, found.predictions), encoding="utf-8"
                    )
        if found.labels is not None:
            scores[split] = found.metrics | task.official(
                Path(config.data), split, found.ids, found.predictions
            )
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


def _student(config: FinetuneConfig, seed: int) -> Any:
    """The model, with a new join if one is asked for."""
    student = load_student(config.model)
    if not config.join:
        return student
    torch.manual_seed(seed_of(seed, "init", "join"))
    return join_to(student, config.join, RegionStore(config.regions).width if config.regions else 1)


def _made_for(
    student: SingleStream, objective: Supervised, read: Readout, splits: dict[str, list[Example]]
) -> dict[str, list[Example]]:
    """Examples as the readout asks them; the model and the head are made ready for them."""
    student.see(max(len(example.images) for examples in splits.values() for example in examples))
    if "mask" not in read.at:
        return splits
    tokenizer = student.text.tokenizer
    objective.mask_id = vocabulary(student.text).mask_id
    if read.between:
        table = student.text.encoder.get_input_embeddings().weight.detach()
        objective.classify.weight.data.copy_(answer_rows(objective.form, tokenizer, table))
    return {
        k: [read.ask(example, str(tokenizer.mask_token)) for example in v]
        for k, v in splits.items()
    }


def seen(
    samples: dict[str, Any], student: Any, task: Task, config: FinetuneConfig, apart: bool = False
) -> dict[str, Any]:
    """The same samples with their images' regions, and pixels for a model that reads these.

    Raises InputError if the model reads no regions, or of another width, or if --images is too much or too little.
    """
    store, pixels = config.regions, isinstance(student, EndToEnd)
    if not student.sizes.regions:
        raise InputError(
            f"--regions {store}: this model reads no regions; expected a single-stream model"
        )
    if pixels and not config.images:
        raise InputError(
            f"{config.model}: this model reads pixels; pass --images FOLDER beside --regions"
        )
    if config.images and not pixels:
        raise InputError(
            f"--images {config.images}: this model reads stored features, no pixels; leave it out"
        )
    regions = RegionStore(store, features=not pixels)
    if not pixels:
        regions.require(student.sizes.regions)
    options = {
        "whole": student.whole,
        "most": config.most_regions,
        "mark": task.mark,
        "apart": apart,
    }
    options["phrases"] = task.form.reads == "phrase"
    options["blind"] = config.blind
    found: dict[str, Any] = {k: RegionSamples(v, regions, **options) for k, v in samples.items()}
    if not pixels:
        return found
    images = {k: [example.images for example in v.examples] for k, v in samples.items()}
    return {k: Pictured(v, images[k], config.images, student.side) for k, v in found.items()}


def summary(task: Task, runs: list[dict[str, Any]], config: FinetuneConfig) -> dict[str, Any]:
    """Every seed's scores and their medians, by split and metric."""
    medians: dict[str, dict[str, float]] = {}
    every: dict[str, dict[str, list[float]]] = {}
    for split in task.dev:
        present = [run for run in runs if split in run["scores"]]
        every[split] = {
            m.name: [run["scores"][split][m.name] for run in present] for m in task.metrics
        }
        for name, values in every[split].items():
            defined = [value for value in values if isfinite(value)]
            medians.setdefault(split, {})[name] = median(defined) if defined else float("nan")
    collapsed = [
        run["seed"] for run in runs if any("constant" in s for s in run["scores"].values())
    ]
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
