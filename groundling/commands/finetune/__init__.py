"""`groundling finetune`: fine-tune an encoder on a task, over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import disk_usage
from typing import Annotated, Literal

from groundling.command_line import SHARED, Command
from groundling.command_line.registered_names import check_extra_objectives, check_training_step
from groundling.core.errors import InputError
from groundling.models.hub import is_adapter
from groundling.runs.outputs import Inputs, ResumableRun
from groundling.settings.fields import (
    InputKind,
    Settings,
    at_least,
    refuse_settings,
    required,
    unnested,
)
from groundling.settings.input_settings import (
    AdapterSettings,
    PixelSettings,
    RegionSettings,
    TableTaskSettings,
    VisualBertSettings,
    check_adapter,
    check_one_task,
    check_pixels,
)
from groundling.settings.objectives import (
    ExtraObjectiveSettings,
    ObjectiveSettings,
    TargetedDistillationSettings,
    TrainingStepSettings,
    teacher_inputs,
)
from groundling.settings.training import EvaluationSettings, TrainConfig


@dataclass(frozen=True)
class FinetuneConfig(Settings):
    """How an encoder is fine-tuned on a task."""

    model: Annotated[str, InputKind.WEIGHTS, required] = ""
    """Text encoder, CLIP-like text tower, or what `adapt`, `pretrain` or `finetune` wrote: hub id or folder."""
    task: Annotated[str, InputKind.TASK] = ""
    """Task by name, e.g. glue/rte, or MODULE:NAME of your own."""
    data: Annotated[str, InputKind.DATA, required] = ""
    """Folder with the task's official files; `hub` reads GLUE through the datasets library."""
    seeds: Annotated[int, at_least(1, below=10_000)] = 1
    """Runs, with seeds counted up from --seed."""
    max_length: Annotated[int, at_least(0)] = 128
    """Pieces per input; longer ones are cut and counted."""
    train_splits: tuple[str, ...] = ()
    """Splits to learn from, e.g. `train val` before --submit; none: the task's own. Scores on a split that was \
learned from are marked."""
    limit_train: Annotated[int, at_least(0)] = 0
    """Use at most so many training examples, evenly spaced; 0: all."""
    partition: Annotated[str, InputKind.FILE] = ""
    """Train on the examples of this file of `data partition` alone."""
    unlabelled_per_labelled: Annotated[int, at_least(0)] = 0
    """--partition: so many of the other training examples, without their labels, beside each labelled one in every \
step, for objectives that need none (semi-supervised: CLIP-TD); 0: none."""
    extra_eval: Annotated[tuple[str, ...], InputKind.NAMED] = ()
    """NAME=FOLDER: also evaluate on the development split of another folder, such as one that `data shift` wrote."""
    submit: bool = False
    """Also predict the unlabelled test split, in the server's format."""
    save_model: bool = True
    """Keep each seed's fine-tuned encoder and head, for `predict` and `evaluate`; a sweep keeps none unless told to."""
    min_free_gb: Annotated[float, at_least(0)] = 0.0
    """Refuse to begin where fewer gigabytes are free on the disk of --out, before hours are lost to a full one; 0: \
begin anyway."""
    display_name: str = ""
    """What reports call the task, where its runs at several sizes stand side by side; empty: its own name."""
    freeze_word_embeddings: bool = False
    """Keep the word embeddings as they are, so that words outside the training examples stay where they belong."""
    regions: RegionSettings = field(default_factory=RegionSettings)
    pixels: PixelSettings = field(default_factory=PixelSettings)
    zero_region_features: bool = False
    """Set the regions' features to zero and keep their boxes: the control of tasks that pick a region."""
    text_only_baseline: bool = False
    """Also train the same model without the images, with the same seeds and settings and the task's own loss, in \
`text-alone` of the run's folder (a task that picks a region: with --zero-region-features): what the texts alone reach."""
    architecture: Annotated[str, InputKind.DESIGN] = ""
    """Make a vision-language model of a plain BERT, without any pre-training: visualbert, vlbert, uniter, or \
MODULE:NAME of a design of your own (needed, too, to load a model of that design)."""
    visualbert: VisualBertSettings = field(default_factory=VisualBertSettings)
    model_format: str = ""
    """MODULE:NAME of a `ModelFormat` of your own that loads --model; empty: it is told from the folder."""
    linear_head: bool = False
    """Read every task by the pooler and one Linear, in place of the paper's head and losses."""
    cls_without_pooler: bool = False
    """Read a text encoder's task by one Linear on its first position, without pooler or dropout (XDBERT's code)."""
    head_loss: Literal["paper", "bce", "ce", "kl"] = "paper"
    """The task's loss: the paper's of the head; each answer, choice or region by itself (bce); one softmax over them \
(ce; the first version of VL-BERT's paper, on VCR and VQA); divergence from it (kl)."""
    auxiliary_losses: bool = True
    """Train what the model's paper trains beside a task's own loss: VL-BERT on VCR, the classes of regions."""
    own: TableTaskSettings = field(default_factory=TableTaskSettings)
    adapter_settings: AdapterSettings = field(default_factory=AdapterSettings)
    examining: EvaluationSettings = field(default_factory=EvaluationSettings)
    extra_objectives: Annotated[ExtraObjectiveSettings, unnested] = field(
        default_factory=ExtraObjectiveSettings
    )
    settings: Annotated[ObjectiveSettings, unnested] = field(default_factory=ObjectiveSettings)
    stepping: Annotated[TrainingStepSettings, unnested] = field(
        default_factory=TrainingStepSettings
    )


