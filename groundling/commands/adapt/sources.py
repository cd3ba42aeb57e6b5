"""Data sources of adaptation: texts, and captions whose images some objectives read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from groundling.core.errors import InputError
from groundling.data.captions.caption_pairs import IS_PAIR, CaptionPairs
from groundling.data.corpora.token_stores import CorpusDataset
from groundling.data.samples import SampleDataset
from groundling.objectives import Objective
from groundling.settings.input_settings import WeightedFile
from groundling.teachers import Teacher
from groundling.teachers.feature_cache import TeacherSet
from groundling.training.batch_sampler import DataSource, split_by_file


def text_sources(
    texts: CorpusDataset, files: Sequence[WeightedFile], teacher_set: TeacherSet, flag: str
) -> tuple[list[DataSource], list[Teacher]]:
    """The sources of a run's texts with teacher features, and the teachers that run in every step.

    If a teacher reads images, each file is a source of its own, since only captions have images. Raises
    InputError if no file has images, or if some lines of a file have one and others none.
    """
    if not any(teacher.reads_images for teacher in teacher_set.teachers):
        samples, teachers = teacher_set.wrap(texts)
        return split_by_file(DataSource(samples, name=flag), texts.bounds, files), teachers
    weighted = files
    if not sum(each.weight for each in files):
        spans = zip(texts.bounds[:-1], texts.bounds[1:], strict=True)
        weighted = [
            each._replace(weight=stop - start)
            for each, (start, stop) in zip(files, spans, strict=True)
        ]
    sources = []
    live: dict[str, Teacher] = {}
    for source in split_by_file(DataSource(texts, name=flag), texts.bounds, weighted):
        if not len(source.samples):
            continue
        samples, teachers = teacher_set.wrap(
            source.samples, texts_only=not _has_images(source.samples, source.name)
        )
        live |= {teacher.name: teacher for teacher in teachers}
        sources.append(replace(source, samples=samples))
    if not any(source.samples.images[0] for source in sources):
        raise InputError(
            f"{flag} {files[0].file}: has no images, which an objective reads; add captions of images, in a layout "
            "that `groundling train-clip --captions` reads"
        )
    return sources, list(live.values())


def _has_images(samples: SampleDataset, name: str) -> bool:
    """Whether the lines of a file have images; raises InputError if only some have."""
    has_image = [bool(images) for images in samples.images]
    if all(has_image):
        return True
    if any(has_image):
        lacking = samples.ids[has_image.index(False)]
        raise InputError(
            f"{name}: {lacking} has no image, but other lines have; give texts without images in a file of their own"
        )
    return False


def restrict_to_readable(
    sources: Sequence[DataSource],
    objectives: Sequence[Objective],
    teacher_set: TeacherSet,
) -> list[DataSource]:
    """The sources, where texts without images train only objectives that read no features of images.

    If an objective reads pairs of captions, each caption of an image is paired with another one. Raises
    InputError for a source that trains no objective, or whose images have one caption each.
    """
    if not any(teacher.reads_images for teacher in teacher_set.teachers):
        return list(sources)
    textual = tuple(one.name for one in objectives if not reads_images(one, teacher_set))
    pairing = [one.name for one in objectives if f"labels.{IS_PAIR}" in one.required_fields]
    restricted = []
    for source in sources:
        if source.samples.images[0]:
            samples = source.samples
            if pairing:
                samples = CaptionPairs(samples, f"{source.name}: {pairing[0]}")
            restricted.append(replace(source, samples=samples))
            continue
        if not textual:
            raise InputError(
                f"{source.name}: its lines have no images, and every objective of this run reads images; leave it out"
            )
        restricted.append(replace(source, objectives=textual))
    return restricted


def reads_images(objective: Objective, teacher_set: TeacherSet) -> bool:
    """Whether an objective reads features of images."""
    offered = {
        f"features.{name}"
        for teacher in teacher_set.teachers
        if teacher.reads_images
        for name in teacher.feature_names
    }
    return not offered.isdisjoint(objective.required_fields)
