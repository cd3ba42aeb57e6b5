"""Common parts of the world's data sets, and their captions: COCO's for pre-training, Flickr30k Entities."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, count, islice
from pathlib import Path
from typing import Any

from numpy.random import Generator

from groundling.core.rng import generator
from groundling.data.text.parses import ROOT, Parse, ParsedWord, format_conllu
from groundling.runs.folder import write_whole
from groundling.studies.worlds.families import draw_attributes
from groundling.studies.worlds.families.objects import ATTRIBUTES, OBJECTS, RELATIONS
from groundling.studies.worlds.world import DEV_IMAGES, Scene, World, world_settings, write_lines

# Texts that only an image answers, and functions from a scene to the answer.

KINDS = tuple(ATTRIBUTES)
"""The names of the visual attributes, in order."""
SPOKEN_ORDER = tuple(chain(*(ATTRIBUTES[kind] for kind in OBJECTS.phrase_order)))
"""All attribute values in the order of English adjectives."""


@dataclass(frozen=True)
class BalancedText:
    """A text with all of its answers, each of which gets its own image."""

    text: str
    """The statement or question."""
    answers: tuple[Any, ...]
    """Every answer, repeated as often as needed."""
    answer_of: Callable[[Scene], Any]
    """The answer for a scene; None where the text does not apply."""


def relation_of(scene: Scene, thing: int) -> str:
    """Relation of object 0 or 1 of a scene to the other object."""
    return OBJECTS.opposite(scene.relation) if thing else scene.relation


def matching_objects(scene: Scene, *values: str) -> list[int]:
    """Numbers of the objects with all of these attribute `values`."""
    return [i for i, thing in enumerate(scene.things) if set(values) <= set(thing.attributes)]


def unique_object(scene: Scene, *values: str, relation: str = "") -> int | None:
    """Number of the only object with these `values`; with `relation`, of the object in that relation to it; or None."""
    matching = matching_objects(scene, *values)
    if len(matching) != 1:
        return None  # no match, or both objects: the description is ambiguous
    other = 1 - matching[0]
    if not relation:
        return matching[0]
    return other if relation_of(scene, other) == relation else None


def describe_object(*values: str) -> str:
    """Description of an object by attribute values, in English order."""
    return " ".join((*sorted(values, key=SPOKEN_ORDER.index), "thing"))


def draw_topic(rng: Generator) -> tuple[str, str, str]:
    """Draw values of two different attributes, and a relation that is empty with probability 0.5."""
    attributes = rng.permutation(4)
    value, other_value = (
        values[rng.integers(len(values))]
        for values in (ATTRIBUTES[KINDS[number]] for number in attributes[:2])
    )
    relation = RELATIONS[rng.integers(4)]
    return value, other_value, relation if rng.integers(2) else ""


def draw_object_attributes(rng: Generator) -> tuple[str, ...]:
    """Draw one or two attribute values that describe an object."""
    value, other_value, _ = draw_topic(rng)
    return (value, other_value)[: rng.integers(1, 3)]


POOLS = {"train": 0, "val": 1, "dev": 1, "test": 2, "test1": 2, "testA": 2, "testB": 3}
"""Scene pool of each split: pool n has image ids from n * DEV_IMAGES + 1."""
SHAPES = ATTRIBUTES["shape"]
"""The categories of the boxes."""
TAGS_AS_WORDS = str.maketrans({"0": "thing", "1": "thing"})
"""Replaces VCR's tags with words for the vocabulary."""

JsonObject = dict[str, Any]
"""An object of a JSON file."""


