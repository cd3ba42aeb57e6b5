"""The teachers of a run: loaded by what its objectives read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypeGuard

import torch

from groundling.core.errors import InputError
from groundling.core.output_types import Classification, OpenAnswer, OutputType
from groundling.core.registry import built, is_outside
from groundling.core.rng import seed_of
from groundling.data.text.keywords import Keywords
from groundling.models.adapters import IMAGE, TEXT, Base
from groundling.models.clip import FrozenClip, load_clip_image, load_clip_text, load_frozen_clip
from groundling.objectives import ObjectiveContext, features_needed
from groundling.settings.objectives import Distilling, Targeted
from groundling.teachers import Teacher, is_teacher
from groundling.teachers.clip import ClipTeacher
from groundling.teachers.clip_parts import FEATURES, AnswerConfidence, ClusterConfidence
from groundling.teachers.dataset import FeatureCache, TeacherSet, cache_folder
from groundling.teachers.text import ClipTextTeacher


def load_teacher_set(
    source: str,
    names: Sequence[str],
    given: ObjectiveContext,
    device: torch.device,
    out: Path,
    seed: int,
    also: Sequence[Teacher] = (),
) -> TeacherSet:
    """The teachers that the objectives `names` of a run read, on its device: those of a `source`, and those of `also`.

    Features are cached in --teacher-cache, or below the run's folder `out`. Raises InputError if a teacher lacks a
    feature that is read.
    """
    torch.manual_seed(seed_of(seed, "init", "teacher"))
    teachers = []
    if source:
        needs = features_needed(names, given)
        settings = given.settings
        teachers = load_teachers(source, needs, settings.distilling, settings.targeted, given.form)
    teachers += also
    for teacher in teachers:
        teacher.to(device)
    folder = cache_folder(given.settings.targeted.teacher_cache, out)
    return TeacherSet(teachers, FeatureCache(folder, given.settings.distilling.cache_gb))


def adapter_teacher_set(
    base: Base, options: Targeted, device: torch.device, out: Path
) -> TeacherSet:
    """The CLIP under an adapter as a teacher of every row's image and text, on a device; always cached.

    Features are in --teacher-cache, or below the run's folder `out`. Raises InputError without --teacher-images.
    """
    clip = FrozenClip(base.image, base.text, base.tokenizer)
    teacher = ClipTeacher(clip, {IMAGE, TEXT}, options).to(device)
    return TeacherSet([teacher], FeatureCache(cache_folder(options.teacher_cache, out)))


def load_teachers(
    source: str,
    needs: Collection[str],
    distilling: Distilling,
    targeted: Targeted,
    form: OutputType | None = None,
) -> list[Teacher]:
    """The teachers of a `source` for features that objectives read; these tell whether one must see images."""
    of_clip = set(needs) & set(FEATURES)
    if not of_clip and targeted.teacher_images:
        raise InputError(
            f"nothing reads --teacher-images {targeted.teacher_images}; name an objective that does, such as td_image"
        )
    if is_outside(source) or not of_clip:
        return [load_teacher(source, distilling)]
    teachers: list[Teacher] = []
    if set(needs) - of_clip:
        teachers.append(load_teacher(source, distilling))
    return [*teachers, load_clip_teacher(source, of_clip, targeted, form)]


def load_teacher(source: str, options: Distilling) -> Teacher:
    """A CLIP-like text tower by hub id or folder, or MODULE:NAME of a teacher of your own or of what makes it."""
    if not is_outside(source):
        clip, tokenizer = load_clip_text(source)
        standardise = options.l1_targets == "standard"
        return ClipTextTeacher(clip, tokenizer, standardise, options.max_windows)
    teacher = built(source, is_teacher, "a Teacher")
    if not (teacher.name and (teacher.width or teacher.image_width)):
        raise InputError(f"{source}: a teacher needs a `name`, and the `width` of its features")
    return teacher


def load_clip_teacher(
    source: str, needs: Collection[str], options: Targeted, form: OutputType | None
) -> ClipTeacher:
    """A CLIP-like model as a teacher of images and texts, with the sides that `needs` ask for; see `Targeted`."""
    by_chance = {"clip_words", "clip_word"} if options.select == "random" else set()
    sees = not set(needs) <= {"clip_text"} | by_chance
    reads = bool(set(needs) - {"clip_image"})
    text_source = options.teacher_text or source
    joined = text_source == source
    if not joined:  # what compares image and text is the scorer's
        sees = "clip_image" in needs
        reads = bool({"clip_text", "clip_words"} & set(needs))
    image = load_clip_image(source) if sees else None
    text, tokenizer = load_clip_text(text_source) if reads else (None, None)
    scorer = None
    if options.teacher_scorer:
        scorer = load_frozen_clip(options.teacher_scorer)
    return ClipTeacher(
        FrozenClip(image, text, tokenizer, joined),
        needs,
        options,
        scorer=scorer,
        keywords=_keywords(options.keywords),
        sure_of=_sure_of(form) if "clip_confidence" in needs else None,
    )


def _keywords(name: str) -> Keywords | None:
    """An extractor of keywords of your own, MODULE:NAME (a function, or a class made without arguments)."""
    return built(name, _is_extractor, "a function from a text to its keywords") if name else None


def _is_extractor(value: object) -> TypeGuard[Keywords]:
    return callable(value)


def _sure_of(form: OutputType | None) -> AnswerConfidence | ClusterConfidence:
    """What a teacher can be sure of in a task; raises InputError for one without answers."""
    if isinstance(form, OpenAnswer):
        return AnswerConfidence(tuple(text for text in form.labels if text not in form.never))
    if isinstance(form, Classification):
        return ClusterConfidence(len(form.labels))
    raise InputError("--td-gate: this task has no answers of which a teacher could be sure")
