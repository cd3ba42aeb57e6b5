"""`groundling finetune`: fine-tune an encoder on a task, over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from shutil import disk_usage
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from groundling.command_line import Command
from groundling.command_line.registered_names import (
    check_extra_objectives,
    check_options,
    check_training_step,
)
from groundling.core.errors import InputError
from groundling.models.hub import is_adapter
from groundling.runs.outputs import Inputs, ResumableRun
from groundling.settings.fields import (
    InputKind,
    Settings,
    refuse_settings,
    required,
    settings,
)
from groundling.settings.input_settings import (
    ClipAdapterSettings,
    PixelInputSettings,
    RegionSettings,
    TableTaskSettings,
    VisualBertSettings,
    check_adapter,
    check_one_task,
    check_pixels,
    region_manifest,
)
from groundling.settings.objectives import (
    ExtraObjectiveSettings,
    ObjectiveSettings,
    TargetedDistillationSettings,
    TrainingStepSelection,
    teacher_inputs,
)
from groundling.settings.training import EvaluationSettings, TrainingArguments


@settings
class FinetuneConfig(Settings):
    """Fine-tuning of an encoder on a task."""

    model: Annotated[str, InputKind.WEIGHTS, required] = ""
    """Text encoder, CLIP-like text tower, or output of `adapt`, `pretrain` or `finetune`: hub id \
or folder."""
    task: Annotated[str, InputKind.TASK] = ""
    """Task name, e.g. glue/rte, or MODULE:NAME of your own task."""
    data: Annotated[str, InputKind.DATA, required] = ""
    """Folder with the task's official files, or, with --text and --label, your own csv, tsv, json \
or jsonl file; `hub` downloads GLUE through the datasets library."""
    seeds: Annotated[int, Interval(ge=1, lt=10_000)] = 1
    """Number of runs; seeds are consecutive, starting at --seed."""
    max_length: Annotated[int, Ge(0)] = 128
    """Maximum tokens per input; longer inputs are truncated and counted."""
    train_splits: tuple[str, ...] = ()
    """Training splits, e.g. `train val` before --submit; none: the task's own. Scores on a \
training split are marked as such."""
    limit_train: Annotated[int, Ge(0)] = 0
    """Maximum number of training examples, evenly spaced; 0: all."""
    partition: Annotated[str, InputKind.FILE] = ""
    """Train only on the examples that this output of `data partition` lists."""
    unlabelled_per_labelled: Annotated[int, Ge(0)] = 0
    """--partition: number of other training examples, without their labels, per labelled example \
in every step, for objectives that need no labels (semi-supervised: CLIP-TD); 0: none."""
    extra_eval: Annotated[tuple[str, ...], InputKind.NAMED] = ()
    """NAME=FOLDER: also evaluate on the development split of another folder, such as an output of \
`data shift`."""
    submit: bool = False
    """Also predict the unlabelled test split, in the server's format."""
    save_model: bool = True
    """Save each seed's fine-tuned encoder and head, for `predict` and `evaluate`; off by default \
in a recipe."""
    min_free_gb: Annotated[float, Ge(0)] = 0.0
    """Minimum free gigabytes on the disk of --out; with fewer, the run does not start; 0: do not check."""
    display_name: str = ""
    """Task name in reports, e.g. to tell runs with several numbers of training examples apart; \
empty: the task's own name."""
    freeze_word_embeddings: bool = False
    """Freeze the word embeddings, so that words outside the training examples keep theirs."""
    regions: RegionSettings = field(default_factory=RegionSettings)
    train_regions: Annotated[str, InputKind.FOLDER] = ""
    """Region store of the training data, if it is not --regions: RefCOCO+'s detected track trains \
on annotated boxes."""
    pixels: PixelInputSettings = field(default_factory=PixelInputSettings)
    zero_region_features: bool = False
    """Set the regions' features to zero and keep their boxes: the control for tasks that select a \
region."""
    text_only_baseline: bool = False
    """Also train the same model without images, with the same seeds, settings and task loss, in \
the subfolder `text-alone` of the run folder. For a task that selects a region, images are removed \
with --zero-region-features."""
    architecture: Annotated[str, InputKind.ARCHITECTURE] = ""
    """Make a plain BERT a vision-language model, without pre-training: visualbert, vlbert, \
uniter, or MODULE:NAME of your own architecture (also needed to load a model of that \
architecture)."""
    visualbert: VisualBertSettings = field(default_factory=VisualBertSettings)
    model_format: str = ""
    """MODULE:NAME of your own `ModelFormat` that loads --model; empty: detected from the folder."""
    linear_head: bool = False
    """Use a pooler and one Linear layer for every task, instead of the paper's head and losses."""
    cls_without_pooler: bool = False
    """Text encoder: use one Linear layer on the first position, without pooler or dropout \
(XDBERT's code)."""
    head_loss: Literal["paper", "bce", "ce", "kl"] = "paper"
    """Task loss. paper: as in the model's paper; bce: binary cross-entropy per answer, choice or \
region; ce: one softmax over them (first version of VL-BERT's paper, on VCR and VQA); kl: KL \
divergence from the label distribution."""
    auxiliary_losses: bool = True
    """Also train the auxiliary losses of the model's paper: for VL-BERT on VCR, region classes."""
    own: TableTaskSettings = field(default_factory=TableTaskSettings)
    adapter_settings: ClipAdapterSettings = field(default_factory=ClipAdapterSettings)
    examining: EvaluationSettings = field(default_factory=EvaluationSettings)
    extra_objectives: ExtraObjectiveSettings = field(default_factory=ExtraObjectiveSettings)
    objective_settings: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    training_step: TrainingStepSelection = field(default_factory=TrainingStepSelection)


