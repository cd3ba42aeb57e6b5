"""How an adaptation reads its text: lines, or the blocks of XDBERT's paper."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from groundling.commands.adapt import AdaptConfig

LINE = 128
"""Most pieces of a line, where nobody says how many."""
BLOCK = 512
"""Pieces of a block, as in XDBERT's paper (Appendix B)."""
SLOTS = 9 * 77
"""Places of a block's CLIP side, as there: nine windows, or as many places in windows of another size."""


@dataclass(frozen=True)
class Reading:
    """How texts are cut."""

    form: Literal["lines", "blocks"]
    """Every line by itself, or a file's lines joined and cut."""
    max_length: int
    """Pieces of the text encoder, special ones counted: the most of a line, or those of every block."""
    told_windows: int = 0
    """Most CLIP windows of a text, as a user says; 0: nobody does."""

    def windows(self, size: int) -> int:
        """Most CLIP windows of `size` pieces of a text; 0: as many as needed."""
        if self.told_windows or self.form == "lines":
            return self.told_windows
        return math.ceil(SLOTS / size)

    def note(self, arm: str, windows: int) -> str:
        """What a user of a cross-modal arm, which reads so many CLIP windows at most, should know of it."""
        if self.form == "lines":
            return (
                f"--form lines: {arm} reads lines of at most {self.max_length} pieces; its paper reads blocks of "
                f"{BLOCK} (--form blocks)"
            )
        paper = "" if self.max_length == BLOCK else f"; its paper's have {BLOCK}"
        return f"{arm} reads blocks of {self.max_length} pieces, in at most {windows} CLIP windows{paper}"


def reading_of(config: AdaptConfig, joint: bool, longest: int) -> Reading:
    """How an arm reads its text: as told, or else, if it is `joint`, as XDBERT; `longest` is what the student reads."""
    form = config.form
    if form == "auto":
        form = "blocks" if joint else "lines"
    wanted = config.max_length or (BLOCK if form == "blocks" else LINE)
    return Reading(form, min(wanted, longest), config.distilling.max_windows)
