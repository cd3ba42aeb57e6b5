"""`groundling zero-shot`: what a CLIP, or a pre-trained model's match head, answers without training on a task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from groundling.checks.names import check_name
from groundling.command import Command
from groundling.core.documented import documented
from groundling.core.errors import InputError
from groundling.settings.fields import check_numbers, need


@documented
@dataclass(frozen=True)
class ZeroShotConfig:
    """What a model answers without any training on a task, and how it is asked."""

    model: str = ""
    """CLIP-like model, hub id or folder; with --regions a pre-trained single-stream model and its match head."""
    task: str = ""
    """A task of images: vcr/answer, vcr/rationale, vcr (both, with Q->AR), snli-ve, vqa, or MODULE:NAME of your own."""
    data: str = ""
    """Folder with the task's official files."""
    split: str = ""
    """What is answered; empty: every labelled split."""
    also: tuple[str, ...] = ()
    """NAME=FOLDER: also answer the development split of another folder, such as one that `data shift` wrote."""
    images: str = ""
    """Folder of the images, whose ids are paths there without the ending; for a CLIP, and VL-BERT end to end."""
    regions: tuple[str, ...] = ()
    """Region stores of the images, which a single-stream model reads, each STORE or NAME=STORE; the first that has an \
image counts. A NAME is a split of the task, or one of --also, which then reads the stores of its name alone."""
    most_regions: int = 0
    """Regions per image, best first; 0: all."""
    other_regions: bool = False
    """Accept regions made by another detector or backbone than the model was trained with."""
    max_length: int = 128
    """Pieces per text of a single-stream model; a CLIP's own window cuts its texts."""
    protocol: Literal["iqa", "ia"] = "iqa"
    """Multiple choice: the image is compared with question and choice, or with the choice alone (CLIP-TD's IQA and \
IA; of rationales IQR and IR)."""
    fit: Literal["split", "train"] = "split"
    """Classes: clusters of the similarities of the split that is answered (transductive, as CLIP-TD does), or of the \
training split's."""
    prompt: str = "{question} {answer}"
    """Answers: what the image is compared with; without {question} the answers are read only once."""
    most_questions: int = 0
    """At most so many examples of a split, evenly spaced; 0: all."""
    teacher_cache: str = ""
    """Folder in which a CLIP's features stay for other runs; empty: in the run folder, until the run ends."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""


def check(config: ZeroShotConfig, out: str | Path) -> None:
    """Raises InputError without a model, a task, data, or what a CLIP sees."""
    need(config, "zero-shot", "model", "task", "data")
    if not config.regions:
        need(config, "zero-shot with a CLIP", "images")
    check_name("tasks", "Task", config.task)
    check_numbers(config)
    if "{answer}" not in config.prompt:
        raise InputError(f"--prompt {config.prompt!r}: expected {{answer}} in it")


COMMAND = Command(
    "zero-shot",
    "what a CLIP, or a pre-trained model's match head, answers without training on a task",
    "groundling.studies.clip_td.zero_shot:zero_shot",
    {"_own": ZeroShotConfig()},
    rules="groundling.studies.clip_td.commands.zero_shot:check",
)
