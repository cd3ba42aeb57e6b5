"""Texts with answers that only an image gives: what is asked, and how a scene answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from numpy.random import Generator

from groundling.world.language import ATTRIBUTES, RELATIONS, SPOKEN
from groundling.world.scenes import Scene, side

KINDS = tuple(ATTRIBUTES)
"""The names of the attributes, in the order of looks."""
SPOKEN_ORDER = tuple(chain(*(ATTRIBUTES[KINDS[i]] for i in SPOKEN)))
"""All values in the order in which English lists them."""

Answer = TypeVar("Answer")
"""What a claim's answers are: a string, a number, a tuple."""


@dataclass(frozen=True)
class Claim(Generic[Answer]):
    """A text with all of its answers, each of which gets an image of its own."""

    text: str
    """What is said or asked."""
    answers: tuple[Answer, ...]
    """Every answer, as often as it is wanted."""
    answer_of: Callable[[Scene], Answer | None]
    """The answer for a scene; None where the text does not apply to it."""


@dataclass(frozen=True)
class Statement:
    """What may be said of a thing, and whether it is so."""

    subject: str
    """The thing, by its looks and perhaps its place."""
    predicate: str
    """A value of an attribute, or a place."""
    holds: Callable[[Scene], bool | None]
    """Whether it is so in a scene; None where there is no such thing, or there are two."""
    mentioned: tuple[str, ...]
    """Looks that the scene must have for the statement to speak of it at all."""


def fitting(scene: Scene, *values: str) -> list[int]:
    """Numbers of the things that look as all of `values` say."""
    return [i for i, thing in enumerate(scene.things) if set(values) <= set(thing.looks)]


def only(scene: Scene, *values: str, where: str = "") -> int | None:
    """Number of the one thing with these looks, or of the other thing, if that is `where` from it; None without one."""
    matching = fitting(scene, *values)
    if len(matching) != 1:
        return None  # no such thing, or both: the words name nothing
    thing = matching[0]
    if not where:
        return thing
    other = 1 - thing
    return other if side(scene, other) == where else None


def spoken(*values: str) -> str:
    """A thing by its looks, in the order of English."""
    return " ".join((*sorted(values, key=SPOKEN_ORDER.index), "thing"))


def draw_pair(rng: Generator) -> tuple[tuple[str, str], int, str]:
    """Values of two attributes, the number of the second attribute, and a relation or, half of the time, none."""
    first, second = (int(i) for i in rng.permutation(4)[:2])
    value = draw_value(rng, first)
    other_value = draw_value(rng, second)
    relation = RELATIONS[rng.integers(4)]
    where = relation if rng.integers(2) else ""
    return (value, other_value), second, where


def draw_value(rng: Generator, attribute: int) -> str:
    """A value of an attribute, by its number."""
    values = ATTRIBUTES[KINDS[attribute]]
    return values[rng.integers(len(values))]


def draw_looks_of_one(rng: Generator) -> tuple[str, ...]:
    """One or two values by which a thing may be known."""
    values = draw_pair(rng)[0]
    return values[: rng.integers(1, 3)]


def draw_statement(rng: Generator) -> Statement:
    """That a thing has a look, or a place beside another thing."""
    (look, other_look), _, where = draw_pair(rng)
    subject = f"the {look} thing"
    if where and rng.random() < 0.5:
        return _placed(subject, where, look, other_look)

    def holds(scene: Scene) -> bool | None:
        thing = only(scene, look, where=where)
        if thing is None:
            return None
        return other_look in scene.things[thing].looks

    if where:
        subject = f"the thing {where} {subject}"
    return Statement(subject, other_look, holds, (look,))


def _placed(subject: str, where: str, look: str, other_look: str) -> Statement:
    """That the thing with one look is `where` of the thing with another."""

    def holds(scene: Scene) -> bool | None:
        thing = only(scene, look)
        other = only(scene, other_look)
        if thing is None or other is None or other == thing:
            return None
        return side(scene, thing) == where

    return Statement(subject, f"{where} the {other_look} thing", holds, (look, other_look))
