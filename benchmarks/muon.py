"""Compare Muon with AdamW in `adapt`'s masked LM: steps to the same loss, and processor seconds a step.

Each optimizer's learning rate is the one with the lowest last loss on a seed of its own. Then each seed runs both
optimizers on the same batches and masks. The loss is the mean of the last five lines of the log, of five steps each;
the loss to be reached is AdamW's last one. Runs follow each other in one process, on one thread.

python benchmarks/muon.py STUDENT TEXT [--from-scratch --layers 4 --width 128] [--seeds 5 --steps 200]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Literal

import torch

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.settings.training import TrainingArguments

Optimizer = Literal["adamw", "muon"]
OPTIMIZERS: tuple[Optimizer, ...] = ("adamw", "muon")
CHOOSING = 1000
"""The seed on which learning rates are chosen."""
EVERY = 5
"""Steps of a line of the log."""
LINES = 5
"""Lines of which a loss is the mean."""


def run(
    options: argparse.Namespace, optimizer: Optimizer, lr: float, seed: int
) -> tuple[list[float], float]:
    """The loss after each line of the log, smoothed, and processor seconds a step."""
    config = AdaptConfig(
        student=options.student,
        text=(options.text,),
        arm="mlm",
        from_scratch=options.from_scratch,
        student_layers=options.layers,
        student_width=options.width,
        max_length=options.max_length,
    )
    training = TrainingArguments(
        steps=options.steps, batch=options.batch, optimizer=optimizer, lr=lr, seed=seed, log_every=EVERY, cpu=True
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        began = time.process_time()
        adapt(config, training, Path(folder) / "run")
        seconds = time.process_time() - began
        rows = map(json.loads, (Path(folder) / "run" / "log.jsonl").read_text().splitlines())
        losses = [row["loss"] for row in rows if "loss" in row]
    smooth = [statistics.mean(losses[max(0, n - LINES + 1) : n + 1]) for n in range(len(losses))]
    return smooth, seconds / options.steps


def main() -> None:
    """Choose learning rates, run all seeds, and print steps and seconds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("student", help="folder of a text encoder")
    parser.add_argument("text", help="file of texts")
    parser.add_argument("--from-scratch", action="store_true")
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--width", type=int, default=0)
    parser.add_argument("--max-length", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-4, 3e-4, 1e-3])
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen: dict[Optimizer, float] = {}
    for optimizer in OPTIMIZERS:
        last = {lr: run(options, optimizer, lr, CHOOSING)[0][-1] for lr in options.lr}
        chosen[optimizer] = min(last, key=lambda lr: last[lr])
        spelt = ", ".join(f"{lr:g}: {loss:.3f}" for lr, loss in last.items())
        print(f"{optimizer}: last loss by learning rate {spelt}", flush=True)
    shares, costs = [], []
    for seed in range(options.seeds):
        (one, plain), (other, cost) = (
            run(options, name, chosen[name], seed) for name in OPTIMIZERS
        )
        reached = next((n for n, loss in enumerate(other) if loss <= one[-1]), None)
        steps = "never" if reached is None else f"after {(reached + 1) * EVERY} steps"
        shares.append(float("inf") if reached is None else (reached + 1) * EVERY / options.steps)
        costs.append(cost / plain)
        print(
            f"seed {seed}: adamw {one[-1]:.3f}, muon {other[-1]:.3f}; muon reaches adamw's {steps}; "
            f"seconds a step {plain:.2f} and {cost:.2f}",
            flush=True,
        )
    share, cost = statistics.median(shares), statistics.median(costs)
    print(
        f"muon: {share:.2f} of the steps at {cost:.2f} times the seconds a step, {share * cost:.2f} of the time"
    )


if __name__ == "__main__":
    main()