TUNING = TrainConfig(epochs=3, lr=1e-4, warmup_ratio=0.1, weight_decay=0.0)
"""Fine-tuning as in XDBERT, Appendix C.2 (1e-4 for RTE, MRPC and STS-B; the paper has 2e-5 for other tasks)."""


def check(config: FinetuneConfig, training: TrainConfig, out: str | Path) -> None:
    """Raises InputError for settings that are missing, or do not go together."""
    check_one_task("finetune", config.task, config.own, "--task")
    _check_disk(config.min_free_gb, Path(out))
    _check_regions_given(config)
    check_pixels(config.pixels, config.regions.images)
    _check_baselines(config)
    _check_unlabelled(config)
    _check_adapter(config, training)
    check_extra_objectives(config.extra_objectives, config.stepping.training_step, "finetune")
    check_training_step(config.stepping.training_step, config.stepping.adversarial)


def _check_disk(wanted: float, out: Path) -> None:
    """Raises InputError if a disk has less room than is wanted."""
    there = next(folder for folder in [out, *out.absolute().parents] if folder.exists())
    free = disk_usage(there).free / 1e9
    if free < wanted:
        raise InputError(
            f"--min-free-gb {wanted:g}: {free:.1f} GB are free on the disk of {out}; choose another --out, or make room"
        )


def _check_baselines(config: FinetuneConfig) -> None:
    """Raises InputError for --text-only-baseline of a model that sees no images, or nothing but them."""
    if not config.text_only_baseline:
        return
    if config.adapter_settings.adapter != "none" or is_adapter(config.model):
        raise InputError(
            "--text-only-baseline is for models that read regions; of an adapter the baseline is the same command without "
            "--adapter, its settings and --teacher-images, which reads the texts alone"
        )
    if not config.regions.regions or config.zero_region_features:
        raise InputError(
            "--text-only-baseline trains the same model without the images, but this one sees none; pass --regions STORE, or "
            "leave it out"
        )


