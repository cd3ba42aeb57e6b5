"""The world as COCO captions for pre-training, and as Flickr30k Entities with gold parses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

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

ARTICLES = ("a", "the")
PLACED = "the {} is {} the {} ."
TEMPLATES = (
    (
        *("there expl 1 PRON", "is root - VERB", "a nsubj 1 NOUN"),
        *("and cc 4 CCONJ", "a conj 2 NOUN", ". punct 1 PUNCT"),
    ),
    (
        *("the nsubj 3 NOUN", "is cop 3 AUX", "near case 3 ADP"),
        *("the root - NOUN", ". punct 3 PUNCT"),
    ),
    (
        *("she nsubj 1 PRON", "sees root - VERB", "the obj 1 NOUN"),
        *("and cc 4 CCONJ", "the conj 2 NOUN", ". punct 1 PUNCT"),
    ),
)
"""Captions that do not state the objects' relation, unit by unit: a word, or the article of the next object's phrase,
with its dependency relation, the number of its head unit, and its tag, as in Universal Dependencies."""
MARKED_WORDS = {"she": "0/notvisual"}
"""Words that Flickr30k Entities marks although no object is meant."""


@dataclass(frozen=True)
class CaptionUnit:
    """A word of a caption, or an object's phrase: article, adjectives, noun."""

    text: str
    """Its words."""
    mark: str
    """Chain and group of Flickr30k Entities; empty for a word without a mark."""
    grammar: str
    """Dependency relation, number of the head unit, and tag of its last word."""


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
            texts = [plain_text(caption) for caption in draw_captions(files, scene)[:3]]
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


def draw_captions(files: DataSetWriter, scene: Scene) -> list[list[CaptionUnit]]:
    """Five captions; the order of objects is independent of their places."""
    animals = {noun.name for noun in files.world.nouns if noun.category == "animal"}
    captions = []
    for number in range(5):
        rng = generator(files.world.config.seed, "told", scene.image_id, number)
        phrases = []
        for i in rng.permutation(2).tolist():
            name = _name_of(rng, scene, i)
            group = "animals" if name in animals else "other"
            phrases.append((name, f"{2 * scene.image_id + i}/{group}"))
        remaining = iter(phrases)
        caption = []
        for row in TEMPLATES[rng.integers(len(TEMPLATES))]:
            text, grammar = row.split(maxsplit=1)
            mark = MARKED_WORDS.get(text, "")
            if text in ARTICLES:
                name, mark = next(remaining)
                text = f"{text} {name}"
            caption.append(CaptionUnit(text, mark, grammar))
        captions.append(caption)
    return captions


def plain_text(caption: Sequence[CaptionUnit]) -> str:
    """A caption without marks."""
    return " ".join(unit.text for unit in caption)


def _marked_text(caption: Sequence[CaptionUnit]) -> str:
    return " ".join(
        f"[/EN#{unit.mark} {unit.text}]" if unit.mark else unit.text for unit in caption
    )


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


def write_flickr30k(files: DataSetWriter) -> None:
    """Write captions, boxes, parses and image lists; a split has five captions per image, so a fifth of the images."""
    parses: list[str] = []
    for split in ("train", "val", "test"):
        scenes = files.scenes(split)[: files.max_examples(split) // 5]
        names = [f"{scene.image_id:010d}" for scene in scenes]
        for name, scene in zip(names, scenes, strict=True):
            captions = draw_captions(files, scene)
            files.images[f"{name}.jpg"] = scene
            files.write_rows(f"flickr30k/Sentences/{name}.txt", *map(_marked_text, captions))
            files.write_rows(f"flickr30k/Annotations/{name}.xml", *_annotation(files, scene, name))
            files.texts.update(map(plain_text, captions))
            for number, caption in enumerate(captions):
                parses += format_conllu(_parse(caption, f"{name}#{number}"))
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


def _parse(caption: Sequence[CaptionUnit], id: str) -> Parse:
    """The gold parse of a caption; the last word of a unit is the head of the others."""
    lasts = [end - 1 for end in accumulate(len(unit.text.split()) for unit in caption)]
    words: list[ParsedWord] = []
    for unit, last in zip(caption, lasts, strict=True):
        *modifiers, noun = unit.text.split()
        for form in modifiers:
            relation, tag = ("det", "DET") if form in ARTICLES else ("amod", "ADJ")
            words.append(ParsedWord(form, last, relation, tag, len(words)))
        relation, above, tag = unit.grammar.split()
        head = ROOT if relation == "root" else lasts[int(above)]
        words.append(ParsedWord(noun, head, relation, tag, len(words)))
    return Parse(tuple(words), tuple(word.form for word in words), id, id)
