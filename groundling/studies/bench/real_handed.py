"""What a bench on a real encoder hands over: the user's captions and text in one form, and what the controls get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from groundling.core.errors import InputError, prefix_errors
from groundling.core.rng import generator
from groundling.data.captions import CaptionedImage, find_images, read_captions
from groundling.data.corpora import plain_lines
from groundling.models.clip import CLIP_LIKE, IMAGE_TOWERS, make_clip_text_tower
from groundling.models.loading import load_config, load_processor, load_tokenizer, load_weights
from groundling.runs.folder import json_text, whole_folder, write_whole
from groundling.stats.resampling import derangement
from groundling.studies.bench.commands import RealSettings
from groundling.studies.bench.handed import shuffle_images
from groundling.studies.bench.protocol import Files
from groundling.training.batch_sampler import check_batch

BAND = 8
"""Number of tokens of similar frequency among which the permuted teacher exchanges embeddings."""
LINES = 20_000
"""Lines that are tokenised at a time."""
SEED = 0
"""Seed of the controls' captions and teacher; the same for all methods and adaptation seeds."""


def real_files(root: Path, settings: RealSettings) -> Files:
    """Where the files of a bench on a real encoder are; a hub id stays as it is."""
    folder = root / "handed"
    places = {
        "encoder": Path(settings.student),
        "teacher": Path(settings.teacher),
        "teacher-redrawn": folder / "teacher-permuted",
        "images": Path(settings.images),
        "captions": folder / "captions.json",
        "shuffled captions": folder / "shuffled" / "captions.json",
        "corpus": Path(settings.text) if settings.text else folder / "corpus.txt",
    }
    return Files(root, places, features=root / "features")


@dataclass(frozen=True)
class TextCounts:
    """Numbers of texts and images that are handed over."""

    captions: int
    images: int
    missing: int
    """Captioned images that are missing and were skipped."""


def hand_over_texts(files: Files, settings: RealSettings, writes: bool) -> TextCounts:
    """Write the captions, with their own and with each other's images, and the corpus; returns what there is.

    `writes`: whether anything is written. Raises InputError for damaged captions, missing images, and fewer
    texts than a batch.
    """
    images: list[CaptionedImage] = []
    missing = 0
    if settings.captions:
        selected = settings.caption_settings
        captions = read_captions(
            settings.captions, selected.caption_splits, selected.columns
        ).images
        with prefix_errors(settings.captions):
            images, missing = find_images(captions, settings.images, settings.skip_missing)
    texts = [" ".join(caption.split()) for image in images for caption in image.captions]
    if settings.captions:
        check_batch(settings.captions, len(texts), settings.batch)
    if settings.text:
        some = islice(plain_lines(settings.text), settings.batch)
        check_batch(settings.text, sum(1 for _ in some), settings.batch)
    if writes:
        files.places["shuffled captions"].parent.mkdir(parents=True, exist_ok=True)
    if writes and images:
        content = _coco(images)
        write_whole(files.places["captions"], json_text(content) + "\n")
        shuffled = json_text(shuffle_images(content, SEED))
        write_whole(files.places["shuffled captions"], shuffled + "\n")
    if writes and not settings.text:
        write_whole(files.places["corpus"], "\n".join(texts) + "\n")
    return TextCounts(len(texts), len(images), missing)


def _coco(images: Sequence[CaptionedImage]) -> dict[str, list[dict[str, object]]]:
    """Captioned images as COCO's captions."""
    notes = [
        {"image_id": number, "caption": caption}
        for number, image in enumerate(images)
        for caption in image.captions
    ]
    return {
        "images": [{"id": number, "file_name": image.file} for number, image in enumerate(images)],
        "annotations": [{"id": number, **note} for number, note in enumerate(notes)],
    }


# -- the permuted teacher ----------------------------------------------------------------------------------------------


def check_teacher(source: str) -> Any:
    """The teacher's configuration; raises InputError for a teacher that is no CLIP-like model."""
    config = load_config(source)
    if config.model_type not in CLIP_LIKE:
        raise InputError(f"teacher={source}: expected one of {', '.join(sorted(CLIP_LIKE))}")
    return config


def permute_teacher(files: Files, settings: RealSettings) -> None:
    """Write the teacher with the embeddings of its text tower's tokens permuted, if it is not there yet.

    Its text tower reads each word of the corpus and of the captions as another word of similar frequency, the
    same one everywhere; its image tower is unchanged. Raises InputError for a teacher that is no CLIP-like model.
    """
    folder = files.places["teacher-redrawn"]
    if folder.exists() and any(folder.glob("*.safetensors")):
        return
    source = settings.teacher
    config = check_teacher(source)
    model = load_weights(CLIP_LIKE[config.model_type], source)
    tokenizer = load_tokenizer(source)
    counts: Counter[int] = Counter()
    lines = _texts_of(files, settings)
    while some := list(islice(lines, LINES)):
        encoded = tokenizer(some, add_special_tokens=False, truncation=False)["input_ids"]
        counts.update(token for row in encoded for token in row)
    for token in tokenizer.all_special_ids:
        del counts[token]
    moved = permute_tokens(counts)
    table = make_clip_text_tower(model).token_embedding.weight
    with torch.no_grad():
        table[list(moved)] = table[list(moved.values())].clone()
    with whole_folder(folder) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        if config.model_type in IMAGE_TOWERS:
            load_processor(source).save_pretrained(partial)


def _texts_of(files: Files, settings: RealSettings) -> Iterator[str]:
    """Every text that a method can read: the corpus, and the captions if the corpus is another file."""
    texts = plain_lines(files.places["corpus"])
    if not (settings.text and settings.captions):
        return texts
    images = read_captions(files.places["captions"]).images
    return chain(texts, (caption for image in images for caption in image.captions))


def permute_tokens(counts: Counter[int]) -> dict[int, int]:
    """By token: another one of similar frequency, whose embedding it gets; no token keeps its own.

    Bands of `BAND` tokens by frequency, each a cycle in random order; a last one of one token joins the band
    before it.
    """
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    starts = list(range(0, len(ranked), BAND))
    if len(starts) > 1 and len(ranked) - starts[-1] == 1:
        starts.pop()
    moved: dict[int, int] = {}
    for start, stop in zip(starts, [*starts[1:], len(ranked)], strict=True):
        band = ranked[start:stop]
        others = derangement(len(band), generator(SEED, "bench", "permuted teacher", start))
        moved |= {token: band[other] for token, other in zip(band, others, strict=True)}
    return moved