def _check_unlabelled(config: FinetuneConfig) -> None:
    """Raises InputError if nothing is without a label, or no objective could score it."""
    flag = f"--unlabelled-per-labelled {config.unlabelled_per_labelled}"
    if not config.unlabelled_per_labelled:
        return
    if not config.partition:
        raise InputError(
            f"{flag} is about training examples outside a partition; pass --partition FILE, too"
        )
    if not config.extra_objectives.objectives:
        raise InputError(
            f"{flag}: no objective scores what has no label; name one that does, such as --objectives td_text"
        )
    if config.settings.targeted_distillation.td_choices == "right":
        raise InputError(
            f"{flag}: nobody knows the right choice of what has no label; leave --td-choices out"
        )


def _check_adapter(config: FinetuneConfig, training: TrainConfig) -> None:
    """Raises InputError for settings that say something of what an adapter over CLIP has not."""
    check_adapter(config.adapter_settings)
    is_new = config.adapter_settings.adapter != "none"
    there = is_adapter(config.model)
    if not (is_new or there):
        return
    if is_new and there:
        raise InputError(f"{config.model}: an adapter over CLIP already; leave --adapter out")
    flag = f"--adapter {config.adapter_settings.adapter}" if is_new else f"--model {config.model}"
    targeted = config.settings.targeted_distillation
    if not targeted.teacher_images:
        raise InputError(f"{flag} needs --teacher-images FOLDER, the pictures that CLIP sees")
    without = {
        "--regions": config.regions.regions,
        "--architecture": config.architecture,
        "--model-format": config.model_format,
        "--teacher": config.extra_objectives.teacher,
        "--objectives": config.extra_objectives.objectives,
        "--training-step": config.stepping.training_step,
        "--batch-tokens": training.batch_tokens,
    }
    refuse_settings(
        without, f"{flag} reads CLIP's features of whole pictures and texts; leave it out"
    )
    kept = TargetedDistillationSettings(
        teacher_images=targeted.teacher_images, teacher_cache=targeted.teacher_cache
    )
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
    about = {
        "--zero-region-features": config.zero_region_features,
        "--max-regions": config.regions.max_regions,
    }
    refuse_settings(about, "is about regions; pass --regions STORE or leave it out")


def inputs(config: FinetuneConfig, training: TrainConfig) -> Inputs:
    """What tells runs apart beside their settings."""
    from groundling.data.regions.inputs import manifests

    sees_pixels = config.regions.images and config.architecture
    return {
        "model": config.model,
        "data": config.data,
        "dev": config.own.dev,
        "partition": config.partition,
        **{f"also {other}": other.partition("=")[2] for other in config.extra_eval},
        **manifests(config.regions.regions),
        "images": config.regions.images,
        "backbone": config.pixels.backbone if sees_pixels else "",
        **teacher_inputs(config.extra_objectives.teacher, config.settings.targeted_distillation),
    }


def reads(config: FinetuneConfig, training: TrainConfig, out: str | Path) -> Mapping[str, str]:
    """Of what a new vision-language model's CNN is made."""
    is_new = config.regions.images and config.architecture
    return {"--backbone": config.pixels.backbone} if is_new else {}


def makes(config: FinetuneConfig, training: TrainConfig) -> Sequence[str]:
    """What a run leaves."""
    if not config.save_model:
        return []
    return [f"seed-{seed}/model" for seed in range(training.seed, training.seed + config.seeds)]


ASKED_FOR_LATER = ("seeds", "text_only_baseline", "train.seed", "min_free_gb")
"""More seeds, and baselines, make a run the same one, continued; room on a disk is no affair of its results."""

COMMAND = Command(
    "finetune",
    "fine-tune an encoder on a task, over seeds",
    "groundling.commands.finetune.run:finetune",
    {"_own": FinetuneConfig(), "_train": TUNING, **SHARED},
    title="Train",
    example="groundling finetune --model bert-base-uncased --task glue/rte --data glue_data --out "
    "runs/rte",
    common_flags="model task data text label image regions seeds epochs batch lr cpu",
    validate=check,
    default_models=reads,
    output=ResumableRun(inputs, ignored_settings=ASKED_FOR_LATER, artifacts=makes, extendable=True),
)
