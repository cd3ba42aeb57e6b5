"""Words in the sentences around them, and the pieces that a tokenizer makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from groundling.core.batch import Example, Row, Sample
from groundling.core.errors import InputError
from groundling.data.samples import TextInput, TextSamples, WindowInput
from groundling.data.text.words import spans
from groundling.runs.progress import followed
from groundling.studies.knowledge.visual_facts import MASK

BATCH = 64
"""Texts run at a time."""

T = TypeVar("T")


class Part(NamedTuple):
    """A stretch of a text, in characters."""

    text: str
    start: int
    stop: int

    @property
    def words(self) -> str:
        """The stretch itself."""
        return self.text[self.start : self.stop]


def filled(frame: str, slot: str, word: str) -> Part:
    """The word in the place of a frame's slot."""
    start = frame.index(slot)
    return Part(frame.replace(slot, word), start, start + len(word))


def whole(prompt: str, word: str) -> Part:
    """The whole prompt, filled with a word or, if that is empty, without its slot."""
    text = " ".join(prompt.replace(MASK, word).split())
    return Part(text, 0, len(text))


def samples_of(
    parts: Sequence[Part], text: TextInput | None, clip: WindowInput | None = None
) -> list[Sample]:
    """The parts' texts, tokenised for a text encoder or a CLIP text tower; raises InputError if one is too long."""
    examples = [Example(part.text, part.text) for part in parts]
    samples = TextSamples(examples, text, clip).get(range(len(examples)))
    for sample in samples:
        if sample.dropped:
            raise InputError(
                f"{sample.id!r} is {sample.dropped} pieces too long; raise --max-length, if the model can"
            )
    return samples


def pieces_of(part: Part, row: Row) -> np.ndarray:
    """Which pieces of a row belong to the words of a part, (T,) bool; raises InputError if none does."""
    words = spans(part.text)
    overlaps = (words[:, 0] < part.stop) & (words[:, 1] > part.start)
    inside = np.isin(row.word, np.flatnonzero(overlaps))
    if not inside.any():
        raise InputError(f"{part.text!r}: the tokenizer makes no pieces of {part.words!r}")
    return inside


def batches(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """The values in their order, `BATCH` at a time."""
    for start in followed(range(0, len(values), BATCH), "texts", "batch"):
        yield values[start : start + BATCH]
