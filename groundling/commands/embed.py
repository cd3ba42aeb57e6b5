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
from groundling.core.registry import is_import_path
from groundling.settings.fields import InputKind, Settings, make_settings, settings
from groundling.settings.input_settings import CaptionSettings
from groundling.settings.objectives import ObjectiveSettings

if TYPE_CHECKING:
    from groundling.data.vectors import Modality
    from groundling.runs.run import Run
    from groundling.teachers import Teacher
    from groundling.teachers.vectors import Names

SHARD_TIMEOUT = timedelta(days=7)
"""How long a process under torchrun waits for the shards of the others."""


@settings
class EmbedConfig(Settings):
    """A teacher, and the captions and images that it embeds."""

    teacher: Annotated[str, InputKind.MODEL] = ""
    """Hub id or folder of a CLIP-like model, an image encoder or a text encoder, open_clip:NAME/TAG, \
timm:NAME, or MODULE:NAME of your own."""
    option: tuple[str, ...] = ()
    """Options of your own teacher, each NAME=VALUE."""
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
    if config.option and not is_import_path(config.teacher):
        raise InputError(f"option={config.option[0]}: needs teacher=MODULE:NAME of your own")


def embed(config: EmbedConfig, run: Run) -> dict[str, Any]:
    """Write files of vectors and their ids to the run folder, resuming a killed run; returns their number."""
    from groundling.data.shards import ProcessRank
    from groundling.models.frozen_clip import has_text_tower
    from groundling.runs.progress import end_dry_run
    from groundling.teachers import vectors

    reads_texts = is_import_path(config.teacher) or has_text_tower(config.teacher)
    if config.text and not reads_texts:
        raise InputError(f"{config.teacher}: no text tower; without text, all images are embedded")
    names = vectors.read_names(config.text, config.caption_settings, config.images)
    counts = {"texts": len(names.texts), "images": len(names.images)}
    run.counts |= counts
    end_dry_run("embedding")
    part = ProcessRank(run.state.process_index, run.state.num_processes)
    result: dict[str, Any] = dict(counts)
    # Images first: damage among them is said before anything is embedded.
    inputs: dict[Modality, list[str]] = {"image": list(names.images), "text": names.texts}
    # What a teacher lacks is said before anything is embedded.
    teachers = {
        modality: _teacher(config, modality, names) for modality, some in inputs.items() if some
    }
    for modality, teacher in teachers.items():
        teacher.to(run.state.device)
        width = vectors.embed(
            teacher, modality, inputs[modality], run.folder, config.shard_size, part, names.images
        )
        result[f"{modality}_width"] = width
    return result


def _teacher(config: EmbedConfig, modality: Modality, names: Names) -> Teacher:
    from groundling.teachers import TeacherContext
    from groundling.teachers.loading import load_own_teacher
    from groundling.teachers.vectors import RAW, fit_own, image_teacher, text_teacher

    if not is_import_path(config.teacher):
        if modality == "text":
            return text_teacher(config.teacher, config.max_windows)
        return image_teacher(config.teacher, names.images)
    settings = make_settings(
        ObjectiveSettings,
        l1_targets="unit",
        max_windows=config.max_windows,
        teacher_images=config.images,
        option=config.option,
    )
    features = frozenset({RAW[modality]})
    teacher = load_own_teacher(TeacherContext(config.teacher, features, settings))
    fit_own(teacher, modality, names.texts if modality == "text" else list(names.images))
    return teacher


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
