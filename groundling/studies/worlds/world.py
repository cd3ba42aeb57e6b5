"""The rendered world: scenes, images, captions and boxes, and their files in the field's formats."""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.random import Generator
from PIL import Image

from groundling.core.rng import generator
from groundling.runs.folder import write_whole
from groundling.studies.worlds.commands import DEV_IMAGES, WorldConfig
from groundling.studies.worlds.language import (
    ATTRIBUTES,
    FRAMES,
    OPPOSITE,
    RELATIONS,
    ROWS,
    SPOKEN,
    THINGS,
    LabelledSentence,
    Noun,
    NounQuestions,
    VisualAttributes,
    draw_attributes,
    draw_nouns,
    phrase,
    sentence,
)

# Scenes: one object, or two objects with a relation; and how each is rendered.
# An object has a colour, a shape, one of two sizes (each drawn at two scales), and a texture.

PLACES = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))
"""Places of a single object: the middle or one of four sides, as steps right and down."""
RGB = {
    "red": (215, 30, 40),
    "green": (30, 150, 50),
    "blue": (40, 70, 225),
    "yellow": (245, 220, 30),
    "purple": (140, 50, 185),
    "pink": (250, 130, 195),
}
"""RGB value of each colour, 0 to 255."""
TEXTURE_INK = {"striped": 20, "dotted": 250}
"""Brightness of a texture's marks: dark and light, to be distinguishable in few pixels."""
SCALES = {"small": (0.56, 0.64), "large": (0.92, 1.0)}
"""Share of the cell's side that an object fills, at each of the two scales of its size."""
OVERSAMPLING = 4
"""Oversampling factor: shapes are drawn at this multiple of the cell's resolution and averaged."""


@dataclass(frozen=True)
class SceneObject:
    """One object of a scene."""

    name: str
    """Its noun; empty for an object without one."""
    attributes: VisualAttributes
    """Colour, shape, size, texture."""
    x: int
    """Left edge of its cell, pixels."""
    y: int
    """Upper edge of its cell, pixels."""
    fit: int
    """Which of the two scales of its size it has, 0 or 1."""


@dataclass(frozen=True)
class Scene:
    """The content of one image: one or two objects."""

    image_id: int
    """Id of its image."""
    relation: str
    """Relation of the first object to the second, such as "left of"; empty for one object."""
    things: tuple[SceneObject, ...]
    """The objects, one or two."""


def cell_size(size: int) -> int:
    """Side of an object's square cell in pixels; `size` is the image's side."""
    return size * 7 // 16


def draw_scene(
    seed: int, size: int, nouns: Sequence[Noun], image_id: int, redraw_attributes: bool
) -> Scene:
    """The scene of an image of `size` x `size` pixels; with `redraw_attributes`, nouns get random ones."""
    rng = generator(seed, "scene", image_id)
    first = int(rng.integers(len(nouns)))
    distance = 1 + int(rng.integers(len(nouns) - 1))
    second = (first + distance) % len(nouns)
    alone, *named = rng.random(3) < (0.60, 0.75, 0.75)
    other_attributes = (draw_attributes(rng), draw_attributes(rng))
    relation = "" if alone else RELATIONS[rng.integers(4)]
    corners = _corners(rng, size, relation)
    fits = rng.integers(2, size=2)
    redraw_rng = generator(seed, "blind", image_id)  # another name would redraw every world
    things = []
    for slot in range(1 if alone else 2):
        noun = nouns[(first, second)[slot]]
        attributes = draw_attributes(redraw_rng) if redraw_attributes else noun.attributes
        x, y = (int(corner) for corner in corners[slot])
        fit = int(fits[slot])
        if named[slot]:
            things.append(SceneObject(noun.name, attributes, x, y, fit))
        else:
            things.append(SceneObject("", other_attributes[slot], x, y, fit))
    return Scene(image_id, relation, tuple(things))


