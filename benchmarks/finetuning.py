"""Compare `finetune` with transformers' Trainer: same encoder, task, batch, epochs and learning rate, one thread.

Ways: here; `padded` to --max-length, as in run_glue; `grouped` by length and padded to each batch's longest text. Each
seed runs all ways one after the other, each in its own process. Time is counted from after the imports until the dev
score, so that set-up, checkpoints, evaluation and the exported model count. It is processor time, because other load
changes it less than wall-clock time.

For training alone, in wall-clock time: tokens per second without padding, and on a GPU MFU, which is 6 x the layers'
weights x tokens + 12 x layers x width x tokens^2 for each pair of texts, divided by seconds x --peak-tflops.

python benchmarks/finetuning.py MODEL RTE_FOLDER --cpu [--seeds 2 --epochs 3 --most 0]
python benchmarks/finetuning.py BERT_BASE RTE_FOLDER --precision bf16 --threads 8 --peak-tflops 989    # on a GPU
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WAYS = ("padded", "grouped", "here")
LABELS = ("entailment", "not_entailment")


def groundling(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Seconds and dev accuracy of `finetune`."""
    from groundling.commands.finetune import COMMAND as finetune
    from groundling.commands.finetune import FinetuneConfig
    from groundling.settings.training import TrainingArguments

    training = TrainingArguments(
        epochs=options.epochs, batch=options.batch, lr=options.lr, warmup_ratio=0.0, seed=options.seed,
        weight_decay=0.0, cpu=options.cpu, precision=options.precision,
    )  # fmt: skip
    config = FinetuneConfig(
        model=options.model, task="glue/rte", data=options.data, max_length=options.max_length,
        limit_train=options.most,
    )  # fmt: skip
    began = _now()
    result = finetune(config, training, folder)
    seconds = _now() - began
    training_seconds = json.loads((folder / f"seed-{options.seed}" / "result.json").read_text())[
        "seconds"
    ]
    return {
        "seconds": seconds,
        "training": training_seconds,
        "accuracy": result["median"]["dev"]["accuracy"],
    }


def read_rows(
    options: argparse.Namespace, split: str, most: int
) -> tuple[list[dict[str, str]], list[list[str]]]:
    """Rows of a split, at most `most` of them, evenly spaced, and their first and second texts."""
    with (Path(options.data) / f"{split}.tsv").open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    if most:
        read = [read[place * len(read) // most] for place in range(min(most, len(read)))]
    return read, [[row["sentence1"] for row in read], [row["sentence2"] for row in read]]


def trainer(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Seconds and dev accuracy of transformers' Trainer with its own defaults."""
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    grouped = options.way == "grouped"
    began = _now()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    torch.manual_seed(options.seed)
    model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2)
    padding = False if grouped else "max_length"

    def rows(split: str, most: int) -> list[dict[str, object]]:
        read, texts = read_rows(options, split, most)
        made = tokenizer(*texts, truncation=True, max_length=options.max_length, padding=padding)
        labels = [LABELS.index(row["label"]) for row in read]
        names = made.keys()
        return [
            {**{name: made[name][n] for name in names}, "labels": label}
            for n, label in enumerate(labels)
        ]

    arguments = TrainingArguments(
        str(folder), num_train_epochs=options.epochs, learning_rate=options.lr, seed=options.seed,
        per_device_train_batch_size=options.batch, per_device_eval_batch_size=options.batch,
        train_sampling_strategy="group_by_length" if grouped else "random", use_cpu=options.cpu,
        bf16=options.precision == "bf16", report_to=[], disable_tqdm=True, logging_steps=10,
    )  # fmt: skip
    run = Trainer(
        model,
        arguments,
        train_dataset=rows("train", options.most),  # type: ignore[arg-type]
        eval_dataset=rows("dev", 0),  # type: ignore[arg-type]
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda output: {"accuracy": (output[0].argmax(-1) == output[1]).mean()},
    )
    trained = run.train().metrics
    score = run.evaluate()["eval_accuracy"]
    run.save_model(str(folder / "model"))
    return {
        "seconds": _now() - began,
        "training": trained["train_runtime"],
        "accuracy": float(score),
    }


def work(options: argparse.Namespace) -> tuple[float, float]:
    """Number of tokens trained on, and the FLOPs that they need."""
    from transformers import AutoConfig, AutoTokenizer

    tokenizer, config = (one.from_pretrained(options.model) for one in (AutoTokenizer, AutoConfig))
    _, texts = read_rows(options, "train", options.most)
    rows = tokenizer(*texts, truncation=True, max_length=options.max_length)["input_ids"]
    tokens, pairs = sum(len(row) for row in rows), sum(len(row) ** 2 for row in rows)
    width, layers = config.hidden_size, config.num_hidden_layers
    weights = layers * (4 * width**2 + 2 * width * config.intermediate_size)
    flops = 6 * weights * tokens + 12 * layers * width * pairs
    return options.epochs * tokens, float(options.epochs * flops)


def _now() -> float:
    """Processor seconds; wall-clock seconds if a GPU computes."""
    import torch

    return time.perf_counter() if torch.cuda.is_available() else time.process_time()


def run_one_way(options: argparse.Namespace) -> None:
    """Run one way, and print its figures as JSON."""
    import torch
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        way = groundling if options.way == "here" else trainer
        print(json.dumps(way(options, Path(folder) / "run")))


def main() -> None:
    """Run all ways for every seed, and print the time and score of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder of a text encoder")
    parser.add_argument("data", help="folder of RTE's train.tsv and dev.tsv")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--most", type=int, default=0, help="training examples; 0: all")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--peak-tflops", type=float, help="dense peak of the device, for MFU")
    parser.add_argument("--way", choices=WAYS, help="run one way for one seed")
    options = parser.parse_args()
    if options.way:
        run_one_way(options)
        return
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for seed in range(options.seed, options.seed + options.seeds):
        for way in WAYS:
            command = [sys.executable, __file__, *sys.argv[1:], "--way", way, "--seed", str(seed)]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[way].append(json.loads(said.splitlines()[-1]))
            print(seed, way, found[way][-1], flush=True)
    for way in WAYS[:2]:
        pairs = zip(found[way], found["here"], strict=True)
        ratios = [theirs["seconds"] / ours["seconds"] for theirs, ours in pairs]
        spelt = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"here is {statistics.median(ratios):.2f} times as fast as {way} ({spelt})")
    tokens, flops = work(options)
    for way in WAYS:
        seconds = statistics.median(run["training"] for run in found[way])
        used = ""
        if options.peak_tflops:
            used = f", MFU {flops / seconds / options.peak_tflops / 1e12:.1%}"
        print(f"{way}: trains on {tokens / seconds:.0f} tokens/s of wall-clock time{used}")
    for way in WAYS:
        scores = [run["accuracy"] for run in found[way]]
        print(f"{way}: dev accuracy {statistics.mean(scores):.3f}, {scores}")


if __name__ == "__main__":
    main()
