"""The rendered world: scenes, images, captions and boxes, and their files in the field's formats."""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from PIL import Image

from groundling.core.errors import InputError, convert_read_errors
from groundling.core.registry import resolve_builtin
from groundling.core.rng import generator
from groundling.runs.folder import read_object, write_whole
from groundling.settings.fields import make_settings
from groundling.studies.worlds.commands import DEV_IMAGES, WorldConfig
from groundling.studies.worlds.families import (
    RenderedObject,
    VisualAttributes,
    WorldFamily,
    draw_attributes,
    find_family,
)
from groundling.studies.worlds.language import (
    ROWS,
    LabelledSentence,
    category_rows,
    draw_nouns,
    odd_rows,
    order_rows,
    phrase,
    sentence,
    truth_rows,
)

# Scenes: one object, or two objects with a relation.

PLACES = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))
"""Places of a single object: the middle or one of four sides, as steps right and down."""


@dataclass(frozen=True)
class SceneObject:
    """One object of a scene."""

    name: str
    """Its noun; empty for an object without one."""
    attributes: VisualAttributes
    """A value of each of the family's visual attributes."""
    x: int
    """Left edge of its cell, pixels."""
    y: int
    """Upper edge of its cell, pixels."""
    fit: int
    """Which of two scales it is drawn at, 0 or 1."""


@dataclass(frozen=True)
class Scene:
    """The content of one image: one or two objects."""

    image_id: int
    """Id of its image."""
    relation: str
    """Relation of the first object to the second, such as "left of"; empty for one object."""
    things: tuple[SceneObject, ...]
    """The objects, one or two."""


