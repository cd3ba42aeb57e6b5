"""Compare `finetune` with transformers' Trainer: same encoder, task, batch, epochs and learning rate, one thread.

Ways: here; `padded` to --max-length, as in run_glue; `grouped` by length and padded to each batch's longest text. Each
seed runs all ways one after the other, each in its own process. Time is counted from after the imports until the dev
score, so that set-up, checkpoints, evaluation and the exported model count. It is processor time, because other load
changes it less than wall-clock time.

For training alone, in wall-clock time: tokens per second without padding, and on a GPU MFU, of FLOPs and a peak as in a
run's own lines (docs/performance.md); --peak-tflops: that of a GPU that is not known by name.

python benchmarks/finetuning.py MODEL RTE_FOLDER --cpu [--seeds 2 --epochs 3 --most 0]
python benchmarks/finetuning.py BERT_BASE RTE_FOLDER --precision bf16 --threads 8 --peak-tflops 989    # on a GPU

Or without a model and data: where the processor's time goes in fine-tuning an encoder of MiniLM's size (6 layers of
384, random weights) on 32 texts of at most 128 random tokens a step, on one thread; and its share of the peak of
products, with a step's texts in one pass and in several (--gradient-accumulation-steps).

python benchmarks/finetuning.py --profile [--steps 12 --rounds 3]
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
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

WAYS = ("padded", "grouped", "here")
LABELS = ("entailment", "not_entailment")
PASSES = (1, 2, 4)
"""Passes of a step, of --profile."""
KINDS = {
    "products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"),
    "draws of dropout": ("aten::bernoulli_",),
    "GELU": ("aten::gelu", "aten::gelu_backward"),
    "softmax and masks": (
        *("aten::_softmax", "aten::_softmax_backward_data", "aten::masked_fill_", "aten::where"),
        *("aten::isneginf", "aten::eq", "aten::all"),
    ),
    "layer norm": ("aten::native_layer_norm", "aten::native_layer_norm_backward"),
    "fills and copies": ("aten::fill_", "aten::copy_", "aten::zero_"),
    "sums, products by element": (
        *("aten::add", "aten::add_", "aten::mul", "aten::mul_", "aten::div_", "aten::sum"),
    ),
    "optimizer, norm of gradients": (
        *("aten::_fused_adamw_", "aten::linalg_vector_norm", "aten::_foreach_mul_"),
    ),
}
"""Kinds of work, by torch's names of operations; all others are `the rest`."""


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


