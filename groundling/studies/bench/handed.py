"""What an experiment hands over to every method, made once: rendered texts and images, or the user's own."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from groundling.command_line import COMMANDS
from groundling.commands.adapt import COMMAND as ADAPT
from groundling.commands.adapt import AdaptConfig
from groundling.commands.train_clip import COMMAND as TRAIN_CLIP
from groundling.core.errors import InputError, prefix_errors
from groundling.core.registry import is_import_path
from groundling.core.resampling import derangement
from groundling.core.rng import generator
from groundling.data.captions import CaptionedImage, find_images, read_captions
from groundling.data.corpora import plain_lines
from groundling.data.vectors import VectorTable
from groundling.models.clip import CLIP_LIKE, IMAGE_TOWERS, make_clip_text_tower
from groundling.models.frozen_clip import has_image_tower, has_text_tower
from groundling.models.hub import VECTORS, is_open_clip
from groundling.models.loading import load_config, load_processor, load_tokenizer, load_weights
from groundling.models.text_encoder import load_text_encoder, new_encoder
from groundling.objectives import find_objective
from groundling.runs.folder import json_text, read_json, whole_folder, write_whole
from groundling.settings.fields import make_settings, replace_settings
from groundling.settings.training import TrainingArguments
from groundling.studies.bench.commands import RealBenchConfig, Student
from groundling.studies.bench.methods import IMAGES, BenchMethod
from groundling.studies.bench.protocol import (
    ADAPTING,
    ENCODER,
    MAX_LENGTH,
    PRETRAINING,
    PRETRAINING_MASK_RATE,
    REDRAWN,
    REDRAWN_TEACHING,
    TEACHER,
    TEACHING,
    BenchWorld,
    Files,
    scaled,
    world_sizes,
)
from groundling.studies.bench.readings import nouns_of_images, write_grammar_pairs
from groundling.training.batch_sampler import check_batch
from groundling.training.fit import save_trained

BAND = 8
"""Number of tokens of similar frequency among which the permuted teacher exchanges embeddings."""
LINES = 20_000
"""Lines that are tokenised at a time."""
SEED = 0
"""Seed of the controls' captions and teacher; the same for all methods and adaptation seeds."""


def make_part(
    part: str, files: Files, world: BenchWorld, scale: float, student: Student = "masked"
) -> None:
    """Make one of the things that every method of a world shares: `render`, `captions`, `encoder`, or a teacher."""
    if part == "render":
        render(files, world, scale)
    elif part == "captions":
        thin(files, world)
    elif part == "encoder":
        sizes = {**ENCODER, **world.condition.encoder}
        make_encoder(files, scaled(PRETRAINING, scale, world.seed), sizes, student)
    else:
        own = REDRAWN_TEACHING if part == REDRAWN else world.condition.teaching or TEACHING
        captions = files.places["captions"] if "captions" in world.condition.makes else None
        make_teacher(files, part, scaled(own, scale, world.seed), captions)


def make_world(folder: Path, settings: Mapping[str, Any]) -> None:
    """Render a world into a folder, by `data make-world`."""
    command = COMMANDS["data make-world"]
    command(replace_settings(command.settings["_own"], **settings), folder)


def render(files: Files, world: BenchWorld, scale: float) -> None:
    """Render a world, hand over its texts and images, and make the controls' captions and images."""
    handed = files.places["corpus"].parent
    if not handed.exists():
        about = {"family": world.family, "seed": world.seed, **world_sizes(scale)}
        make_world(files.private, about)
        handed.mkdir(parents=True)
    private_images = files.private / "images"
    if private_images.exists():
        os.replace(private_images, files.places["images"])
    write_whole(files.places["corpus"], (files.private / "corpus/train.txt").read_bytes())
    captions = (files.private / "captions_train.json").read_bytes()
    write_whole(files.places["captions"], captions)
    content = read_json(files.places["captions"])
    shuffled = json_text(shuffle_images(content, world.seed))
    files.places["shuffled captions"].parent.mkdir(exist_ok=True)
    write_whole(files.places["shuffled captions"], shuffled + "\n")
    _write_noise(content, files.places["noise images"], world.seed)
    write_grammar_pairs(files.private)


