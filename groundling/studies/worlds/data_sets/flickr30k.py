"""The world as Flickr30k Entities: captions whose phrases are marked, boxes for them, and gold parses.

The parses are dependencies by the world's own grammar, in the labels of Universal Dependencies.
"""

from __future__ import annotations

import re

from groundling.data.text.parses import ROOT, Parse, Word, written
from groundling.studies.worlds.data_sets.captions import marked_captions, without_marks
from groundling.studies.worlds.data_sets.files import TaskFiles
from groundling.studies.worlds.scenes import Scene

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
"""Of each template, with a `_` for a phrase: relation, number of the unit it depends on, and tag of every unit."""
ARTICLES = ("a", "the")


def write_flickr30k(files: TaskFiles) -> None:
    """Captions, boxes, parses and lists of images; a fifth of a split's examples, as each image has five captions."""
    parses: list[str] = []
    for split in ("train", "val", "test"):
        scenes = files.scenes(split)[: files.most(split) // 5]
        for scene in scenes:
            name = _name(scene)
            captions = marked_captions(files, scene)
            files.images[f"{name}.jpg"] = scene
            files.put(f"flickr30k/Sentences/{name}.txt", *captions)
            files.put(f"flickr30k/Annotations/{name}.xml", *_annotation(files, scene))
            files.texts.update(without_marks(line) for line in captions)
            for number, line in enumerate(captions):
                parses += written(parse_of(line, f"{name}#{number}"))
        files.put(f"flickr30k/{split}.txt", *[_name(scene) for scene in scenes])
        files.counts[f"flickr30k {split}"] = 5 * len(scenes)
    files.put("flickr30k/parses.conllu", *parses)


def _name(scene: Scene) -> str:
    return f"{scene.image_id:010d}"


def _annotation(files: TaskFiles, scene: Scene) -> list[str]:
    """The lines of an image's xml."""
    size = _elements({**files.shape, "depth": 3})
    lines = [f"<annotation><filename>{_name(scene)}.jpg</filename><size>{size}</size>"]
    for i in (0, 1):
        x, y, width, height = files.box(scene, i)
        # Counted from 1, the last pixel included.
        ends = {"xmin": x + 1, "ymin": y + 1, "xmax": x + width, "ymax": y + height}
        chain = f"<name>{2 * scene.image_id + i}</name>"
        lines.append(f"<object>{chain}<bndbox>{_elements(ends)}</bndbox></object>")
    lines.append("</annotation>")
    return lines


def _elements(values: dict[str, int]) -> str:
    return "".join(f"<{name}>{value}</{name}>" for name, value in values.items())


def parse_of(caption: str, id: str) -> Parse:
    """The parse of a caption with Flickr30k Entities' marks: a phrase is article, adjectives and last its noun."""
    units = [(match[1] or match[2]).split() for match in UNIT.finditer(caption)]
    template = UNIT.sub(lambda match: "_" if match[1] else match[2], caption)
    first = [sum(map(len, units[:number])) for number in range(len(units))]
    top = [start + len(unit) - 1 for start, unit in zip(first, units, strict=True)]
    words: list[Word] = []
    for number, (unit, row) in enumerate(zip(units, GRAMMAR[template], strict=True)):
        relation, above, tag = row.split()
        head = ROOT if relation == "root" else top[int(above)]
        for form in unit[:-1]:
            own, own_tag = ("det", "DET") if form in ARTICLES else ("amod", "ADJ")
            words.append(Word(form, top[number], own, own_tag, len(words)))
        words.append(Word(unit[-1], head, relation, tag, len(words)))
    return Parse(tuple(words), tuple(word.form for word in words), id, id)
