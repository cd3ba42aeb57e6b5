"""Settings of `finetune` that are missing or do not go together."""

from __future__ import annotations

from groundling.config import (
    FinetuneConfig,
    Targeted,
    TrainConfig,
    check_numbers,
    check_training,
    need,
)
from groundling.errors import InputError
from groundling.models.adapters import check_adapter, is_adapter
from groundling.recipes.finetuning.baselines import check_baselines
from groundling.recipes.teaching import check_parts, check_teacher, inner_step
from groundling.tasks import Task


def check(config: FinetuneConfig, training: TrainConfig, task: Task | None) -> None:
    """Raises InputError for what can be told before any file is opened; `task` is an object in place of a name."""
    need(config, "finetune", "model", "data")
    if not (config.task or config.own.label or task):
        raise InputError("finetune needs --task (or --text and --label for your own file)")
    if config.own.label and (config.task or task):
        raise InputError(
            f"finetune: --label {config.own.label} makes a task of your own file; leave it or --task out"
        )
    _check_regions_given(config)
    if config.seeds < 1:
        raise InputError(f"finetune: --seeds {config.seeds}, expected at least 1")
    if config.max_train < 0:
        raise InputError(f"--max-train {config.max_train}, expected at least 0; 0 means all")
    check_baselines(config)
    _check_unlabelled(config)
    _check_adapter(config, training)
    check_parts(config.objectives, config.teacher, "finetune")
    check_teacher(config.objectives, config.teacher, config.inner, "finetune")
    check_numbers(config)
    check_training(training)
    inner_step(config.inner, config.adversarial)  # a mistake is told before anything is written


def _check_unlabelled(config: FinetuneConfig) -> None:
    """Raises InputError if nothing is without a label, or no objective could score it."""
    flag = f"--unlabelled {config.unlabelled}"
    if config.unlabelled < 0:
        raise InputError(f"{flag}: expected at least 0")
    if not config.unlabelled:
        return
    if not config.partition:
        raise InputError(
            f"{flag} is about training examples outside a partition; pass --partition FILE, too"
        )
    if not config.objectives:
        raise InputError(
            f"{flag}: no objective scores what has no label; name one that does, such as --objectives td_text"
        )
    if config.targeted.td_choices == "right":
        raise InputError(
            f"{flag}: nobody knows the right choice of what has no label; leave --td-choices out"
        )


def _check_adapter(config: FinetuneConfig, training: TrainConfig) -> None:
    """Raises InputError for settings that say something of what an adapter over CLIP has not."""
    check_adapter(config.adapting)
    is_new = config.adapting.adapter != "none"
    there = is_adapter(config.model)
    if not (is_new or there):
        return
    if is_new and there:
        raise InputError(f"{config.model}: an adapter over CLIP already; leave --adapter out")
    flag = f"--adapter {config.adapting.adapter}" if is_new else f"--model {config.model}"
    if not config.targeted.teacher_images:
        raise InputError(f"{flag} needs --teacher-images FOLDER, the pictures that CLIP sees")
    without = {
        "--regions": config.regions.regions,
        "--join": config.join,
        "--kind": config.kind,
        "--teacher": config.teacher,
        "--objectives": config.objectives,
        "--inner": config.inner,
        "--batch-tokens": training.batch_tokens,
    }
    for other, given in without.items():
        if given:
            raise InputError(
                f"{flag} reads CLIP's features of whole pictures and texts alone; leave {other} out"
            )
    kept = Targeted(
        teacher_images=config.targeted.teacher_images, teacher_cache=config.targeted.teacher_cache
    )
    if config.targeted != kept:
        raise InputError(
            f"{flag}: nothing is distilled, so CLIP-TD's other settings say nothing; leave them out"
        )


def _check_regions_given(config: FinetuneConfig) -> None:
    """Raises InputError for settings that say something of regions where there are none."""
    if config.regions.regions:
        return
    if config.regions.images:
        raise InputError(
            f"--images {config.regions.images}: pass --regions STORE, too, which says where to look"
        )
    for flag, given in (("--blind", config.blind), ("--most-regions", config.regions.most_regions)):
        if given:
            raise InputError(f"{flag} is about regions; pass --regions STORE or leave it out")
