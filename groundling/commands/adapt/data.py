"""The texts of an adaptation: their layout, and the data sources that they and their images make."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

from groundling.commands.adapt import AdaptConfig
from groundling.core.errors import InputError
from groundling.core.resampling import derangement
from groundling.core.rng import generator
from groundling.data.captions import IS_PAIR, CaptionPairs
from groundling.data.corpora import CorpusDataset, corpus_samples, stores_folder
from groundling.data.samples import ClipRowEncoder, TextRowEncoder
from groundling.models.text_encoder import TextEncoder
from groundling.objectives import Objective
from groundling.runs.run import Run
from groundling.settings.input_settings import WeightedFile, parse_weighted_files
from groundling.teachers import Teacher
from groundling.teachers.feature_cache import TeacherSet
from groundling.training.batch_sampler import DataSource, split_by_file
from groundling.training.fit import Data, training_overlap_note

LINE = 128
"""Default maximum tokens of a line."""
BLOCK = 512
"""Tokens of a block, as in XDBERT's paper (Appendix B)."""
SLOTS = 9 * 77
"""Positions of a block's CLIP side in the paper: nine windows of 77; other window sizes get as many positions."""

Layout = Literal["lines", "blocks"]
"""lines: each line by itself; blocks: the lines of a file joined and cut into blocks."""


def text_layout_of(config: AdaptConfig, joint: bool, student_max_length: int) -> tuple[Layout, int]:
    """The layout of an arm's texts, blocks for a `joint` arm such as XDBERT, and the tokens of a line or block."""
    layout: Layout = "blocks" if joint else "lines"
    if config.text_layout != "auto":
        layout = config.text_layout
    length = config.max_length or (BLOCK if layout == "blocks" else LINE)
    return layout, min(length, student_max_length)


def clip_windows(layout: Layout, max_windows: int, size: int) -> int:
    """Maximum CLIP windows of `size` tokens per text; 0: as many as needed."""
    return max_windows or (math.ceil(SLOTS / size) if layout == "blocks" else 0)


def read_texts(
    config: AdaptConfig,
    layout: Layout,
    max_length: int,
    text: TextEncoder,
    windows: ClipRowEncoder | None,
    run: Run,
    seed: int,
) -> tuple[CorpusDataset, CorpusDataset | None]:
    """Training texts, and held-out texts or None; tokenised texts are stored in the run folder."""
    is_joined = layout == "blocks" and text.sizes.causal
    end_of_text = (text.tokenizer.eos_token or "") if is_joined else ""
    tokens = TextRowEncoder(text.tokenizer, max_length, end_of_text)

    def read(paths: Sequence[str], limit: int = 0) -> CorpusDataset:
        folder = stores_folder(run.folder)
        return corpus_samples(
            paths, layout, tokens, folder, windows, limit, config.caption_settings
        )

    eval_texts = read(config.eval_text) if config.eval_text else None
    files = [each.file for each in parse_weighted_files(config.text, "text")]
    texts = read(files, config.limit)
    held, trained = (list(map(os.path.normpath, paths)) for paths in (config.eval_text, files))
    run.note(*training_overlap_note(held, trained, "files"))
    if config.shuffle_images:
        texts.other_images = other_images(texts, seed)
    run.counts |= {"texts": len(texts), "eval texts": len(eval_texts or ())}
    return texts, eval_texts


def other_images(texts: CorpusDataset, seed: int) -> dict[str, str]:
    """Another image for every image, so that all texts of one get the same other one."""
    every = [*texts.bounds[:-1], len(texts)]
    found: dict[str, str] = {}
    for start, stop in pairwise(every):  # files stay apart: a run may draw them by weight
        names = list(dict.fromkeys(filter(None, texts.strings("image", range(start, stop)))))
        if len(names) == 1:
            raise InputError(f"shuffle_images: {names[0]} is the only image of its file")
        if names:
            others = derangement(len(names), generator(seed, "shuffled images", start))
            found |= zip(names, (names[other] for other in others), strict=True)
    return found


def training_data(
    config: AdaptConfig,
    texts: CorpusDataset,
    eval_texts: CorpusDataset | None,
    teacher_set: TeacherSet,
    objectives: Sequence[Objective],
) -> tuple[Data, Data | None]:
    """Training data, and held-out data or None, with the same teachers."""
    files = parse_weighted_files(config.text, "text")
    if config.shuffle_images and not any(one.image_features for one in teacher_set.teachers):
        raise InputError(f"shuffle_images: no objective of arm={config.arm} reads images")
    data = text_sources(texts, files, teacher_set, objectives, "text")
    if eval_texts is None:
        return data, None
    files = [WeightedFile(path) for path in config.eval_text]
    return data, text_sources(eval_texts, files, teacher_set, objectives, "eval_text")


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
    if not any(teacher.image_features for teacher in teacher_set.teachers):
        samples, teachers = teacher_set.wrap(texts)
        return split_by_file(DataSource(samples, name=setting), texts.bounds, files), teachers
    if not texts.has_image.any():
        raise InputError(
            f"{setting}: no file has captions with their images, which an objective reads"
        )
    if not sum(each.weight for each in files):
        spans = zip(texts.bounds[:-1], texts.bounds[1:], strict=True)
        files = [
            each._replace(weight=stop - start)
            for each, (start, stop) in zip(files, spans, strict=True)
        ]
    sources = []
    live: dict[str, Teacher] = {}
    by_file = split_by_file(DataSource(texts, name=setting), texts.bounds, files)
    for source, start, stop in zip(by_file, texts.bounds[:-1], texts.bounds[1:], strict=True):
        if start == stop:
            continue
        has_image = texts.has_image[start:stop]
        sees = bool(has_image.all())
        if has_image.any() and not sees:
            lacking = texts.ids[start + int(has_image.argmin())]
            raise InputError(f"{source.name}: {lacking} has no image, but other lines have")
        samples, teachers = teacher_set.wrap(source.samples, texts_only=not sees)
        live |= {teacher.name: teacher for teacher in teachers}
        source = replace(source, samples=samples)
        sources.append(_readable(source, sees, objectives, teacher_set))
    return sources, list(live.values())


def _readable(
    source: DataSource, sees: bool, objectives: Sequence[Objective], teacher_set: TeacherSet
) -> DataSource:
    if sees:
        pairing = [one.name for one in objectives if f"labels.{IS_PAIR}" in one.required_fields]
        if not pairing:
            return source
        return replace(source, samples=CaptionPairs(source.samples, f"{source.name}: {pairing[0]}"))
    of_images = {
        f"features.{name}" for teacher in teacher_set.teachers for name in teacher.image_features
    }
    textual = tuple(one.name for one in objectives if of_images.isdisjoint(one.required_fields))
    if not textual:
        raise InputError(f"{source.name}: its lines have no images, which every objective reads")
    return replace(source, objectives=textual)
