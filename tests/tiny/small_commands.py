"""Documented commands made small: a step, two seeds, a few rows."""

from __future__ import annotations

import re

import documents
from documents import TypedCommand

from tiny import standins
from tiny.recipes import PAPERS

FEW = ["--steps", "1", "--batch", "4", "--cpu"]
SMALLER = {
    "train-clip": FEW,
    "adapt": FEW,
    "regions": ["--cpu"],
    "pretrain": FEW,
    "finetune": FEW,
    "probe": [*FEW, "--seeds", "1"],
    "compare": [
        *("--train.steps", "1", "--train.batch", "4", "--train.cpu"),
        *("--tune.steps", "1", "--tune.batch", "4", "--tune.cpu"),
        *("--seeds", "1"),
    ],
    "run": ["--processes", "1"],
    "predict": ["--cpu"],
    "evaluate": ["--cpu"],
    "zero-shot": ["--cpu"],
    "modality": ["--cpu", "--ig-examples", "2", "--ig-steps", "2"],
    "pairs": ["--cpu"],
    "retrieve": ["--cpu"],
    "visualize": ["--cpu"],
    "winoground": ["--cpu"],
    "heads": ["--cpu", "--min-region-attention", "0"],
    "syntax": ["--cpu"],
    "attention": ["--limit", str(standins.SENTENCES + 4)],  # some are in the corpus twice
    "data partition": ["--per-stratum", "4", "--allow-fewer"],
    "data shift": ["--cpu"],
    "data make-world": standins.WORLD,
    "data make-tasks": standins.TASKS,
}
"""Flags that every command of a name gets, in place of its own values or besides them."""

SEEDS = 2
"""Most seeds of a run; some commands need two of what they compare."""

ROWS = {
    "clip_td_world.py": ["CLIP-TD", "CLIP, MLP 3", "VL-BERT, all"],
    "table3_world.py": ["MLM+MATCH", "MLM+MATCH+CLIPTC"],
    "real.py": ["MLM only", "XDBERT"],
    "--table VisualBERT": [
        *("VisualBERT, no features", "VisualBERT, full"),
        "VisualBERT, 500 examples, not pre-trained",
    ],
}
"""Of recipes with many jobs the rows that run: those that later commands read, and one of each kind."""

REPRODUCTIONS = [path.name for path in PAPERS]
"""Recipes that a plan shows here; test_reproduction.py runs them as miniatures."""


def smaller(command: TypedCommand) -> list[str]:
    """The words to run a command with."""
    flags = list(SMALLER.get(command.name, ()))
    seeds = re.search(r"--seeds (\d+)", command.line)
    if command.name == "finetune" and seeds:
        flags += ["--seeds", str(min(SEEDS, int(seeds[1])))]
    hours = command.name == "bench" and " --plan " not in command.line + " "
    if hours or any(f"recipes/{name}" in command.line for name in REPRODUCTIONS):
        return documents.words(documents.changed(command.line, ["--plan"]))
    flags += next((["--rows", *rows] for file, rows in ROWS.items() if file in command.line), [])
    if "token_image_matching" in command.line and "--vokenizer-layers" not in command.line:
        flags += ["--vokenizer-layers", "2"]  # the stand-in has no more
    if "--gradient-accumulation-steps" in command.line:
        flags += ["--gradient-accumulation-steps", "2"]
    if command.name == "bench-real":
        flags += [*FEW, "--processes", "1", "--adapt-seeds", "1", "--task-seeds", "1"]
        flags += ["--modes", "linear"]  # the stand-in has no masked-LM head
    if "vcr-100.json" in command.line:  # of four questions, so that unlabelled ones are left
        flags += ["--per-stratum", "1"] if command.name == "data partition" else ["--batch", "1"]
    if command.name == "run" and "table3_world" not in command.line:  # its seeds are in a loop
        flags += ["--seeds", str(SEEDS if "real.py" in command.line else 1)]
    return documents.words(documents.changed(command.line, flags))
