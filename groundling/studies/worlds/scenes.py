"""What the images show: one thing, or two with a relation between them."""

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
