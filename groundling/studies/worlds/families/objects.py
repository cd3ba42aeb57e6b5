"""The family "objects": coloured shapes with a size and a texture, and simple English."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
from numpy.random import Generator

from groundling.studies.worlds.families import (
    OVERSAMPLING,
    RenderedObject,
    VisualAttributes,
    WorldFamily,
    average_blocks,
)

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "colour": ("red", "green", "blue", "yellow", "purple", "pink"),
    "shape": ("round", "square", "bent", "tall", "hollow", "flat"),
    "size": ("small", "large"),
    "texture": ("plain", "striped", "dotted"),
}
"""Values by attribute; all tuples of visual attributes have this order."""
RELATIONS = ("left of", "right of", "above", "below")
THINGS = {
    "block": "blocks",
    "toy": "toys",
    "ball": "balls",
    "box": "boxes",
    "cup": "cups",
    "hat": "hats",
}
"""Ordinary objects, singular and plural."""
FRAMES = {
    "animal": (
        ("feeds", "walks", "pets", "calls"),
        ("in the morning", "at the farm", "after school"),
    ),
    "food": (("eats", "cooks", "tastes", "bakes"), ("with salt", "for dinner", "in the kitchen")),
    "tool": (("uses", "repairs", "sharpens", "lends"), ("at work", "in the shed", "before lunch")),
    "plant": (
        ("waters", "prunes", "grows", "trims"),
        ("in the garden", "in spring", "by the fence"),
    ),
}
"""Categories with their verbs and endings; verb and ending always agree, so only the noun can be wrong."""
TEMPLATES: tuple[tuple[int, str], ...] = (
    (20, "there is a O .\na O is R a O .\na O is R a O ."),
    (
        18,
        """the T is A .
        the T is not A .
        the T is A , not B .
        the T and the T are A .
        the two P have the same K .
        the A T and the A T have the same K .
        the A T and the B T do not have the same K .
        the T looks like the T .
        the T looks like the T , not the T .
        the A T looks like the A T , not the B T .""",
    ),
    (
        12,
        """the N is near the N .
        the N is R the N .
        the N is near the A T .
        the N is not here .
        S sees the N and the N .
        S puts the N on the table , not the N .
        there is a N and a T .""",
    ),
    # Verb and ending appear separately, too: together, one predicts the other without the noun.
    (
        50,
        "S V the N .\nS V the N .\nS V the N .\nS sees the N E .\nS sees the N E .\nS V the N E .",
    ),
)
"""Percentage of the text, and templates; see `WorldFamily.templates`."""
SYLLABLES = ("bdfgklmnprstvz", "aeiou", "bdglmnrvz", "aeiou", "kv")
"""Possible letters at each place of a noun."""
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


def noun_names() -> list[str]:
    """All names of five letters that `SYLLABLES` allows."""
    return ["".join(letters) for letters in itertools.product(*SYLLABLES)]


@cache
def render(attributes: VisualAttributes, fit: int, cell: int) -> RenderedObject:
    """Render a shape at scale 0 or 1 (`fit`) of its size, with its texture, in a cell of `cell` x `cell` pixels."""
    _, shape, size, texture = attributes
    cover = average_blocks(_shape(shape, SCALES[size][fit], OVERSAMPLING * cell), cell)
    mark = np.float32(0.8) * _texture(texture, cell).astype(np.float32)
    return RenderedObject(cover[:, :, None], mark[:, :, None])


def colours(rng: Generator, attributes: VisualAttributes) -> tuple[np.ndarray, float]:
    """An object's paint, near its colour's RGB value, and the brightness of its texture's marks."""
    colour, _, _, texture = attributes
    paint = np.array(RGB[colour] + rng.uniform(-14, 14, 3), dtype=np.float32)
    return paint, TEXTURE_INK.get(texture, 0.0)


def _shape(shape: str, scale: float, side: int) -> np.ndarray:
    """Mask (`side`, `side`) of the points inside a shape; at scale 1 the shape touches the edges."""
    points = (np.arange(side) + 0.5) / (side // 2) - 1
    x = points[None, :] / scale
    y = points[:, None] / scale
    radius = np.hypot(x, y)
    extent = np.maximum(abs(x), abs(y))
    inside: dict[str, np.ndarray] = {
        "round": radius <= 1,
        "square": extent <= 1,
        "bent": ((x <= -0.3) | (y >= 0.3)) & (extent <= 1),
        "tall": (abs(x) <= 0.36) & (abs(y) <= 1),
        "hollow": (radius <= 1) & (radius >= 0.55),
        "flat": (abs(y) <= 0.36) & (abs(x) <= 1),
    }
    return inside[shape]


def _texture(texture: str, cell: int) -> np.ndarray:
    """Mask (C, C) of a texture's marks, 0 or 1, in bands of a seventh of the cell's width."""
    row, column = np.indices((cell, cell)) * 14 // cell // 2 % 2
    return {"plain": np.zeros_like(row), "striped": column, "dotted": row * column}[texture]


OBJECTS = WorldFamily(
    name="objects",
    attributes=ATTRIBUTES,
    phrase_order=("size", "colour", "texture", "shape"),
    box_attribute="shape",
    categories=FRAMES,
    relations=RELATIONS,
    things=THINGS,
    thing="thing",
    persons=("she", "he"),
    attributes_first=True,
    templates=TEMPLATES,
    caption="there is a {} .",
    pair_captions=("a {first} is {relation} a {second} .",),
    truth="the {noun} is {value} .",
    odd="the {subject} looks like the {like} , not the {unlike} .",
    category="{person} {verb} the {noun} {ending} .",
    prompts=("the {} is [MASK] .", "there is a [MASK] {} ."),
    word_classes={"article": ("a", "the")},
    noun_names=noun_names,
    background=125,
    render=render,
    colours=colours,
)
