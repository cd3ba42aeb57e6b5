"""`groundling retrieve`: image-text retrieval of a CLIP, and of a text encoder aligned with its space."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge

from groundling.command_line import Command, ResumableRun
from groundling.command_line.names import input_paths
from groundling.settings.fields import InputKind, required, settings
from groundling.settings.input_settings import CaptionedImageSettings


@settings
class RetrieveConfig(CaptionedImageSettings):
    """Image-text retrieval: captions, images, CLIP, and a student text encoder."""

    model: Annotated[str, InputKind.MODEL, required] = ""
    """CLIP-like model with both towers: hub id or folder."""
    skip_bad: bool = False
    """Skip images that do not decode, and name and count them; otherwise the first is an error."""
    student: Annotated[str, InputKind.MODEL] = ""
    """Sentence encoder, as of `adapt --keep-projection`, that replaces the text tower in a second search."""
    captions_per_text: Annotated[int, Ge(1)] = 1
    """Number of captions of an image joined into one text; the last text has the remaining ones."""
    max_windows: Annotated[int, Ge(0)] = 1
    """Maximum windows of a long text that the model's text tower reads and averages; 1: truncate \
to the first, as CLIP does; 0: all."""
    max_length: Annotated[int, Ge(0)] = 0
    """Maximum tokens per text for the student; 0: as its folder defines."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the bootstrap intervals."""
    teacher_cache: str = ""
    """Folder that keeps the model's features for other runs; empty: they stay in the run folder until the run ends."""
    cpu: bool = False
    """Run on the CPU even if an accelerator is available."""


COMMAND = Command(
    "retrieve",
    "image-text retrieval of a CLIP, and of a text encoder aligned with its space",
    "groundling.commands.retrieve.run:retrieve",
    {"_own": RetrieveConfig()},
    title="Use",
    example="groundling retrieve --model openai/clip-vit-base-patch32 --captions "
    "captions_val2017.json --images coco/images --out runs/found",
    common_flags="model captions images student image-list skip-missing cpu",
    prints_output=True,
    output=ResumableRun(input_paths),
    formatter="groundling.commands.retrieve.run:format_result",
)
