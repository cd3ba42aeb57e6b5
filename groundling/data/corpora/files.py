"""Text to adapt on: one sentence per line, captions of a caption file, or documents cut into blocks.

Plain text is streamed: files of any size, packed by gzip or Zstandard, and parquet.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar, cast

from tokenizers import Tokenizer

from groundling.core.errors import (
    InputError,
    convert_read_errors,
    require_known,
)
from groundling.data.captions.captions import captions_of_images, is_captions
from groundling.data.tables import (
    DATA_FILES,
    PARQUET,
    import_optional,
    parquet_rows,
    read_header,
)
from groundling.data.text.words import TokenizationCache
from groundling.settings.input_settings import CaptionSettings

Item = TypeVar("Item")

CHUNK = 2000
"""Number of texts tokenised at a time."""
EVERYTHING = CaptionSettings()
"""All captions of files without splits; columns are recognised by name."""


class CorpusText(NamedTuple):
    """A line of plain text, or a caption."""

    text: str
    image: str = ""
    """The caption's image, by its path without the ending; empty for plain text, and without an image."""


def iterate_texts(
    path: str | Path, selection: CaptionSettings = EVERYTHING
) -> Iterator[CorpusText]:
    """Non-empty lines of a text file, held in memory only in part, or selected captions with their images."""
    path = Path(path)
    if is_captions(path):
        yield from (
            CorpusText(*each)
            for each in captions_of_images(path, selection.caption_splits, selection.columns)
        )
        return
    if selection.caption_splits:
        raise InputError(f"{path}: plain text has no splits, as caption_splits selects")
    yield from map(CorpusText, plain_lines(path))


def blocks(texts: Iterable[str], lexicon: TokenizationCache, tokens: int) -> Iterator[str]:
    """Texts joined in order and cut between words into strings of at most `tokens` tokens; the last is the rest."""
    block: list[str] = []
    room = tokens
    for word, later in _counted_words(texts, lexicon):
        if block and later <= room:
            room -= later
            block.append(word)
            continue
        if block:
            yield " ".join(block)
        *whole_blocks, rest = _halves(word, lexicon, tokens)
        yield from whole_blocks
        room = tokens - lexicon.count(rest)
        block = [rest]
    if block:
        yield " ".join(block)


def full_blocks(texts: Iterable[str], lexicon: TokenizationCache, tokens: int) -> Iterator[str]:
    """Texts joined in order and cut into strings of exactly `tokens` tokens, inside a word if necessary.

    Therefore blocks cannot be distinguished by their lengths. The last block is the rest; with a tokenizer that does
    not split at spaces, a block may be a token short.

    Source: XDBERT, Appendix B: "a fixed sequence length of 512"; release (Splend1d/XDBERT):
    510 and two special tokens.
    """
    block: list[str] = []
    room = tokens
    for word, count in _counted_words(texts, lexicon):
        if not block:
            count = lexicon.count(word)
        while word and count > room:
            head, word = _cut(word, lexicon, room, " " if block else "")
            if not (head or block):  # a letter with more tokens than a block has
                head, word = word[:1], word[1:]
            yield " ".join([*block, head] if head else block)
            block = []
            room = tokens
            count = lexicon.count(word)
        if word:
            room -= count
            block.append(word)
    if block:
        yield " ".join(block)


def _counted_words(texts: Iterable[str], lexicon: TokenizationCache) -> Iterator[tuple[str, int]]:
    """Every word of some texts with its number of tokens after another word."""
    for some in batched(texts, CHUNK):
        words = [word for text in some for word in text.split()]
        counts = lexicon.counts([f" {word}" for word in words])
        yield from zip(words, counts.tolist(), strict=True)