TUNING = TrainingArguments(epochs=3, lr=1e-4, warmup_ratio=0.1, weight_decay=0.0)
"""Fine-tuning as in XDBERT, Appendix C.2 (1e-4 for RTE, MRPC and STS-B; the paper has 2e-5 for \
other tasks)."""


def check(config: FinetuneConfig, training: TrainingArguments, out: str | Path) -> None:
    """Raises InputError for settings that are missing or do not fit together."""
    check_one_task("finetune", config.task, config.own, "task")
    _check_disk(config.min_free_gb, Path(out))
    _check_region_settings(config)
    check_pixels(config.pixels, config.regions.images)
    _check_baselines(config)
    _check_unlabelled(config)
    _check_adapter(config, training)
    extra = config.extra_objectives
    parts = (*extra.objectives, extra.teacher, config.training_step.training_step)
    check_options(config.objective_settings.options.option, parts)
    check_extra_objectives(config.extra_objectives, config.training_step.training_step, "finetune")
    check_training_step(config.training_step.training_step, config.training_step.adversarial)


def _check_disk(min_free_gb: float, out: Path) -> None:
    """Raises InputError if the disk has too little free space."""
    existing = next(folder for folder in [out, *out.absolute().parents] if folder.exists())
    free = disk_usage(existing).free / 1e9
    if free < min_free_gb:
        raise InputError(
            f"min_free_gb={min_free_gb:g}: only {free:.1f} GB are free on the disk of {out}; choose another `out`"
        )


def _check_baselines(config: FinetuneConfig) -> None:
    """Raises InputError for --text-only-baseline of a model without images, or of an adapter."""
    if not config.text_only_baseline:
        return
    if config.adapter_settings.adapter != "none" or is_adapter(config.model):
        raise InputError(
            "text_only_baseline is for models that read regions; for an adapter's baseline, run the same "
            "command without adapter, its settings and teacher_images"
        )
    if not config.regions.regions or config.zero_region_features:
        raise InputError(
            "text_only_baseline trains the same model without images, but this model "
            "reads none; pass regions=STORE, or "
            "leave it out"
        )


def _check_unlabelled(config: FinetuneConfig) -> None:
    """Raises InputError if there are no unlabelled examples, or no objective that can use them."""
    flag = f"unlabelled_per_labelled={config.unlabelled_per_labelled}"
    if not config.unlabelled_per_labelled:
        return
    if not config.partition:
        raise InputError(
            f"{flag} uses training examples outside a partition; also pass partition=FILE"
        )
    if not config.extra_objectives.objectives:
        raise InputError(
            f"{flag}: no objective uses unlabelled examples; name one that does, such as objectives=td_text"
        )
    if config.objective_settings.targeted_distillation.td_choices == "right":
        raise InputError(
            f"{flag}: the right choice of an unlabelled example is unknown; leave td_choices out"
        )


