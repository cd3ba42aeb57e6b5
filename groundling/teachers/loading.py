"""Loads the teachers of a run, for the features that its objectives read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypeGuard

import torch
from transformers import PreTrainedTokenizerBase

from groundling.core.errors import InputError, require_known
from groundling.core.output_types import Classification, OpenAnswer, OutputType
from groundling.core.registry import import_object, instantiate, is_import_path, registered
from groundling.core.rng import derive_seed
from groundling.data.text.keywords import KeywordExtractor
from groundling.models.adapters import IMAGE, TEXT
from groundling.models.frozen_clip import (
    FrozenClip,
    has_text_tower,
    load_frozen_clip,
    load_teacher_text,
)
from groundling.models.hub import VECTORS
from groundling.objectives import ObjectiveContext, built_in_objectives, find_objective
from groundling.settings.fields import setting_fields
from groundling.settings.objectives import TargetedDistillationSettings, parse_options
from groundling.teachers import Teacher, TeacherContext, TeacherSpec, is_teacher
from groundling.teachers.clip import FEATURES, IMAGES, UNNORMALIZED_IMAGE, ClipTeacher
from groundling.teachers.feature_cache import FeatureCache, TeacherSet, cache_folder
from groundling.teachers.text import ClipTextTeacher
from groundling.teachers.vectors import StoredVectors

OF_TEXTS = (frozenset(FEATURES) - IMAGES) | {"sentence", "words", "has"}
"""Features that depend on a text."""


def load_teacher_set(
    source: str,
    names: Sequence[str],
    context: ObjectiveContext,
    device: torch.device,
    out: Path,
    seed: int,
    extra_teachers: Sequence[Teacher] = (),
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> TeacherSet:
    """Load the teachers that the objectives `names` need from a `source`, add `extra_teachers`, move all to `device`.

    `tokenizer`: the student's, for teachers that read its tokens.

    Features are cached in --teacher-cache, or below the run's folder `out`. Raises InputError if a teacher
    lacks a required feature.
    """
    if not is_import_path(source):  # a teacher of your own has the options to itself
        own = {one for name in names for one in setting_fields(find_objective(name).Settings)}
        for option in parse_options(context.settings.option):
            require_known(
                option, sorted(own), f"option={option}: no objective of this run reads it"
            )
    _check_text_tower(source, names, context)
    torch.manual_seed(derive_seed(seed, "init", "teacher"))
    teachers = []
    features = frozenset().union(*(find_objective(name).features(context) for name in names))
    if source or features:
        teachers = load_teachers(
            TeacherContext(
                source,
                features,
                context.settings,
                context.output_type,
                tokenizer,
            )
        )
    teachers += extra_teachers
    for teacher in teachers:
        teacher.to(device)
    folder = cache_folder(context.settings.targeted_distillation.teacher_cache, out)
    return TeacherSet(teachers, FeatureCache(folder, context.settings.distillation.cache_gb))


def _check_text_tower(source: str, names: Sequence[str], context: ObjectiveContext) -> None:
    """Raises InputError if an objective reads features of texts, and the teacher reads images alone."""
    has_own_text = is_import_path(source) or source.startswith(VECTORS)
    if not source or has_own_text or context.settings.targeted_distillation.teacher_text:
        return
    reading = [name for name in names if find_objective(name).features(context) & OF_TEXTS]
    if reading and not has_text_tower(source):
        every = {name: kind.features(context) for name, kind in built_in_objectives().items()}
        others = [
            name
            for name, features in every.items()
            if features & IMAGES and not features & OF_TEXTS
        ]
        raise InputError(
            f"{source}: no text tower, whose features {' and '.join(reading)} reads; of images alone are "
            f"{', '.join(others)}"
        )


def load_adapter_teacher_set(
    clip: FrozenClip,
    options: TargetedDistillationSettings,
    device: torch.device,
    out: Path,
) -> TeacherSet:
    """The CLIP of an adapter as a teacher of each row's image and text, on a device; always cached.

    Features are cached in --teacher-cache, or below the run's folder `out`. Raises InputError without
    --teacher-images.
    """
    teacher = ClipTeacher(clip, {IMAGE, TEXT}, options).to(device)
    return TeacherSet([teacher], FeatureCache(cache_folder(options.teacher_cache, out)))


def load_teachers(context: TeacherContext) -> list[Teacher]:
    """Load the teachers of the features that objectives read, and of the features that those teachers read.

    Raises InputError for a missing setting, or for an image folder that no teacher reads.
    """
    source = context.source
    targeted = context.settings.targeted_distillation
    needs = set(context.features)
    specs = [
        spec
        for spec in registered("teachers", TeacherSpec).values()
        if not needs.isdisjoint(spec.features)
    ]
    needs = needs.union(*(spec.reads for spec in specs))
    clip_features = needs & set(FEATURES)
    if source.startswith(VECTORS):
        wanted = needs - {name for spec in specs for name in spec.features}
        standardise = context.settings.distillation.l1_targets == "standard"
        made = [spec.make(context) for spec in specs]
        return [StoredVectors(source.removeprefix(VECTORS), wanted, standardise), *made]
    made = [spec.make(context) for spec in specs]
    if targeted.teacher_images and not (clip_features or made):
        raise InputError(f"teacher_images={targeted.teacher_images}: no objective reads images")
    teachers: list[Teacher] = []
    others = needs - clip_features - {name for spec in specs for name in spec.features}
    if is_import_path(source) or others or not (clip_features or made):
        teachers.append(load_teacher(context))
    if clip_features and not is_import_path(source):
        teachers.append(load_clip_teacher(source, clip_features, targeted, context.output_type))
    return [*teachers, *made]


def load_teacher(context: TeacherContext) -> Teacher:
    """Load a CLIP-like text tower by hub id or folder, or your own teacher, MODULE:NAME.

    MODULE:NAME is a teacher, a class or function that makes one, with the values of --option if it has a parameter, or
    a `TeacherSpec`.
    """
    source = context.source
    if not is_import_path(source):
        settings = context.settings.distillation
        standardise = settings.l1_targets == "standard"
        return ClipTextTeacher(*load_teacher_text(source), standardise, settings.max_windows)
    spec = import_object(source, object)
    if isinstance(spec, TeacherSpec):
        teacher = spec.make(context)
    else:
        options = parse_options(context.settings.option)
        teacher = instantiate(source, is_teacher, "a Teacher", options)
    if not (teacher.name and (teacher.width or teacher.image_width)):
        raise InputError(f"{source}: a teacher needs a `name`, and a `width` or `image_width`")
    return teacher


def load_clip_teacher(
    source: str,
    needs: Collection[str],
    options: TargetedDistillationSettings,
    output_type: OutputType | None,
) -> ClipTeacher:
    """Load a CLIP-like model as a teacher, with the towers that the features `needs` require; see
    `TargetedDistillationSettings`.
    """
    word_features = {"clip_words", "clip_word"} if options.word_selection == "random" else set()
    image_features = {"clip_image", UNNORMALIZED_IMAGE}
    needs_image_tower = not set(needs) <= {"clip_text"} | word_features
    needs_text_tower = bool(set(needs) - image_features)
    text_source = options.teacher_text or source
    is_one_model = text_source == source
    if not is_one_model:  # the scorer compares image and text
        needs_image_tower = bool(image_features & set(needs))
        needs_text_tower = bool({"clip_text", "clip_words"} & set(needs))
    if is_one_model:
        clip = load_frozen_clip(source, needs_image_tower, needs_text_tower)
    else:
        image = load_frozen_clip(source, text=False).image if needs_image_tower else None
        text, tokenizer = load_teacher_text(text_source) if needs_text_tower else (None, None)
        clip = FrozenClip(image, text, tokenizer, share_space=False)
    scorer = load_frozen_clip(options.teacher_scorer) if options.teacher_scorer else None
    return ClipTeacher(
        clip,
        needs,
        options,
        scorer=scorer,
        keywords=_load_keyword_extractor(options.keyword_extractor),
        answers=_answers_of_task(output_type) if "clip_confidence" in needs else 0,
    )


def _load_keyword_extractor(name: str) -> KeywordExtractor | None:
    """Load your own keyword extractor, MODULE:NAME (a function, or a class without arguments); None for no name."""
    return (
        instantiate(name, _is_extractor, "a function from a text to its keywords") if name else None
    )


def _is_extractor(value: object) -> TypeGuard[KeywordExtractor]:
    return callable(value)


def _answers_of_task(output_type: OutputType | None) -> tuple[str, ...] | int:
    """The answers that a teacher's confidence refers to: as texts, or their number.

    Raises InputError for a task without answers.
    """
    if isinstance(output_type, OpenAnswer):
        return tuple(
            text for text in output_type.labels if text not in output_type.excluded_answers
        )
    if isinstance(output_type, Classification):
        return len(output_type.labels)
    raise InputError("td_gate: this task has no answers to choose from; omit it")
