"""Objectives and frozen teachers beside whatever else a run trains with: the one road for every recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from groundling.config import Distilling
from groundling.data.samples import Samples
from groundling.errors import InputError
from groundling.find import is_outside, outside
from groundling.keyed import seed_of
from groundling.models.clip import load_clip_text
from groundling.models.crossmodal import CrossModal
from groundling.models.single_stream import SingleStream
from groundling.models.text import TextEncoder
from groundling.objectives import Given, Objective, Vocabulary, part_named
from groundling.teachers import Teacher
from groundling.teachers.clip_text import ClipTextTeacher
from groundling.teachers.taught import Taught
from groundling.train import InnerStep

MEASURED = 256
"""Samples by which the size of a cache is told."""


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


def load_teacher(source: str, options: Distilling) -> Teacher:
    """A CLIP-like text tower by hub id or folder, or MODULE:NAME of a teacher of your own or of what makes it."""
    if not is_outside(source):
        clip, tokenizer = load_clip_text(source)
        standardise = options.l1_targets == "standard"
        return ClipTextTeacher(clip, tokenizer, standardise, options.max_windows)
    value: Any = outside(source, object)
    made: Teacher = value() if isinstance(value, type) or not hasattr(value, "features") else value
    return made


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
        if isinstance(self.teacher, ClipTextTeacher):
            self.teacher.fit(samples)
        if cached and self._gigabytes(samples) <= self.options.cache_gb:
            return Taught(samples, self.teacher), []
        return Taught(samples, self.teacher, cached=False), [self.teacher]

    def _gigabytes(self, samples: Samples) -> float:
        """About what all features take: one for each word and one for each row, by a part of the samples."""
        count = min(MEASURED, len(samples))
        places = np.linspace(0, len(samples) - 1, count).astype(int).tolist()
        vectors = 0
        for sample in samples.get(places, ()):
            for row in sample.rows:
                vectors += 1 if row.words is None else 1 + len(row.words)
        return vectors / count * len(samples) * self.teacher.width * 4 / 2**30


def classroom(source: str, options: Distilling, device: torch.device) -> Classroom | None:
    """The teacher of a run on its device; None without a source."""
    if not source:
        return None
    teacher = load_teacher(source, options)
    teacher.to(device)
    return Classroom(teacher, options)


def inner_step(name: str) -> InnerStep | None:
    """An inner step of your own, MODULE:NAME (an object or its class); None without a name."""
    if not name:
        return None
    value: Any = outside(name, object)
    step = value() if isinstance(value, type) else value
    if not isinstance(step, InnerStep):
        raise InputError(f"{name}: expected an InnerStep, found a {type(step).__name__}")
    return step


def with_teacher_width(given: Given, room: Classroom | None) -> Given:
    """What is known, with the width of the teacher's features."""
    if room is None:
        return given
    return replace(given, sizes=given.sizes._replace(teacher=room.teacher.width))
