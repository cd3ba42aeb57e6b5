"""Image-text retrieval of a CLIP, and of a sentence encoder aligned with its space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from groundling.commands.retrieve import RetrieveConfig
from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.data.captions.captions import (
    CaptionedImage,
    find_images,
    join_captions,
    keep_listed,
    read_captions,
    with_store_ids,
)
from groundling.data.image_samples import split_decodable
from groundling.data.samples import TextDataset
from groundling.models.clip import FrozenClip, load_clip_image_tower, load_clip_text_tower
from groundling.models.sentence_modules import SentenceModules
from groundling.models.text_encoder import TextEncoder, load_text_encoder
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
TIES = "right answer last"
"""Position of the right answer among equal scores."""


class EncodedTexts(NamedTuple):
    """Texts encoded by one encoder."""

    vectors: np.ndarray
    """(C, E) float32, of unit length."""
    truncated_tokens: np.ndarray
    """(C,) number of truncated tokens of each text."""


class RetrievalSet(NamedTuple):
    """Images and texts of the retrieval."""

    captioned_images: Sequence[CaptionedImage]
    """I images with their texts."""
    text_offsets: np.ndarray
    """(I + 1,) index of each image's first text among all C, and C."""
    image_embeds: np.ndarray
    """(I, E) float32 image embeddings, of unit length."""

    @property
    def texts(self) -> list[str]:
        """All C texts, image by image."""
        return [text for image in self.captioned_images for text in image.captions]


def retrieve(config: RetrieveConfig, run: Run) -> dict[str, Any]:
    """Recall at 1, 5 and 10 and the median rank, text to image and image to text, with chance
    levels.

    With a student, its text vectors search the same images; differences and ratios have paired
    intervals, and texts that the model truncates are also scored separately. Under several
    processes each one computes everything.

    Raises:
        InputError: Captions, images or a model are missing or malformed, there are fewer than two images, or the
            student's vectors have another width than the model's space.
    """
    captioned, skipped = _read_captioned_images(config, run)
    image = load_clip_image_tower(config.model)
    clip = FrozenClip(image, None)
    student = _student(config, image.embed_dim)
    cache = FeatureCache(cache_folder(config.teacher_cache, run.folder))
    clip.to(run.state.device)
    retrieval_set = _embed_images(captioned, clip, config.images, cache)
    encoded_texts, limits = _encode_texts(
        retrieval_set.texts, student, config, run.state.device, cache
    )
    result: dict[str, Any] = {"images": len(captioned), **skipped}
    result |= {"texts": len(retrieval_set.texts), "captions_per_text": config.captions_per_text}
    result |= {"ties": TIES}
    return result | _scores(retrieval_set, encoded_texts, limits, config.seed)


class SentenceEncoder(NamedTuple):
    """A text encoder with sentence pooling."""

    text: TextEncoder
    sentence: SentenceModules
    max_length: int
    """Maximum tokens per text."""

    def encode(self, texts: Sequence[str], source: str) -> EncodedTexts:
        """Sentence vectors of the texts; raises InputError, naming `source`, if they are not
        finite.
        """
        vectors, dropped = sentence_vectors(self.text, self.sentence, texts, self.max_length)
        if not torch.isfinite(vectors).all():
            raise InputError(f"{source}: its sentence vectors are not finite numbers")
        return EncodedTexts(F.normalize(vectors.float(), dim=-1).numpy(), dropped)


def _student(config: RetrieveConfig, width: int) -> SentenceEncoder | None:
    """The student, if there is one; raises InputError if its vectors do not have `width`
    dimensions.
    """
    if not config.student:
        return None
    text = load_text_encoder(config.student)
    if text.sentence is None:
        raise InputError(
            f"{config.student}: not a sentence-transformers folder, modules.json is missing; "
            "`adapt --keep-projection` writes one"
        )
    any_states = torch.zeros(1, 1, text.sizes.text)
    own = text.sentence.vectors(any_states, torch.ones(1, 1, dtype=torch.bool)).shape[1]
    if own != width:
        raise InputError(
            f"{config.student}: its vectors have {own} dimensions, but the space of {config.model} has {width}; "
            "expected a model of `adapt --keep-projection` with this CLIP as teacher"
        )
    length = min(config.max_length or text_length_limit(text, text.sentence), text.max_length)
    return SentenceEncoder(text, text.sentence, length)


def _read_captioned_images(
    config: RetrieveConfig, run: Run
) -> tuple[list[CaptionedImage], dict[str, Any]]:
    """The images with their texts, and counts of skipped images.

    Raises InputError if fewer than two images remain, or one does not decode.
    """
    settings = config.caption_settings
    captions = read_captions(config.captions, settings.caption_splits, settings.columns)
    images = captions.images
    if config.image_list:
        images = keep_listed(images, config.image_list)
    found = find_images(images, config.images, captions.path)
    images = found.select_images(config.skip_missing, config.images)
    images, bad = split_decodable(images, config.images, config.skip_bad)
    if len(images) < 2:
        raise InputError(f"{config.captions}: {len(images)} images to search, expected at least 2")
    images = with_store_ids(images)
    texts = [
        replace(one, captions=join_captions(one.captions, config.captions_per_text))
        for one in images
    ]
    skipped = {
        "missing_images": len(found.missing),
        "bad_images": len(bad),
        "bad_image_names": bad,
    }
    run.note(*captions.notes)
    return texts, skipped


