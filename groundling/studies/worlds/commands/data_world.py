"""`groundling data world`: render a world whose nouns have looks that only images show."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from groundling.command import Command
from groundling.core.documented import documented
from groundling.core.errors import InputError

DEV_IMAGES = 10**9
"""Added to the ids of a world's dev images, so that no number of training scenes reaches them."""


@documented
@dataclass(frozen=True)
class WorldConfig:
    """How large a world to render, and from which seed."""

    seed: int = 0
    """Redraws everything: nouns, attributes, scenes, sentences."""
    nouns: int = 162
    """Number of invented nouns."""
    dev_nouns: int = 18
    """Number of nouns for choosing settings."""
    test_nouns: int = 36
    """Number of nouns for the reported numbers (the rest are train nouns)."""
    scenes: int = 16000
    """Number of training images, two captions each."""
    dev_scenes: int = 500
    """Number of held-out images, two captions each."""
    sentences: int = 24000
    """Number of lines in the text corpus."""
    dev_sentences: int = 1000
    """Number of lines in the held-out text corpus."""
    size: int = 32
    """Width and height of an image in pixels, a multiple of 16."""
    stated: float = 0.0
    """Reporting bias: probability that a mention of a noun, in text or caption, states one of its attributes."""
    blind: bool = True
    """Also write the control images, in which each noun's attributes are redrawn for every image."""

    def __post_init__(self) -> None:
        ranges = {"nouns": (4, 1000), "stated": (0, 1)}
        for name, value in asdict(self).items():
            low, high = ranges.get(name, (0, DEV_IMAGES - 1))
            if not low <= value <= high:
                raise InputError(f"{name} is {value}; expected {low} to {high}")
        if self.size < 16 or self.size % 16:
            raise InputError(f"size is {self.size}; expected a positive multiple of 16")
        held_out = self.dev_nouns + self.test_nouns
        if held_out >= self.nouns:
            raise InputError(
                f"dev_nouns + test_nouns is {held_out}; expected fewer than nouns, {self.nouns}"
            )


COMMAND = Command(
    "data world",
    "render a world whose nouns have looks that only images show",
    "groundling.studies.worlds.render:render_world",
    {"_own": WorldConfig()},
    speaks=True,
)
