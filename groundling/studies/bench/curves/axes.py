"""The axes of curves: what grows, at which values, and what a value changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from groundling.core.errors import InputError
from groundling.studies.bench.curves.thinning import thin_captions, thin_images
from groundling.studies.bench.protocol import (
    ADAPTING,
    BASE,
    ENCODER,
    TEACHING,
    WORLD,
    BenchCondition,
)


@dataclass(frozen=True)
class CurveAxis:
    """Something that grows, while everything else stays as the protocol says."""

    name: str
    """Name, as in `--curve`."""
    unit: str
    """What is counted."""
    values: tuple[int, ...]
    """The points of a curve, in ascending order, at scale 1."""
    base: int
    """The protocol's own value, one of `values`, at which the runs are the bench's."""
    change: Callable[[int], Mapping[str, Any]]
    """What a value changes: fields of a `BenchCondition`."""
    about: str
    """A sentence on what a value changes."""

    def condition(self, value: int) -> BenchCondition:
        """The condition at a value."""
        if value == self.base:
            return BASE
        return BenchCondition(self.name, value, **self.change(value))

    def conditions(self) -> list[BenchCondition]:
        """The conditions at all values but the protocol's own."""
        return [self.condition(value) for value in self.values if value != self.base]


IMAGES_OF_A_NOUN = 104
"""Training images that show a noun of a world, in the mean: 16,000 images with 1.05 nouns each, 162 nouns."""
CAPTIONS = 2 * WORLD["scenes"]
"""Every image has two captions."""

AXES = (
    CurveAxis(
        "images",
        "images of each noun",
        (1, 4, 16, 64, IMAGES_OF_A_NOUN),
        IMAGES_OF_A_NOUN,
        lambda value: {
            "thin": partial(thin_images, share=value / IMAGES_OF_A_NOUN),
            "teaching": TEACHING,
        },
        "Captions are those of fewer images, and the teacher is trained on nothing else.",
    ),
    CurveAxis(
        "captions",
        "captions",
        (500, 2000, 8000, CAPTIONS),
        CAPTIONS,
        lambda value: {"thin": partial(thin_captions, share=value / CAPTIONS)},
        "Methods read fewer captions; the teacher is the same.",
    ),
    CurveAxis(
        "steps",
        "steps",
        (100, ADAPTING.steps, 1000, 3000),
        ADAPTING.steps,
        lambda value: {"steps": value / ADAPTING.steps},
        "The method and its text control have so many steps over all stages.",
    ),
    CurveAxis(
        "layers",
        "layers of the encoder",
        (ENCODER["layers"], 4, 6),
        ENCODER["layers"],
        lambda value: {"encoder": {"layers": value}},
        "An encoder of so many layers is pre-trained with the same settings.",
    ),
    CurveAxis(
        "width",
        "dimensions of the encoder's states",
        (64, ENCODER["width"], 256),
        ENCODER["width"],
        lambda value: {"encoder": {"width": value}},
        "An encoder of this width is pre-trained with the same settings.",
    ),
    CurveAxis(
        "teacher",
        "training steps of the teacher",
        (30, 100, 300, TEACHING.steps, 2700),
        TEACHING.steps,
        lambda value: {"teaching": replace(TEACHING, steps=value)},
        "A teacher is trained for so many steps on the same images and captions.",
    ),
)
"""All axes; another entry is another curve."""


def find_axes(names: Sequence[str]) -> list[CurveAxis]:
    """Axes by name; raises InputError for an unknown one."""
    offered = {axis.name: axis for axis in AXES}
    for name in names:
        if name not in offered:
            raise InputError(f"curve={name}: expected some of {', '.join(offered)}")
    return [offered[name] for name in dict.fromkeys(names)]
