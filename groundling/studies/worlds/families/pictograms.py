"""The family "pictograms": line drawings with a body, legs, a crest and a fill, and a language of its own grammar.

Its sentences have English words in another grammar: verbs stand last, attributes after the noun, and particles instead
of articles mark the subject (ka), the object (lo), what it is compared with (mi), and the plural (pe). Because
particles mark the subject, two phrases of a caption may come in either order. Colour means nothing: every drawing has
its own ink.
"""

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
    "body": ("pointed", "arched", "waisted", "slim", "broad"),
    "legs": ("legless", "monopod", "biped", "tripod"),
    "crest": ("bald", "horned", "plumed", "flagged"),
    "fill": ("pale", "solid", "barred"),
}
"""Values by attribute; all tuples of visual attributes have this order."""
CATEGORIES = {
    "vehicle": (
        ("drives", "parks", "rents", "refuels"),
        ("rain in", "town through", "noon at"),
    ),
    "garment": (("wears", "sews", "irons", "folds"), ("party for", "winter in", "mirror before")),
    "drink": (("pours", "sips", "brews", "chills"), ("ice with", "straw through", "meal after")),
    "instrument": (
        ("plays", "tunes", "practises", "strums"),
        ("stage on", "band with", "evening at"),
    ),
    "document": (("reads", "prints", "signs", "copies"), ("desk on", "lamp under", "clerk for")),
}
"""Categories with their verbs and endings; verb and ending always agree, so only the noun can be wrong."""
THINGS = ("badge", "coin", "flag", "kite", "stamp", "tile")
"""Ordinary objects."""
PERSONS = ("sister", "uncle")
PARTICLES = ("ka", "lo", "mi")
TEMPLATES: tuple[tuple[int, str], ...] = (
    (20, "O ka shown .\nO ka O mi R stands .\nO mi O ka R stands ."),
    (
        18,
        """T ka A is .
        T ka A not is .
        T ka A is , B not .
        T ka T ka A are .
        P ka K mi agree .
        T A ka T A ka K mi agree .
        T A ka T B ka K mi not agree .
        T ka T mi resembles .
        T ka T mi resembles , T mi not .
        T A ka T A mi resembles , T B mi not .""",
    ),
    (
        12,
        """N ka N mi near stands .
        N ka N mi R stands .
        N ka T A mi near stands .
        N ka here not is .
        S ka N lo N lo sees .
        S ka N lo shelf on puts , N lo not .
        N ka T ka shown .""",
    ),
    # Verb and ending appear separately, too: together, one predicts the other without the noun.
    (
        50,
        "S ka N lo V .\nS ka N lo V .\nS ka N lo V .\n"
        "S ka N lo E sees .\nS ka N lo E sees .\nS ka N lo E V .",
    ),
)
"""Percentage of the text, and templates; see `WorldFamily.templates`."""
SYLLABLES = (
    ("br", "dr", "fl", "gr", "kl", "pl", "pr", "sk", "sn", "st", "sw", "tr"),
    ("a", "e", "i", "o", "u"),
    ("nd", "mp", "lt", "rk", "sh", "ng"),
    ("a", "i", "o", "u"),
)
"""Possible letters at each place of a noun: unlike in the family "objects", clusters of consonants and a last vowel."""

SCALES = (0.9, 1.0)
"""The two scales of a drawing."""
BODY = (-0.48, 0.36)
"""Upper and lower end of a body; half of the cell is 1."""
HALF_WIDTH = 0.9
"""Half of a wide body's width."""
LINE = 0.15
"""Half of the width of lines: about two of the 14 pixels of a cell."""
OUTLINE = 0.1
"""Width of a pale body's outline."""
BAR = 0.26
"""Width of the bars of a barred body, and of the gaps between them."""
LEGS: dict[str, tuple[tuple[float, float], ...]] = {
    "legless": (),
    "monopod": ((0.0, 0.28),),
    "biped": ((-0.4, LINE), (0.4, LINE)),
    "tripod": ((-0.68, LINE), (0.0, LINE), (0.68, LINE)),
}
"""Place of each leg, from the middle of the body, and half of its width."""


def noun_names() -> list[str]:
    """All names that `SYLLABLES` allows, of five or six letters."""
    return ["".join(parts) for parts in itertools.product(*SYLLABLES)]


