"""`groundling finetune`: fine-tune an encoder on a task, over seeds."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from groundling.command_line import Command, ResumableRun
from groundling.command_line.names import (
    check_lora,
    check_teacher,
    check_training_step,
    input_paths,
)
from groundling.core.errors import InputError
from groundling.models.hub import is_adapter
from groundling.settings.fields import InputKind, Settings, refuse_settings, required, settings
from groundling.settings.input_settings import (
    ClipAdapterSettings,
    PixelInputSettings,
    RegionSettings,
    TableTaskSettings,
    VisualBertSettings,
    check_one_task,
)
from groundling.settings.objectives import (
    ExtraObjectiveSettings,
    ObjectiveSettings,
    TrainingStepSettings,
)
from groundling.settings.training import WITHOUT_EFFECT, EvaluationSettings, TrainingArguments


@settings
class FinetuneConfig(Settings):
    """Fine-tuning of an encoder on a task."""

    model: Annotated[str, InputKind.MODEL, required] = ""
    """Text encoder, CLIP-like text tower, or output of `adapt`, `pretrain` or `finetune`: hub id or folder."""
    task: Annotated[str, InputKind.OBJECT] = ""
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
    """NAME=FOLDER: also evaluate on the development split of another folder, such as an output of `data shift`."""
    submit: bool = False
    """Also predict the unlabelled test split, in the server's format."""
    save_model: bool = True
    """Save each seed's fine-tuned encoder and head, for `predict` and `evaluate`; off by default in a recipe."""
    skip_bad: bool = False
    """Leave out the examples of photos (--teacher-images, --images) that are missing or do not \
decode, and count these photos; otherwise the first is an error."""
    display_name: str = ""
    """Task name in reports, e.g. to tell runs with several numbers of training examples apart; \
empty: the task's own name."""
    freeze_word_embeddings: bool = False
    """Freeze the word embeddings, so that words outside the training examples keep theirs."""
    lora: Annotated[int, Ge(0)] = 0
    """Rank of low-rank adapters (LoRA) in every matrix of the encoder's layers; only they and heads are trained. The \
saved model has them merged; `adapter` has them alone, in peft's format. 0: train all of it."""
    regions: RegionSettings = field(default_factory=RegionSettings)
    train_regions: Annotated[str, InputKind.FOLDER] = ""
    """Region store of the training data, if it is not --regions: RefCOCO+'s detected track trains \
on annotated boxes."""
    pixels: PixelInputSettings = field(default_factory=PixelInputSettings)
    zero_region_features: bool = False
    """Set the regions' features to zero and keep their boxes: the control for tasks that select a region."""
    shuffle_images: bool = False
    """A control that differs in the photographs alone: each image's examples, held-out ones too, get another image of \
their split, drawn from the seed."""
    text_only_baseline: bool = False
    """Also train the same model without images (a task that selects a region: with \
--zero-region-features), with the same seeds, settings and task loss, in the subfolder `text-alone`."""
    architecture: Annotated[str, InputKind.OBJECT] = ""
    """Make a plain BERT a vision-language model, without pre-training: visualbert, vlbert, \
uniter, lxmert, or MODULE:NAME of your own architecture, which its models also need to load."""
    visualbert: VisualBertSettings = field(default_factory=VisualBertSettings)
    model_format: Annotated[str, InputKind.OBJECT] = ""
    """MODULE:NAME of your own `ModelFormat` that loads --model; empty: detected from the folder."""
    linear_head: bool = False
    """Use a pooler and one Linear layer for every task, instead of the paper's head and losses."""
    cls_without_pooler: bool = False
    """Text encoder: use one Linear layer on the first position, without pooler or dropout (XDBERT's code)."""
    head_loss: Literal["paper", "bce", "ce", "kl"] = "paper"
    """Task loss. paper: as in the model's paper; bce: binary cross-entropy per answer, choice or region; ce: one \
softmax over them (first version of VL-BERT's paper, on VCR and VQA); kl: KL divergence from the label distribution."""
    auxiliary_losses: bool = True
    """Also train the auxiliary losses of the model's paper: for VL-BERT on VCR, region classes."""
    own: TableTaskSettings = field(default_factory=TableTaskSettings)
    adapter_settings: ClipAdapterSettings = field(default_factory=ClipAdapterSettings)
    examining: EvaluationSettings = field(default_factory=EvaluationSettings)
    extra_objectives: ExtraObjectiveSettings = field(default_factory=ExtraObjectiveSettings)
    objective_settings: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    training_step: TrainingStepSettings = field(default_factory=TrainingStepSettings)


TUNING = TrainingArguments(epochs=3, lr=1e-4, warmup_ratio=0.1, weight_decay=0.0)
"""Fine-tuning as in XDBERT, Appendix C.2 (1e-4 for RTE, MRPC and STS-B; the paper has 2e-5 for other tasks)."""


WITH_REGIONS = (
    *("images", "train_regions", "zero_region_features", "max_regions", "text_only_baseline"),
)
"""Settings that are read only with regions."""


def check(config: FinetuneConfig, training: TrainingArguments, out: str | Path) -> None:
    """Raises InputError for settings that are missing or have no effect."""
    check_one_task("finetune", config.task, config.own, "task")
    check_lora(config.lora)
    if not config.regions.images:
        refuse_settings(config.pixels, "needs images=FOLDER, for models that read pixels")
    if not config.regions.regions:
        refuse_settings(config, "needs regions; pass regions=STORE or leave it out", *WITH_REGIONS)
    extra, step = config.extra_objectives, config.training_step
    if config.adapter_settings.adapter != "none" or is_adapter(config.model):
        reason = "an adapter over CLIP trains only the task's loss; leave it out"
        refuse_settings(config, reason, "objectives", "training_step")
    photos = config.regions.images or config.objective_settings.targeted_distillation.teacher_images
    if config.shuffle_images and (
        config.zero_region_features or not (photos or config.regions.regions)
    ):
        raise InputError("shuffle_images: the model is given no images; leave it out")
    if config.skip_bad and not photos:
        raise InputError("skip_bad needs teacher_images=FOLDER or images=FOLDER")
    check_teacher(extra, step.training_step)
    check_training_step(config)


EXTENDABLE_SETTINGS = ("seeds", "text_only_baseline", "train.seed", *WITHOUT_EFFECT)
"""Settings that may change when a run is resumed, or extended with more seeds or a baseline; others must stay."""

COMMAND = Command(
    "finetune",
    "fine-tune an encoder on a task, over seeds",
    "groundling.commands.finetune.run:finetune",
    {"_own": FinetuneConfig(), "_train": TUNING},
    title="Train",
    example="groundling finetune --model bert-base-uncased --task glue/rte --data glue_data --out "
    "runs/rte",
    common_flags="model task data text label image regions seeds epochs batch lr cpu",
    validate=check,
    output=ResumableRun(input_paths, ignored_settings=EXTENDABLE_SETTINGS, extendable=True),
)
