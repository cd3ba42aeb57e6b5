"""The world as COCO captions for pre-training, and the captions with marks that other data sets are made of."""

from __future__ import annotations

import re

from numpy.random import Generator

from groundling.core.keyed import generator
from groundling.studies.worlds.data_sets.claims import spoken
from groundling.studies.worlds.data_sets.files import Record, TaskFiles
from groundling.studies.worlds.scenes import Scene, Thing, side

MARK = re.compile(r"\[/EN#\S+ ([^\]]*)\]")
"""A phrase with Flickr30k Entities' mark; the group is the phrase."""
PLACED = "the {} is {} the {} ."
TEMPLATES = (
    "there is {a0} and {a1} .",
    "{the0} is near {the1} .",
    "[/EN#0/notvisual she] sees {the0} and {the1} .",
)
"""Captions that do not tell where the things are, by which article the phrases have."""


def write_captions(files: TaskFiles) -> None:
    """Five captions an image in COCO's layout, two of which tell where the things are."""
    for split in ("train", "val"):
        images: list[Record] = []
        notes: list[Record] = []
        for scene in files.scenes(split):
            name = f"COCO_{split}2014_{scene.image_id:012d}.jpg"
            files.images[name] = scene
            files.captioned.add(name)
            images.append({"id": scene.image_id, "file_name": name, **files.shape})
            texts = [without_marks(line) for line in marked_captions(files, scene)[:3]]
            texts += _placed_captions(files, scene)
            files.texts.update(texts)
            for number, text in enumerate(texts):
                note_id = 5 * scene.image_id + number
                notes.append({"id": note_id, "image_id": scene.image_id, "caption": text})
        content = {"info": {}, "licenses": [], "images": images, "annotations": notes}
        files.put(f"captions_{split}2014.json", content)


def _placed_captions(files: TaskFiles, scene: Scene) -> list[str]:
    """Where each thing is, seen from the other; both things are told by two looks."""
    rng = generator(files.world.config.seed, "captions", scene.image_id)
    captions = []
    for thing in (0, 1):
        one = _two_looks(rng, scene.things[thing])
        other = _two_looks(rng, scene.things[1 - thing])
        captions.append(PLACED.format(one, side(scene, thing), other))
    return captions


def _two_looks(rng: Generator, thing: Thing) -> str:
    looks = rng.permutation(thing.looks)
    return spoken(*looks[:2])


def without_marks(caption: str) -> str:
    """A caption of Flickr30k Entities as plain text."""
    return MARK.sub(r"\1", caption)


def marked_captions(files: TaskFiles, scene: Scene) -> list[str]:
    """Five captions with Flickr30k Entities' marks; their order says nothing of where the things are."""
    animals = {noun.name for noun in files.world.nouns if noun.category == "animal"}
    lines = []
    for number in range(5):
        rng = generator(files.world.config.seed, "told", scene.image_id, number)
        phrases: dict[str, str] = {}
        for place, i in enumerate(rng.permutation(2).tolist()):
            words = _name_of(rng, scene, i)
            group = "animals" if words in animals else "other"
            mark = f"/EN#{2 * scene.image_id + i}/{group}"
            for article in ("a", "the"):
                phrases[f"{article}{place}"] = f"[{mark} {article} {words}]"
        template = TEMPLATES[rng.integers(len(TEMPLATES))]
        lines.append(template.format(**phrases))
    return lines


def _name_of(rng: Generator, scene: Scene, number: int) -> str:
    """A thing by its noun or by looks, one of which the other thing does not have, so that they name one thing."""
    thing = scene.things[number]
    other = scene.things[1 - number]
    telling = [look for look in thing.looks if look not in other.looks]
    telling_look = telling[rng.integers(len(telling))]
    any_look = thing.looks[rng.integers(4)]
    if thing.name and rng.random() < 0.5:
        return thing.name
    return spoken(*{telling_look, any_look})
