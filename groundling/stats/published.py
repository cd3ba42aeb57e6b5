"""What papers report of their systems, to stand beside what is measured here: found in studies' `published`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from groundling.core.find import instances


@dataclass(frozen=True)
class Reported:
    """A paper's numbers of one system."""

    name: str
    """What the paper calls it."""
    scores: Mapping[str, float]
    """By task, in the metric's own units."""


def published() -> dict[str, Mapping[str, float]]:
    """The numbers of every system that a paper reports, by its name, then by task."""
    return {name: one.scores for name, one in instances("published", Reported).items()}