def _corners(rng: Generator, size: int, cell: int, direction: int | None) -> np.ndarray:
    """Left and upper edges of two cells (2, 2), pixels; without a direction only the first is used.

    `size` and `cell`: sides of the image and of a cell. `direction`: where the first is, 0 left, 1 right, 2 above, 3
    below.

    Few places with little jitter: such a small vision transformer does not learn translation invariance.
    """
    middle = (size - cell) // 2
    step = size // 4
    jitter = rng.integers(-1, 2, (2, 2)) * (size // 32)
    if direction is None:
        right, down = PLACES[rng.integers(5)]
        x = middle + step * right + jitter[0]
        y = middle + step * down + jitter[1]
        return np.stack([x, y], axis=1)
    sign = 1 if direction % 2 else -1
    along = middle + step * np.array([sign, -sign]) + jitter[0]
    across = middle + jitter[1]
    if direction >= 2:
        return np.stack([across, along], axis=1)
    return np.stack([along, across], axis=1)


FILES = {"world.json": "config", "tasks.json": "world"}
"""The files that record a world's settings, and the key of the settings in each."""
FORMAT_VERSION = 1
"""Increases whenever the same settings write a different world."""


class World:
    """Nouns, scenes, captions, sentences and probes, each drawn from (seed, stream, index) alone."""

    def __init__(self, config: WorldConfig) -> None:
        self.config = config
        self.family = find_family(config.family)
        self.nouns = draw_nouns(
            self.family, config.seed, config.nouns, config.test_nouns, config.dev_nouns
        )
        self.cell = config.size * 7 // 16
        """Side of an object's square cell, pixels."""

    def _rng(self, stream: str, index: int | str = 0) -> Generator:
        return generator(self.config.seed, stream, index)

    def scene(self, image_id: int, redraw_attributes: bool = False) -> Scene:
        """The scene of one image; `redraw_attributes` redraws the nouns' attributes in the same layout."""
        family, nouns = self.family, self.nouns
        rng = self._rng("scene", image_id)
        first = int(rng.integers(len(nouns)))
        distance = 1 + int(rng.integers(len(nouns) - 1))
        second = (first + distance) % len(nouns)
        alone, *named = rng.random(3) < (0.60, 0.75, 0.75)
        other_attributes = (draw_attributes(rng, family), draw_attributes(rng, family))
        direction = None if alone else int(rng.integers(len(family.relations)))
        corners = _corners(rng, self.config.size, self.cell, direction).tolist()
        fits = rng.integers(2, size=2).tolist()
        redraw_rng = self._rng("blind", image_id)  # another name would redraw every world
        things = []
        for slot in range(1 if alone else 2):
            noun = nouns[(first, second)[slot]]
            looks = draw_attributes(redraw_rng, family) if redraw_attributes else noun.attributes
            name, looks = (noun.name, looks) if named[slot] else ("", other_attributes[slot])
            x, y = corners[slot]
            things.append(SceneObject(name, looks, x, y, fits[slot]))
        relation = "" if direction is None else family.relations[direction]
        return Scene(image_id, relation, tuple(things))

    def render_object(self, thing: SceneObject) -> RenderedObject:
        """An object rendered in its cell, without colour."""
        return self.family.render(thing.attributes, thing.fit, self.cell)

    def render_scene(self, scene: Scene) -> np.ndarray:
        """The pixels (S, S, 3) of a scene, 0 to 255."""
        rng = self._rng("pixels", scene.image_id)
        size = self.config.size
        noise = 6 * rng.standard_normal((size, size, 3), dtype=np.float32)
        pixels = np.empty((size, size, 3), dtype=np.float32)
        pixels[:] = self.family.background + rng.uniform(-20, 20) + rng.uniform(-12, 12, 3)
        for thing in scene.things:
            rendered = self.render_object(thing)
            paint, ink = self.family.colours(rng, thing.attributes)
            rows = slice(thing.y, thing.y + self.cell)
            columns = slice(thing.x, thing.x + self.cell)
            patch = pixels[rows, columns]
            patch += rendered.cover * (paint + rendered.mark * (ink - paint) - patch)
        pixels += noise
        return np.clip(pixels, 0, 255).astype(np.uint8)

    def png(self, scene: Scene) -> bytes:
        """A picture as PNG, whatever its file ending: readers detect the format, and JPEG blurs such fine textures."""
        stream = io.BytesIO()
        Image.fromarray(self.render_scene(scene)).save(stream, "PNG", compress_level=1)
        return stream.getvalue()

    def captions(self, scene: Scene) -> list[str]:
        """Two captions; the image id alone determines their template, so redrawn attributes do not change it."""
        captions = []
        stated_rate = self.config.stated_rate
        for number in (0, 1):
            rng = self._rng("caption", 2 * scene.image_id + number)
            named = rng.random(2) < 0.70
            phrases = [
                phrase(
                    rng, self.family, thing.name if is_named else "", thing.attributes, stated_rate
                )
                for thing, is_named in zip(scene.things, named, strict=False)
            ]
            if not scene.relation:
                captions.append(self.family.caption.format(phrases[0]))
                continue
            first, second = phrases
            relation = scene.relation
            if rng.random() < 0.5:
                first, second = second, first
                relation = self.family.opposite(relation)
            form = self.family.pair_captions[rng.integers(len(self.family.pair_captions))]
            captions.append(form.format(first=first, relation=relation, second=second))
        return captions

    def boxes(self, scene: Scene) -> list[dict[str, Any]]:
        """COCO annotations of a scene, without ids; boxes are x, y, width, height in pixels."""
        categories = self.family.attributes[self.family.box_attribute]
        annotations = []
        for thing in scene.things:
            rendered = self.render_object(thing)
            values = dict(zip(self.family.attributes, thing.attributes, strict=True))
            x, y, width, height = rendered.box
            annotations.append(
                {
                    "image_id": scene.image_id,
                    "category_id": categories.index(values[self.family.box_attribute]) + 1,
                    "bbox": [float(side) for side in (x + thing.x, y + thing.y, width, height)],
                    "area": round(float(rendered.cover.sum()), 2),
                    "iscrowd": 0,
                    "attributes": [values[kind] for kind in self.family.phrase_order],
                    "noun": thing.name,
                }
            )
        return annotations

    def write(self, folder: str | os.PathLike) -> None:
        """Write images, captions, boxes, text and probes; `world.json` is last and marks a complete folder."""
        held_out = range(DEV_IMAGES + 1, DEV_IMAGES + 1 + self.config.dev_scenes)
        for redraw_attributes in (False, True) if self.config.control_images else (False,):
            train = range(1, 1 + self.config.scenes)
            self._write_split(Path(folder), "train", train, redraw_attributes)
            self._write_split(Path(folder), "dev", held_out, redraw_attributes)
        self.write_text(folder)

    def _write_split(self, root: Path, split: str, ids: range, redraw_attributes: bool) -> None:
        """Write images, captions and boxes in COCO's layout, or the control images and their captions."""
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
            write_whole(root / f"images{suffix}" / file, self.png(scene))
            for text in self.captions(scene):
                captions.append({"id": len(captions) + 1, "image_id": image_id, "caption": text})
            for note in self.boxes(scene):
                boxes.append({"id": len(boxes) + 1, **note})
        if not redraw_attributes:  # the control needs no boxes: teachers read whole images
            names = self.family.attributes[self.family.box_attribute]
            categories = [{"id": i, "name": name} for i, name in enumerate(names, 1)]
            content = {"images": images, "annotations": boxes, "categories": categories}
            write_lines(root / f"instances_{split}.json", [json.dumps(head | content)])
        content = {"images": images, "annotations": captions}
        write_lines(root / f"captions{suffix}_{split}.json", [json.dumps(head | content)])

    def write_text(self, folder: str | os.PathLike) -> None:
        """Write the corpus, the probes and `world.json`."""
        root = Path(folder)
        corpus = root / "corpus"
        used = self._write_corpus(corpus / "train.txt", self.config.sentences)
        used |= self._write_corpus(corpus / "dev.txt", self.config.dev_sentences)
        rules = {split: self._write_probes(root / "probes", split, used) for split in ROWS}
        table = [("noun", "split", *self.family.attributes, "category", "sentence")]
        for noun in self.nouns:
            text = self.family.caption.format(noun.name)
            table.append((noun.name, noun.split, *noun.attributes, noun.category, text))
        write_lines(root / "probes" / "attribute.tsv", ["\t".join(row) for row in table])
        facts = [json.dumps(fact) for fact in self._facts()]
        write_lines(root / "probes" / "knowledge.jsonl", facts)
        about = {
            "format_version": FORMAT_VERSION,
            "config": world_settings(self.config),
            "nouns": [
                {
                    "name": noun.name,
                    **dict(zip(self.family.attributes, noun.attributes, strict=True)),
                    "category": noun.category,
                    "split": noun.split,
                }
                for noun in self.nouns
            ],
            "attributes": self.family.attributes,
            "categories": self.family.categories,
            "things": self.family.things,
            "relations": self.family.relations,
            "odd": rules,
        }
        write_lines(root / "world.json", [json.dumps(about, indent=1)])

    def _write_corpus(self, path: Path, count: int) -> set[str]:
        """Write `count` sentences; returns the distinct ones."""
        about = (self.family, self.nouns, self.config.stated_rate)
        rngs = (self._rng(f"corpus/{path.stem}", index) for index in range(count))
        lines = [sentence(rng, *about) for rng in rngs]
        write_lines(path, lines)
        return set(lines)

    def _write_probes(self, folder: Path, split: str, corpus_sentences: set[str]) -> str:
        """Write the questions on a split's nouns; returns the rule of `ODD_RULES` that chose the triples of "odd"."""
        nouns = [noun for noun in self.nouns if noun.split == split]
        about = (self.family, nouns, ROWS[split])
        odd, rule = odd_rows(lambda: self._rng("odd", split), *about)
        probes: dict[str, list[LabelledSentence]] = {
            "truth": truth_rows(self._rng("truth", split), *about),
            "odd": odd,
            "category": category_rows(self._rng("category", split), *about),
            "order": order_rows(
                lambda index: self._rng(f"order/{split}", index), *about, corpus_sentences
            ),
        }
        for name, rows in probes.items():
            shuffled = self._rng(f"rows/{name}", split).permutation(len(rows))
            lines = [f"{i}\t{rows[row][0]}\t{rows[row][1]}" for i, row in enumerate(shuffled)]
            write_lines(folder / f"{name}_{split}.tsv", ["index\tsentence\tlabel", *lines])
        return rule

    def _facts(self) -> Iterator[dict[str, object]]:
        """One row per noun, attribute and prompt in CoDa's layout, plus the attribute; CoDa has only colours."""
        for noun, attribute in itertools.product(self.nouns, self.family.attributes):
            options = self.family.attributes[attribute]
            for index, prompt in enumerate(self.family.prompts):
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


def world_settings(config: WorldConfig) -> dict[str, Any]:
    """The settings of a world as its files record them: the default family is not named.

    So files of worlds from before there were families are the same as those of today.
    """
    settings = asdict(config)
    if settings["family"] == WorldConfig.family:
        del settings["family"]
    return settings


def read_world(folder: Path) -> World:
    """The world of a folder of `data make-world` or `data make-tasks`; raises InputError for another folder."""
    for name, key in FILES.items():
        path = folder / name
        if path.is_file():
            with convert_read_errors(path):
                settings = {**read_object(path)[key]}
                # A file never names what is imported.
                resolve_builtin("families", WorldFamily, settings.get("family", WorldConfig.family))
                return World(make_settings(WorldConfig, **settings))
    raise InputError(
        f"{folder}: is no rendered world; expected the out of `groundling data make-world` or `data make-tasks`"
    )


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write lines as UTF-8 with LF line ends on every system."""
    write_whole(path, "".join(f"{line}\n" for line in lines))