def _check_adapter(config: FinetuneConfig, training: TrainingArguments) -> None:
    """Raises InputError for settings that an adapter over CLIP does not use."""
    check_adapter(config.adapter_settings)
    is_new = config.adapter_settings.adapter != "none"
    is_saved = is_adapter(config.model)
    if not (is_new or is_saved):
        return
    if is_new and is_saved:
        raise InputError(f"{config.model}: already an adapter over CLIP; leave adapter out")
    flag = f"adapter={config.adapter_settings.adapter}" if is_new else f"model={config.model}"
    targeted = config.objective_settings.targeted_distillation
    if not targeted.teacher_images:
        raise InputError(f"{flag} needs teacher_images=FOLDER, the images that CLIP reads")
    unused = {
        "regions": config.regions.regions,
        "architecture": config.architecture,
        "model_format": config.model_format,
        "teacher": config.extra_objectives.teacher,
        "objectives": config.extra_objectives.objectives,
        "training_step": config.training_step.training_step,
        "batch_tokens": training.batch_tokens,
    }
    refuse_settings(unused, f"{flag} reads CLIP's features of whole images and texts; leave it out")
    used = TargetedDistillationSettings(
        teacher_images=targeted.teacher_images, teacher_cache=targeted.teacher_cache
    )
    if targeted != used:
        raise InputError(
            f"{flag}: nothing is distilled, so CLIP-TD's other settings have no effect; leave them out"
        )


def _check_region_settings(config: FinetuneConfig) -> None:
    """Raises InputError for region settings without regions."""
    if config.regions.regions:
        return
    if config.regions.images:
        raise InputError(
            f"images={config.regions.images}: a model that reads pixels also needs regions=STORE for the "
            "boxes; a CLIP reads whole photos with adapter=mlp teacher_images=FOLDER"
        )
    region_settings = {
        "train_regions": config.train_regions,
        "zero_region_features": config.zero_region_features,
        "max_regions": config.regions.max_regions,
    }
    refuse_settings(region_settings, "needs regions; pass regions=STORE or leave it out")


def inputs(config: FinetuneConfig, training: TrainingArguments) -> Inputs:
    """Inputs whose hashes identify a run."""
    reads_pixels = config.regions.images and config.architecture
    return {
        "model": config.model,
        "data": config.data,
        "dev": config.own.dev,
        "partition": config.partition,
        **{f"extra_eval:{name}": name.partition("=")[2] for name in config.extra_eval},
        "regions": region_manifest(config.regions.regions),
        "train_regions": region_manifest(config.train_regions),
        "images": config.regions.images,
        "backbone": config.pixels.backbone if reads_pixels else "",
        **teacher_inputs(config.extra_objectives.teacher, config.objective_settings),
    }


def reads(
    config: FinetuneConfig, training: TrainingArguments, out: str | Path
) -> Mapping[str, str]:
    """Model that initialises the CNN of a new vision-language model."""
    is_new = config.regions.images and config.architecture
    return {"backbone": config.pixels.backbone} if is_new else {}


def makes(config: FinetuneConfig, training: TrainingArguments) -> Sequence[str]:
    """Outputs of a run."""
    if not config.save_model:
        return []
    return [f"seed-{seed}/model" for seed in range(training.seed, training.seed + config.seeds)]


EXTENDABLE_SETTINGS = ("seeds", "text_only_baseline", "train.seed", "min_free_gb")
"""Settings that may change when a run is extended with more seeds or a baseline; others must stay."""

COMMAND = Command(
    "finetune",
    "fine-tune an encoder on a task, over seeds",
    "groundling.commands.finetune.run:finetune",
    {"_own": FinetuneConfig(), "_train": TUNING},
    title="Train",
    example="groundling finetune --model bert-base-uncased --task glue/rte --data glue_data --out "
    "runs/rte",
    more_flags=(
        "max-length train-splits limit-train partition unlabelled-per-labelled extra-eval submit "
        "save-model images max-regions object-tags backbone shortest-edge longest-edge "
        "zero-region-features text-only-baseline architecture model-format label-type dev group "
        "adapter adapter-layers fusion head-loss linear-head eval-every keep-best patience "
        "objectives teacher teacher-images teacher-cache td-weight td-gate option training-step "
        "adversarial-modality adversarial-lr adversarial-kl-weight steps seed batch-tokens "
        "optimizer betas epsilon schedule warmup-ratio warmup-steps weight-decay max-grad-norm "
        "gradient-accumulation-steps precision gradient-checkpointing compile "
        "workers save-every log-every"
    ),
    common_flags="model task data text label image regions seeds epochs batch lr cpu",
    validate=check,
    default_models=reads,
    output=ResumableRun(
        inputs, ignored_settings=EXTENDABLE_SETTINGS, artifacts=makes, extendable=True
    ),
)
