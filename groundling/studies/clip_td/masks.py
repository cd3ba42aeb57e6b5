"""Adversarial shortcut mitigation: positions of a choice are hidden by what an attack model loses without them.

Ye and Kovashka 2021, Section on adversarial masking; release: yekeren/VCR-shortcut-effects-study,
modeling/shortcut_main.py and tools/merge_adversarial_annotations.py. One position at a time is replaced by [MASK] and
its tag taken away; the loss is that choice's own sigmoid cross-entropy. AdvTop-1 hides the position with the largest
loss: in the right choice the one that carries it, in a wrong choice the one whose loss makes it more plausible.
KeepTop-k hides all but the k with the largest losses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.errors import InputError, refuse
from groundling.data.tables import read_json_lines
from groundling.studies.clip_td.files import MASK, PARTS, Line, Part, Shifted, Text
from groundling.tasks.vcr import CHOICES, Token

Losses = Mapping[Part, list[list[float]]]
"""Of an item, by part: a loss for every position of its four choices; a part without losses stays as it is."""


def positions(text: Text) -> int:
    """How many positions a text has: a word is one, a group of objects one for each of them."""
    return sum(1 if isinstance(token, str) else len(token) for token in text)


def masked(text: Text, hidden: Collection[int]) -> list[Token]:
    """The text with [MASK] at these positions; what is left of a group stays a tag on each side of it.

    The release writes such members as numbers from 10,000 on, which no reader of official files takes.
    """
    out: list[Token] = []
    place = 0
    for token in text:
        group: list[int] = []
        for member in [token] if isinstance(token, str) else token:
            if place in hidden:
                if group:
                    out.append(group)
                group = []
                out.append(MASK)
            elif isinstance(member, str):
                out.append(member)
            else:
                group.append(member)
            place += 1
        if group:
            out.append(group)
    return out


def to_hide(losses: Sequence[float], keep: int = 0) -> set[int]:
    """The positions to hide: the one with the largest loss, or all but the `keep` largest; of equals the first counts.

    Raises:
        ValueError: There are no positions.
    """
    if not losses:
        raise ValueError("a choice without positions")
    order = np.argsort(-np.array(losses, float), kind="stable").tolist()
    return set(order[keep:]) if keep else {order[0]}


def shifted(lines: Sequence[Line], losses: Mapping[str, Losses], keep: int = 0) -> Shifted:
    """Every line with its choices masked by the losses of its annot_id; `keep` 0: AdvTop-1.

    A choice that holds a [MASK] was masked before and stays, so an edited file comes back as it was.

    Raises:
        InputError: A line without losses, or with losses of another number of positions.
    """
    absent = [line.item.id for line in lines if line.item.id not in losses]
    refuse([f"no losses of {name}" for name in absent])
    out = Shifted()
    for line in lines:
        new = line
        for part, of_choices in losses[line.item.id].items():
            choices = []
            for number, choice in enumerate(line.choices(part)):
                if MASK in choice:
                    out.left["masked already"] += 1
                    choices.append(choice)
                    continue
                of_choice = of_choices[number]
                if len(of_choice) != positions(choice):
                    raise InputError(
                        f"{line.item.id}, {part} {number}: {len(of_choice)} losses for {positions(choice)} positions"
                    )
                choices.append(masked(choice, to_hide(of_choice, keep)))
            new = new.with_choices(part, choices)
        out.add(line, new)
    return out


def read_losses(path: Path) -> dict[str, Losses]:
    """The losses of a file of JSON lines, by annot_id: `answer_losses` and, where there are any, `rationale_losses`.

    The fields are those of the release's own file. Raises InputError for another line, or a number that is not finite.
    """
    out: dict[str, Losses] = {}
    repeated = []
    for where, row in read_json_lines(path, ("annot_id",)):
        of_item: dict[Part, list[list[float]]] = {}
        for part in PARTS:
            field = f"{part}_losses"
            if field in row:
                of_item[part] = _four_lists(where, field, row[field])
        if not of_item:
            raise InputError(f"{where}: neither answer_losses nor rationale_losses")
        if row["annot_id"] in out:
            repeated.append(f"{where}: annot_id {row['annot_id']} stands there before")
        out[row["annot_id"]] = of_item
    refuse(repeated)
    return out


def _four_lists(where: str, field: str, value: Any) -> list[list[float]]:
    is_four = isinstance(value, list) and len(value) == CHOICES
    if not is_four or not all(isinstance(of_choice, list) and of_choice for of_choice in value):
        raise InputError(f"{where}: expected {CHOICES} lists of numbers in {field!r}")
    for of_choice in value:
        for loss in of_choice:
            if isinstance(loss, bool) or not isinstance(loss, int | float) or not isfinite(loss):
                raise InputError(f"{where}: {str(loss)[:40]!r} in {field!r} is no finite number")
    return value
