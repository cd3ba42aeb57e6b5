"""A sweep's miniature: what becomes of its settings, and who makes what stands in for data and weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groundling.commands.sweep.parts import Filled, Source
from groundling.core.find import instances
from groundling.settings.fields import changed, flat

SIDE = 32
"""Pixels of a picture's side, for whatever reads pixels."""
LENGTH = 48
"""Most pieces of a text."""

SMALL: dict[str, Callable[[Any], Any]] = {
    "steps": lambda _: 2,
    "batch": lambda batch: min(batch, 4),
    "accumulate": lambda _: 1,
    "head_start": lambda steps: min(steps, 1),
    "horizon": lambda _: 0,
    "precision": lambda _: "fp32",
    "cpu": lambda _: True,
    "max_length": lambda length: min(length, LENGTH),
    "side": lambda _: SIDE,
    "long_side": lambda _: 0,
    # The world's captions have none of Karpathy's splits, and the rendered questions no categories of VCR's.
    "caption_splits": lambda _: (),
    "per": lambda number: min(number, 4),
    "by": lambda _: "total",
}
"""What a setting becomes in a miniature, given what it is."""


def small(settings: Filled) -> Filled:
    """A command's settings for two short steps on a CPU."""
    shrunk = []
    for config in settings:
        new = {}
        for group, one in flat(config):
            if one.name in SMALL:
                new[one.name] = SMALL[one.name](vars(group)[one.name])
        shrunk.append(changed(config, **new) if new else config)
    return shrunk[0], shrunk[1]


@dataclass(frozen=True)
class StandIns:
    """What makes small stand-ins for a sweep's data and weights: in a study's `stand_ins`."""

    name: str
    """What they are drawn from."""
    make: Callable[[Sequence[Source], Path], tuple[dict[str, Source], list[str]]]
    """Sources whose paths are those of stand-ins in a folder, by name, and notes on them. Raises InputError for a \
kind that it has none of."""


def stand_in(sources: Sequence[Source], folder: Path) -> tuple[dict[str, Source], list[str]]:
    """The sources, each with the path of its stand-in in `folder`, and notes on them; raises InputError as `make`."""
    (one,) = instances("stand_ins", StandIns).values()
    return one.make(sources, folder)
