"""Data sources of adaptation: texts, and captions whose images some objectives read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from groundling.core.errors import InputError
from groundling.data.captions import IS_PAIR, CaptionPairs
from groundling.data.corpora import CorpusDataset
from groundling.data.samples import SampleDataset
from groundling.objectives import Objective
from groundling.settings.input_settings import WeightedFile
from groundling.teachers import Teacher
from groundling.teachers.feature_cache import TeacherSet
from groundling.training.batch_sampler import DataSource, split_by_file
from groundling.training.fit import Data


def text_sources(
    texts: CorpusDataset,
    files: Sequence[WeightedFile],
    teacher_set: TeacherSet,
    objectives: Sequence[Objective],
    setting: str,
) -> Data:
    """The sources of a run's texts with teacher features, and the teachers that run in every step.

    If a teacher reads images, each file is a source of its own: texts without images train only objectives
    that read no features of images, and objectives on pairs of captions pair each caption of an image with another.
    """
    if not any(teacher.reads_images for teacher in teacher_set.teachers):
        samples, teachers = teacher_set.wrap(texts)
        return split_by_file(DataSource(samples, name=setting), texts.bounds, files), teachers
    if not any(texts.images):
        raise InputError(f"{setting}: no file has images, which an objective reads")
    if not sum(each.weight for each in files):
        spans = zip(texts.bounds[:-1], texts.bounds[1:], strict=True)
        files = [
            each._replace(weight=stop - start)
            for each, (start, stop) in zip(files, spans, strict=True)
        ]
    sources = []
    live: dict[str, Teacher] = {}
    for source in split_by_file(DataSource(texts, name=setting), texts.bounds, files):
        if not len(source.samples):
            continue
        sees = _has_images(source.samples, source.name)
        samples, teachers = teacher_set.wrap(source.samples, texts_only=not sees)
        live |= {teacher.name: teacher for teacher in teachers}
        source = replace(source, samples=samples)
        sources.append(_readable(source, sees, objectives, teacher_set))
    return sources, list(live.values())


def _has_images(samples: SampleDataset, name: str) -> bool:
    """Whether the lines of a file have images; raises InputError if only some have."""
    has_image = [bool(images) for images in samples.images]
    if any(has_image) and not all(has_image):
        lacking = samples.ids[has_image.index(False)]
        raise InputError(f"{name}: {lacking} has no image, but other lines have")
    return all(has_image)


def _readable(
    source: DataSource, sees: bool, objectives: Sequence[Objective], teacher_set: TeacherSet
) -> DataSource:
    """The source with the objectives that its texts can train, and with pairs of captions if one reads them."""
    if sees:
        pairing = [one.name for one in objectives if f"labels.{IS_PAIR}" in one.required_fields]
        if not pairing:
            return source
        return replace(source, samples=CaptionPairs(source.samples, f"{source.name}: {pairing[0]}"))
    seeing = [teacher for teacher in teacher_set.teachers if teacher.reads_images]
    of_images = {f"features.{name}" for teacher in seeing for name in teacher.feature_names}
    textual = tuple(one.name for one in objectives if of_images.isdisjoint(one.required_fields))
    if not textual:
        raise InputError(f"{source.name}: its lines have no images, which every objective reads")
    return replace(source, objectives=textual)
