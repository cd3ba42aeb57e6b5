"""Loads the teachers of a run, for the features that its objectives read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

import torch

from groundling.core.errors import InputError, require_known
from groundling.core.output_types import Classification, OpenAnswer, OutputType
from groundling.core.registry import import_object, instantiate, is_import_path, registered
from groundling.core.rng import derive_seed
from groundling.data.text.keywords import KeywordExtractor
from groundling.models.adapters import IMAGE, TEXT
from groundling.models.frozen_clip import (
    FrozenClip,
    has_image_tower,
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

OF_TEXT_ENCODERS = frozenset({"clip_text", "sentence", "words", "has"})
"""Those for which a teacher needs no image."""

OF_VECTORS = frozenset({*FEATURES, "sentence", "words", "has"})
"""Features that stored vectors would have to have."""


def load_teacher_set(
    source: str,
    names: Sequence[str],
    context: ObjectiveContext,
    device: torch.device,
    out: Path,
    seed: int,
    extra_teachers: Sequence[Teacher] = (),
) -> TeacherSet:
    """Load the teachers that the objectives `names` need from a `source`, add `extra_teachers`, move all to `device`.

    Features are cached in --teacher-cache, or below the run's folder `out`. Raises InputError if a teacher
    lacks a required feature.
    """
    settings = context.settings
    if not is_import_path(source):  # a teacher of your own has the options to itself
        own = {one for name in names for one in setting_fields(find_objective(name).Settings)}
        for option in parse_options(settings.option):
            require_known(
                option, sorted(own), f"option={option}: no objective of this run reads it"
            )
    _check_towers(source, names, context)
    torch.manual_seed(derive_seed(seed, "init", "teacher"))
    features = frozenset().union(*(find_objective(name).features(context) for name in names))
    teacher_context = TeacherContext(
        source, features, settings, context.output_type, context.tokenizer
    )
    teachers = [*load_teachers(teacher_context), *extra_teachers]
    for teacher in teachers:
        teacher.to(device)
    folder = cache_folder(settings.targeted_distillation.teacher_cache, out)
    return TeacherSet(teachers, FeatureCache(folder, settings.distillation.cache_gb))


def _check_towers(source: str, names: Sequence[str], context: ObjectiveContext) -> None:
    if not source or is_import_path(source) or source.startswith(VECTORS):
        return
    needs = {name: find_objective(name).features(context) for name in names}
    towers = [("image", IMAGES, has_image_tower, "texts", OF_TEXT_ENCODERS)]
    if not context.settings.targeted_distillation.teacher_text:
        towers.insert(0, ("text", OF_TEXTS, has_text_tower, "images", IMAGES))
    for tower, features, has_tower, other, rest in towers:
        reading = [name for name, own in needs.items() if own & features]
        if reading and not has_tower(source):
            every = {name: kind.features(context) for name, kind in built_in_objectives().items()}
            able = [
                name for name, own in every.items() if own & rest and not own & (OF_VECTORS - rest)
            ]
            raise InputError(
                f"{source}: no {tower} tower, whose features {' and '.join(reading)} reads; of {other} alone are "
                f"{', '.join(able)}"
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


def make_clip_text_teacher(context: TeacherContext) -> ClipTextTeacher:
    """The text tower of --teacher, for whole texts and their words."""
    settings = context.settings.distillation
    standardise = settings.l1_targets == "standard"
    return ClipTextTeacher(*load_teacher_text(context.source), standardise, settings.max_windows)


def make_clip_teacher(context: TeacherContext) -> ClipTeacher:
    """The CLIP-like model of --teacher, with the towers that the run's features require.

    See `TargetedDistillationSettings` for towers of two models.
    """
    options = context.settings.targeted_distillation
    needs = context.features & set(FEATURES)
    word_features = {"clip_words", "clip_word"} if options.word_selection == "random" else set()
    image_features = {"clip_image", UNNORMALIZED_IMAGE}
    needs_image_tower = not needs <= {"clip_text"} | word_features
    needs_text_tower = bool(needs - image_features)
    if options.teacher_text in ("", context.source):
        clip = load_frozen_clip(context.source, needs_image_tower, needs_text_tower)
    else:  # the scorer compares image and text
        image, text, tokenizer = None, None, None
        if needs & image_features:
            image = load_frozen_clip(context.source, text=False).image
        if needs & {"clip_text", "clip_words"}:
            text, tokenizer = load_teacher_text(options.teacher_text)
        clip = FrozenClip(image, text, tokenizer, share_space=False)
    keywords = None
    if options.keyword_extractor:
        expected = "a function from a text to its keywords"
        keywords = instantiate(options.keyword_extractor, _is_extractor, expected)
    return ClipTeacher(
        clip,
        needs,
        options,
        scorer=load_frozen_clip(options.teacher_scorer) if options.teacher_scorer else None,
        keywords=keywords,
        answers=_answers_of_task(context.output_type) if "clip_confidence" in needs else 0,
    )


def make_vectors_teacher(context: TeacherContext) -> StoredVectors:
    """The folder of --teacher vectors:FOLDER, for CLIP's features among those of the run."""
    features = context.features & OF_VECTORS
    standardise = context.settings.distillation.l1_targets == "standard"
    return StoredVectors(context.source.removeprefix(VECTORS), features, standardise)


CLIP_TEXTS = TeacherSpec("CLIP's text tower", ("sentence", "words", "has"), make_clip_text_teacher)
CLIP = TeacherSpec("CLIP", FEATURES, make_clip_teacher)


def load_teachers(context: TeacherContext) -> list[Teacher]:
    """The teachers of the features that objectives read, and of the features that those teachers read.

    A --teacher of the user's own has its features in place of CLIP's. Raises InputError for a missing setting, or for
    an image folder that no teacher reads.
    """
    specs = registered("teachers", TeacherSpec).values()
    needs = context.features.union(
        *(spec.reads for spec in specs if not context.features.isdisjoint(spec.features))
    )
    needed = [spec for spec in specs if not needs.isdisjoint(spec.features)]
    own: list[Teacher] = []
    if is_import_path(context.source):
        own = [load_own_teacher(context)]
    elif context.source.startswith(VECTORS) and not needs.isdisjoint(OF_VECTORS):
        own = [make_vectors_teacher(replace(context, features=needs))]
    if own:
        needed = [spec for spec in needed if spec not in (CLIP, CLIP_TEXTS)]
    images = context.settings.targeted_distillation.teacher_images
    if images and needed == [CLIP_TEXTS]:
        raise InputError(f"teacher_images={images}: no objective reads images")
    needed.sort(key=lambda spec: bool(spec.reads))  # behind the teachers whose features it reads
    context = replace(context, features=needs)
    return [*own, *(spec.make(context) for spec in needed)]


def load_own_teacher(context: TeacherContext) -> Teacher:
    """Load a teacher of the user's own, MODULE:NAME.

    It is a teacher, a class or function that makes one, with the values of --option if it has a parameter, or a
    `TeacherSpec`.
    """
    source = context.source
    spec = import_object(source, object)
    if isinstance(spec, TeacherSpec):
        teacher = spec.make(context)
    else:
        options = parse_options(context.settings.option)
        teacher = instantiate(source, is_teacher, "a Teacher", options)
    if not (teacher.name and (teacher.width or teacher.image_width)):
        raise InputError(f"{source}: a teacher needs a `name`, and a `width` or `image_width`")
    return teacher


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