def _embed_images(
    captioned: Sequence[CaptionedImage], clip: FrozenClip, folder: str, cache: FeatureCache
) -> RetrievalSet:
    """The images with their embeddings; raises InputError if one does not decode, or shares its
    name with another.
    """
    teacher = ClipTeacher(
        clip, ("clip_image",), TargetedDistillationSettings(teacher_images=folder)
    )
    examples = [Example(image.id, "", images=(image.id,)) for image in captioned]
    image_embeds, _ = _features(examples, teacher, "clip_image", cache)
    text_offsets = np.cumsum([0, *(len(image.captions) for image in captioned)])
    return RetrievalSet(captioned, text_offsets, image_embeds)


def _encode_texts(
    texts: Sequence[str],
    student: SentenceEncoder | None,
    config: RetrieveConfig,
    device: torch.device,
    cache: FeatureCache,
) -> tuple[dict[str, EncodedTexts], dict[str, dict[str, Any]]]:
    """The texts as encoded by the model and the student, and the length limits of each."""
    own = ClipSentenceTeacher(*load_clip_text_tower(config.model), max_windows=config.max_windows)
    own.to(device)
    encoded_texts = {"model": _encode_with_text_tower(texts, own, cache)}
    limits = {"model": {"window": own.windows.limit, "windows": config.max_windows}}
    if student is not None:
        student.text.to(device)
        encoded_texts["student"] = student.encode(texts, config.student)
        limits["student"] = {"max_length": student.max_length}
    return encoded_texts, limits


def _encode_with_text_tower(
    texts: Sequence[str], teacher: ClipSentenceTeacher, cache: FeatureCache
) -> EncodedTexts:
    """Texts encoded by the model's own text tower."""
    examples = [Example(str(number), text) for number, text in enumerate(texts)]
    vectors, dropped = _features(examples, teacher, "sentence", cache)
    norm = np.linalg.norm(vectors, axis=1, keepdims=True)
    return EncodedTexts(vectors / np.maximum(norm, 1e-12), dropped)


def _features(
    examples: Sequence[Example], teacher: Teacher, name: str, cache: FeatureCache
) -> tuple[np.ndarray, np.ndarray]:
    """A teacher's feature (N, E) of every example, cached, and the truncated tokens of each, (N,)."""
    samples, _ = TeacherSet([teacher], cache).wrap(TextDataset(examples, None))
    each = [(sample.features[name], sample.truncated_tokens) for sample in iterate_samples(samples)]
    return np.stack([vector for vector, _ in each]), np.array([dropped for _, dropped in each])


def _scores(
    retrieval_set: RetrievalSet,
    encoded_texts: dict[str, EncodedTexts],
    limits: dict[str, dict[str, Any]],
    seed: int,
) -> dict[str, Any]:
    """Scores of each side, their comparison, and the same for texts that the model truncates."""
    found = {
        side: retrieval_ranks(texts.vectors, retrieval_set.image_embeds, retrieval_set.text_offsets)
        for side, texts in encoded_texts.items()
    }
    result: dict[str, Any] = {"chance": chance_recall(retrieval_set.text_offsets)}
    for side, one in found.items():
        cut = encoded_texts[side].truncated_tokens
        result[side] = {
            **limits[side],
            "truncated_texts": int((cut > 0).sum()),
            "truncated_tokens": int(cut.sum()),
            **{way: recall_scores(own) for way, own in one.items()},
        }
    images = {
        TO_IMAGE: image_of_text(retrieval_set.text_offsets),
        TO_TEXT: np.arange(len(retrieval_set.image_embeds)),
    }
    if "student" in found:
        others = found["model"]
        result["student_minus_model"] = {
            way: compare_recall(mine, others[way], images[way], seed)
            for way, mine in found["student"].items()
        }
    cut = encoded_texts["model"].truncated_tokens > 0
    if cut.any():
        result["texts_truncated_by_model"] = _subset_scores(found, cut, images[TO_IMAGE], seed)
    return result


def _subset_scores(
    found: Mapping[str, RanksByDirection], mask: np.ndarray, image: np.ndarray, seed: int
) -> dict[str, Any]:
    """Text to image, only for the texts selected by `mask`, (C,) bool."""
    result: dict[str, Any] = {"texts": int(mask.sum())}
    result |= {side: recall_scores(one[TO_IMAGE][mask]) for side, one in found.items()}
    if "student" in found:
        mine, others = (found[side][TO_IMAGE][mask] for side in ("student", "model"))
        result["student_minus_model"] = compare_recall(mine, others, image[mask], seed)
    return result


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
    if result["bad_images"]:
        first = result["bad_image_names"][0]
        lines.append(
            f"skipped: {result['bad_images']:,} images that do not decode, the first is {first}"
        )
    for side in sides:
        cut = result[side]["truncated_texts"]
        tokens = result[side]["truncated_tokens"]
        lines.append(f"truncated by the {side}: {cut:,} texts, {tokens:,} tokens")
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
    """The comparison of recall at 10 in one line."""
    gap = comparison["r@10"]
    low, high = gap["interval"]
    line = f"{name}: R@10 student - model {gap['value']:+.2f} [{low:+.2f}, {high:+.2f}]"
    ratio = comparison["r@10_ratio"]
    if ratio["value"] is None:
        return line
    ends = "" if ratio["interval"] is None else " [{:.3f}, {:.3f}]".format(*ratio["interval"])
    return f"{line}, ratio {ratio['value']:.3f}{ends}"
