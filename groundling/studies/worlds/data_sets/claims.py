"""Texts with answers that only an image gives: what is asked, and how a scene answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from numpy.random import Generator

from groundling.studies.worlds.language import ATTRIBUTES, RELATIONS, SPOKEN
from groundling.studies.worlds.scenes import Scene, side

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


@dataclass(frozen=True)
class Topic:
    """What a text may speak of."""

    look: str
    """A value of an attribute."""
    other_look: str
    """A value of another attribute."""
    attribute: int
    """The number of the other attribute."""
    where: str
    """A relation; empty half of the time."""


def draw_topic(rng: Generator) -> Topic:
    """Two looks and perhaps a relation."""
    attributes = rng.permutation(4)
    first = int(attributes[0])
    second = int(attributes[1])
    look = _value(rng, first)
    other_look = _value(rng, second)
    relation = RELATIONS[rng.integers(4)]
    where = relation if rng.integers(2) else ""
    return Topic(look, other_look, second, where)


def _value(rng: Generator, attribute: int) -> str:
    values = ATTRIBUTES[KINDS[attribute]]
    return values[rng.integers(len(values))]


def draw_looks_of_one(rng: Generator) -> tuple[str, ...]:
    """One or two values by which a thing may be known."""
    topic = draw_topic(rng)
    looks = (topic.look, topic.other_look)
    return looks[: rng.integers(1, 3)]


def draw_statement(rng: Generator) -> Statement:
    """That a thing has a look, or a place beside another thing."""
    topic = draw_topic(rng)
    if topic.where and rng.random() < 0.5:
        return _placed(topic)
    return _looking(topic)


def _looking(topic: Topic) -> Statement:
    """That the thing with one look, or the thing that is somewhere from it, has the other look."""

    def holds(scene: Scene) -> bool | None:
        thing = only(scene, topic.look, where=topic.where)
        if thing is None:
            return None
        return topic.other_look in scene.things[thing].looks

    subject = f"the {topic.look} thing"
    if topic.where:
        subject = f"the thing {topic.where} {subject}"
    return Statement(subject, topic.other_look, holds, (topic.look,))


def _placed(topic: Topic) -> Statement:
    """That the thing with one look is somewhere from the thing with the other."""

    def holds(scene: Scene) -> bool | None:
        thing = only(scene, topic.look)
        other = only(scene, topic.other_look)
        if thing is None or other is None or other == thing:
            return None
        return side(scene, thing) == topic.where

    subject = f"the {topic.look} thing"
    predicate = f"{topic.where} the {topic.other_look} thing"
    return Statement(subject, predicate, holds, (topic.look, topic.other_look))
