"""`groundling compare`: adapt and fine-tune several arms and the control, and report verdicts."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Interval

from groundling.command_line import Command, RunCollection
from groundling.commands.adapt import ADAPTING, AdaptConfig
from groundling.commands.finetune import TUNING
from groundling.commands.run import check_runs, run_recipe
from groundling.recipes import Table, adapt, row
from groundling.recipes.plan import Recipe
from groundling.runs.progress import CommandContext
from groundling.settings.fields import (
    InputKind,
    Settings,
    require_settings,
    setting_values,
    settings,
)
from groundling.settings.input_settings import TableTaskSettings, check_one_task
from groundling.settings.training import TrainingArguments


@settings
class TrainAndCompareConfig(Settings):
    """Arms and the control: adapted (--adapt.NAME, --train.NAME), then fine-tuned (--tune.NAME)."""

    arms: tuple[str, ...] = ("xdbert", "contrastive")
    """Arms, as in `adapt --arm`; the control `mlm` is put first."""
    control: bool = True
    """Add the control `mlm` (same text, steps and seeds, no teacher)."""
    tasks: tuple[str, ...] = ()
    """Tasks to fine-tune on, e.g. glue/rte glue/cola."""
    data: Annotated[str, InputKind.DATA] = ""
    """Folder with the tasks' official files, or, with --text and --label, your own csv, tsv, json or jsonl file."""
    own: TableTaskSettings = field(default_factory=TableTaskSettings)
    seeds: Annotated[int, Interval(ge=1, lt=10_000)] = 5
    """Fine-tuning runs per arm and task; a difference takes 4 to be called reliable, with several tasks more."""
    limit_train: Annotated[int, Ge(0)] = 0
    """Maximum number of training examples per task, evenly spaced; 0: all."""
    max_length: Annotated[int, Ge(0)] = 128
    """Maximum tokens per input in fine-tuning."""
    processes: Annotated[int, Ge(1)] = 1
    """Parallel runs, one thread each."""


def check(
    config: TrainAndCompareConfig,
    adapting: AdaptConfig,
    training: TrainingArguments,
    tuning: TrainingArguments,
    out: str | Path,
) -> None:
    """Raises InputError without data, without tasks or a task table, and for run settings that are not allowed."""
    check_one_task("compare", config.tasks, config.own, "tasks")
    require_settings(config, "compare", "data")
    check_runs(_as_recipe(config, adapting, training, tuning, Path(out)))


def compare(
    config: TrainAndCompareConfig,
    adapting: AdaptConfig,
    training: TrainingArguments,
    tuning: TrainingArguments,
    work: CommandContext,
) -> dict[str, Any]:
    """Adapt every arm, fine-tune each on every task, and judge the arms against the first one.

    `training` is for adaptation, `tuning` for fine-tuning; finished parts are not repeated.
    """
    recipe = _as_recipe(config, adapting, training, tuning, work.out)
    return run_recipe(recipe, recipe.steps(), config.processes)


def _as_recipe(
    config: TrainAndCompareConfig,
    adapting: AdaptConfig,
    training: TrainingArguments,
    tuning: TrainingArguments,
    out: Path,
) -> Recipe:
    shared = {
        **setting_values(tuning, config.own),
        "data": config.data,
        "seeds": config.seeds,
        "limit_train": config.limit_train,
        "max_length": config.max_length,
    }
    tasks: dict[str, dict[str, Any]] = {task: {**shared, "task": task} for task in config.tasks}
    if config.own.label:
        tasks = {Path(config.data).stem: shared}
    arms = dict.fromkeys([*(["mlm"] if config.control else []), *config.arms])
    adapted = setting_values(adapting, training)
    rows = [row(arm, adapt(arm, adapted, arm=arm), tasks) for arm in arms]
    return Recipe([Table("", rows)], out=out)


COMMAND = Command(
    "compare",
    "adapt and fine-tune several arms and the control, and report verdicts",
    "groundling.commands.compare:compare",
    {"_own": TrainAndCompareConfig(), "adapt": AdaptConfig(), "train": ADAPTING, "tune": TUNING},
    title="Judge",
    example="groundling compare --arms xdbert contrastive --tasks glue/rte glue/cola --data glue_data "
    "--adapt.student bert-base-uncased --adapt.teacher openai/clip-vit-base-patch32 "
    "--adapt.text my_text.txt --out runs/compare",
    common_flags=(
        "arms tasks data text label seeds adapt.student adapt.teacher adapt.text train.steps tune.epochs "
        "processes"
    ),
    prints_output=True,
    validate=check,
    output=RunCollection(),
)
