"""`groundling finetune`: fine-tune an encoder on a task, over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import disk_usage
from typing import Annotated, Literal

from groundling.command_line import SHARED, Command
from groundling.command_line.names import check_extra, check_inner
from groundling.core.errors import InputError
from groundling.models.hub import is_adapter
from groundling.runs.outputs import Inputs, ResumableRun
from groundling.settings.fields import Input, Settings, at_least, needed, refuse_given, unnested
from groundling.settings.inputs import (
    Adapting,
    Joining,
    OwnFile,
    Pixels,
    RegionInput,
    check_adapter,
    check_one_task,
    check_pixels,
)
from groundling.settings.objectives import (
    ExtraObjectives,
    InnerStepping,
    ObjectiveSettings,
    Targeted,
    teacher_inputs,
)
from groundling.settings.training import Examining, TrainConfig


@dataclass(frozen=True)
class FinetuneConfig(Settings):
    """How an encoder is fine-tuned on a task."""

    model: Annotated[str, Input.WEIGHTS, needed] = ""
    """Text encoder, CLIP-like text tower, or what `adapt`, `pretrain` or `finetune` wrote: hub id or folder."""
    task: Annotated[str, Input.TASK] = ""
    """Task by name, e.g. glue/rte, or MODULE:NAME of your own."""
    data: Annotated[str, Input.DATA, needed] = ""
    """Folder with the task's official files; `hub` reads GLUE through the datasets library."""
    seeds: Annotated[int, at_least(1, below=10_000)] = 1
    """Runs, with seeds counted up from --seed."""
    max_length: Annotated[int, at_least(0)] = 128
    """Pieces per input; longer ones are cut and counted."""
    train_splits: tuple[str, ...] = ()
    """Splits to learn from, e.g. `train val` before --submit; none: the task's own. Scores on a split that was \
learned from are marked."""
    max_train: Annotated[int, at_least(0)] = 0
    """Use at most so many training examples, evenly spaced; 0: all."""
    partition: Annotated[str, Input.FILE] = ""
    """Train on the examples of this file of `data partition` alone."""
    unlabelled: Annotated[int, at_least(0)] = 0
    """--partition: so many of the other training examples, without their labels, beside each labelled one in every \
step, for objectives that need none (semi-supervised: CLIP-TD); 0: none."""
    also: Annotated[tuple[str, ...], Input.NAMED] = ()
    """NAME=FOLDER: also evaluate on the development split of another folder, such as one that `data shift` wrote."""
    submit: bool = False
    """Also predict the unlabelled test split, in the server's format."""
    save_model: bool = True
    """Keep each seed's fine-tuned encoder and head, for `predict` and `evaluate`; a sweep keeps none unless told to."""
    free_gb: Annotated[float, at_least(0)] = 0.0
    """Refuse to begin where fewer gigabytes are free on the disk of --out, before hours are lost to a full one; 0: \
begin anyway."""
    called: str = ""
    """What reports call the task, where its runs at several sizes stand side by side; empty: its own name."""
    freeze_words: bool = False
    """Keep the word embeddings as they are, so that words outside the training examples stay where they belong."""
    regions: RegionInput = field(default_factory=RegionInput)
    pixels: Pixels = field(default_factory=Pixels)
    blind: bool = False
    """Set the regions' features to zero and keep their boxes: the control of tasks that pick a region."""
    baselines: bool = False
    """Also train the same model without the images, with the same seeds and settings and the task's own loss, in \
`text-alone` of the run's folder (a task that picks a region: with --blind): what the texts alone reach."""
    join: Annotated[str, Input.DESIGN] = ""
    """Make a vision-language model of a plain BERT, without any pre-training: visualbert, vlbert, uniter, or \
MODULE:NAME of a design of your own (needed, too, to load a model of that design)."""
    joining: Joining = field(default_factory=Joining)
    kind: str = ""
    """MODULE:NAME of a `ModelFormat` of your own that loads --model; empty: it is told from the folder."""
    plain_head: bool = False
    """Read every task by the pooler and one Linear, in place of the paper's head and losses."""
    raw_first: bool = False
    """Read a text encoder's task by one Linear on its first position, without pooler or dropout (XDBERT's code)."""
    head_loss: Literal["paper", "bce", "ce", "kl"] = "paper"
    """The task's loss: the paper's of the head; each answer, choice or region by itself (bce); one softmax over them \
(ce; the first version of VL-BERT's paper, on VCR and VQA); divergence from it (kl)."""
    beside: bool = True
    """Train what the model's paper trains beside a task's own loss: VL-BERT on VCR, the classes of regions."""
    own: OwnFile = field(default_factory=OwnFile)
    adapting: Adapting = field(default_factory=Adapting)
    examining: Examining = field(default_factory=Examining)
    extra: Annotated[ExtraObjectives, unnested] = field(default_factory=ExtraObjectives)
    settings: Annotated[ObjectiveSettings, unnested] = field(default_factory=ObjectiveSettings)
    stepping: Annotated[InnerStepping, unnested] = field(default_factory=InnerStepping)


TUNING = TrainConfig(epochs=3, lr=1e-4, warmup=0.1, weight_decay=0.0)
"""Fine-tuning as in XDBERT, Appendix C.2 (1e-4 for RTE, MRPC and STS-B; the paper has 2e-5 for other tasks)."""


