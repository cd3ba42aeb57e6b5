"""Objectives and frozen teachers beside whatever else a run trains with: the one road for every recipe."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from groundling.analysis.watched import means_by_epoch
from groundling.batch import collate
from groundling.config import Adversarial, Distilling
from groundling.data.samples import Samples
from groundling.errors import InputError
from groundling.find import built, is_outside, named
from groundling.inner_steps import InnerPart, InnerStep, is_inner_step
from groundling.keyed import seed_of
from groundling.models.clip import load_clip_text
from groundling.models.crossmodal import CrossModal
from groundling.models.saved_heads import save_heads
from groundling.models.single_stream import SingleStream
from groundling.models.text import TextEncoder
from groundling.objectives import Given, Objective, Vocabulary, part_named
from groundling.teachers import Teacher, is_teacher
from groundling.teachers.clip_text import ClipTextTeacher
from groundling.teachers.taught import Taught


def vocabulary(text: TextEncoder) -> Vocabulary:
    """Mask id and ordinary ids of an encoder's tokenizer; raises InputError if it has no mask token."""
    mask_id = text.tokenizer.mask_token_id
    if mask_id is None:
        raise InputError(
            f"{text.tokenizer.name_or_path}: the tokenizer has no mask token, masked LM is not possible"
        )
    special = set(text.tokenizer.all_special_ids)
    ordinary = [number for number in range(len(text.tokenizer)) if number not in special]
    return Vocabulary(int(mask_id), ordinary)


def text_encoder_of(student: object) -> TextEncoder | None:
    """The text encoder inside a model, whose pieces are masked; None if there is none."""
    if isinstance(student, TextEncoder):
        return student
    return student.text if isinstance(student, CrossModal | SingleStream) else None


def check_parts(names: Sequence[str], teacher: str, command: str) -> None:
    """Raises InputError for an unknown objective, or one that wants a teacher where there is none."""
    for name in names:
        if part_named(name).taught and not teacher:
            raise InputError(f"{command}: {name} needs --teacher FOLDER_OR_HUB_ID")


def make_objectives(names: Sequence[str], given: Given, seed: int) -> list[Objective]:
    """Objectives by name; each one's head is drawn by its own key, so it is the same in every run that has it."""
    objectives = []
    for name in names:
        torch.manual_seed(seed_of(seed, "init", name))
        objectives.append(part_named(name).make(given))
    return objectives


def save_objectives(folder: Path, objectives: Sequence[Objective]) -> None:
    """Write what objectives keep for a next run beside an exported model."""
    heads = {name: head for one in objectives for name, head in one.saved().items()}
    save_heads(folder, heads)


def load_teacher(source: str, options: Distilling) -> Teacher:
    """A CLIP-like text tower by hub id or folder, or MODULE:NAME of a teacher of your own or of what makes it."""
    if not is_outside(source):
        clip, tokenizer = load_clip_text(source)
        standardise = options.l1_targets == "standard"
        return ClipTextTeacher(clip, tokenizer, standardise, options.max_windows)
    teacher = built(source, is_teacher, "a Teacher")
    if not (teacher.name and teacher.width):
        raise InputError(f"{source}: a teacher needs a `name`, and the `width` of its features")
    return teacher


MEASURED = 64
"""Samples from which the memory of all features is estimated."""


def features_gb(samples: Samples, teacher: Teacher) -> float:
    """About how many GiB a teacher's features of all samples take, from some of them."""
    count = min(MEASURED, len(samples))
    places = [len(samples) * number // count for number in range(count)]
    rows = [row for sample in samples.get(places, ()) for row in sample.rows]
    batch = collate(teacher.inputs(rows))
    with torch.no_grad():
        kept = teacher.kept(teacher.features(batch), batch)
    measured = sum(values.nbytes for row in kept for values in row.values())
    return measured / count * len(samples) / 2**30


@dataclass(frozen=True)
class Classroom:
    """A teacher and how it is put beside samples."""

    teacher: Teacher
    options: Distilling

    def wrap(self, samples: Samples, cached: bool = True) -> tuple[Samples, list[Teacher]]:
        """The samples with the teacher beside them, and the teachers that the loop must ask (none if cached).

        Features are computed once where they fit `--cache-gb`; samples that are drawn anew in every epoch say
        `cached=False`. A teacher of texts belongs below regions and pixels, which it need not wait for.
        """
        if cached and features_gb(samples, self.teacher) <= self.options.cache_gb:
            return Taught(samples, self.teacher), []
        return Taught(samples, self.teacher, cached=False), [self.teacher]


def classroom(source: str, options: Distilling, device: torch.device) -> Classroom | None:
    """The teacher of a run on its device; None without a source."""
    if not source:
        return None
    teacher = load_teacher(source, options)
    teacher.to(device)
    return Classroom(teacher, options)


def inner_step(name: str, options: Adversarial) -> InnerStep | None:
    """An inner step by name, or your own, MODULE:NAME (an object, or what makes one); None without a name.

    Raises InputError for an unknown name, and for options that nothing reads.
    """
    if name and not is_outside(name):
        return named("inner_steps", InnerPart, name).make(options)
    if options != Adversarial():
        raise InputError("--adversarial-... are settings of --inner villa, which is not chosen")
    if not name:
        return None
    return built(name, is_inner_step, "an InnerStep")


def watched_terms(
    objectives: Sequence[Objective], folder: Path, trained: Mapping[str, Any]
) -> tuple[dict[str, list[float]], list[str]]:
    """The mean of every watched term in each epoch of a finished training, and what is to be said of them, once.

    `trained` is what `train` returned, and `folder` where it wrote its log; what is said is printed, too.
    """
    terms = [term for objective in objectives for term in objective.watched]
    if not terms:
        return {}, []
    # An epoch of fewer than a ten-thousandth is written as 0.
    epoch = trained["steps"] / max(trained["epochs"], 1e-4)
    means = means_by_epoch(folder / "log.jsonl", terms, epoch)
    # Terms that share a gate say the same of it.
    notes = list(dict.fromkeys(line for one in objectives for line in one.remarks(means)))
    if PartialState().is_main_process:
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
    return means, notes


def with_teacher_width(given: Given, room: Classroom | None) -> Given:
    """What is known, with the width of the teacher's features."""
    if room is None:
        return given
    return replace(given, sizes=given.sizes._replace(teacher=room.teacher.width))
