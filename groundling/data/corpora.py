"""Text to adapt on: sentences one a line, captions of a caption file, or documents cut into blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from ..errors import InputError
from .captions import caption_lines
from .samples import Example, backend
from .tables import lines_of

CHUNK = 2000
"""Lines tokenised at a time when blocks are cut."""


def lines(path: str | Path) -> list[str]:
    """Non-empty lines of a text file, or all captions of a caption file (`.json`, `.tsv`, `*token.txt`)."""
    path = Path(path)
    if path.suffix in {".json", ".tsv"} or path.name.endswith("token.txt"):
        return caption_lines(path)
    found = [line.strip() for line in lines_of(path)]
    return [line for line in found if line]


def blocks(texts: Sequence[str], engine: Tokenizer, pieces: int) -> Iterator[str]:
    """Texts joined in order and cut into raw strings of at most `pieces` pieces each, at piece borders; nothing lost.

    XDBERT concatenates all lines of WikiText-103 and cuts blocks of 510 pieces; the last block is the shorter rest.
    """
    held: list[str] = []
    room = pieces
    for start in range(0, len(texts), CHUNK):
        some = list(texts[start : start + CHUNK])
        for text, encoding in zip(some, engine.encode_batch(some, add_special_tokens=False), strict=True):
            offsets = np.array(encoding.offsets).reshape(-1, 2)
            at = 0
            while at < len(offsets):
                take = _whole(offsets[at:], min(room, len(offsets) - at))
                if not take and room < pieces:  # the next word starts the next block
                    yield " ".join(held)
                    held, room = [], pieces
                    continue
                take = take or room  # a word longer than a block is cut
                end = len(text) if at + take == len(offsets) else offsets[at + take, 0]
                held.append(text[offsets[at, 0] if at else 0 : end].strip())
                at, room = at + take, room - take
                if not room:
                    yield " ".join(held)
                    held, room = [], pieces
    if held:
        yield " ".join(held)


def _whole(offsets: np.ndarray, take: int) -> int:
    """The largest number of pieces up to `take` after which no word goes on (its next piece starts where one ended)."""
    while 0 < take < len(offsets) and offsets[take, 0] == offsets[take - 1, 1]:
        take -= 1
    return take


def fitting(texts: Sequence[str], engine: Tokenizer, pieces: int) -> Iterator[str]:
    """Each text by itself, a long one as several of at most `pieces` pieces, so that nothing of it is lost."""
    for start in range(0, len(texts), CHUNK):
        some = list(texts[start : start + CHUNK])
        for text, encoding in zip(some, engine.encode_batch(some, add_special_tokens=False), strict=True):
            if len(encoding.ids) <= pieces:
                yield text
            else:
                yield from blocks([text], engine, pieces)


def corpus(
    paths: Sequence[str | Path],
    form: Literal["lines", "blocks"],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    limit: int = 0,
) -> list[Example]:
    """Examples of one or more text files, ids `file:number`; at most `limit` (0: all), evenly spaced."""
    if not paths:
        raise InputError("no text to adapt on; pass --text FILE [FILE ...]")
    engine = backend(tokenizer)
    pieces = max_length - len(engine.encode("").ids)
    examples: list[Example] = []
    for path in paths:
        texts = lines(path)
        units = (fitting if form == "lines" else blocks)(texts, engine, pieces)
        examples += [Example(f"{Path(path).name}:{number}", text) for number, text in enumerate(units)]
    if limit and limit < len(examples):
        examples = [examples[i] for i in np.linspace(0, len(examples) - 1, limit).round().astype(int)]
    return examples