def train_encoder(options: argparse.Namespace, passes: int) -> float:
    """FLOPS in processor seconds of `train`, padding and what is repeated left out, after two steps of `passes`."""
    import numpy as np
    import torch
    from transformers import BertConfig, BertModel

    sys.path[:0] = [str(Path(__file__).resolve().parent)]
    from gpu import Samples, texts
    from vision_step import tokenizer

    from groundling.core.batch import collate
    from groundling.core.output_types import Classification
    from groundling.models.text_encoder import TextEncoder
    from groundling.objectives.supervised import SupervisedObjective
    from groundling.settings.training import TrainingArguments
    from groundling.training.loop import train
    from groundling.training.throughput import Volume, model_work
    from groundling.training.training_steps import PlainTrainingStep

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=options.width, num_hidden_layers=options.layers,
        num_attention_heads=options.width // 32, intermediate_size=4 * options.width,
    )  # fmt: skip
    model = TextEncoder(BertModel(config, add_pooling_layer=False), tokenizer())
    samples = []
    for number, one in enumerate(texts(number=options.batch * options.steps)):
        row = one.text.take(np.arange(min(128, len(one.text.input_ids))))
        samples.append(replace(one, text=row).with_label("label", np.array(number % 2)))
    work = model_work(model, collate(samples[:8]))
    seen: list[tuple[float, float]] = []

    class Timed(PlainTrainingStep):
        """Notes when a step begins, and its FLOPs."""

        def __call__(self, micro: Any) -> Any:
            seen.append((time.process_time(), work.of(Volume.of(micro.batch.cpu_copy))))
            return super().__call__(micro)

    parts = [SupervisedObjective(model.sizes, output_type=Classification(LABELS))]
    settings = TrainingArguments(
        steps=options.steps, batch=options.batch, gradient_accumulation_steps=passes, workers=0, cpu=True
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        train(model, parts, Samples(samples), settings, folder, training_step=Timed())
    (begin, _), *_, (end, _) = whole_steps = seen[2 * passes : 1 - passes or None]
    return sum(flops for _, flops in whole_steps[:-1]) / (end - begin)


def peak_of_products() -> float:
    """FLOPS in processor seconds of a product of matrices of 1,024, the best of twenty."""
    import torch

    left, right = torch.randn(2, 1024, 1024)
    seconds = []
    for _ in range(20):
        began = time.process_time()
        torch.mm(left, right)
        seconds.append(time.process_time() - began)
    return float(2 * 1024**3 / min(seconds))


def profile(options: argparse.Namespace) -> None:
    """Print the share of the peak that `train` reaches, in processor seconds, and where they go."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    torch.set_num_threads(1)
    reached: dict[int, list[float]] = {passes: [] for passes in PASSES}
    for _ in range(options.rounds):
        for passes, shares in reached.items():
            peak = peak_of_products()
            rate = train_encoder(options, passes)
            shares.append(rate / max(peak, peak_of_products()))
    with torch_profile(activities=[ProfilerActivity.CPU]) as found:
        train_encoder(options, PASSES[0])
    spent: Counter[str] = Counter()
    for one in found.key_averages():
        kind = (kind for kind, names in KINDS.items() if one.key in names)
        spent[next(kind, "the rest")] += one.self_cpu_time_total
    for kind, seconds in spent.most_common():
        print(f"{kind:30} {seconds / spent.total():6.1%}")
    for passes, shares in reached.items():
        spelt = ", ".join(f"{one:.1%}" for one in shares)
        print(
            f"share of the peak of products, {passes} passes a step: {statistics.median(shares):.1%} ({spelt})"
        )


def work(options: argparse.Namespace) -> tuple[float, float]:
    """Number of tokens trained on, and the FLOPs that they need, without the task's head."""
    from groundling.core.batch import Example, collate
    from groundling.data.samples import TextDataset
    from groundling.models.text_encoder import load_text_encoder
    from groundling.training.throughput import Volume, model_work

    encoder = load_text_encoder(options.model)
    _, texts = read_rows(options, "train", options.most)
    rows = encoder.tokenizer(*texts, truncation=True, max_length=options.max_length)["input_ids"]
    tokens, pairs = sum(len(row) for row in rows), sum(len(row) ** 2 for row in rows)
    some = [Example(str(number), text) for number, text in enumerate(texts[0][:4])]
    samples = TextDataset(some, encoder.inputs(options.max_length)[0])
    each = model_work(encoder, collate(samples.get(range(len(some)))))
    flops = each.of(Volume(tokens, tokens, pairs, images=0))
    return options.epochs * tokens, options.epochs * flops


def peak_of_gpu(options: argparse.Namespace) -> float:
    """FLOPS of the GPU that trains; 0 for a processor, and for a GPU that is not known by name."""
    import torch

    from groundling.training.throughput import known_peak

    on_gpu = torch.cuda.is_available() and not options.cpu
    return known_peak(torch.device("cuda" if on_gpu else "cpu"), options.precision)


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
    parser.add_argument("model", nargs="?", help="folder of a text encoder")
    parser.add_argument("data", nargs="?", help="folder of RTE's train.tsv and dev.tsv")
    parser.add_argument("--profile", action="store_true")
    sizes = {"steps": 12, "layers": 6, "width": 384, "rounds": 3}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="of --profile")
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
    if options.profile:
        if options.steps < 4:
            parser.error("--profile needs --steps of 4 or more, since the first two are not timed")
        profile(options)
        return
    if not options.data:
        parser.error("expected MODEL RTE_FOLDER, or --profile")
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
    peak = 1e12 * (options.peak_tflops or 0.0) or peak_of_gpu(options)
    for way in WAYS:
        seconds = statistics.median(run["training"] for run in found[way])
        used = ""
        if peak:
            used = f", MFU {flops / seconds / peak:.1%}"
        print(f"{way}: trains on {tokens / seconds:.0f} tokens/s of wall-clock time{used}")
    for way in WAYS:
        scores = [run["accuracy"] for run in found[way]]
        print(f"{way}: dev accuracy {statistics.mean(scores):.3f}, {scores}")


if __name__ == "__main__":
    main()
