"""Image-text retrieval of a CLIP, and of a sentence encoder aligned with its space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from groundling.commands.retrieve import RetrieveConfig
from groundling.core.batch import Example, require
from groundling.core.errors import InputError, prefix_errors
from groundling.data.captions import (
    CaptionedImage,
    find_images,
    join_captions,
    keep_listed,
    read_captions,
    with_store_ids,
)
from groundling.data.image_samples import split_decodable
from groundling.data.samples import TextDataset
from groundling.models.frozen_clip import load_frozen_clip, load_teacher_text
from groundling.models.text_encoder import load_text_encoder
from groundling.prediction.similarity import sentence_vectors, text_length_limit
from groundling.runs.report import format_table
from groundling.runs.run import Run
from groundling.settings.objectives import TargetedDistillationSettings
from groundling.stats.retrieval import (
    RANKS,
    TO_IMAGE,
    TO_TEXT,
    RanksByDirection,
    RecallScores,
    chance_recall,
    compare_recall,
    image_of_text,
    recall_scores,
    retrieval_ranks,
)
from groundling.teachers import Teacher
from groundling.teachers.clip import ClipTeacher
from groundling.teachers.feature_cache import (
    FeatureCache,
    TeacherSet,
    cache_folder,
    iterate_samples,
)
from groundling.teachers.text import ClipSentenceTeacher

DIRECTIONS = {TO_IMAGE: "text to image", TO_TEXT: "image to text"}
"""Names of the retrieval directions in tables."""


Encoded = tuple[np.ndarray, np.ndarray]
"""Vectors (C, E) float32 of unit length of C texts, and the number (C,) of truncated tokens of each."""


def retrieve(config: RetrieveConfig, run: Run) -> dict[str, Any]:
    """Recall at 1, 5 and 10 and the median rank, text to image and image to text, with chance levels.

    With a student, its text vectors search the same images, with paired intervals of differences and ratios; texts
    that the model truncates are also scored separately. Under several processes each one computes everything.
    """
    captioned, skipped = _read_captioned_images(config, run)
    texts = [text for image in captioned for text in image.captions]
    text_offsets = np.cumsum([0, *(len(image.captions) for image in captioned)])
    device = run.state.device
    clip = load_frozen_clip(config.model, text=False)
    width = require(clip.image, "image", config.model).embed_dim
    encoded, limits = {}, {}
    if config.student:  # first, since it may not fit
        encoded["student"], length = _encode_with_student(texts, config, width, device)
        limits["student"] = {"max_length": length}
    cache = FeatureCache(cache_folder(config.teacher_cache, run.folder))
    options = TargetedDistillationSettings(teacher_images=config.images)
    teacher = ClipTeacher(clip, ("clip_image",), options).to(device)
    examples = [Example(image.id, "", images=(image.id,)) for image in captioned]
    image_embeds, _ = _features(examples, teacher, "clip_image", cache)
    own = ClipSentenceTeacher(*load_teacher_text(config.model), max_windows=config.max_windows)
    own.to(device)
    queries = [Example(str(number), text) for number, text in enumerate(texts)]
    vectors, dropped = _features(queries, own, "sentence", cache)
    norm = np.linalg.norm(vectors, axis=1, keepdims=True)
    encoded["model"] = vectors / np.maximum(norm, 1e-12), dropped
    limits["model"] = {"window": own.windows.limit, "windows": config.max_windows}
    result: dict[str, Any] = {"images": len(captioned), **skipped}
    result |= {"texts": len(texts), "captions_per_text": config.captions_per_text}
    result |= {"ties": "right answer last", "chance": chance_recall(text_offsets)}
    for side, (_, cut) in encoded.items():
        counts = {"truncated_texts": int((cut > 0).sum()), "truncated_tokens": int(cut.sum())}
        result[side] = {**limits[side], **counts}
    ranks = {
        side: retrieval_ranks(vectors, image_embeds, text_offsets)
        for side, (vectors, _) in encoded.items()
    }
    _add_scores(result, ranks, text_offsets, encoded["model"][1] > 0, config.seed)
    return result


def _encode_with_student(
    texts: Sequence[str], config: RetrieveConfig, width: int, device: torch.device
) -> tuple[Encoded, int]:
    text = load_text_encoder(config.student)
    text.to(device)
    sentence = require(text.sentence, "modules.json", config.student)
    length = min(config.max_length or text_length_limit(text, sentence), text.max_length)
    vectors, dropped = sentence_vectors(text, sentence, texts, length)
    if vectors.shape[1] != width or not torch.isfinite(vectors).all():
        raise InputError(
            f"{config.student}: its vectors of {vectors.shape[1]} dimensions are not finite, or not in the space of "
            f"{config.model}, which has {width}"
        )
    return (F.normalize(vectors.float(), dim=-1).numpy(), dropped), length


def _read_captioned_images(
    config: RetrieveConfig, run: Run
) -> tuple[list[CaptionedImage], dict[str, Any]]:
    captions = read_captions(config.captions, config.caption_settings)
    run.note(*captions.notes)
    images = keep_listed(captions.images, config.image_list)
    place = config.images
    with prefix_errors(config.captions):
        images, missing = find_images(images, place, config.skip_missing)
    images, bad = split_decodable(images, place, config.skip_bad)
    texts = [
        replace(one, captions=join_captions(one.captions, config.captions_per_text))
        for one in with_store_ids(images)
    ]
    return texts, {"missing_images": missing, "bad_images": len(bad), "bad_image_names": bad}


def _features(
    examples: Sequence[Example], teacher: Teacher, name: str, cache: FeatureCache
) -> tuple[np.ndarray, np.ndarray]:
    samples, _ = TeacherSet([teacher], cache).wrap(TextDataset(examples, None))
    each = [(sample.features[name], sample.truncated_tokens) for sample in iterate_samples(samples)]
    return np.stack([vector for vector, _ in each]), np.array([dropped for _, dropped in each])


def _add_scores(
    result: dict[str, Any],
    ranks: Mapping[str, RanksByDirection],
    text_offsets: np.ndarray,
    cut: np.ndarray,
    seed: int,
) -> None:
    """Add each side's scores, their comparison, and the same for texts that the model truncates, `cut` (C,) bool."""
    for side, one in ranks.items():
        result[side] |= {way: recall_scores(own) for way, own in one.items()}
    images = {TO_IMAGE: image_of_text(text_offsets), TO_TEXT: np.arange(len(text_offsets) - 1)}
    if "student" in ranks:
        result["student_minus_model"] = {
            way: compare_recall(mine, ranks["model"][way], images[way], seed)
            for way, mine in ranks["student"].items()
        }
    if not cut.any():
        return
    to_image = {side: one[TO_IMAGE][cut] for side, one in ranks.items()}
    some: dict[str, Any] = {"texts": int(cut.sum())}
    some |= {side: recall_scores(own) for side, own in to_image.items()}
    if "student" in ranks:
        some["student_minus_model"] = compare_recall(
            to_image["student"], to_image["model"], images[TO_IMAGE][cut], seed
        )
    result["texts_truncated_by_model"] = some


