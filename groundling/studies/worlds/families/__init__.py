"""Families of rendered worlds: what nouns can look like, how it is drawn, and the language that speaks of it.

Scenes, balance, splits, questions and files are the same for every family; each family is one module-level
`WorldFamily`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from groundling.core.registry import resolve

VisualAttributes = tuple[str, ...]
"""A value of each visual attribute, in the order of the family's `attributes`."""
OVERSAMPLING = 4
"""Oversampling factor: shapes are drawn at this multiple of the cell's resolution and averaged."""


@dataclass(frozen=True)
class RenderedObject:
    """A rendered object in its cell of C x C pixels, without colour."""

    cover: np.ndarray
    """The object's share of each pixel (C, C, 1), 0 to 1."""
    mark: np.ndarray
    """The share of `cover` that has ink (C, C, 1), 0 to 1; the rest has paint."""

    @property
    def box(self) -> tuple[int, int, int, int]:
        """x, y, width, height of the pixels that are covered by at least half."""
        ys, xs, _ = np.nonzero(self.cover >= 0.5)
        width = int(np.ptp(xs)) + 1
        height = int(np.ptp(ys)) + 1
        return (int(xs.min()), int(ys.min()), width, height)


@dataclass(frozen=True)
class WorldFamily:
    """The attributes, drawing and language of a family of worlds."""

    name: str
    """Its name in `--family`."""
    attributes: Mapping[str, tuple[str, ...]]
    """Values by visual attribute, at least three attributes; no value occurs twice."""
    phrase_order: tuple[str, ...]
    """The attributes in the order of their words in a phrase."""
    box_attribute: str
    """The attribute whose values are the categories of boxes; a described object always states it."""
    categories: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    """Categories with their verbs and endings, which only text shows."""
    relations: tuple[str, str, str, str]
    """Words for left of, right of, above and below."""
    things: Mapping[str, str]
    """Ordinary objects, singular and plural."""
    thing: str
    """The word for a described object without a noun."""
    persons: tuple[str, ...]
    """Subjects of the verbs."""
    attributes_first: bool
    """Whether the words for attributes stand before the noun."""
    templates: tuple[tuple[int, str], ...]
    """Percentage of the text, and templates, one per line.

    N noun; O noun or described object as in captions; T, P ordinary object and its plural; A, B two values of
    attribute K; R relation; S person; V, E verb and ending of the category of N.
    """
    caption: str
    """Caption of a single object, and the sentence in which a noun is probed."""
    pair_captions: tuple[str, ...]
    """Captions of two objects: `{first}` stands in `{relation}` to `{second}`."""
    truth: str
    """A statement of the probe "truth": `{noun}` has the attribute value `{value}`."""
    odd: str
    """A statement of the probe "odd": `{subject}` looks like `{like}`, not like `{unlike}`, in this order."""
    category: str
    """A statement of the probe "category", with `{person}`, `{verb}`, `{noun}`, `{ending}`."""
    prompts: tuple[str, ...]
    """Prompts for a masked-LM head with `{}` for a noun, in the wording of the corpus and the captions."""
    word_classes: Mapping[str, tuple[str, ...]]
    """Words that the probe "order" does not swap with one another; "noun" adds to the nouns."""
    noun_names: Callable[[], list[str]]
    """Returns all possible nouns, at least 1,000."""
    background: float
    """Mean brightness of backgrounds, 0 to 255."""
    render: Callable[[VisualAttributes, int, int], RenderedObject]
    """Renders attributes at scale 0 or 1 in a cell of C x C pixels: (attributes, scale, C)."""
    colours: Callable[[Generator, VisualAttributes], tuple[np.ndarray, np.ndarray | float]]
    """Draws an object's paint and ink, RGB (3,) or one brightness, 0 to 255."""

    def opposite(self, relation: str) -> str:
        """The inverse of a relation."""
        return self.relations[self.relations.index(relation) ^ 1]


def find_family(name: str) -> WorldFamily:
    """The family with a name, or the user's own, MODULE:NAME; raises InputError if there is none."""
    return resolve("families", WorldFamily, name)


def draw_attributes(rng: Generator, family: WorldFamily) -> VisualAttributes:
    """A value of each visual attribute, each drawn uniformly."""
    options = family.attributes.values()
    places = rng.integers([len(values) for values in options])
    return tuple(values[i] for values, i in zip(options, places, strict=True))


def average_blocks(mask: np.ndarray, cell: int) -> np.ndarray:
    """The share of each pixel that a mask covers, (C, C), from a mask at `OVERSAMPLING` times the resolution."""
    blocks = mask.reshape(cell, OVERSAMPLING, cell, OVERSAMPLING)
    return blocks.mean(axis=(1, 3), dtype=np.float32)
