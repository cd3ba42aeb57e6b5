"""`groundling train-clip`: train a small CLIP on captioned images."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from groundling.command_line import Command, ResumableRun
from groundling.command_line.names import input_paths
from groundling.core.errors import InputError
from groundling.models.hub import VECTORS
from groundling.settings.fields import InputKind, refuse_settings, settings
from groundling.settings.input_settings import CaptionedImageSettings
from groundling.settings.training import WITHOUT_EFFECT, EvaluationSettings, TrainingArguments


@settings
class TrainClipConfig(CaptionedImageSettings):
    """Training of a small CLIP, from scratch or from an existing CLIP."""

    images: Annotated[str, InputKind.FOLDER] = ""
    """Folder of the images, searched recursively; not with --image-model vectors:FOLDER."""
    model: Annotated[str, InputKind.MODEL] = ""
    """CLIP to continue from, hub id or folder, which keeps its sizes and its tokenizer; empty: a new CLIP."""
    image_model: Annotated[str, InputKind.MODEL] = ""
    """Frozen image encoder in place of an image tower (LiT): any teacher of images, or vectors:FOLDER. \
Its features are computed once; texts and a head on the features are trained."""
    text_model: Annotated[str, InputKind.MODEL] = ""
    """--image-model: text encoder from which the text tower starts; empty: a new CLIP text tower."""
    freeze_text: bool = False
    """--text-model: train only a head on the encoder."""
    head_layers: Annotated[int, Interval(ge=1, le=2)] = 1
    """--image-model: layers of the heads on features and on --text-model; 2: with a GELU between them."""
    eval_image_list: Annotated[str, InputKind.FILE] = ""
    """File that lists the images on which retrieval is reported, of --eval-captions or else of --captions."""
    eval_captions: Annotated[str, InputKind.PATH] = ""
    """Captions of other images on which retrieval is reported, in any format of --captions."""
    eval_splits: tuple[str, ...] = ()
    """Karpathy's json: splits on which retrieval is reported, of --eval-captions or else of --captions."""
    examining: EvaluationSettings = field(default_factory=EvaluationSettings)
    size: Annotated[int, Ge(1)] = 64
    """Image side in pixels."""
    patch_size: Annotated[int, Ge(1)] = 8
    """Patch side of the vision transformer in pixels."""
    vision_tower: tuple[Annotated[int, Ge(1)], Annotated[int, Ge(1)]] = (192, 4)
    """Width and number of transformer layers of the vision tower."""
    text_tower: tuple[Annotated[int, Ge(1)], Annotated[int, Ge(1)]] = (192, 3)
    """Width and number of transformer layers of the text tower."""
    projection_dim: Annotated[int, Ge(1)] = 192
    """Dimension of the joint embedding space."""
    vocab_size: Annotated[int, Ge(3)] = 4000
    """Vocabulary size of the byte-pair tokenizer, which is trained on the captions."""
    context_length: Annotated[int, Ge(3)] = 32
    """Context length of the text tower in tokens."""
    flip: bool = True
    """Mirror training images at random; turn off if captions mention left and right."""
    max_shift: Annotated[float, Interval(ge=0, lt=1)] = 0.06
    """Maximum random shift of the image, as a share of its side."""
    untrained: bool = False
    """Save the CLIP without training: a control teacher."""
    loss: Literal["own", "softmax", "sigmoid"] = "own"
    """CLIP's softmax over the batch, or SigLIP's sigmoid of each pair; own: as --model was trained."""


CLIP_TRAINING = TrainingArguments(
    epochs=20, batch=200, lr=1e-3, schedule="cosine", weight_decay=0.1
)
"""A small CLIP from scratch."""


NEW = (
    *("size", "patch_size", "vision_tower", "text_tower", "projection_dim", "vocab_size"),
    *("context_length", "untrained"),
)
"""Settings of a new CLIP only."""


def check(config: TrainClipConfig, training: TrainingArguments, out: str | Path) -> None:
    """Raises InputError for missing images, and for settings of another kind of model."""
    if not config.images and not config.image_model.startswith(VECTORS):
        raise InputError("train-clip needs images=FOLDER, or image_model=vectors:FOLDER")
    if not config.image_model:
        reason = "they belong to image_model"
        refuse_settings(config, reason, "text_model", "freeze_text", "head_layers")
    elif config.model or config.untrained:
        raise InputError(
            "image_model: a new dual encoder is trained; leave out model and untrained"
        )
    if config.model:
        refuse_settings(config, f"{config.model} keeps its own; leave it out", *NEW)


COMMAND = Command(
    "train-clip",
    "train a small CLIP on captioned images, e.g. as a teacher",
    "groundling.commands.train_clip.run:train_clip",
    {"_own": TrainClipConfig(), "_train": CLIP_TRAINING},
    title="Train",
    example="groundling train-clip --captions my_data/captions.csv --images my_data/photos --out "
    "runs/my_clip",
    common_flags="captions images model size epochs steps batch lr seed cpu",
    validate=check,
    output=ResumableRun(input_paths, WITHOUT_EFFECT),
)