def check(config: FinetuneConfig, training: TrainConfig, out: str | Path) -> None:
    """Raises InputError for settings that are missing, or do not go together."""
    check_one_task("finetune", config.task, config.own, "--task")
    _check_disk(config.free_gb, Path(out))
    _check_regions_given(config)
    check_pixels(config.pixels, config.regions.images)
    _check_baselines(config)
    _check_unlabelled(config)
    _check_adapter(config, training)
    check_extra(config.extra, config.stepping.inner, "finetune")
    check_inner(config.stepping.inner, config.stepping.adversarial)


def _check_disk(wanted: float, out: Path) -> None:
    """Raises InputError if a disk has less room than is wanted."""
    there = next(folder for folder in [out, *out.absolute().parents] if folder.exists())
    free = disk_usage(there).free / 1e9
    if free < wanted:
        raise InputError(
            f"--free-gb {wanted:g}: {free:.1f} GB are free on the disk of {out}; choose another --out, or make room"
        )


def _check_baselines(config: FinetuneConfig) -> None:
    """Raises InputError for --baselines of a model that sees no images, or nothing but them."""
    if not config.baselines:
        return
    if config.adapting.adapter != "none" or is_adapter(config.model):
        raise InputError(
            "--baselines is for models that read regions; of an adapter the baseline is the same command without "
            "--adapter, its settings and --teacher-images, which reads the texts alone"
        )
    if not config.regions.regions or config.blind:
        raise InputError(
            "--baselines trains the same model without the images, but this one sees none; pass --regions STORE, or "
            "leave it out"
        )


def _check_unlabelled(config: FinetuneConfig) -> None:
    """Raises InputError if nothing is without a label, or no objective could score it."""
    flag = f"--unlabelled {config.unlabelled}"
    if not config.unlabelled:
        return
    if not config.partition:
        raise InputError(
            f"{flag} is about training examples outside a partition; pass --partition FILE, too"
        )
    if not config.extra.objectives:
        raise InputError(
            f"{flag}: no objective scores what has no label; name one that does, such as --objectives td_text"
        )
    if config.settings.targeted.td_choices == "right":
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
    targeted = config.settings.targeted
    if not targeted.teacher_images:
        raise InputError(f"{flag} needs --teacher-images FOLDER, the pictures that CLIP sees")
    without = {
        "--regions": config.regions.regions,
        "--join": config.join,
        "--kind": config.kind,
        "--teacher": config.extra.teacher,
        "--objectives": config.extra.objectives,
        "--inner": config.stepping.inner,
        "--batch-tokens": training.batch_tokens,
    }
    refuse_given(without, f"{flag} reads CLIP's features of whole pictures and texts; leave it out")
    kept = Targeted(teacher_images=targeted.teacher_images, teacher_cache=targeted.teacher_cache)
    if targeted != kept:
        raise InputError(
            f"{flag}: nothing is distilled, so CLIP-TD's other settings say nothing; leave them out"
        )


def _check_regions_given(config: FinetuneConfig) -> None:
    """Raises InputError for settings that say something of regions where there are none."""
    if config.regions.regions:
        return
    if config.regions.images:
        raise InputError(
            f"--images {config.regions.images}: a model that reads pixels needs --regions STORE, too, which says where "
            "to look; a CLIP sees whole photos with --adapter mlp --teacher-images FOLDER"
        )
    about = {"--blind": config.blind, "--most-regions": config.regions.most_regions}
    refuse_given(about, "is about regions; pass --regions STORE or leave it out")


def inputs(config: FinetuneConfig, training: TrainConfig) -> Inputs:
    """What tells runs apart beside their settings."""
    from groundling.data.regions.inputs import manifests

    sees_pixels = config.regions.images and config.join
    return {
        "model": config.model,
        "data": config.data,
        "dev": config.own.dev,
        "partition": config.partition,
        **{f"also {other}": other.partition("=")[2] for other in config.also},
        **manifests(config.regions.regions),
        "images": config.regions.images,
        "backbone": config.pixels.backbone if sees_pixels else "",
        **teacher_inputs(config.extra.teacher, config.settings.targeted),
    }


def reads(config: FinetuneConfig, training: TrainConfig, out: str | Path) -> Mapping[str, str]:
    """Of what a new vision-language model's CNN is made."""
    is_new = config.regions.images and config.join
    return {"--backbone": config.pixels.backbone} if is_new else {}


def makes(config: FinetuneConfig, training: TrainConfig) -> Sequence[str]:
    """What a run leaves."""
    if not config.save_model:
        return []
    return [f"seed-{seed}/model" for seed in range(training.seed, training.seed + config.seeds)]


ASKED_FOR_LATER = ("seeds", "baselines", "train.seed", "free_gb")
"""More seeds, and baselines, make a run the same one, continued; room on a disk is no affair of its results."""

COMMAND = Command(
    "finetune",
    "fine-tune an encoder on a task, over seeds",
    "groundling.commands.finetune.run:finetune",
    {"_own": FinetuneConfig(), "_train": TUNING, **SHARED},
    title="Train",
    example="groundling finetune --model bert-base-uncased --task glue/rte --data glue_data --out "
    "runs/rte",
    common="model task data text label image regions seeds epochs batch lr cpu",
    rules=check,
    reads=reads,
    leaves=ResumableRun(inputs, free=ASKED_FOR_LATER, makes=makes, grows=True),
)
