"""A recipe's miniature: reduced settings, and stand-ins for data and weights. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from groundling.core.registry import public_modules
from groundling.recipes import Step
from groundling.recipes.plan import Recipe

SIDE = 32
"""Image side in pixels of a miniature, for models that read pixels."""
LENGTH = 48
"""Maximum tokens per text of a miniature."""
SMALL: dict[str, Callable[[Any], Any]] = {
    "steps": lambda _: 2,
    "seeds": lambda _: 1,
    "batch": lambda batch: min(batch, 4),
    "gradient_accumulation_steps": lambda _: 1,
    "freeze_encoder_steps": lambda steps: min(steps, 1),
    "schedule_steps": lambda _: 0,
    "precision": lambda _: "fp32",
    "cpu": lambda _: True,
    "max_length": lambda length: min(length, LENGTH),
    "shortest_edge": lambda _: SIDE,
    "longest_edge": lambda _: 0,
    # The world's captions have no Karpathy splits, and the rendered questions no VCR categories.
    "caption_splits": lambda _: (),
    "per_stratum": lambda number: min(number, 4),
    "stratify_by": lambda _: "total",
}
"""Reduced value of a setting in a miniature, given its value."""


def on_stand_ins(recipe: Recipe) -> Recipe:
    """The recipe on small stand-ins, which a study makes in its folder; its scores mean nothing.

    Raises InputError for data or weights of an unsupported kind.
    """
    (study,) = public_modules("stand_ins")
    return replace(
        recipe, stand_ins=study.make_stand_ins(recipe.inputs(), recipe.out / "stand-ins")
    )


def shrink(step: Step) -> Step:
    """A step that takes two optimizer steps on a CPU."""
    small = {name: SMALL[name](value) for name, value in step.values.items() if name in SMALL}
    return replace(step, settings={**step.settings, **small})
