"""Text to adapt on: sentences one a line, captions of a caption file, or documents cut into blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from groundling.batch import Example
from groundling.data.captions import Wanted, caption_lines, is_captions
from groundling.data.samples import backend, thinned
from groundling.data.tables import lines_of
from groundling.errors import InputError

CHUNK = 2000
"""Texts tokenised at a time."""
EVERYTHING = Wanted()
"""All captions of files without splits, in columns that nobody has named."""


def lines(path: str | Path, wanted: Wanted = EVERYTHING) -> list[str]:
    """Non-empty lines of a text file, or the captions of a file or folder of captions that are `wanted`.

    Captions are `.json`, `.jsonl`, `.csv`, `.tsv`, `*token.txt`, and folders.

    Raises:
        InputError: the file is missing, empty, not UTF-8, or no caption file in spite of its name.
    """
    path = Path(path)
    if is_captions(path):
        return caption_lines(path, wanted.splits, wanted.columns)
    if wanted != EVERYTHING:
        raise InputError(
            f"{path}: plain text has neither splits nor columns; leave --caption-splits, --caption-column and "
            "--image-column out"
        )
    stripped = (line.strip() for line in lines_of(path))
    return [line for line in stripped if line]


def blocks(texts: Sequence[str], engine: Tokenizer, pieces: int) -> Iterator[str]:
    """Texts joined in order and cut between words into strings of at most `pieces` pieces each; only space is lost.

    Args:
        texts: lines of the documents, in order.
        engine: the tokenizer's engine, without padding and truncation.
        pieces: most pieces of a block, special tokens not counted. The last block is the shorter rest.
    """
    block: list[str] = []
    room = pieces
    for word, first, later in _counted(texts, engine):
        too_long = first > pieces
        if block and (too_long or later > room):
            yield " ".join(block)
            block = []
            room = pieces
        if too_long:
            *whole_blocks, word = _halves(word, engine, pieces)
            yield from whole_blocks
            first = _piece_counts([word], engine)[0]
        room -= later if block else first
        block.append(word)
    if block:
        yield " ".join(block)


def full_blocks(texts: Sequence[str], engine: Tokenizer, pieces: int) -> Iterator[str]:
    """Texts joined in order and cut into strings of exactly `pieces` pieces, if need be inside a word.

    So no two blocks can be told apart by their lengths. Arguments are those of `blocks`, and so is the last block. A
    tokenizer that does not split at spaces may leave a block a piece short.

    Source: XDBERT, Appendix B: "a fixed sequence length of 512"; release (Splend1d/XDBERT): 510 and two special ones.
    """
    block: list[str] = []
    room = pieces
    for word, first, later in _counted(texts, engine):
        count = later if block else first
        while word and count > room:
            head, word = _cut(word, engine, room, " " if block else "")
            if not (head or block):  # a letter of more pieces than a block has
                head, word = word[:1], word[1:]
            yield " ".join([*block, head] if head else block)
            block = []
            room = pieces
            count = _piece_counts([word], engine)[0]
        if word:
            room -= count
            block.append(word)
    if block:
        yield " ".join(block)


def _counted(texts: Sequence[str], engine: Tokenizer) -> Iterator[tuple[str, int, int]]:
    """Every word with its pieces at the start of a text, and after a space, where a byte-level tokenizer's differ."""
    for start in range(0, len(texts), CHUNK):
        words = [word for text in texts[start : start + CHUNK] for word in text.split()]
        at_start = _piece_counts(words, engine)
        after_space = _piece_counts([" " + word for word in words], engine)
        yield from zip(words, at_start, after_space, strict=True)


def _cut(word: str, engine: Tokenizer, room: int, before: str) -> tuple[str, str]:
    """A word's longest beginning of at most `room` pieces behind the text `before`, which may be empty; its rest."""
    if not room:
        return "", word
    offsets = engine.encode(before + word, add_special_tokens=False).offsets
    end = min(offsets[room - 1][1] - len(before), len(word) - 1)
    while end > 0 and _piece_counts([before + word[:end]], engine)[0] > room:
        end -= 1
    return word[: max(0, end)], word[max(0, end) :]


def _piece_counts(texts: Sequence[str], engine: Tokenizer) -> list[int]:
    """How many pieces each text has by itself, special tokens not counted."""
    encodings = engine.encode_batch(list(texts), add_special_tokens=False)
    return [len(encoding.ids) for encoding in encodings]


def _halves(word: str, engine: Tokenizer, pieces: int) -> list[str]:
    """A word longer than a block, halved until every part fits (a single letter is a part in any case)."""
    if len(word) < 2 or _piece_counts([word], engine)[0] <= pieces:
        return [word]
    middle = len(word) // 2
    return _halves(word[:middle], engine, pieces) + _halves(word[middle:], engine, pieces)


def fitting(texts: Sequence[str], engine: Tokenizer, pieces: int) -> Iterator[str]:
    """Each text by itself, a long one as several of at most `pieces` pieces, so that nothing of it is lost.

    Arguments are those of `blocks`.
    """
    for start in range(0, len(texts), CHUNK):
        chunk = texts[start : start + CHUNK]
        for text, count in zip(chunk, _piece_counts(chunk, engine), strict=True):
            if count <= pieces:
                yield text
            else:
                yield from blocks([text], engine, pieces)


def corpus(
    paths: Sequence[str | Path],
    form: Literal["lines", "blocks"],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    limit: int = 0,
    wanted: Wanted = EVERYTHING,
) -> list[Example]:
    """Examples of one or more text files, with the ids `file:number`.

    Args:
        paths: text files or caption files, see `lines`.
        form: every line by itself (`fitting`), or a file's lines joined and cut (`full_blocks`).
        tokenizer: the text encoder's, a fast one.
        max_length: most pieces of an example, special tokens counted.
        limit: keep at most so many examples, evenly spaced; 0: all.
        wanted: which captions of caption files.

    Raises:
        InputError: no file is given, one cannot be read, or `max_length` leaves no room beside special tokens.
    """
    if not paths:
        raise InputError("no text to adapt on; pass --text FILE [FILE ...]")
    engine = backend(tokenizer)
    special_tokens = len(engine.encode("").ids)
    pieces = max_length - special_tokens
    if pieces < 1:
        raise InputError(f"--max-length {max_length} leaves no room for text")
    cut = fitting if form == "lines" else full_blocks
    examples: list[Example] = []
    for name, path, own in zip(_unique_names(paths), paths, _wanted(paths, wanted), strict=True):
        for number, text in enumerate(cut(lines(path, own), engine, pieces)):
            examples.append(Example(f"{name}:{number}", text))
    return thinned(examples, limit)


def _wanted(paths: Sequence[str | Path], wanted: Wanted) -> list[Wanted]:
    return [wanted] if len(paths) == 1 else wanted.of(paths)


def _unique_names(paths: Sequence[str | Path]) -> list[str]:
    """The files' names; one that occurred before gets its place behind it, since ids key every random choice."""
    names: list[str] = []
    for place, path in enumerate(paths):
        name = Path(path).name
        names.append(f"{name}#{place}" if name in names else name)
    return names
