"""The world as COCO captions for pre-training, and as Flickr30k Entities."""

from __future__ import annotations

import re

from numpy.random import Generator

from groundling.core.rng import generator
from groundling.data.text.parses import ROOT, Parse, ParsedWord, format_conllu
from groundling.studies.worlds.data_sets.writer import (
    DataSetWriter,
    JsonObject,
    describe_object,
    relation_of,
)
from groundling.studies.worlds.world import Scene

MARK = re.compile(r"\[/EN#\S+ ([^\]]*)\]")
"""A phrase with Flickr30k Entities' mark; the group is the phrase."""
ARTICLES = ("a", "the")
PLACED = "the {} is {} the {} ."
TEMPLATES = (
    "there is {a0} and {a1} .",
    "{the0} is near {the1} .",
    "[/EN#0/notvisual she] sees {the0} and {the1} .",
)
"""Captions that do not state the objects' relation; the letter before a phrase's number is its article."""


def write_captions(files: DataSetWriter) -> None:
    """Write five captions per image in COCO's layout, two of which state the objects' relation."""
    for split in ("train", "val"):
        images: list[JsonObject] = []
        notes: list[JsonObject] = []
        for scene in files.scenes(split):
            name = f"COCO_{split}2014_{scene.image_id:012d}.jpg"
            files.images[name] = scene
            files.captioned.add(name)
            images.append({"id": scene.image_id, "file_name": name, **files.shape})
            texts = [without_marks(line) for line in marked_captions(files, scene)[:3]]
            # One caption per object with its relation to the other, both described by two values.
            rng = generator(files.world.config.seed, "captions", scene.image_id)
            for thing in (0, 1):
                one, other = (
                    describe_object(*rng.permutation(scene.things[number].attributes)[:2])
                    for number in (thing, 1 - thing)
                )
                texts.append(PLACED.format(one, relation_of(scene, thing), other))
            files.texts.update(texts)
            for number, text in enumerate(texts):
                note_id = 5 * scene.image_id + number
                notes.append({"id": note_id, "image_id": scene.image_id, "caption": text})
        content = {"info": {}, "licenses": [], "images": images, "annotations": notes}
        files.write_rows(f"captions_{split}2014.json", content)


def without_marks(caption: str) -> str:
    """A caption of Flickr30k Entities as plain text."""
    return MARK.sub(r"\1", caption)


def marked_captions(files: DataSetWriter, scene: Scene) -> list[str]:
    """Five captions with Flickr30k Entities' marks; the order of objects is independent of their places."""
    animals = {noun.name for noun in files.world.nouns if noun.category == "animal"}
    lines = []
    for number in range(5):
        rng = generator(files.world.config.seed, "told", scene.image_id, number)
        phrases: dict[str, str] = {}
        for place, i in enumerate(rng.permutation(2).tolist()):
            words = _name_of(rng, scene, i)
            group = "animals" if words in animals else "other"
            for article in ARTICLES:
                mark = f"/EN#{2 * scene.image_id + i}/{group} {article} {words}"
                phrases[f"{article}{place}"] = f"[{mark}]"
        template = TEMPLATES[rng.integers(len(TEMPLATES))]
        lines.append(template.format(**phrases))
    return lines


def _name_of(rng: Generator, scene: Scene, number: int) -> str:
    """An object by its noun, or by attribute values of which at least one is not the other object's."""
    thing = scene.things[number]
    other = scene.things[1 - number]
    distinct = [value for value in thing.attributes if value not in other.attributes]
    distinct_value = distinct[rng.integers(len(distinct))]
    any_value = thing.attributes[rng.integers(4)]
    if thing.name and rng.random() < 0.5:
        return thing.name
    return describe_object(*{distinct_value, any_value})


# The world as Flickr30k Entities: captions with marked phrases, their boxes, and gold parses.
# The parses follow the world's grammar, with labels of Universal Dependencies.

