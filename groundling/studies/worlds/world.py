"""The rendered world itself: what is in it, and how it is written in the field's file formats."""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.random import Generator
from PIL import Image

from groundling.core.keyed import generator
from groundling.runs.folder import write_whole
from groundling.studies.worlds.commands import DEV_IMAGES, WorldConfig
from groundling.studies.worlds.language import (
    ATTRIBUTES,
    FRAMES,
    OPPOSITE,
    RELATIONS,
    SPOKEN,
    THINGS,
    draw_nouns,
    phrase,
    sentence,
)
from groundling.studies.worlds.questions import ROWS, Questions, Row
from groundling.studies.worlds.scenes import (
    RGB,
    TEXTURE_INK,
    Scene,
    Stamp,
    Thing,
    cell_of,
    draw_scene,
    stamp,
)

FORMAT_VERSION = 1
"""Raised whenever a written world changes for the same settings."""
PROMPTS = ("the {} is [MASK] .", "there is a [MASK] {} .")
"""Questions for a masked-LM head, worded as the corpus and the captions speak of things."""


class BoxNote(TypedDict):
    """One annotation of COCO's instances file, without its id."""

    image_id: int
    category_id: int
    bbox: list[float]
    area: float
    iscrowd: int
    attributes: list[str]
    noun: str


