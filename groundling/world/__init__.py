"""A rendered world in which looks show only in images and kinds only in text, written in the field's file formats."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from groundling.errors import InputError
from groundling.keyed import generator
from groundling.world.drawing import RGB, TEXTURE_INK, Stamp, stamp
from groundling.world.language import (
    ATTRIBUTES,
    FRAMES,
    OPPOSITE,
    SPOKEN,
    THINGS,
    Looks,
    Noun,
    draw_looks,
    phrase,
    sentence,
)
from groundling.world.questions import ROWS, category, odd, order, truth

FORMAT_VERSION = 1
PROMPTS = (
    "the {} is [MASK] .",
    "there is a [MASK] {} .",
)  # as the corpus and the captions speak of things
DEV_IMAGES = (
    10**9
)  # added to the ids of dev images, so that no number of training scenes reaches them


@dataclass(frozen=True)
class WorldConfig:
    """How large a world to render, and from which seed."""

    seed: int = 0
    """redraws everything: nouns, attributes, scenes, sentences"""
    nouns: int = 162
    """number of invented nouns"""
    dev_nouns: int = 18
    """number of nouns for choosing settings"""
    test_nouns: int = 36
    """number of nouns for the reported numbers (the rest are train nouns)"""
    scenes: int = 16000
    """number of training images, two captions each"""
    dev_scenes: int = 500
    """number of held-out images, two captions each"""
    sentences: int = 24000
    """number of lines in the text corpus"""
    dev_sentences: int = 1000
    """number of lines in the held-out text corpus"""
    size: int = 32
    """width and height of an image in pixels, a multiple of 16"""
    stated: float = 0.0
    """reporting bias: probability that a mention of a noun, in text or caption, states one of its attributes"""
    blind: bool = True
    """also write the control images, in which each noun's attributes are redrawn for every image"""

    def __post_init__(self) -> None:
        for field, value in asdict(self).items():
            low, high = {"nouns": (4, 1000), "stated": (0, 1)}.get(field, (0, DEV_IMAGES - 1))
            if not low <= value <= high:
                raise InputError(f"{field} is {value}; expected {low} to {high}")
        if self.size < 16 or self.size % 16:
            raise InputError(f"size is {self.size}; expected a positive multiple of 16")
        if (held := self.dev_nouns + self.test_nouns) >= self.nouns:
            raise InputError(
                f"dev_nouns + test_nouns is {held}; expected fewer than nouns, {self.nouns}"
            )


@dataclass(frozen=True)
class Thing:
    """One object of a scene; `name` is empty for an unnamed thing, `x` and `y` are its cell's corner in pixels."""

    name: str
    looks: Looks
    x: int
    y: int
    fit: int


@dataclass(frozen=True)
class Scene:
    """One or two things; `relation` holds from the first to the second."""

    image_id: int
    relation: str
    things: tuple[Thing, ...]


