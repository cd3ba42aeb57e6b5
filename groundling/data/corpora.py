"""Text to adapt on: sentences one a line, captions of a caption file, or documents cut into blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
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


def blocks(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, pieces: int) -> Iterator[str]:
    """Texts joined in order and cut into raw strings of at most `pieces` pieces each, at piece borders; nothing lost.

    XDBERT concatenates all lines of WikiText-103 and cuts blocks of 510 pieces; the last block is the shorter rest.
    """
    engine = backend(tokenizer)
    held: list[str] = []
    room = pieces
    for start in range(0, len(texts), CHUNK):
        some = list(texts[start : start + CHUNK])
        for text, encoding in zip(some, engine.encode_batch(some, add_special_tokens=False), strict=True):
            offsets = np.array(encoding.offsets).reshape(-1, 2)
            at = 0
            while at < len(offsets):
                take = min(room, len(offsets) - at)
                end = len(text) if at + take == len(offsets) else offsets[at + take, 0]
                held.append(text[offsets[at, 0] if at else 0 : end].strip())
                at, room = at + take, room - take
                if not room:
                    yield " ".join(held)
                    held, room = [], pieces
    if held:
        yield " ".join(held)


def _fitting(text: str, tokenizer: PreTrainedTokenizerBase, pieces: int) -> Sequence[str]:
    # No tokenizer makes more pieces than a text has bytes, so short lines need not be tokenised to know.
    return [text] if len(text.encode()) <= pieces else list(blocks([text], tokenizer, pieces))


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
    special = len(tokenizer("")["input_ids"])
    examples: list[Example] = []
    for path in paths:
        texts = lines(path)
        if form == "lines":  # a long line becomes several texts, so that nothing of it is lost
            units = [part for text in texts for part in _fitting(text, tokenizer, max_length - special)]
        else:
            units = list(blocks(texts, tokenizer, max_length - special))
        examples += [Example(f"{Path(path).name}:{number}", text) for number, text in enumerate(units)]
    if limit and limit < len(examples):
        examples = [examples[i] for i in np.linspace(0, len(examples) - 1, limit).round().astype(int)]
    return examples