def _corners(rng: Generator, size: int, relation: str) -> np.ndarray:
    """Left and upper edges of two cells (2, 2), pixels; without a relation only the first is used.

    Few places with little jitter: such a small vision transformer does not learn translation invariance.
    """
    middle = (size - cell_size(size)) // 2
    step = size // 4
    jitter = rng.integers(-1, 2, (2, 2)) * (size // 32)
    if not relation:
        right, down = PLACES[rng.integers(5)]
        x = middle + step * right + jitter[0]
        y = middle + step * down + jitter[1]
        return np.stack([x, y], axis=1)
    sign = -1 if relation in ("left of", "above") else 1
    along = middle + step * np.array([sign, -sign]) + jitter[0]
    across = middle + jitter[1]
    if relation in ("above", "below"):
        return np.stack([across, along], axis=1)
    return np.stack([along, across], axis=1)


def relation_of(scene: Scene, thing: int) -> str:
    """Relation of object 0 or 1 of a scene to the other object."""
    if thing == 0:
        return scene.relation
    return OPPOSITE[scene.relation]


@dataclass(frozen=True)
class RenderedObject:
    """A rendered object in its cell of C x C pixels, without colour."""

    cover: np.ndarray
    """The object's share of each pixel (C, C, 1), 0 to 1."""
    mark: np.ndarray
    """The share of `cover` that has the texture's ink (C, C, 1), 0 to 1."""
    box: tuple[int, int, int, int]
    """x, y, width, height in pixels."""


def render_object(shape: str, size: str, texture: str, fit: int, cell: int) -> RenderedObject:
    """Render a shape at scale 0 or 1 (`fit`) of its size, in a cell of `cell` x `cell` pixels."""
    fine_cover = _shape(shape, SCALES[size][fit], OVERSAMPLING * cell)
    blocks = fine_cover.reshape(cell, OVERSAMPLING, cell, OVERSAMPLING)
    cover = blocks.mean(axis=(1, 3), dtype=np.float32)
    mark = np.float32(0.8) * _texture(texture, cell).astype(np.float32)
    return RenderedObject(cover[:, :, None], mark[:, :, None], _box(cover))


def _shape(shape: str, scale: float, side: int) -> np.ndarray:
    """Mask (`side`, `side`) of the points inside a shape; at scale 1 the shape touches the edges."""
    points = (np.arange(side) + 0.5) / (side // 2) - 1
    x = points[None, :] / scale
    y = points[:, None] / scale
    radius = np.hypot(x, y)
    extent = np.maximum(abs(x), abs(y))
    if shape == "round":
        return radius <= 1
    if shape == "square":
        return extent <= 1
    if shape == "bent":
        return ((x <= -0.3) | (y >= 0.3)) & (extent <= 1)
    if shape == "tall":
        return (abs(x) <= 0.36) & (abs(y) <= 1)
    if shape == "hollow":
        return (radius <= 1) & (radius >= 0.55)
    if shape == "flat":
        return (abs(y) <= 0.36) & (abs(x) <= 1)
    raise ValueError(f"no shape {shape!r}")


def _texture(texture: str, cell: int) -> np.ndarray:
    """Mask (C, C) of a texture's marks, 0 or 1, in bands of a seventh of the cell's width."""
    row, column = np.indices((cell, cell)) * 14 // cell // 2 % 2
    if texture == "plain":
        return np.zeros_like(row)
    if texture == "striped":
        return column
    if texture == "dotted":
        return row * column
    raise ValueError(f"no texture {texture!r}")


def _box(cover: np.ndarray) -> tuple[int, int, int, int]:
    """x, y, width, height of the pixels that are covered by at least half."""
    ys, xs = np.nonzero(cover >= 0.5)
    width = int(np.ptp(xs)) + 1
    height = int(np.ptp(ys)) + 1
    return (int(xs.min()), int(ys.min()), width, height)


FORMAT_VERSION = 1
"""Increases whenever the same settings write a different world."""
PROMPTS = ("the {} is [MASK] .", "there is a [MASK] {} .")
"""Prompts for a masked-LM head, in the wording of the corpus and the captions."""


class CocoAnnotation(TypedDict):
    """One annotation of a COCO instances file, without its id."""

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
        self.nouns = draw_nouns(config.seed, config.nouns, config.test_nouns, config.dev_nouns)
        self.cell = cell_size(config.size)
        forms = itertools.product(
            ATTRIBUTES["shape"], ATTRIBUTES["size"], ATTRIBUTES["texture"], (0, 1)
        )
        self._stamps = {form: render_object(*form, self.cell) for form in forms}

    def _rng(self, stream: str, index: int | str = 0) -> Generator:
        return generator(self.config.seed, stream, index)

    def scene(self, image_id: int, redraw_attributes: bool = False) -> Scene:
        """The scene of one image; `redraw_attributes` redraws the nouns' attributes in the same layout."""
        return draw_scene(
            self.config.seed, self.config.size, self.nouns, image_id, redraw_attributes
        )

    def render_object(self, thing: SceneObject) -> RenderedObject:
        """An object rendered in its cell, without colour."""
        _, shape, size, texture = thing.attributes
        return self._stamps[shape, size, texture, thing.fit]

    def render_scene(self, scene: Scene) -> np.ndarray:
        """The pixels (S, S, 3) of a scene, 0 to 255."""
        rng = self._rng("pixels", scene.image_id)
        size = self.config.size
        noise = 6 * rng.standard_normal((size, size, 3), dtype=np.float32)
        pixels = np.empty((size, size, 3), dtype=np.float32)
        pixels[:] = 125 + rng.uniform(-20, 20) + rng.uniform(-12, 12, 3)
        for thing in scene.things:
            colour, _, _, texture = thing.attributes
            rendered = self.render_object(thing)
            paint = np.array(RGB[colour] + rng.uniform(-14, 14, 3), dtype=np.float32)
            ink = TEXTURE_INK.get(texture, 0.0)
            rows = slice(thing.y, thing.y + self.cell)
            columns = slice(thing.x, thing.x + self.cell)
            patch = pixels[rows, columns]
            patch += rendered.cover * (paint + rendered.mark * (ink - paint) - patch)
        pixels += noise
        return np.clip(pixels, 0, 255).astype(np.uint8)

    def captions(self, scene: Scene) -> list[str]:
        """Two captions; the image id alone determines their template, so redrawn attributes do not change it."""
        captions = []
        for number in (0, 1):
            rng = self._rng("caption", 2 * scene.image_id + number)
            named = rng.random(2) < 0.70
            phrases = []
            for slot, thing in enumerate(scene.things):
                name = thing.name if named[slot] else ""
                phrases.append(f"a {phrase(rng, name, thing.attributes, self.config.stated_rate)}")
            if not scene.relation:
                captions.append(f"there is {phrases[0]} .")
                continue
            first, second = phrases
            if rng.random() < 0.5:
                captions.append(f"{second} is {OPPOSITE[scene.relation]} {first} .")
            else:
                captions.append(f"{first} is {scene.relation} {second} .")
        return captions

    def boxes(self, scene: Scene) -> list[CocoAnnotation]:
        """COCO annotations of a scene, without ids; boxes are x, y, width, height in pixels."""
        annotations = []
        for thing in scene.things:
            rendered = self.render_object(thing)
            x, y, width, height = rendered.box
            box = (x + thing.x, y + thing.y, width, height)
            annotation = CocoAnnotation(
                image_id=scene.image_id,
                category_id=ATTRIBUTES["shape"].index(thing.attributes[1]) + 1,
                bbox=[float(value) for value in box],
                area=round(float(rendered.cover.sum()), 2),
                iscrowd=0,
                attributes=[thing.attributes[i] for i in SPOKEN],
                noun=thing.name,
            )
            annotations.append(annotation)
        return annotations

    def write(self, folder: str | os.PathLike) -> None:
        """Write images, captions, boxes, text and probes; `world.json` is last and marks a complete folder."""
        self.write_images(folder)
        if self.config.control_images:
            self.write_images(folder, redraw_attributes=True)
        self.write_text(folder)

    def write_images(self, folder: str | os.PathLike, redraw_attributes: bool = False) -> None:
        """Write images, captions and boxes in COCO's layout, or the control images and their captions."""
        root = Path(folder)
        (root / ("images_redrawn" if redraw_attributes else "images")).mkdir(
            parents=True, exist_ok=True
        )
        self._write_split(root, "train", range(1, 1 + self.config.scenes), redraw_attributes)
        held_out = range(DEV_IMAGES + 1, DEV_IMAGES + 1 + self.config.dev_scenes)
        self._write_split(root, "dev", held_out, redraw_attributes)

    def _write_split(self, root: Path, split: str, ids: range, redraw_attributes: bool) -> None:
        suffix = "_redrawn" if redraw_attributes else ""
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
            scene = self.scene(image_id, redraw_attributes)
            picture = Image.fromarray(self.render_scene(scene))
            drawn = io.BytesIO()
            picture.save(drawn, "PNG", compress_level=1)
            write_whole(root / f"images{suffix}" / file, drawn.getvalue())
            for text in self.captions(scene):
                captions.append({"id": len(captions) + 1, "image_id": image_id, "caption": text})
            for note in self.boxes(scene):
                boxes.append({"id": len(boxes) + 1, **note})
        if not redraw_attributes:  # the control needs no boxes: teachers read whole images
            shapes = [{"id": i, "name": name} for i, name in enumerate(ATTRIBUTES["shape"], 1)]
            content = {"images": images, "annotations": boxes, "categories": shapes}
            write_lines(root / f"instances_{split}.json", [json.dumps(head | content)])
        content = {"images": images, "annotations": captions}
        write_lines(root / f"captions{suffix}_{split}.json", [json.dumps(head | content)])

    def write_text(self, folder: str | os.PathLike) -> None:
        """Write the corpus, the probes and `world.json`."""
        root = Path(folder)
        corpus_sentences = self._write_corpus(root / "corpus" / "train.txt", self.config.sentences)
        corpus_sentences |= self._write_corpus(
            root / "corpus" / "dev.txt", self.config.dev_sentences
        )
        rules = {}
        for split in ROWS:
            rules[split] = self._write_probes(root / "probes", split, corpus_sentences)
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
        """Write `count` sentences; returns the distinct ones."""
        lines = []
        for index in range(count):
            rng = self._rng(f"corpus/{path.stem}", index)
            lines.append(sentence(rng, self.nouns, self.config.stated_rate))
        write_lines(path, lines)
        return set(lines)

    def _write_probes(self, folder: Path, split: str, corpus_sentences: set[str]) -> str:
        """Write the questions on a split's nouns; returns the rule of `ODD_RULES` that chose the triples of "odd"."""
        nouns = [noun for noun in self.nouns if noun.split == split]
        questions = NounQuestions(self._rng, split, nouns, ROWS[split])
        odd_rows, rule = questions.odd()
        probes: dict[str, list[LabelledSentence]] = {
            "truth": questions.truth(),
            "odd": odd_rows,
            "category": questions.category(),
            "order": questions.order(corpus_sentences),
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
            rows.append((noun.name, noun.split, *noun.attributes, noun.category, text))
        write_lines(path, ["\t".join(row) for row in rows])

    def _facts(self) -> Iterator[dict[str, object]]:
        """One row per noun, attribute and prompt in CoDa's layout, plus the attribute; CoDa has only colours."""
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
                    "label": [float(option in noun.attributes) for option in options],
                    "text": prompt.format(noun.name),
                    "template_group": 1,
                    "template_idx": index,
                }


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write lines as UTF-8 with LF line ends on every system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(f"{line}\n" for line in lines).encode())