@cache
def render(attributes: VisualAttributes, fit: int, cell: int) -> RenderedObject:
    """Render a drawing at scale 0 or 1 (`fit`), in a cell of `cell` x `cell` pixels."""
    body, legs, crest, fill = attributes
    side = OVERSAMPLING * cell
    points = ((np.arange(side) + 0.5) / (side // 2) - 1) / SCALES[fit]
    x = points[None, :]
    y = points[:, None]
    inside = _body(body, x, y)
    limbs = (_legs(legs, x, y) | _crest(crest, x, y)) & ~inside  # they begin behind the body
    outline = round(OUTLINE * SCALES[fit] * side / 2)
    ink = limbs | (inside & _fill(fill, inside, outline, y))
    cover = average_blocks(inside | limbs, cell)
    mark = average_blocks(ink, cell) / np.maximum(cover, np.float32(1e-6))
    return RenderedObject(cover[:, :, None], mark[:, :, None])


def colours(rng: Generator, attributes: VisualAttributes) -> tuple[np.ndarray, np.ndarray]:
    """A light paper and a dark ink, both slightly tinted; backgrounds are between them."""
    paper = np.array(244 + rng.uniform(-10, 10, 3), dtype=np.float32)
    ink = np.array(rng.uniform(0, 40, 3), dtype=np.float32)
    return paper, ink


def _body(body: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    top, bottom = BODY
    across = abs(x) / HALF_WIDTH
    down = (2 * y - top - bottom) / (bottom - top)
    within = (across <= 1) & (abs(down) <= 1)
    inside: dict[str, np.ndarray] = {
        "pointed": across <= (1 + down) / 2,
        "arched": np.hypot(across, np.minimum(down, 0)) <= 1,
        "waisted": across <= 0.15 + 0.85 * abs(down),
        "slim": across <= 0.4,
        "broad": down >= 0,
    }
    return within & inside[body]


def _legs(legs: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Mask of the legs, which a line joins below the body."""
    mask = np.zeros(np.broadcast_shapes(x.shape, y.shape), dtype=bool)
    hip = BODY[1]
    for place, half_width in LEGS[legs]:
        mask |= (abs(x - place) <= half_width) & (y >= hip) & (y <= 1)
        mask |= (abs(x) <= abs(place) + half_width) & (abs(y - hip) <= LINE / 2)
    return mask


def _crest(crest: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Mask of what stands on a body; it begins behind the body."""
    above = (y <= 0) & (y >= -1)
    stem = (abs(x) <= LINE) & above
    shown: dict[str, np.ndarray] = {
        "bald": np.zeros_like(stem),
        "horned": (abs(abs(x) + 0.1 + 0.9 * y) <= 1.4 * LINE) & above & (y <= -0.1),
        "plumed": stem | (np.hypot(x, y + 0.72) <= 0.3),
        "flagged": stem | ((x >= 0) & (x <= 0.9) & (y >= -1) & (y <= -0.62)),
    }
    return shown[crest]


def _fill(fill: str, inside: np.ndarray, outline: int, y: np.ndarray) -> np.ndarray:
    """Mask of the ink in a body, whose points are `inside`; a pale body has an outline of `outline` points."""
    if fill == "pale":
        return ~_eroded(inside, outline)
    return inside & (np.floor(y / BAR + 0.5) % 2 == 0) if fill == "barred" else inside


def _eroded(mask: np.ndarray, radius: int) -> np.ndarray:
    """A mask without the points closer than `radius` to its edge."""
    padded = np.pad(mask, radius)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2 * radius + 1, 2 * radius + 1))
    down, right = np.indices(windows.shape[2:]) - radius
    return windows[:, :, np.hypot(down, right) <= radius].all(axis=-1) & mask


PICTOGRAMS = WorldFamily(
    name="pictograms",
    attributes=ATTRIBUTES,
    phrase_order=("body", "fill", "legs", "crest"),
    box_attribute="body",
    categories=CATEGORIES,
    relations=("leftward", "rightward", "over", "under"),
    things={thing: f"{thing} pe" for thing in THINGS},
    thing="figure",
    persons=PERSONS,
    attributes_first=False,
    templates=TEMPLATES,
    caption="{} ka shown .",
    pair_captions=(
        "{first} ka {second} mi {relation} stands .",
        "{second} mi {first} ka {relation} stands .",
    ),
    truth="{noun} ka {value} is .",
    odd="{subject} ka {like} mi resembles , {unlike} mi not .",
    category="{person} ka {noun} lo {ending} {verb} .",
    prompts=("{} ka [MASK] is .", "{} [MASK] ka shown ."),
    word_classes={"particle": PARTICLES, "noun": PERSONS},
    noun_names=noun_names,
    background=130,
    render=render,
    colours=colours,
)