# -- report ------------------------------------------------------------------------------------------------------
def format_result(result: dict[str, Any]) -> str:
    """The result as a table, with lines on truncation and on the comparison."""
    sides = [side for side in ("model", "student") if side in result]
    rows = []
    for way, name in DIRECTIONS.items():
        rows.append(_row(f"{name}: chance", result["chance"][way]))
        rows += [_row(f"{name}: {side}", result[side][way]) for side in sides]
    some = result.get("texts_truncated_by_model")
    if some is not None:
        name = f"{DIRECTIONS[TO_IMAGE]}, {some['texts']:,} truncated"
        rows += [_row(f"{name}: {side}", some[side]) for side in sides]
    lines = [f"{result['images']:,} images, {result['texts']:,} texts", format_table(rows)]
    for way, name in DIRECTIONS.items():
        if "student" in sides:
            lines.append(_comparison_line(name, result["student_minus_model"][way]))
    if some is not None and "student" in sides:
        lines.append(_comparison_line("of truncated texts", some["student_minus_model"]))
    return "\n".join(lines)


def _row(name: str, numbers: RecallScores) -> dict[str, str]:
    row = {"": name}
    row |= {f"R@{rank}": f"{numbers[f'r@{rank}']:.2f}" for rank in RANKS}
    return row | {"median rank": f"{numbers['median_rank']:g}"}


def _comparison_line(name: str, comparison: dict[str, Any]) -> str:
    gap = comparison["r@10"]
    low, high = gap["interval"]
    return f"{name}: R@10 student - model {gap['value']:+.2f} [{low:+.2f}, {high:+.2f}]"
