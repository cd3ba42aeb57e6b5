"""What the bench makes once per world and hands over to every method: texts, images, teachers, the encoder."""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from groundling.command_line import COMMANDS
from groundling.commands.adapt import COMMAND as ADAPT
from groundling.commands.adapt import AdaptConfig
from groundling.commands.train_clip import COMMAND as TRAIN_CLIP
from groundling.core.errors import InputError
from groundling.core.rng import generator
from groundling.data.images import open_image
from groundling.models.small_encoder import new_encoder
from groundling.runs.folder import json_text, read_json, read_object, write_json, write_whole
from groundling.runs.hashing import data_hash, sha256_of
from groundling.settings.fields import make_settings, replace_settings
from groundling.stats.resampling import derangement
from groundling.studies.bench.protocol import (
    ENCODER,
    HANDED,
    MAX_LENGTH,
    PRETRAINING,
    PRETRAINING_MASK_RATE,
    REDRAWN_TEACHING,
    TEACHER,
    TEACHING,
    BenchFolder,
    BenchWorld,
    Protocol,
    WorldFolder,
)
from groundling.studies.bench.readings import write_grammar_pairs

WORLD_MARK = "data.json"
"""File of a world's folder that is written when its texts and images are complete."""


def make_data(protocol: Protocol, folder: WorldFolder, world: BenchWorld) -> dict[str, Any]:
    """Render a world, hand over its texts and images, and make the controls' captions and images."""
    mark = folder.root / WORLD_MARK
    if mark.exists():
        return read_object(mark)
    render = COMMANDS["data make-world"]
    seed = world.seed
    if not folder.handed.exists():
        settings = replace_settings(
            render.settings["_own"], family=world.family, seed=seed, **protocol.world()
        )
        render(settings, folder.private)
        folder.handed.mkdir(parents=True)
    private_images = folder.private / "images"
    if private_images.exists():
        os.replace(private_images, folder.place("images"))
    write_whole(folder.place("corpus"), (folder.private / "corpus/train.txt").read_bytes())
    captions = (folder.private / "captions_train.json").read_bytes()
    write_whole(folder.place("captions"), captions)
    content = read_json(folder.place("captions"))
    shuffled = json_text(shuffle_images(content, seed))
    folder.place("shuffled captions").parent.mkdir(exist_ok=True)
    write_whole(folder.place("shuffled captions"), shuffled + "\n")
    _write_noise(content, folder.place("noise images"), seed)
    write_grammar_pairs(folder.private)
    result = {"world": _world_hash(folder)}
    write_json(mark, result)
    return result


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


def _world_hash(folder: WorldFolder) -> str:
    """Hash of a world's texts, nouns and pixels, which does not depend on the version of a PNG library."""
    digest = hashlib.sha256()
    for path in (
        *(folder.place("corpus"), folder.place("captions"), folder.private / "world.json"),
        *sorted((folder.private / "probes").iterdir()),
    ):
        digest.update(sha256_of(path).encode())
    for path in sorted(folder.place("images").iterdir()):
        with open_image(path) as image:
            digest.update(np.asarray(image).tobytes())
    return digest.hexdigest()


def thin_captions(folder: WorldFolder, world: BenchWorld) -> dict[str, Any]:
    """Hand over those of a world's captions that its condition chooses; returns their numbers."""
    if folder.base is None or world.condition.thin is None:
        raise ValueError(f"{world}: no condition that chooses captions")
    content = read_json(folder.base.place("captions"))
    chosen = world.condition.thin(content, folder.private, world.seed)
    folder.handed.mkdir(parents=True, exist_ok=True)
    write_whole(folder.place("captions"), json_text(chosen) + "\n")
    return {"images": len(chosen["images"]), "captions": len(chosen["annotations"])}


def make_teacher(
    protocol: Protocol, folder: WorldFolder, world: BenchWorld, name: str
) -> dict[str, Any]:
    """Train a teacher, one with redrawn attributes, or save one untrained; returns its retrieval scores."""
    redrawn = name == "teacher-redrawn"
    suffix = "_redrawn" if redrawn else ""
    images = folder.private / "images_redrawn" if redrawn else folder.place("images")
    captions = folder.private / f"captions{suffix}_train.json"
    settings = replace(
        TEACHER,
        captions=str(folder.place("captions") if world.condition.thin else captions),
        images=str(images),
        eval_captions=str(folder.private / f"captions{suffix}_dev.json"),
        untrained=name == "teacher-untrained",
    )
    own = world.condition.teaching or TEACHING
    training = protocol.scaled(REDRAWN_TEACHING if redrawn else own, world.seed)
    result = TRAIN_CLIP(settings, training, folder.making(name))
    return {"retrieval": result.get("retrieval")}


def make_encoder(protocol: Protocol, folder: WorldFolder, world: BenchWorld) -> dict[str, Any]:
    """Pre-train the small text encoder that every method starts from, by masked LM on the corpus."""
    untrained = folder.making("new")
    sizes = {**ENCODER, **world.condition.encoder}
    new_encoder(folder.place("corpus"), untrained, world.seed, **sizes)
    settings = make_settings(
        AdaptConfig,
        student=str(untrained),
        arm="mlm",
        text=(str(folder.place("corpus")),),
        max_length=MAX_LENGTH,
        mask_rate=PRETRAINING_MASK_RATE,
    )
    training = protocol.scaled(PRETRAINING, world.seed)
    result = ADAPT(settings, training, folder.making("encoder"))
    return {"parameters": result["parameters"]}


def record_handed(folder: WorldFolder) -> dict[str, Any]:
    """Hashes of everything handed over, written to the world's folder.

    The tuning world has no teachers for controls.
    """
    if folder.record.exists():
        return read_object(folder.record)
    if folder.base is not None:
        result = read_object(folder.base.record)
        result["handed"] |= {name: data_hash(folder.place(name)) for name in folder.makes}
    else:
        places = {name: folder.place(name) for name in HANDED}
        hashes = {name: data_hash(place) for name, place in places.items() if place.exists()}
        result = {"world": read_object(folder.root / WORLD_MARK)["world"], "handed": hashes}
    write_json(folder.record, result)
    return result


def check_handed(folder: WorldFolder) -> dict[str, str]:
    """The recorded hashes; raises InputError if a handed-over file has changed since."""
    hashes: dict[str, str] = read_object(folder.record)["handed"]
    for name, expected in hashes.items():
        if data_hash(folder.place(name)) != expected:
            raise InputError(
                f"{folder.place(name)}: changed since it was handed over; delete {folder.root} and all runs on it"
            )
    return hashes


def make_shared(
    folder: BenchFolder, protocol: Protocol, world: BenchWorld, kind: str, name: str, key: str
) -> dict[str, Any]:
    """One of the things that every method of a world shares, made unless it exists."""
    path = folder.job(name)
    if path.exists():
        return read_object(path)
    place = folder.world(world)
    began = time.perf_counter()
    if kind == "render":
        made = make_data(protocol, place, world)
    elif kind == "captions":
        made = thin_captions(place, world)
    elif kind == "encoder":
        made = make_encoder(protocol, place, world)
    elif kind == "hash":
        made = record_handed(place)
    else:
        made = make_teacher(protocol, place, world, kind)
    result = {"key": key, **made, "seconds": round(time.perf_counter() - began, 1)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, result)
    return result
