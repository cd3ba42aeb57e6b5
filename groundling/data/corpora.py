"""Text to adapt on: sentences one a line, captions of a caption file, or documents cut into blocks."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerBase

from groundling.batch import Example
from groundling.data.captions import Wanted, caption_lines, is_captions
from groundling.data.plain_text import plain_lines
from groundling.data.samples import backend, thinned
from groundling.errors import InputError

Item = TypeVar("Item")

CHUNK = 2000
"""Texts tokenised at a time."""
MOST_WORDS = 1 << 19
"""Different words whose pieces are remembered."""
JOINING = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
"""Space that BERT's own tokenizer drops, so that the words around it are one to it, but not by themselves."""
EVERYTHING = Wanted()
"""All captions of files without splits, in columns that nobody has named."""


def lines(path: str | Path, wanted: Wanted = EVERYTHING) -> list[str]:
    """Non-empty lines of a text file, or the captions of a file or folder of captions that are `wanted`.

    Captions are `.json`, `.jsonl`, `.csv`, `.tsv`, `*token.txt`, and folders.

    Raises:
        InputError: the file is missing, empty, not UTF-8, or no caption file in spite of its name.
    """
    return list(texts_in(path, wanted))


def texts_in(path: str | Path, wanted: Wanted = EVERYTHING) -> Iterator[str]:
    """The same, one after the other; of plain text no more than a part is held in memory."""
    path = Path(path)
    if is_captions(path):
        yield from caption_lines(path, wanted.splits, wanted.columns)
        return
    if wanted != EVERYTHING:
        raise InputError(
            f"{path}: plain text has neither splits nor columns; leave --caption-splits, --caption-column and "
            "--image-column out"
        )
    yield from plain_lines(path)


def blocks(
    texts: Iterable[str], engine: Tokenizer, pieces: int, counts: Counts | None = None
) -> Iterator[str]:
    """Texts joined in order and cut between words into strings of at most `pieces` pieces each; only space is lost.

    Args:
        texts: lines of the documents, in order.
        engine: the tokenizer's engine, without padding and truncation.
        pieces: most pieces of a block, special tokens not counted. The last block is the shorter rest.
        counts: those of words that were seen before, to which these are added.
    """
    block: list[str] = []
    room = pieces
    at_start, after_space = counts or counts_of(engine)
    for words in _words(texts):
        at_start.learn(words)
        after_space.learn(words)
        for word in words:
            first = at_start[word]
            later = after_space[word]
            too_long = first > pieces
            if block and (too_long or later > room):
                yield " ".join(block)
                block = []
                room = pieces
            if too_long:
                *whole_blocks, word = _halves(word, engine, pieces)
                yield from whole_blocks
                first = at_start[word]
            room -= later if block else first
            block.append(word)
    if block:
        yield " ".join(block)


def full_blocks(texts: Iterable[str], engine: Tokenizer, pieces: int) -> Iterator[str]:
    """Texts joined in order and cut into strings of exactly `pieces` pieces, if need be inside a word.

    So no two blocks can be told apart by their lengths. Arguments are those of `blocks`, and so is the last block. A
    tokenizer that does not split at spaces may leave a block a piece short.

    Source: XDBERT, Appendix B: "a fixed sequence length of 512"; release (Splend1d/XDBERT): 510 and two special ones.
    """
    block: list[str] = []
    room = pieces
    at_start, after_space = counts_of(engine)
    for words in _words(texts):
        after_space.learn(words)
        for word in words:
            count = after_space[word] if block else at_start[word]
            while word and count > room:
                head, word = _cut(word, engine, room, " " if block else "")
                if not (head or block):  # a letter of more pieces than a block has
                    head, word = word[:1], word[1:]
                yield " ".join([*block, head] if head else block)
                block = []
                room = pieces
                count = at_start[word]
            if word:
                room -= count
                block.append(word)
    if block:
        yield " ".join(block)


def _words(texts: Iterable[str]) -> Iterator[list[str]]:
    """The words of some texts at a time."""
    for some in batched(texts, CHUNK):
        yield [word for text in some for word in text.split()]


class PieceCounts(dict[str, int]):
    """How many pieces each word has, at the start of a text or, where a byte-level tokenizer's differ, after a space.

    A word is tokenised the first time that it is asked for.
    """

    def __init__(self, engine: Tokenizer, before: str) -> None:
        """`before` stands before every word."""
        super().__init__()
        self.engine = engine
        self.before = before

    def learn(self, words: Collection[str]) -> None:
        """Have the words' counts, many of which come quicker at once; rare words of long ago are forgotten."""
        if len(self) > MOST_WORDS:
            self.clear()
        new = [word for word in set(words) if word not in self]
        counts = _piece_counts([self.before + word for word in new], self.engine)
        self.update(zip(new, counts, strict=True))

    def __missing__(self, word: str) -> int:
        (self[word],) = _piece_counts([self.before + word], self.engine)
        return self[word]


Counts = tuple[PieceCounts, PieceCounts]
"""Of words at the start of a text, and behind a space."""


