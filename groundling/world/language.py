"""What the world's nouns are, and what is said of them: attributes, categories, templates, phrases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "colour": ("red", "green", "blue", "yellow", "purple", "pink"),
    "shape": ("round", "square", "bent", "tall", "hollow", "flat"),
    "size": ("small", "large"),
    "texture": ("plain", "striped", "dotted"),
}
SPOKEN = (2, 0, 3, 1)  # English puts size before colour before texture before shape
SHAPE = list(ATTRIBUTES).index("shape")
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
THINGS = {
    "block": "blocks",
    "toy": "toys",
    "ball": "balls",
    "box": "boxes",
    "cup": "cups",
    "hat": "hats",
}
# category: (verbs, endings); a verb and its ending always agree, so that only the noun can be wrong
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
# percent of the text: templates, one a line. N noun, O noun or described thing as in captions, T and P ordinary thing
# and its plural, A and B two values of attribute K, R relation, S person, V and E verb and ending of N's category
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
    # Verb and ending apart as well as together: where both stand, a masked one can be told without the noun.
    (
        50,
        "S V the N .\nS V the N .\nS V the N .\nS sees the N E .\nS sees the N E .\nS V the N E .",
    ),
)

Looks = tuple[str, ...]  # colour, shape, size, texture: the order of ATTRIBUTES


@dataclass(frozen=True)
class Noun:
    """An invented word: how its things look, what kind they are, and the split it is probed in."""

    name: str
    colour: str
    shape: str
    size: str
    texture: str
    category: str
    split: str

    @property
    def looks(self) -> Looks:
        """The four visual attributes, in the order of ATTRIBUTES."""
        return (self.colour, self.shape, self.size, self.texture)


def draw_looks(rng: np.random.Generator) -> Looks:
    """Four attributes, each value as likely as any."""
    return tuple(
        values[i] for values, i in zip(ATTRIBUTES.values(), rng.integers((6, 6, 2, 3)), strict=True)
    )


def phrase(rng: np.random.Generator, name: str, looks: Looks, stated: float) -> str:
    """A noun, with probability `stated` with an attribute before it; without a name, a thing with two to four.

    A thing's shape is always told: it is what a contrastive teacher learns last, and from captions alone.
    """
    order, bias, count = rng.permutation(4), rng.random(), int(rng.integers(1, 4))
    if name:
        return f"{looks[order[0]]} {name}" if bias < stated else name
    told = {SHAPE, *[i for i in order if i != SHAPE][:count]}
    return " ".join([looks[i] for i in SPOKEN if i in told] + ["thing"])


def sentence(rng: np.random.Generator, nouns: Sequence[Noun], stated: float) -> str:
    """A line of text over `nouns`, each mention stating an attribute with probability `stated`."""
    group = int(
        np.searchsorted(
            np.cumsum([percent for percent, _ in TEMPLATES]), rng.integers(100), side="right"
        )
    )
    templates = TEMPLATES[group][1].splitlines()
    template = templates[rng.integers(len(templates))]
    chosen = [nouns[i] for i in rng.permutation(len(nouns))[:2]]
    mentions, things = iter(chosen * 2), iter(str(thing) for thing in rng.permutation(list(THINGS)))
    kind = list(ATTRIBUTES)[rng.integers(4)]
    value, other = (str(word) for word in rng.permutation(ATTRIBUTES[kind])[:2])
    relation = tuple(OPPOSITE)[rng.integers(4)]
    fixed = {"A": value, "B": other, "K": kind, "R": relation, "S": ("she", "he")[rng.integers(2)]}
    verbs, endings = FRAMES[chosen[0].category]
    fixed |= {"V": verbs[rng.integers(len(verbs))], "E": endings[rng.integers(len(endings))]}
    words = []
    for token in template.split():
        if token in ("N", "O"):
            noun = next(mentions)
            named = token == "N" or rng.random() < 0.6
            words.append(
                phrase(
                    rng,
                    noun.name if named else "",
                    noun.looks if named else draw_looks(rng),
                    stated,
                )
            )
        elif token in ("T", "P"):
            thing = next(things)
            words.append(thing if token == "T" else THINGS[thing])
        else:
            words.append(fixed.get(token, token))
    return " ".join(words)
