"""`groundling embed`: write a teacher's vectors of captions and images, which `--teacher vectors:FOLDER` reads."""

from __future__ import annotations

from dataclasses import field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from groundling.command_line import Command, ResumableRun
from groundling.command_line.names import input_paths
from groundling.core.errors import InputError
from groundling.settings.fields import InputKind, Settings, settings
from groundling.settings.input_settings import CaptionSettings

if TYPE_CHECKING:
    from groundling.runs.run import Run

SHARD_TIMEOUT = timedelta(days=7)
"""How long a process under torchrun waits for the shards of the others."""


@settings
class EmbedConfig(Settings):
    """A teacher, and the captions and images that it embeds."""

    teacher: Annotated[str, InputKind.MODEL] = ""
    """Hub id or folder of a CLIP-like model, an image encoder or a text encoder, open_clip:NAME/TAG, or timm:NAME."""
    text: Annotated[tuple[str, ...], InputKind.PATH] = ()
    """Files of texts, or captions that `train-clip` reads; none: images alone."""
    caption_settings: CaptionSettings = field(default_factory=CaptionSettings)
    images: Annotated[str, InputKind.FOLDER] = ""
    """Folder of images: those of the captions in --text, or without --text all; none: texts alone."""
    max_windows: Annotated[int, Ge(0)] = 0
    """Maximum number of windows in which a text is read; 0: as many as needed."""
    shard_size: Annotated[int, Ge(1)] = 16384
    """Vectors per file; a killed run repeats at most as many per process."""
    cpu: bool = False
    """Run on the CPU even if an accelerator is available."""


def check(config: EmbedConfig, out: str | Path) -> None:
    """Raises InputError without a teacher, or with nothing to embed."""
    if not config.teacher or not (config.text or config.images):
        raise InputError("embed needs teacher=MODEL, and text=FILE or images=FOLDER")


def embed(config: EmbedConfig, run: Run) -> dict[str, Any]:
    """Write files of vectors and their ids to the run folder, resuming a killed run; returns their number."""
    from groundling.data.shards import ProcessRank
    from groundling.models.frozen_clip import has_text_tower
    from groundling.runs.progress import end_dry_run
    from groundling.teachers import vectors

    if config.text and not has_text_tower(config.teacher):
        raise InputError(f"{config.teacher}: no text tower; without text, all images are embedded")
    names = vectors.read_names(config.text, config.caption_settings, config.images)
    counts = {"texts": len(names.texts), "images": len(names.images)}
    run.counts |= counts
    end_dry_run("embedding")
    part = ProcessRank(run.state.process_index, run.state.num_processes)
    result: dict[str, Any] = dict(counts)
    device, size = run.state.device, config.shard_size
    if names.texts:
        teacher = vectors.text_teacher(config.teacher, config.max_windows).to(device)
        result["text_width"] = vectors.embed(teacher, "text", names.texts, run.folder, size, part)
    if names.images:
        teacher = vectors.image_teacher(config.teacher, names.images).to(device)
        files = list(names.images)
        result["image_width"] = vectors.embed(teacher, "image", files, run.folder, size, part)
    return result


COMMAND = Command(
    "embed",
    "write a teacher's vectors of captions and images, to train from without the teacher",
    "groundling.commands.embed:embed",
    {"_own": EmbedConfig()},
    title="Use",
    example="groundling embed --teacher openai/clip-vit-base-patch32 --text captions.json --images photos "
    "--out runs/vectors",
    common_flags="teacher text images max-windows shard-size cpu",
    validate=check,
    output=ResumableRun(input_paths, ("cpu",), timeout=SHARD_TIMEOUT),
)