def _cut(word: str, lexicon: TokenizationCache, room: int, before: str) -> tuple[str, str]:
    """The longest beginning of a word with at most `room` tokens after the text `before`, and the rest."""
    if not room:
        return "", word
    engine = lexicon.engines[0]
    offsets = engine.encode(before + word, add_special_tokens=False).offsets
    end = min(offsets[room - 1][1] - len(before), len(word) - 1)
    while end > 0 and lexicon.count(before + word[:end]) > room:
        end -= 1
    return word[: max(0, end)], word[max(0, end) :]


def _halves(word: str, lexicon: TokenizationCache, tokens: int) -> list[str]:
    """A word longer than a block, halved until every part fits (a single letter is always a part)."""
    if len(word) < 2 or lexicon.count(word) <= tokens:
        return [word]
    middle = len(word) // 2
    return _halves(word[:middle], lexicon, tokens) + _halves(word[middle:], lexicon, tokens)


def split_long_texts(
    texts: Iterable[str], lexicon: TokenizationCache, tokens: int
) -> Iterator[tuple[int, str]]:
    """Each text with its number; a long one becomes several parts of at most `tokens` tokens, so nothing is lost."""
    number = 0
    for some in batched(texts, CHUNK):
        for text, count in zip(some, lexicon.counts_in(some).tolist(), strict=True):
            for part in [text] if count <= tokens else blocks([text], lexicon, tokens):
                yield number, part
            number += 1


def batched(items: Iterable[Item], count: int) -> Iterator[list[Item]]:
    """Lists of `count` items each; the last may be shorter."""
    every = iter(items)
    while some := list(islice(every, count)):
        yield some


def max_text_tokens(engine: Tokenizer, max_length: int) -> int:
    """Number of tokens of a text besides special tokens."""
    tokens = max_length - len(engine.encode("").ids)
    if tokens < 1:
        raise InputError(f"max_length {max_length} leaves no room for text")
    return tokens


def names_of(paths: Sequence[str | Path]) -> list[str]:
    """The files' names; a repeated name gets its position, because ids key every random choice."""
    names: list[str] = []
    for place, path in enumerate(paths):
        name = Path(path).name
        names.append(f"{name}#{place}" if name in names else name)
    return names


# -- plain text of any size, compressed or in parquet ------------------------------------------------------------------


COLUMN = "text"
"""The text column of a parquet file with several columns."""
PACKED = (".gz", ".zst")
"""Endings of compressed text."""
STRUCTURED = (*DATA_FILES, ".xml", ".tar", PARQUET)
"""Endings of files whose lines are not texts, before the ending of the compression."""


def plain_lines(path: str | Path) -> Iterator[str]:
    """Non-empty lines of a text file, stripped; for a parquet file, those of its texts."""
    path = Path(path)
    if path.suffix in PACKED and Path(path.stem).suffix in STRUCTURED:
        raise InputError(f"{path}: only plain text can be read compressed; unpack this file")
    empty = True
    for line in _texts_of(path) if path.suffix == PARQUET else _decoded_lines(path):
        stripped = line.strip()
        if stripped:
            empty = False
            yield stripped
    if empty:
        raise InputError(f"{path}: the file is empty")


def _decoded_lines(path: Path) -> Iterator[str]:
    with convert_read_errors(path), _opened(path) as stream:
        for number, raw in enumerate(stream, 1):
            with convert_read_errors(f"{path}, line {number}"):
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            yield line


def _opened(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path))
    if path.suffix == ".zst":  # the standard library's reader of cut files raises no error
        arrow: Any = import_optional("pyarrow", path)
        return cast(IO[bytes], io.BufferedReader(arrow.input_stream(path, compression="zstd")))
    return path.open("rb")


def _texts_of(path: Path) -> Iterator[str]:
    names = read_header(path)
    column = names[0] if len(names) == 1 else COLUMN
    require_known(column, names, f"{path}: no column {COLUMN!r}")
    for where, row in parquet_rows(path, [column]):
        with convert_read_errors(where):
            lines = (row[column] or "").split("\n")
        yield from lines
