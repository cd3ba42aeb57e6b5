"""`groundling retrieve`: image-text retrieval of a CLIP, and of a text encoder that speaks its space."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from groundling.command_line import Command
from groundling.runs.outputs import Inputs, ResumableRun
from groundling.settings.fields import (
    InputKind,
    Settings,
    at_least,
    refuse_settings,
    required,
    unnested,
)
from groundling.settings.input_settings import CaptionSettings


@dataclass(frozen=True)
class RetrieveConfig(Settings):
    """Which captioned images are searched, by which CLIP, and whose texts stand beside its own."""

    model: Annotated[str, InputKind.MODEL, required] = ""
    """CLIP-like model with both sides: hub id or folder."""
    captions: Annotated[str, InputKind.PATH, required] = ""
    """Captions: COCO or Karpathy's json, Conceptual Captions tsv, Flickr8k token.txt, your own csv, tsv or jsonl, or \
a folder (docs/vision.md)."""
    reading: Annotated[CaptionSettings, unnested] = field(default_factory=CaptionSettings)
    images: Annotated[str, InputKind.FOLDER, required] = ""
    """Folder of the images."""
    image_list: Annotated[str, InputKind.FILE] = ""
    """File that lists the images to use, one name a line, or as karpathy_test_images.txt does; empty: all."""
    skip_missing: bool = False
    """Leave captions out whose image is missing, and count the images."""
    skip_bad: bool = False
    """Leave images out whose file does not decode, and name and count them; without it, the first one is an error."""
    student: Annotated[str, InputKind.MODEL] = ""
    """Sentence encoder whose vectors are to be found among the model's images: a folder of sentence-transformers, as \
`adapt --keep-projection` writes it."""
    captions_per_text: Annotated[int, at_least(1)] = 1
    """Captions of an image that make one text, one after the other; more than 1 makes long texts. The last text of an \
image has what is left."""
    max_windows: Annotated[int, at_least(0)] = 1
    """Windows of a long text that the model's own text side reads, as a mean; 1: cut after the first, as CLIP does; \
0: all."""
    max_length: Annotated[int, at_least(0)] = 0
    """Pieces of a text that the student reads; 0: as many as its folder says."""
    seed: Annotated[int, at_least(0)] = 0
    """Draws the resamples of the intervals."""
    teacher_cache: str = ""
    """Folder in which the model's features stay for other runs; empty: in the run folder, until the run ends."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""


def check(config: RetrieveConfig, out: str | Path) -> None:
    """Raises InputError for settings that are missing, or that nothing reads."""
    if not config.student:
        length = {"--max-length": config.max_length}
        refuse_settings(length, "is for --student; a CLIP's window cuts its texts")


def inputs(config: RetrieveConfig) -> Inputs:
    """What tells runs apart beside their settings."""
    return {
        "model": config.model,
        "captions": config.captions,
        "images": config.images,
        "listing": config.image_list,
        "student": config.student,
    }


COMMAND = Command(
    "retrieve",
    "image-text retrieval of a CLIP, and of a text encoder that speaks its space",
    "groundling.commands.retrieve.run:retrieve",
    {"_own": RetrieveConfig()},
    title="Use",
    example="groundling retrieve --model openai/clip-vit-base-patch32 --captions "
    "captions_val2017.json --images coco/images --out runs/found",
    common_flags="model captions images student image-list skip-missing cpu",
    prints_output=True,
    validate=check,
    output=ResumableRun(inputs),
    formatter="groundling.commands.retrieve.run:format_result",
)