def counts_in(text: str, encoding: Encoding, engine: Tokenizer) -> Counts:
    """Those of a text's words, as its encoding tells them where words are tokenised each by itself."""
    words = list(re.finditer(r"\S+", text))
    begins = np.array([begin for begin, _ in encoding.offsets], np.int64)
    first = begins.searchsorted([word.start() for word in words])
    counts = np.diff(first, append=len(begins)).tolist()
    known = PieceCounts(engine, "")
    known.update(zip((word.group() for word in words), counts, strict=True))
    return known, known


def counts_of(engine: Tokenizer) -> Counts:
    """Those of no words yet."""
    return PieceCounts(engine, ""), PieceCounts(engine, " ")


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


def fitting(texts: Iterable[str], engine: Tokenizer, pieces: int) -> Iterator[str]:
    """Each text by itself, a long one as several of at most `pieces` pieces, so that nothing of it is lost.

    Arguments are those of `blocks`.
    """
    yield from (text for text, _ in fitting_encoded(texts, engine, pieces))


class Slice(NamedTuple):
    """Some pieces of a text, as an `Encoding` has them."""

    ids: list[int]
    offsets: list[tuple[int, int]]


Encoded = tuple[str, Encoding | Slice | None]
"""A text and its pieces, if they are known."""


def fitting_encoded(texts: Iterable[str], engine: Tokenizer, pieces: int) -> Iterator[Encoded]:
    """The same, with the pieces of those that are whole, and of others where one encoding tells them, too."""
    counts = counts_of(engine)
    slices = is_word_by_word(engine)
    for some in batched(texts, CHUNK):
        encodings = engine.encode_batch(some, add_special_tokens=False)
        for text, encoding in zip(some, encodings, strict=True):
            if len(encoding) <= pieces:
                yield text, encoding
            else:
                certain = slices and not JOINING.search(text)
                known = counts_in(text, encoding, engine) if certain else counts
                parts = blocks([text], engine, pieces, known)
                yield from _sliced(parts, text, encoding, certain)


def _sliced(parts: Iterable[str], text: str, encoding: Encoding, slices: bool) -> Iterator[Encoded]:
    """Each of a text's parts with its pieces of the whole text's, where they are certain."""
    ids, offsets = encoding.ids, encoding.offsets
    begins = [begin for begin, _ in offsets]
    start = 0
    for part in parts:
        while start < len(text) and text[start].isspace():
            start += 1
        stop = start + len(part)
        # Other space than single blanks is lost; a word that is cut has other pieces.
        slices = slices and text.startswith(part, start)
        whole = text[start - 1 : start].isspace() or start == 0
        whole = whole and (text[stop : stop + 1].isspace() or stop == len(text))
        if slices and whole:
            first, last = bisect_left(begins, start), bisect_left(begins, stop)
            moved = [(begin - start, end - start) for begin, end in offsets[first:last]]
            yield part, Slice(ids[first:last], moved)
        else:
            yield part, None
        start = stop


def is_word_by_word(engine: Tokenizer) -> bool:
    """Whether each word's pieces are certain to be the same by itself and in any text: BERT's own tokenizer."""
    parts = json.loads(engine.to_str())
    kinds = [(parts[name] or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model")]
    plain = all(
        not (token["lstrip"] or token["rstrip"] or token["single_word"])
        and not any(map(str.isspace, token["content"]))
        for token in parts["added_tokens"]
    )
    return plain and kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"]


def batched(items: Iterable[Item], count: int) -> Iterator[list[Item]]:
    """Lists of `count` items each, the last of fewer."""
    every = iter(items)
    while some := list(islice(every, count)):
        yield some


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
    each = wanted_of(paths, wanted)
    engine = backend(tokenizer)
    pieces = room_of(engine, max_length)
    cut = fitting if form == "lines" else full_blocks
    examples: list[Example] = []
    for name, path, own in zip(names_of(paths), paths, each, strict=True):
        for number, text in enumerate(cut(lines(path, own), engine, pieces)):
            examples.append(Example(f"{name}:{number}", text))
    return thinned(examples, limit)


def room_of(engine: Tokenizer, max_length: int) -> int:
    """Pieces of a text beside special ones; raises InputError if there is no room for any."""
    pieces = max_length - len(engine.encode("").ids)
    if pieces < 1:
        raise InputError(f"--max-length {max_length} leaves no room for text")
    return pieces


def wanted_of(paths: Sequence[str | Path], wanted: Wanted) -> list[Wanted]:
    """What is wanted of each file; raises InputError if there is none."""
    if not paths:
        raise InputError("no text to adapt on; pass --text FILE [FILE ...]")
    return [wanted] if len(paths) == 1 else wanted.of(paths)


def names_of(paths: Sequence[str | Path]) -> list[str]:
    """The files' names; one that occurred before gets its place behind it, since ids key every random choice."""
    names: list[str] = []
    for place, path in enumerate(paths):
        name = Path(path).name
        names.append(f"{name}#{place}" if name in names else name)
    return names