class World:
    """Nouns, scenes, captions, sentences and probes, each drawn from (seed, stream, index) alone."""

    def __init__(self, config: WorldConfig) -> None:
        self.config = config
        self.nouns = draw_nouns(config)
        self.cell = cell_of(config)
        forms = itertools.product(
            ATTRIBUTES["shape"], ATTRIBUTES["size"], ATTRIBUTES["texture"], (0, 1)
        )
        self._stamps = {form: stamp(*form, self.cell) for form in forms}

    def _rng(self, stream: str, index: int | str = 0) -> Generator:
        return generator(self.config.seed, stream, index)

    def scene(self, image_id: int, blind: bool = False) -> Scene:
        """What one image shows; blind, the same layout and nouns with the nouns' attributes redrawn."""
        return draw_scene(self.config, self.nouns, image_id, blind)

    def stamp(self, thing: Thing) -> Stamp:
        """How a thing is drawn in its cell, whatever its colour."""
        _, shape, size, texture = thing.looks
        return self._stamps[shape, size, texture, thing.fit]

    def picture(self, scene: Scene) -> np.ndarray:
        """The pixels (S, S, 3) of a scene, 0 to 255."""
        rng = self._rng("pixels", scene.image_id)
        size = self.config.size
        noise = 6 * rng.standard_normal((size, size, 3), dtype=np.float32)
        pixels = np.empty((size, size, 3), dtype=np.float32)
        pixels[:] = 125 + rng.uniform(-20, 20) + rng.uniform(-12, 12, 3)
        for thing in scene.things:
            colour, _, _, texture = thing.looks
            drawn = self.stamp(thing)
            paint = np.array(RGB[colour] + rng.uniform(-14, 14, 3), dtype=np.float32)
            ink = TEXTURE_INK.get(texture, 0.0)
            rows = slice(thing.y, thing.y + self.cell)
            columns = slice(thing.x, thing.x + self.cell)
            patch = pixels[rows, columns]
            patch += drawn.cover * (paint + drawn.mark * (ink - paint) - patch)
        pixels += noise
        return np.clip(pixels, 0, 255).astype(np.uint8)

    def captions(self, scene: Scene) -> list[str]:
        """Two captions; what they name and describe depends on the image's id alone, so it is the same when blind."""
        captions = []
        for number in (0, 1):
            rng = self._rng("caption", 2 * scene.image_id + number)
            named = rng.random(2) < 0.70
            phrases = []
            for slot, thing in enumerate(scene.things):
                name = thing.name if named[slot] else ""
                phrases.append(f"a {phrase(rng, name, thing.looks, self.config.stated)}")
            if not scene.relation:
                captions.append(f"there is {phrases[0]} .")
                continue
            first, second = phrases
            if rng.random() < 0.5:
                captions.append(f"{second} is {OPPOSITE[scene.relation]} {first} .")
            else:
                captions.append(f"{first} is {scene.relation} {second} .")
        return captions

    def boxes(self, scene: Scene) -> list[BoxNote]:
        """COCO annotations of a scene without their ids; boxes are x, y, width, height in pixels."""
        notes = []
        for thing in scene.things:
            drawn = self.stamp(thing)
            x, y, width, height = drawn.box
            box = (x + thing.x, y + thing.y, width, height)
            note = BoxNote(
                image_id=scene.image_id,
                category_id=ATTRIBUTES["shape"].index(thing.looks[1]) + 1,
                bbox=[float(value) for value in box],
                area=round(float(drawn.cover.sum()), 2),
                iscrowd=0,
                attributes=[thing.looks[i] for i in SPOKEN],
                noun=thing.name,
            )
            notes.append(note)
        return notes

    def write(self, folder: str | os.PathLike) -> None:
        """Write images, captions, boxes, text and probes; `world.json` comes last and so marks a complete folder."""
        self.write_images(folder)
        if self.config.blind:
            self.write_images(folder, blind=True)
        self.write_text(folder)

    def write_images(self, folder: str | os.PathLike, blind: bool = False) -> None:
        """Write images, captions and boxes in COCO's layout, or the control's images and captions."""
        root = Path(folder)
        (root / ("images_blind" if blind else "images")).mkdir(parents=True, exist_ok=True)
        self._write_split(root, "train", range(1, 1 + self.config.scenes), blind)
        held_out = range(DEV_IMAGES + 1, DEV_IMAGES + 1 + self.config.dev_scenes)
        self._write_split(root, "dev", held_out, blind)

    def _write_split(self, root: Path, split: str, ids: range, blind: bool) -> None:
        suffix = "_blind" if blind else ""
        head = {
            "info": {"description": "groundling world", "version": str(FORMAT_VERSION)},
            "licenses": [],
        }
        size = self.config.size
        images: list[dict[str, int | str]] = []
        captions: list[dict[str, int | str]] = []
        boxes: list[dict[str, object]] = []
        for image_id in ids:
            file = f"{image_id:012d}.png"
            images.append({"id": image_id, "width": size, "height": size, "file_name": file})
            scene = self.scene(image_id, blind)
            picture = Image.fromarray(self.picture(scene))
            drawn = io.BytesIO()
            picture.save(drawn, "PNG", compress_level=1)
            write_whole(root / f"images{suffix}" / file, drawn.getvalue())
            for text in self.captions(scene):
                captions.append({"id": len(captions) + 1, "image_id": image_id, "caption": text})
            for note in self.boxes(scene):
                boxes.append({"id": len(boxes) + 1, **note})
        if not blind:  # the control needs no boxes: a teacher sees whole images
            shapes = [{"id": i, "name": name} for i, name in enumerate(ATTRIBUTES["shape"], 1)]
            content = {"images": images, "annotations": boxes, "categories": shapes}
            write_lines(root / f"instances_{split}.json", [json.dumps(head | content)])
        content = {"images": images, "annotations": captions}
        write_lines(root / f"captions{suffix}_{split}.json", [json.dumps(head | content)])

    def write_text(self, folder: str | os.PathLike) -> None:
        """Write the corpus, the probes and `world.json`."""
        root = Path(folder)
        known = self._write_corpus(root / "corpus" / "train.txt", self.config.sentences)
        known |= self._write_corpus(root / "corpus" / "dev.txt", self.config.dev_sentences)
        rules = {}
        for split in ROWS:
            rules[split] = self._write_probes(root / "probes", split, known)
        self._write_attributes(root / "probes" / "attribute.tsv")
        facts = [json.dumps(fact) for fact in self._facts()]
        write_lines(root / "probes" / "knowledge.jsonl", facts)
        about = {
            "format_version": FORMAT_VERSION,
            "config": asdict(self.config),
            "nouns": [asdict(noun) for noun in self.nouns],
            "attributes": ATTRIBUTES,
            "categories": FRAMES,
            "things": THINGS,
            "relations": RELATIONS,
            "odd": rules,
        }
        write_lines(root / "world.json", [json.dumps(about, indent=1)])

    def _write_corpus(self, path: Path, count: int) -> set[str]:
        """Write so many sentences; returns each of them once."""
        lines = []
        for index in range(count):
            rng = self._rng(f"corpus/{path.stem}", index)
            lines.append(sentence(rng, self.nouns, self.config.stated))
        write_lines(path, lines)
        return set(lines)

    def _write_probes(self, folder: Path, split: str, known: set[str]) -> str:
        """Write the questions on a split's nouns; returns the rule by which "odd" chose its nouns."""
        nouns = [noun for noun in self.nouns if noun.split == split]
        questions = Questions(self._rng, split, nouns, ROWS[split])
        odd_rows, rule = questions.odd()
        probes: dict[str, list[Row]] = {
            "truth": questions.truth(),
            "odd": odd_rows,
            "category": questions.category(),
            "order": questions.order(known),
        }
        for name, rows in probes.items():
            shuffled = self._rng(f"rows/{name}", split).permutation(len(rows))
            lines = ["index\tsentence\tlabel"]
            for index, row in enumerate(shuffled):
                text, label = rows[row]
                lines.append(f"{index}\t{text}\t{label}")
            write_lines(folder / f"{name}_{split}.tsv", lines)
        return rule

    def _write_attributes(self, path: Path) -> None:
        rows = [("noun", "split", *ATTRIBUTES, "category", "sentence")]
        for noun in self.nouns:
            text = f"there is a {noun.name} ."
            rows.append((noun.name, noun.split, *noun.looks, noun.category, text))
        write_lines(path, ["\t".join(row) for row in rows])

    def _facts(self) -> Iterator[dict[str, object]]:
        """A line per noun, attribute and prompt in CoDa's layout, which knows colours only: what is asked is added."""
        for noun, attribute in itertools.product(self.nouns, ATTRIBUTES):
            options = ATTRIBUTES[attribute]
            for index, prompt in enumerate(PROMPTS):
                yield {
                    "class_id": noun.name,
                    "display_name": noun.name,
                    "ngram": noun.name,
                    "object_group": noun.split,
                    "relation": attribute,
                    "options": options,
                    "label": [float(option in noun.looks) for option in options],
                    "text": prompt.format(noun.name),
                    "template_group": 1,
                    "template_idx": index,
                }


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write lines as UTF-8 with the same line ends on every system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(f"{line}\n" for line in lines).encode())
