"""Commands' words and flags, recipes, and documented commands made small."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import documents
import torch
from documents import TypedCommand
from safetensors.torch import load_file

from groundling.cli import COMMANDS
from groundling.commands.run import RunConfig, load_recipe
from groundling.recipes import Step
from groundling.recipes.plan import Recipe
from groundling.settings.fields import settings_of
from tiny import standins


def adapting_with(given: Path, out: Path, **changes: object) -> list[object]:
    flags = {
        "student": given / "student",
        "teacher": given / "teacher",
        "text": given / "text.txt",
        "steps": 2,
        "batch": 4,
        "max-length": 40,
        "out": out,
    } | changes
    return ["adapt", "--cpu", *(x for name, value in flags.items() for x in (f"--{name}", value))]


def tuning_with(given: Path, out: Path, **changes: object) -> list[object]:
    flags = {
        "model": given / "student",
        "task": "glue/rte",
        "data": given / "glue",
        "steps": 1,
        "batch": 4,
        "out": out,
    }
    return [
        "finetune",
        "--cpu",
        *(x for name, value in (flags | changes).items() for x in (f"--{name}", value)),
    ]


def same(out: Path, whole: dict[str, torch.Tensor]) -> bool:
    found = load_file(out / "model" / "model.safetensors")
    return found.keys() == whole.keys() and all(torch.equal(found[k], whole[k]) for k in whole)


def flags_of(command: str) -> dict[str, str]:
    """Every flag of a command's settings, of their groups too, and the docstring of its field."""
    flags = {}
    for prefix, settings in COMMANDS[command].settings.items():
        start = "" if prefix.startswith("_") else f"{prefix}."
        for one in settings_of(settings):
            flag = f"--{start}{one.name.replace('_', '-')}"
            assert flag not in flags, f"{command}: two settings are called {flag}"
            flags[flag] = one.help
    return flags


RECIPES = Path(__file__).parents[2] / "recipes"
FILES = sorted(RECIPES.glob("*.py"))
PAPERS = [path for path in FILES if "\nPAPER = " in path.read_text(encoding="utf-8")]
"""Recipes with a paper's own experiments."""


def recipe_of(file: Path | str, out: str = "out", **chosen: Any) -> Recipe:
    """The recipe of a file, or of a name in `recipes/`; `chosen`: table, rows, seeds."""
    path = file if isinstance(file, Path) else RECIPES / file
    return load_recipe(RunConfig(file=str(path), **chosen), Path(out))


def steps_by_name(recipe: Recipe) -> dict[str, Step]:
    return {step.name: step for step in recipe.steps()}


FEW = ["--steps", "1", "--batch", "4", "--cpu"]
SMALLER = {
    "train-clip": FEW,
    "adapt": FEW,
    "regions": ["--cpu"],
    "embed": ["--cpu"],
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
    "baselines": ["--cpu"],
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
    "--table VisualBERT": ["VisualBERT, no features", "VisualBERT, full"],
}
"""Of recipes with many jobs the rows that run: those that later commands read, and one of each kind."""

REPRODUCTIONS = [path.name for path in PAPERS]
"""Recipes that a plan shows here; test_reproduction.py runs them as miniatures."""


def smaller(command: TypedCommand) -> list[str]:
    """The words to run a command with."""
    flags = list(SMALLER.get(command.name, ()))
    if (
        command.name == "compare" and command.page == "first_steps.md"
    ):  # which shows a list of seeds
        flags += ["--seeds", str(SEEDS)]
    seeds = re.search(r"--seeds (\d+)", command.line)
    if command.name == "finetune" and seeds:
        flags += ["--seeds", str(min(SEEDS, int(seeds[1])))]
    if command.name == "bench" or any(f"recipes/{name}" in command.line for name in REPRODUCTIONS):
        flags = ["--plan", *(["--worlds", "0"] if command.name == "bench" else [])]
        return documents.words(documents.changed(command.line, flags))
    flags += next((["--rows", *rows] for file, rows in ROWS.items() if file in command.line), [])
    if "token_image_matching" in command.line and "--vokenizer-layers" not in command.line:
        flags += ["--vokenizer-layers", "2"]  # the stand-in has no more
    if "--grid 7" in command.line:
        flags += ["--grid", "2"]  # each cell is cut out and embedded
    if "--gradient-accumulation-steps" in command.line:
        flags += ["--gradient-accumulation-steps", "2"]
    if command.name == "bench-real":
        flags += [*FEW, "--processes", "1", "--adapt-seeds", "1", "--task-seeds", "1"]
        flags += ["--modes", "linear"]  # the stand-in has no masked-LM head
        flags += ["--method", "sigmoid" if "vectors:" in command.line else "contrastive"]
    if "vcr-100.json" in command.line:  # of four questions, so that unlabelled ones are left
        flags += ["--per-stratum", "1"] if command.name == "data partition" else ["--batch", "1"]
    own_seeds = "table3_world" in command.line or "babylm" in command.line  # in a loop, or none
    if command.name == "run" and not own_seeds:
        flags += ["--seeds", str(SEEDS if "real.py" in command.line else 1)]
    return documents.words(documents.changed(command.line, flags))