class DataSetWriter:
    """Writes a folder of data sets and collects their images and texts."""

    def __init__(
        self, world: World, folder: Path, limit_train: int, limit_dev: int, shortcut: float = 0.0
    ) -> None:
        """`limit_train`, `limit_dev`: maximum number of examples of a training split and of any other split."""
        self.world = world
        self.shortcut = shortcut
        """Share of VCR's questions whose text reveals the answer."""
        self.folder = folder
        self.limit_train = limit_train
        self.limit_dev = limit_dev
        self.images: dict[str, Scene] = {}
        """Scenes by image file name below `images/`."""
        self.captioned: set[str] = set()
        """Image files with captions, which are also written with redrawn attributes for the control teacher."""
        self.texts: set[str] = set()
        """All texts of the data sets, and VQA's answers."""
        self.counts: dict[str, int] = {}
        """Number of examples by data set and split."""
        self.shape = {"width": world.config.size, "height": world.config.size}
        self._pools: dict[int, list[Scene]] = {}

    def max_examples(self, split: str) -> int:
        """Maximum number of examples of a split."""
        return self.limit_train if split == "train" else self.limit_dev

    def scenes(self, split: str) -> list[Scene]:
        """Scenes of a split, as many as its maximum number of examples, each with two objects that differ."""
        pool = POOLS[split]
        if pool not in self._pools:
            scenes = map(self.world.scene, count(pool * DEV_IMAGES + 1))
            differ = (one for one in scenes if len({thing.attributes for thing in one.things}) == 2)
            self._pools[pool] = list(islice(differ, self.max_examples(split)))
        return self._pools[pool]

    def balanced_texts(
        self,
        name: str,
        split: str,
        draw: Callable[[Generator], BalancedText],
        scenes_each: int = 1,
    ) -> Iterator[tuple[BalancedText, list[Scene], Generator]]:
        """Texts with a scene for each answer, and a generator for further draws; no text is used twice for a scene.

        `scenes_each`: number of scenes of an example.
        """
        used: set[tuple[str, int]] = set()
        remaining = scenes_each * self.max_examples(split)
        # Attempts: with few scenes, some claims find none.
        for key in range(self.max_examples(split)):
            rng = generator(self.world.config.seed, name, split, key)
            claim = draw(rng)
            start = int(rng.integers(len(self.scenes(split))))
            if len(claim.answers) > remaining:
                continue
            scenes = self._scenes_for(claim, split, start, used)
            if scenes is None:
                continue
            used.update((claim.text, scene.image_id) for scene in scenes)
            yield claim, scenes, rng
            self.texts.add(claim.text.translate(TAGS_AS_WORDS))
            remaining -= len(scenes)
        written = scenes_each * self.max_examples(split) - remaining
        self.counts[f"{name} {split}"] = written // scenes_each

    def _scenes_for(
        self, claim: BalancedText, split: str, start: int, used: set[tuple[str, int]]
    ) -> list[Scene] | None:
        """A scene for each answer, searched from number `start`; None if there are not enough."""
        scenes = self.scenes(split)
        chosen: dict[int, Scene] = {}
        for scene in scenes[start:] + scenes[:start]:
            if (claim.text, scene.image_id) in used:
                continue
            answer = claim.answer_of(scene)
            for position, expected in enumerate(claim.answers):
                if expected == answer and position not in chosen:
                    chosen[position] = scene
                    break
            if len(chosen) == len(claim.answers):
                return [chosen[position] for position in range(len(chosen))]
        return None

    def box(self, scene: Scene, number: int) -> list[int]:
        """x, y, width, height of an object's cell; a tight box would reveal size and shape without pixels."""
        corner = scene.things[number]
        return [corner.x, corner.y, self.world.cell, self.world.cell]

    def coco_instances(self, images: Sequence[tuple[int, str]]) -> JsonObject:
        """COCO instances of images, given by number and file; the annotations of image n are 2 n and 2 n + 1."""
        annotations = [
            {
                "id": 2 * number + i,
                "image_id": number,
                "category_id": category_of(self.images[file], i),
                "iscrowd": 0,
                "bbox": [float(side) for side in self.box(self.images[file], i)],
                "area": self.world.cell**2,
            }
            for number, file in images
            for i in (0, 1)
        ]
        return {
            "info": {},
            "licenses": [],
            "images": [{"id": number, "file_name": file, **self.shape} for number, file in images],
            "annotations": annotations,
            "categories": [
                {"id": number, "name": shape, "supercategory": "thing"}
                for number, shape in enumerate(SHAPES, 1)
            ],
        }

    def write_rows(self, path: str, *rows: object) -> None:
        """Write a file below the folder, one row per line: strings unchanged, other values as JSON."""
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        write_lines(self.folder / path, lines)

    def close(self) -> None:
        """Write images, boxes, texts, and last `tasks.json`, which marks a complete folder.

        The captioned images are also written below `redrawn/images/`, with every visual attribute redrawn.
        """
        pictures: dict[int, bytes] = {}
        for file, scene in self.images.items():
            if scene.image_id not in pictures:
                pictures[scene.image_id] = self.world.png(scene)
            write_whole(self.folder / "images" / file, pictures[scene.image_id])
        # The control describes attributes of all objects, so all are redrawn, unlike in `World.scene`.
        for file in sorted(self.captioned) if self.world.config.control_images else ():
            scene = self.images[file]
            rng = generator(self.world.config.seed, "blind tasks", scene.image_id)
            things = tuple(
                replace(thing, attributes=draw_attributes(rng, OBJECTS)) for thing in scene.things
            )
            drawn = self.world.png(replace(scene, things=things))
            write_whole(self.folder / "redrawn" / "images" / file, drawn)
        numbered = list(enumerate(sorted(self.images), 1))
        self.write_rows("instances.json", self.coco_instances(numbered))
        self.write_rows("texts.txt", *sorted(self.texts))
        settings = world_settings(self.world.config)
        self.write_rows("tasks.json", {"world": settings, "examples": self.counts})


def category_of(scene: Scene, number: int) -> int:
    """Category number of an object in COCO instances: its shape, from 1."""
    return SHAPES.index(scene.things[number].attributes[1]) + 1


# -- captions ----------------------------------------------------------------------------------------------------------
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