def shuffle_images(captions: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """COCO captions whose images have each other's files: no image keeps its own, texts keep their order."""
    images = captions["images"]
    others = derangement(len(images), generator(seed, "bench", "shuffled images"))
    renamed = [
        {**image, "file_name": images[other]["file_name"]}
        for image, other in zip(images, others, strict=True)
    ]
    return {**captions, "images": renamed}


def _write_noise(captions: Mapping[str, Any], folder: Path, seed: int) -> None:
    """Images of uniform noise, one per image, in the images' shape and under their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for image in captions["images"]:
        rng = generator(seed, "bench", "noise images", image["id"])
        pixels = rng.integers(0, 256, (image["height"], image["width"], 3), dtype=np.uint8)
        drawn = io.BytesIO()
        Image.fromarray(pixels).save(drawn, "PNG", compress_level=0)
        write_whole(folder / image["file_name"], drawn.getvalue())


def make_teacher(
    files: Files, name: str, training: TrainingArguments, captions: Path | None = None
) -> dict[str, Any]:
    """Train a teacher, one with redrawn attributes, or save one untrained; returns its retrieval scores.

    `captions`: other ones than the world's.
    """
    is_redrawn = name == REDRAWN
    suffix = "_redrawn" if is_redrawn else ""
    settings = replace(
        TEACHER,
        captions=str(captions or files.private / f"captions{suffix}_train.json"),
        images=str(files.private / "images_redrawn" if is_redrawn else files.places["images"]),
        eval_captions=str(files.private / f"captions{suffix}_dev.json"),
        untrained=name == "teacher-untrained",
    )
    return {"retrieval": TRAIN_CLIP(settings, training, files.run(name)).get("retrieval")}


def make_encoder(
    files: Files,
    training: TrainingArguments,
    sizes: Mapping[str, int],
    student: Student = "masked",
) -> None:
    """Pre-train the small encoder or decoder that every method starts from, by masked or causal LM on the corpus."""
    is_causal = student == "causal"
    untrained = files.run("encoder").with_name("new")
    new_encoder(files.places["corpus"], untrained, training.seed, causal=is_causal, **sizes)
    settings = make_settings(
        AdaptConfig,
        student=str(untrained),
        arm="clm" if is_causal else "mlm",
        text=(str(files.places["corpus"]),),
        max_length=MAX_LENGTH,
        **({} if is_causal else {"mask_rate": PRETRAINING_MASK_RATE}),
    )
    ADAPT(settings, training, files.run("encoder"))


# -- fewer images or captions ------------------------------------------------------------------------------------------
def thin(files: Files, world: BenchWorld) -> None:
    """Hand over those of a world's captions that its condition leaves."""
    content = read_json(files.private / "captions_train.json")
    condition = world.condition
    if condition.images != 1:
        content = thin_images(content, nouns_of_images(files.private), condition.images)
    if condition.captions != 1:
        content = thin_captions(content, world.seed, condition.captions)
    files.places["captions"].parent.mkdir(parents=True, exist_ok=True)
    write_whole(files.places["captions"], json_text(content) + "\n")


def thin_images(
    captions: Mapping[str, Any], shown: Mapping[int, list[str]], share: float
) -> dict[str, Any]:
    """COCO captions of a share of the images: each noun is in equally many, and images without nouns become as rare.

    Images are taken in order while all of the nouns that they show have too few, so that two conditions have much in
    common.
    """
    counts = Counter(noun for nouns in shown.values() for noun in nouns)
    limit = max(1, round(share * counts.total() / len(counts)))
    taken: Counter[str] = Counter()
    empty = 0
    ids = [image["id"] for image in captions["images"]]
    kept = set()
    for name in ids:
        nouns = shown.get(name, [])
        if not nouns:
            empty += 1
            is_kept = int(empty * share) > int((empty - 1) * share)
        else:
            is_kept = all(taken[noun] < limit for noun in nouns)
        if is_kept:
            kept.add(name)
            taken.update(nouns)
    # Worlds of small tests would not fill a batch of the teacher's training.
    others = [name for name in ids if name not in kept]
    kept.update(others[: max(0, TEACHING.batch - len(kept))])
    notes = [note for note in captions["annotations"] if note["image_id"] in kept]
    return _of_images(captions, notes)


def thin_captions(captions: Mapping[str, Any], seed: int, share: float) -> dict[str, Any]:
    """COCO captions, a share of them at random, with their images; a smaller share is part of a larger one."""
    notes = captions["annotations"]
    count = max(ADAPTING.batch, round(share * len(notes)))
    order = generator(seed, "bench", "captions").permutation(len(notes))
    return _of_images(captions, [notes[place] for place in sorted(order[:count])])


def _of_images(captions: Mapping[str, Any], notes: list[Any]) -> dict[str, Any]:
    """Some captions with their images; every image has captions."""
    ids = {note["image_id"] for note in notes}
    images = [image for image in captions["images"] if image["id"] in ids]
    return {**captions, "images": images, "annotations": notes}


# -- the user's own files on a real encoder ---------------------------------------------------------------------------
def real_files(root: Path, settings: RealBenchConfig) -> Files:
    """Where the files of a bench on a real encoder are; a hub id stays as it is."""
    folder = root / "handed"
    places = {
        "encoder": Path(settings.student),
        "teacher": Path(settings.teacher),
        REDRAWN: folder / "teacher-permuted",
        "captions": folder / "captions.json",
        "shuffled captions": folder / "shuffled" / "captions.json",
        "corpus": Path(settings.text) if settings.text else folder / "corpus.txt",
    }
    if settings.images:
        places["images"] = Path(settings.images)
    return Files(root, places, features=root / "features")


def hand_over_texts(files: Files, settings: RealBenchConfig, writes: bool) -> dict[str, int]:
    """Write the captions, with their own and with each other's images, and the corpus; returns the numbers of
    captions, of images, and of captioned images that are missing and were skipped.

    `writes`: whether anything is written. Raises InputError for damaged captions, missing images, images without a
    stored vector, and fewer texts than a batch.
    """
    images: list[CaptionedImage] = []
    missing = 0
    if settings.captions:
        captions = read_captions(settings.captions, settings.caption_settings).images
        images = captions
        if settings.images:
            with prefix_errors(settings.captions):
                images, missing = find_images(captions, settings.images, settings.skip_missing)
        if settings.teacher.startswith(VECTORS):
            table = VectorTable(settings.teacher.removeprefix(VECTORS), "image")
            table.rows_of([image.file for image in images])
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
    return {"captions": len(texts), "images": len(images), "missing": missing}


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
def check_teacher(source: str, methods: Sequence[BenchMethod]) -> None:
    """Raises InputError for a teacher that lacks what methods or controls read."""
    if is_import_path(source):
        return
    seeing = [one.name for one in methods if one.data == IMAGES]
    permuting = [one.name for one in methods if one.replaces_teacher]
    tokenwise = [one.name for one in methods if _reads_clip_tokens(one)]
    reading: list[str] = []
    if source.startswith(VECTORS):
        lacking, reading = "a text tower, whose tokens a control permutes", permuting
    else:
        with prefix_errors("teacher"):
            sees = has_image_tower(source)
            reads_texts = not is_open_clip(source) and has_text_tower(source)
        if not reads_texts:
            lacking = "a text tower of Hugging Face, whose tokens a control permutes"
            reading = permuting
        elif tokenwise and load_config(source).model_type not in CLIP_LIKE:
            lacking, reading = "a text tower of CLIP's kind", tokenwise
        if not sees and not reading:
            lacking, reading = "an image tower", seeing
    if reading:
        others = [one.name for one in methods if one.name not in reading]
        without = f"--method {' '.join(others)} does without" if others else "choose other methods"
        raise InputError(f"teacher={source}: lacks {lacking}, for {', '.join(reading)}; {without}")


def _reads_clip_tokens(method: BenchMethod) -> bool:
    kinds = map(find_objective, method.objectives)
    return any("clip" in kind.required_fields for kind in kinds)


def permute_teacher(files: Files, settings: RealBenchConfig) -> None:
    """Write the teacher with the embeddings of its text tower's tokens permuted.

    Its text tower reads each word of the corpus and of the captions as another word of similar frequency, the
    same one everywhere; its image tower is unchanged.
    """
    source = settings.teacher
    kind = load_config(source).model_type
    text = None if kind in CLIP_LIKE else load_text_encoder(source)
    model = load_weights(CLIP_LIKE[kind], source) if text is None else text.encoder
    tokenizer = load_tokenizer(source)
    counts: Counter[int] = Counter()
    lines = _texts_of(files, settings)
    while some := list(islice(lines, LINES)):
        encoded = tokenizer(some, add_special_tokens=False, truncation=False)["input_ids"]
        counts.update(token for row in encoded for token in row)
    for token in tokenizer.all_special_ids:
        del counts[token]
    moved = permute_tokens(counts)
    embedding = (
        model.get_input_embeddings() if text else make_clip_text_tower(model).token_embedding
    )
    table = embedding.weight
    with torch.no_grad():
        table[list(moved)] = table[list(moved.values())].clone()
    with whole_folder(files.places[REDRAWN]) as partial:
        if text:
            save_trained(partial, text, [])
            return
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        if kind in IMAGE_TOWERS:
            load_processor(source).save_pretrained(partial)


def _texts_of(files: Files, settings: RealBenchConfig) -> Iterator[str]:
    """Every text that a method can read: the corpus, and the captions if the corpus is another file."""
    texts = plain_lines(files.places["corpus"])
    if not (settings.text and settings.captions):
        return texts
    images = read_captions(files.places["captions"]).images
    return chain(texts, (caption for image in images for caption in image.captions))


def permute_tokens(counts: Counter[int]) -> dict[int, int]:
    """By token: another one of similar frequency, whose embedding it gets; no token keeps its own.

    Bands of `BAND` tokens by frequency, each a cycle in random order; a last one of one token joins the band before it.
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
