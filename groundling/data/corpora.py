"""Text to adapt on: sentences one a line, captions of a caption file, or documents cut into blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from groundling.batch import Example
from groundling.data.captions import caption_lines
from groundling.data.samples import backend
from groundling.data.tables import lines_of
from groundling.errors import InputError

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
    """Texts joined in order and cut between words into strings of at most `pieces` pieces each; only space is lost.

    XDBERT concatenates all lines of WikiText-103 and cuts blocks of 510 pieces; the last block is the shorter rest.
    """
    held: list[str] = []
    room = pieces
    for start in range(0, len(texts), CHUNK):
        words = [word for text in texts[start : start + CHUNK] for word in text.split()]
        # A byte-level tokenizer splits a word otherwise after a space than at the start.
        for word, first, later in zip(
            words, _costs(words, engine), _costs([" " + w for w in words], engine), strict=True
        ):
            if held and (later if first <= pieces else pieces) > room:
                yield " ".join(held)
                held, room = [], pieces
            if first > pieces:  # a word longer than a block
                *whole, rest = _cut(word, engine, pieces)
                yield from whole
                word, first = rest, _costs([rest], engine)[0]
            room -= later if held else first
            held.append(word)
    if held:
        yield " ".join(held)


def _costs(words: Sequence[str], engine: Tokenizer) -> list[int]:
    return [
        len(encoding.ids) for encoding in engine.encode_batch(list(words), add_special_tokens=False)
    ]


def _cut(word: str, engine: Tokenizer, pieces: int) -> list[str]:
    """A word in halves of halves that fit."""
    if len(word) < 2 or _costs([word], engine)[0] <= pieces:
        return [word]
    return _cut(word[: len(word) // 2], engine, pieces) + _cut(
        word[len(word) // 2 :], engine, pieces
    )


def fitting(texts: Sequence[str], engine: Tokenizer, pieces: int) -> Iterator[str]:
    """Each text by itself, a long one as several of at most `pieces` pieces, so that nothing of it is lost."""
    for start in range(0, len(texts), CHUNK):
        some = list(texts[start : start + CHUNK])
        for text, encoding in zip(
            some, engine.encode_batch(some, add_special_tokens=False), strict=True
        ):
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
    if pieces < 1:
        raise InputError(f"--max-length {max_length} leaves no room for text")
    examples: list[Example] = []
    names = [Path(path).name for path in paths]
    for place, path in enumerate(paths):
        name = names[place] if names.index(names[place]) == place else f"{names[place]}#{place}"
        texts = lines(path)
        units = (fitting if form == "lines" else blocks)(texts, engine, pieces)
        examples += [Example(f"{name}:{number}", text) for number, text in enumerate(units)]
    if limit and limit < len(examples):
        examples = [
            examples[i] for i in np.linspace(0, len(examples) - 1, limit).round().astype(int)
        ]
    return examples