UNIT = re.compile(r"\[/EN#\S+ ([^\]]*)\]|(\S+)")
"""A marked phrase, whose words are the first group, or a word."""
GRAMMAR = {
    "there is _ and _ .": (
        *("expl 1 PRON", "root - VERB", "nsubj 1 NOUN"),
        *("cc 4 CCONJ", "conj 2 NOUN", "punct 1 PUNCT"),
    ),
    "_ is near _ .": (
        *("nsubj 3 NOUN", "cop 3 AUX", "case 3 ADP"),
        *("root - NOUN", "punct 3 PUNCT"),
    ),
    "_ sees _ and _ .": (
        *("nsubj 1 PRON", "root - VERB", "obj 1 NOUN"),
        *("cc 4 CCONJ", "conj 2 NOUN", "punct 1 PUNCT"),
    ),
}
"""By template, with `_` for a phrase: relation, number of the head unit, and tag of every unit."""


def write_flickr30k(files: DataSetWriter) -> None:
    """Write captions, boxes, parses and image lists; a split has five captions per image, so a fifth of the images."""
    parses: list[str] = []
    for split in ("train", "val", "test"):
        scenes = files.scenes(split)[: files.max_examples(split) // 5]
        names = [f"{scene.image_id:010d}" for scene in scenes]
        for name, scene in zip(names, scenes, strict=True):
            captions = marked_captions(files, scene)
            files.images[f"{name}.jpg"] = scene
            files.write_rows(f"flickr30k/Sentences/{name}.txt", *captions)
            files.write_rows(f"flickr30k/Annotations/{name}.xml", *_annotation(files, scene, name))
            files.texts.update(without_marks(line) for line in captions)
            for number, line in enumerate(captions):
                parses += format_conllu(parse_of(line, f"{name}#{number}"))
        files.write_rows(f"flickr30k/{split}.txt", *names)
        files.counts[f"flickr30k {split}"] = 5 * len(scenes)
    files.write_rows("flickr30k/parses.conllu", *parses)


def _annotation(files: DataSetWriter, scene: Scene, name: str) -> list[str]:
    """Lines of an image's annotation XML."""
    size = _elements({**files.shape, "depth": 3})
    lines = [f"<annotation><filename>{name}.jpg</filename><size>{size}</size>"]
    for i in (0, 1):
        x, y, width, height = files.box(scene, i)
        # Pixels count from 1, the last one included.
        ends = {"xmin": x + 1, "ymin": y + 1, "xmax": x + width, "ymax": y + height}
        chain = f"<name>{2 * scene.image_id + i}</name>"
        lines.append(f"<object>{chain}<bndbox>{_elements(ends)}</bndbox></object>")
    lines.append("</annotation>")
    return lines


def _elements(values: dict[str, int]) -> str:
    return "".join(f"<{name}>{value}</{name}>" for name, value in values.items())


def parse_of(caption: str, id: str) -> Parse:
    """The parse of a caption with Flickr30k Entities' marks; a phrase is article, adjectives, noun."""
    units = [(match[1] or match[2]).split() for match in UNIT.finditer(caption)]
    template = UNIT.sub(lambda match: "_" if match[1] else match[2], caption)
    first = [sum(map(len, units[:number])) for number in range(len(units))]
    top = [start + len(unit) - 1 for start, unit in zip(first, units, strict=True)]
    words: list[ParsedWord] = []
    for number, (unit, row) in enumerate(zip(units, GRAMMAR[template], strict=True)):
        relation, above, tag = row.split()
        head = ROOT if relation == "root" else top[int(above)]
        for form in unit[:-1]:
            own, own_tag = ("det", "DET") if form in ARTICLES else ("amod", "ADJ")
            words.append(ParsedWord(form, top[number], own, own_tag, len(words)))
        words.append(ParsedWord(unit[-1], head, relation, tag, len(words)))
    return Parse(tuple(words), tuple(word.form for word in words), id, id)
