"""`groundling compare`: adapt and fine-tune several arms and the control, and report verdicts."""

from __future__ import annotations

from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Interval

from groundling.command_line import Command
from groundling.commands.adapt import ADAPTING, AdaptConfig
from groundling.commands.finetune import TUNING, FinetuneConfig
from groundling.runs.outputs import RunCollection
from groundling.runs.progress import CommandContext
from groundling.settings.fields import (
    InputKind,
    Settings,
    require_settings,
    settings,
)
from groundling.settings.input_settings import TableTaskSettings, check_one_task
from groundling.settings.training import TrainingArguments

if TYPE_CHECKING:
    from groundling.commands.sweep.schema import Sweep


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
    """Folder with the tasks' official files, or, with --text and --label, your own csv, tsv, json \
or jsonl file."""
    own: TableTaskSettings = field(default_factory=TableTaskSettings)
    seeds: Annotated[int, Interval(ge=1, lt=10_000)] = 3
    """Fine-tuning runs per arm and task."""
    limit_train: Annotated[int, Ge(0)] = 0
    """Maximum number of training examples per task, evenly spaced; 0: all."""
    max_length: Annotated[int, Ge(0)] = 128
    """Maximum tokens per input in fine-tuning."""
    processes: Annotated[int, Ge(1)] = 1
    """Parallel runs, one thread each."""


CONTROL = "mlm"


def check(
    config: TrainAndCompareConfig,
    adapting: AdaptConfig,
    training: TrainingArguments,
    tuning: TrainingArguments,
    out: str | Path,
) -> None:
    """Raises InputError without data, without tasks or a task table, and for run settings that are
    not allowed.
    """
    from groundling.commands.sweep.run import check_runs

    check_one_task("compare", config.tasks, config.own, "--tasks")
    require_settings(config, "compare", "data")
    check_runs(
        _as_sweep(config, adapting, training, tuning), Path(out), lambda command, message: message
    )


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
    from groundling.commands.sweep.run import run_all
    from groundling.commands.sweep.steps import steps_of

    sweep = _as_sweep(config, adapting, training, tuning)
    return run_all(sweep, steps_of(sweep, work.out), work.out, config.processes)


def _as_sweep(
    config: TrainAndCompareConfig,
    adapting: AdaptConfig,
    training: TrainingArguments,
    tuning: TrainingArguments,
) -> Sweep:
    """The comparison as a sweep: all arms with the same text, steps and seeds."""
    from groundling.commands.sweep.schema import FineTuningTask, Sweep, Variant

    arms = dict.fromkeys([*([CONTROL] if config.control else []), *config.arms])
    base = FinetuneConfig(
        data=config.data,
        limit_train=config.limit_train,
        max_length=config.max_length,
        save_model=False,
    )
    tasks = [replace(base, task=task) for task in config.tasks]
    if config.own.label:
        tasks = [replace(base, own=config.own, display_name=Path(config.data).stem)]
    return Sweep(
        tuple(Variant(arm, replace(adapting, arm=arm), training) for arm in arms),
        tuple(FineTuningTask(task, tuning) for task in tasks),
        config.seeds,
    )


COMMAND = Command(
    "compare",
    "adapt and fine-tune several arms and the control, and report verdicts",
    "groundling.commands.compare:compare",
    {"_own": TrainAndCompareConfig(), "adapt": AdaptConfig(), "train": ADAPTING, "tune": TUNING},
    title="Judge",
    example="groundling compare --arms xdbert contrastive --tasks glue/rte glue/cola --data glue_data "
    "--adapt.student bert-base-uncased --adapt.teacher openai/clip-vit-base-patch32 "
    "--adapt.text my_text.txt --out runs/compare",
    more_flags=(
        "control limit-train max-length adapt.text-layout adapt.max-length adapt.pooling "
        "adapt.eval-text train.epochs train.batch train.lr train.head-lr "
        "train.freeze-encoder-steps train.precision train.cpu tune.batch tune.lr tune.precision "
        "tune.cpu"
    ),
    common_flags=(
        "arms tasks data text label seeds adapt.student adapt.teacher adapt.text train.steps tune.epochs "
        "processes"
    ),
    prints_output=True,
    validate=check,
    output=RunCollection(),
)
