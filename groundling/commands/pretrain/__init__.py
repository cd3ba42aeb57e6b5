"""`groundling pretrain`: pre-train VisualBERT, VL-BERT, UNITER or LXMERT on captioned images."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from groundling.command_line import Command, ResumableRun
from groundling.command_line.names import check_teacher, check_training_step, input_paths
from groundling.core.errors import InputError
from groundling.settings.fields import (
    InputKind,
    Settings,
    may_repeat,
    refuse_settings,
    require_settings,
    required,
    settings,
)
from groundling.settings.input_settings import (
    CaptionSettings,
    PixelInputSettings,
    RegionSettings,
    VisualBertSettings,
)
from groundling.settings.objectives import (
    ExtraObjectiveSettings,
    ObjectiveSettings,
    PretrainingVariantSettings,
    TrainingStepSettings,
)
from groundling.settings.training import WITHOUT_EFFECT, EvaluationSettings, TrainingArguments


@settings
class TrainTexts(Settings):
    """Training texts: captions of images, or the texts of a task."""

    captions: Annotated[tuple[str, ...], InputKind.WEIGHTED] = ()
    """Training captions, each FILE or FILE=WEIGHT, in a format of docs/vision.md ("Caption and photo \
formats"). Each step draws one file, by weight or, without weights, by number of samples."""
    caption_settings: CaptionSettings = field(default_factory=CaptionSettings)
    image_list: Annotated[str, InputKind.FILE] = ""
    """File that lists the training images, one name per line, or as karpathy_train_images.txt does; empty: all."""
    skip_missing: bool = False
    """Skip captions whose image is in no store, and count them; otherwise a missing image is an error."""
    epoch_unit: Literal["captions", "images"] = "captions"
    """What an epoch contains once: every caption, as in the releases, or every image."""
    task: Annotated[str, InputKind.OBJECT] = ""
    """Instead of captions: a task's training texts, e.g. vqa (VisualBERT's task-specific phase, \
UNITER's second stage on VCR, LXMERT's image question answering)."""
    data: Annotated[str, InputKind.PATH] = ""
    """--task: folder with the task's official files."""
    train_splits: tuple[str, ...] = ()
    """--task: splits whose texts are used, e.g. `train val` before --submit; none: the task's own training split."""
    partition: Annotated[str, InputKind.FILE] = ""
    """--task: use only the texts of the training examples that this output of `data partition` \
lists, as for few-shot fine-tuning."""


@settings
class EvalTexts(Settings):
    """Held-out texts: captions, or splits of the task, on which the loss is reported."""

    eval_captions: Annotated[tuple[str, ...], InputKind.WEIGHTED] = ()
    """Captions of other images on which the loss is reported, in any format of --captions."""
    eval_image_list: Annotated[str, InputKind.FILE] = ""
    """File that lists the images on which the loss is reported, of --eval-captions or else of --captions."""
    eval_splits: tuple[str, ...] = ()
    """Splits on which the loss is reported: of Karpathy's json in --eval-captions or else \
--captions, or of --task, e.g. `val`."""


@settings
class PretrainConfig(Settings):
    """Pre-training of a vision-language model on captioned images, or on a task's texts and images."""

    architecture: Annotated[str, InputKind.OBJECT] = "visualbert"
    """Architecture that a plain text encoder becomes: visualbert, vlbert, uniter, lxmert, or \
MODULE:NAME of your own; a vision-language model as --model needs its own."""
    model: Annotated[str, InputKind.MODEL, required] = ""
    """BERT, or a vision-language model to continue from: hub id or folder."""
    regions: RegionSettings = field(default_factory=RegionSettings)
    pixels: PixelInputSettings = field(default_factory=PixelInputSettings)
    train_texts: TrainTexts = field(default_factory=TrainTexts)
    eval_texts: EvalTexts = field(default_factory=EvalTexts)
    examining: EvaluationSettings = field(default_factory=EvaluationSettings)
    pretraining_objectives: PretrainingVariantSettings = field(
        default_factory=PretrainingVariantSettings
    )
    step_mix: Annotated[tuple[Annotated[float, Gt(0)], ...], may_repeat] = ()
    """Relative frequency of each kind of training step, in the model's order, for models with one objective per step \
(UNITER; docs/papers.md); empty: as in UNITER's code. UNITER-large on VCR: 10 1 1."""
    text: Annotated[tuple[str, ...], InputKind.WEIGHTED] = ()
    """Also train on these texts without images, as `adapt --text`, drawn as often as captions (VL-BERT)."""
    max_length: Annotated[int, Ge(0)] = 64
    """Maximum tokens per text; longer texts are truncated and counted."""
    grounded: bool = True
    """VisualBERT: read captions with their images; off: captions only (ablation C1; --regions \
still sets the feature width)."""
    joining: VisualBertSettings = field(default_factory=VisualBertSettings)
    random_init: bool = False
    """Initialise the model randomly, with the sizes of --model (ablation C3: no BERT)."""
    extra_objectives: ExtraObjectiveSettings = field(default_factory=ExtraObjectiveSettings)
    objective_settings: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    training_step: TrainingStepSettings = field(default_factory=TrainingStepSettings)


PRETRAINING = TrainingArguments(epochs=10, lr=5e-5, warmup_ratio=0.1, weight_decay=0.01)
"""Pre-training as in VisualBERT's code (10 epochs, 5e-5 to 1e-4, warm-up 10 %)."""


ONLY_CAPTIONS = ("image_list", "caption_splits", "eval_captions", "eval_image_list")
"""Settings that a task does not read."""
ONLY_TASK = ("data", "train_splits", "mentioned_objects_only", "partition", "task_answers")
"""Settings that captions do not read."""


def check(config: PretrainConfig, training: TrainingArguments, out: str | Path) -> None:
    """Raises InputError for settings that are missing or have no effect."""
    require_settings(config, "pretrain", "regions")
    if not config.regions.images:
        refuse_settings(config.pixels, "needs images=FOLDER, for models that read pixels")
    captions, task = config.train_texts.captions, config.train_texts.task
    if bool(captions) == bool(task):
        raise InputError("pretrain needs captions=FILE, or task and data for a task's own texts")
    names = ONLY_TASK if captions else ONLY_CAPTIONS
    reason = f"applies only to {'task' if captions else 'captions'}; leave it out"
    refuse_settings(config, reason, *names)
    extra, step = config.extra_objectives, config.training_step
    check_teacher(extra, step.training_step)
    check_training_step(config)


COMMAND = Command(
    "pretrain",
    "pre-train VisualBERT, VL-BERT, UNITER or LXMERT on captioned images",
    "groundling.commands.pretrain.run:pretrain",
    {"_own": PretrainConfig(), "_train": PRETRAINING},
    title="Train",
    example="groundling pretrain --architecture uniter --model bert-base-uncased --regions runs/store "
    "--captions my_captions.tsv --out runs/seen",
    common_flags="architecture model regions captions task data steps epochs batch lr seed cpu",
    validate=check,
    output=ResumableRun(input_paths, WITHOUT_EFFECT),
)
