"""What the images show: one thing, or two with a relation between them; and how each is drawn.

A thing has a colour, a shape at two fits and two sizes, and a texture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from groundling.core.keyed import generator
from groundling.studies.worlds.commands import WorldConfig
from groundling.studies.worlds.language import OPPOSITE, RELATIONS, Looks, Noun, draw_looks

PLACES = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))
"""Where a thing may stand that is alone: in the middle, or to one of four sides, as steps to the right and down."""
RGB = {
    "red": (215, 30, 40),
    "green": (30, 150, 50),
    "blue": (40, 70, 225),
    "yellow": (245, 220, 30),
    "purple": (140, 50, 185),
    "pink": (250, 130, 195),
}
"""The paint of each colour, 0 to 255."""
TEXTURE_INK = {"striped": 20, "dotted": 250}
"""Brightness of a texture's marks: dark and light, so that few pixels suffice to tell them apart."""
SCALES = {"small": (0.56, 0.64), "large": (0.92, 1.0)}
"""How much of its cell a thing fills, at each of the two fits of its size."""
OVERSAMPLING = 4
"""A shape is drawn at this many times the cell's resolution and averaged down."""


@dataclass(frozen=True)
class Thing:
    """One object of a scene."""

    name: str
    """Its noun; empty for a thing without one."""
    looks: Looks
    """Colour, shape, size, texture."""
    x: int
    """Left edge of its cell, pixels."""
    y: int
    """Upper edge of its cell, pixels."""
    fit: int
    """Which of its size's two fits it is drawn at, 0 or 1."""


@dataclass(frozen=True)
class Scene:
    """One or two things."""

    image_id: int
    """Id of the image that shows it."""
    relation: str
    """Where the first thing is, seen from the second, such as "left of"; empty if there is one thing."""
    things: tuple[Thing, ...]
    """The things, one or two."""


def cell_of(config: WorldConfig) -> int:
    """Side of the square cell in which a thing is drawn, pixels."""
    return config.size * 7 // 16


def draw_scene(config: WorldConfig, nouns: Sequence[Noun], image_id: int, blind: bool) -> Scene:
    """What one image shows; blind, the same layout and nouns with the nouns' attributes redrawn."""
    rng = generator(config.seed, "scene", image_id)
    first = int(rng.integers(len(nouns)))
    distance = 1 + int(rng.integers(len(nouns) - 1))
    second = (first + distance) % len(nouns)
    alone, *named = rng.random(3) < (0.60, 0.75, 0.75)
    other_looks = (draw_looks(rng), draw_looks(rng))
    relation = "" if alone else RELATIONS[rng.integers(4)]
    corners = _corners(rng, config, relation)
    fits = rng.integers(2, size=2)
    redrawn = generator(config.seed, "blind", image_id)
    things = []
    for slot in range(1 if alone else 2):
        noun = nouns[(first, second)[slot]]
        looks = draw_looks(redrawn) if blind else noun.looks
        x, y = (int(corner) for corner in corners[slot])
        fit = int(fits[slot])
        if named[slot]:
            things.append(Thing(noun.name, looks, x, y, fit))
        else:
            things.append(Thing("", other_looks[slot], x, y, fit))
    return Scene(image_id, relation, tuple(things))


def _corners(rng: Generator, config: WorldConfig, relation: str) -> np.ndarray:
    """Left and upper edges of two cells (2, 2), pixels; of the first only, if there is no relation.

    Few places, hardly jittered: a vision transformer this small does not learn to move a shape about.
    """
    middle = (config.size - cell_of(config)) // 2
    step = config.size // 4
    jitter = rng.integers(-1, 2, (2, 2)) * (config.size // 32)
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


def side(scene: Scene, thing: int) -> str:
    """Where thing number 0 or 1 of a scene is, seen from the other."""
    if thing == 0:
        return scene.relation
    return OPPOSITE[scene.relation]


@dataclass(frozen=True)
class Stamp:
    """A thing in its cell of C x C pixels."""

    cover: np.ndarray
    """The thing's share of each pixel (C, C, 1), 0 to 1."""
    mark: np.ndarray
    """Of that share, the part that is texture (C, C, 1), 0 to 1."""
    box: tuple[int, int, int, int]
    """x, y, width, height in pixels."""


def stamp(shape: str, size: str, texture: str, fit: int, cell: int) -> Stamp:
    """One shape at one of its size's two fits (0 or 1), in a cell of `cell` x `cell` pixels."""
    fine_cover = _shape(shape, SCALES[size][fit], OVERSAMPLING * cell)
    blocks = fine_cover.reshape(cell, OVERSAMPLING, cell, OVERSAMPLING)
    cover = blocks.mean(axis=(1, 3), dtype=np.float32)
    mark = np.float32(0.8) * _texture(texture, cell).astype(np.float32)
    return Stamp(cover[:, :, None], mark[:, :, None], _box(cover))


def _shape(shape: str, scale: float, side: int) -> np.ndarray:
    """Which of `side` x `side` points are inside a shape; at scale 1 the shape touches the edges."""
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
    """Where a texture has its marks (C, C), 0 or 1: in bands, each a seventh of the cell wide."""
    row, column = np.indices((cell, cell)) * 14 // cell // 2 % 2
    if texture == "plain":
        return np.zeros_like(row)
    if texture == "striped":
        return column
    if texture == "dotted":
        return row * column
    raise ValueError(f"no texture {texture!r}")


def _box(cover: np.ndarray) -> tuple[int, int, int, int]:
    """x, y, width, height of the pixels that a thing covers by half or more."""
    ys, xs = np.nonzero(cover >= 0.5)
    width = int(np.ptp(xs)) + 1
    height = int(np.ptp(ys)) + 1
    return (int(xs.min()), int(ys.min()), width, height)