class World:
    """Nouns, scenes, captions, sentences and probes, each drawn from (seed, stream, index) alone."""

    def __init__(self, config: WorldConfig) -> None:
        self.config = config
        self.nouns = self._nouns()
        self._cell = config.size * 7 // 16
        looks = itertools.product(
            ATTRIBUTES["shape"], ATTRIBUTES["size"], ATTRIBUTES["texture"], (0, 1)
        )
        self._stamps = {look: stamp(*look, self._cell) for look in looks}

    def _rng(self, stream: str, index: int | str = 0) -> np.random.Generator:
        return generator(self.config.seed, stream, index)

    def _nouns(self) -> list[Noun]:
        """Names, with attributes and category as balanced, and as independent of each other, as the count allows."""
        config, rng = self.config, self._rng("nouns")
        names = [
            "".join(parts)
            for parts in itertools.product("bdfgklmnprstvz", "aeiou", "bdglmnrvz", "aeiou", "kv")
        ]
        spelling = rng.permutation(len(names))
        kinds = (*ATTRIBUTES.values(), tuple(FRAMES))
        levels = [len(kind) for kind in kinds]
        grid = np.array(list(itertools.product(*map(range, levels))))
        hot = np.concatenate([np.eye(n)[grid[:, i]] * n**0.5 for i, n in enumerate(levels)], axis=1)
        looks = np.arange(len(grid)) // len(FRAMES)
        taken, together, picks = np.zeros(len(grid)), np.zeros((hot.shape[1],) * 2), []
        for _ in range(config.nouns):
            # Looks no noun has come first, then values and pairs of values that are rare so far, then the lot.
            cost = 1e6 * taken[looks] + ((hot @ together) * hot).sum(axis=1) + rng.random(len(grid))
            pick = int(cost.argmin())
            picks.append(pick)
            taken[looks[pick]] += 1
            together += np.outer(hot[pick], hot[pick]) * (1 + 4 * np.eye(len(together)))
        values, hot, splits = grid[picks], hot[picks], np.full(config.nouns, "train")
        for split in ("test",) * config.test_nouns + ("dev",) * config.dev_nouns:
            # Values rare in the split come first, then nouns with one look-alike in it, which "odd" needs.
            inside = splits == split
            alike = ((values[:, None, :4] == values[None, inside, :4]).sum(axis=2) == 3).sum(axis=1)
            cost = 2 * hot @ hot[inside].sum(axis=0) + (alike != 1) + rng.random(config.nouns)
            splits[np.where(splits == "train", cost, np.inf).argmin()] = split
        nouns = []
        for row, name, split in zip(values, spelling, splits, strict=False):
            colour, shape, size, texture, category = (
                kind[i] for kind, i in zip(kinds, row, strict=True)
            )
            nouns.append(Noun(names[name], colour, shape, size, texture, category, str(split)))
        return nouns

    def scene(self, image_id: int, blind: bool = False) -> Scene:
        """What one image shows; blind, the same layout and nouns with the nouns' attributes redrawn."""
        rng, size, cell = self._rng("scene", image_id), self.config.size, self._cell
        first = int(rng.integers(len(self.nouns)))
        second = (first + 1 + int(rng.integers(len(self.nouns) - 1))) % len(self.nouns)
        alone, *named = rng.random(3) < (0.60, 0.75, 0.75)
        others = draw_looks(rng), draw_looks(rng)
        redrawn = self._rng("blind", image_id) if blind else None
        relation = "" if alone else tuple(OPPOSITE)[rng.integers(4)]
        # Few places, hardly jittered: a vision transformer this small does not learn to move a shape about.
        middle, off = (size - cell) // 2, size // 4
        jitter = rng.integers(-1, 2, (2, 2)) * (size // 32)
        if relation:
            sign = -1 if relation in ("left of", "above") else 1
            x, y = middle + off * np.array([sign, -sign]) + jitter[0], middle + jitter[1]
            if relation in ("above", "below"):
                x, y = y, x
        else:
            along, across = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))[rng.integers(5)]
            x, y = middle + off * along + jitter[0], middle + off * across + jitter[1]
        fits = rng.integers(2, size=2)
        things = []
        for slot in range(1 if alone else 2):
            noun = self.nouns[(first, second)[slot]]
            looks = noun.looks if redrawn is None else draw_looks(redrawn)
            name, looks = (noun.name, looks) if named[slot] else ("", others[slot])
            things.append(Thing(name, looks, int(x[slot]), int(y[slot]), int(fits[slot])))
        return Scene(image_id, relation, tuple(things))

    def _stamp(self, thing: Thing) -> Stamp:
        return self._stamps[thing.looks[1], thing.looks[2], thing.looks[3], thing.fit]

    def picture(self, scene: Scene) -> np.ndarray:
        """The pixels (S,S,3) of a scene, 0 to 255."""
        rng, size, cell = self._rng("pixels", scene.image_id), self.config.size, self._cell
        noise = 6 * rng.standard_normal((size, size, 3), dtype=np.float32)
        pixels = np.empty((size, size, 3), dtype=np.float32)
        pixels[:] = 125 + rng.uniform(-20, 20) + rng.uniform(-12, 12, 3)
        for thing in scene.things:
            drawn = self._stamp(thing)
            paint = np.array(RGB[thing.looks[0]] + rng.uniform(-14, 14, 3), dtype=np.float32)
            ink = TEXTURE_INK.get(thing.looks[3], 0.0)
            patch = pixels[thing.y : thing.y + cell, thing.x : thing.x + cell]
            patch += drawn.cover * (paint + drawn.mark * (ink - paint) - patch)
        pixels += noise
        return np.clip(pixels, 0, 255).astype(np.uint8)

    def captions(self, scene: Scene) -> list[str]:
        """Two captions; what they name and describe depends on the image's id alone, so it is the same when blind."""
        captions = []
        for index in (0, 1):
            rng = self._rng("caption", 2 * scene.image_id + index)
            named = rng.random(2) < 0.70
            phrases = [
                f"a {phrase(rng, thing.name if name else '', thing.looks, self.config.stated)}"
                for thing, name in zip(scene.things, named, strict=False)
            ]
            relation = scene.relation
            if relation and rng.random() < 0.5:
                phrases, relation = phrases[::-1], OPPOSITE[relation]
            captions.append(
                f" is {relation} ".join(phrases) + " ." if relation else f"there is {phrases[0]} ."
            )
        return captions

    def write(self, folder: str | os.PathLike) -> None:
        """Write images, captions, boxes, text and probes; `world.json` comes last and so marks a complete folder."""
        self.write_images(folder)
        if self.config.blind:
            self.write_images(folder, blind=True)
        self.write_text(folder)

    def write_text(self, folder: str | os.PathLike) -> None:
        """Write the corpus, the probes and `world.json`."""
        config, root = self.config, Path(folder)
        lines = {}
        for split, count in (("train", config.sentences), ("dev", config.dev_sentences)):
            rngs = (self._rng(f"corpus/{split}", i) for i in range(count))
            lines[split] = [sentence(rng, self.nouns, config.stated) for rng in rngs]
            write_lines(root / "corpus" / f"{split}.txt", lines[split])
        known, rules = {*lines["train"], *lines["dev"]}, {}
        for split, cap in ROWS.items():
            nouns = [noun for noun in self.nouns if noun.split == split]
            triples, rules[split] = odd(self._rng, split, nouns, cap)
            probes = {
                "truth": truth(self._rng, split, nouns, cap),
                "odd": triples,
                "category": category(self._rng, split, nouns, cap),
                "order": order(self._rng, split, nouns, cap, known),
            }
            for name, rows in probes.items():
                places = self._rng(f"rows/{name}", split).permutation(len(rows))
                table = [f"{index}\t{rows[i][0]}\t{rows[i][1]}" for index, i in enumerate(places)]
                write_lines(
                    root / "probes" / f"{name}_{split}.tsv", ["index\tsentence\tlabel", *table]
                )
        header = "\t".join(("noun", "split", *ATTRIBUTES, "category", "sentence"))
        fields = (
            (n.name, n.split, *n.looks, n.category, f"there is a {n.name} .") for n in self.nouns
        )
        write_lines(root / "probes" / "attribute.tsv", [header, *map("\t".join, fields)])
        write_lines(
            root / "probes" / "knowledge.jsonl", [json.dumps(fact) for fact in self._facts()]
        )
        about = {
            "format_version": FORMAT_VERSION,
            "config": asdict(config),
            "nouns": [asdict(n) for n in self.nouns],
        }
        words = {
            "attributes": ATTRIBUTES,
            "categories": FRAMES,
            "things": THINGS,
            "relations": list(OPPOSITE),
        }
        write_lines(root / "world.json", [json.dumps(about | words | {"odd": rules}, indent=1)])

    def _facts(self) -> Iterator[dict[str, Any]]:
        """A line per noun, attribute and prompt in CoDa's layout, which knows colours only: what is asked is added."""
        for noun, (kind, options) in itertools.product(self.nouns, ATTRIBUTES.items()):
            label = [float(option in noun.looks) for option in options]
            for index, prompt in enumerate(PROMPTS):
                yield {
                    "class_id": noun.name,
                    "display_name": noun.name,
                    "ngram": noun.name,
                    "object_group": noun.split,
                    "relation": kind,
                    "options": options,
                    "label": label,
                    "text": prompt.format(noun.name),
                    "template_group": 1,
                    "template_idx": index,
                }

    def write_images(self, folder: str | os.PathLike, blind: bool = False) -> None:
        """Write images, captions and boxes in COCO's layout, or the control's images and captions."""
        config, root = self.config, Path(folder)
        images, suffix = root / ("images_blind" if blind else "images"), "_blind" if blind else ""
        images.mkdir(parents=True, exist_ok=True)
        head = {
            "info": {"description": "groundling world", "version": str(FORMAT_VERSION)},
            "licenses": [],
        }
        for split, start, count in (
            ("train", 1, config.scenes),
            ("dev", DEV_IMAGES + 1, config.dev_scenes),
        ):
            records: list[dict[str, Any]] = []
            captions: list[dict] = []
            boxes: list[dict] = []
            for image_id in range(start, start + count):
                record = {
                    "id": image_id,
                    "width": config.size,
                    "height": config.size,
                    "file_name": f"{image_id:012d}.png",
                }
                records.append(record)
                scene = self.scene(image_id, blind)
                Image.fromarray(self.picture(scene)).save(
                    images / f"{image_id:012d}.png", compress_level=1
                )
                for text in self.captions(scene):
                    captions.append(
                        {"id": len(captions) + 1, "image_id": image_id, "caption": text}
                    )
                for box in self.boxes(scene):
                    boxes.append({"id": len(boxes) + 1} | box)
            if not blind:  # the control needs no boxes: a teacher sees whole images
                shapes = [{"id": i + 1, "name": name} for i, name in enumerate(ATTRIBUTES["shape"])]
                content = {"images": records, "annotations": boxes, "categories": shapes}
                write_lines(root / f"instances_{split}.json", [json.dumps(head | content)])
            content = {"images": records, "annotations": captions}
            write_lines(root / f"captions{suffix}_{split}.json", [json.dumps(head | content)])

    def boxes(self, scene: Scene) -> list[dict]:
        """COCO annotations of a scene without their ids; boxes x, y, w, h in pixels."""
        found = []
        for thing in scene.things:
            x, y, w, h = self._stamp(thing).box
            bbox = [float(x + thing.x), float(y + thing.y), float(w), float(h)]
            area = round(float(self._stamp(thing).cover.sum()), 2)
            shape = ATTRIBUTES["shape"].index(thing.looks[1]) + 1
            box = {
                "image_id": scene.image_id,
                "category_id": shape,
                "bbox": bbox,
                "area": area,
                "iscrowd": 0,
            }
            found.append(box | {"attributes": [thing.looks[i] for i in SPOKEN], "noun": thing.name})
        return found


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write lines as UTF-8 with the same line ends on every system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
