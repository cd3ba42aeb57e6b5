"""Raw words, and which of them each piece of any fast tokenizer belongs to.

Two tokenizers are aligned through character offsets on one raw string, never through their own word numbers, which
disagree on digits, apostrophes, accents and emoji.
"""

import re
import sys
import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from zlib import crc32

import numpy as np

from groundling.core.batch import Tags

_WORD = re.compile(r"[^\W_]+|[^\w\s]|_")


def one_spelling(text: str) -> str:
    """A text in small letters, with single spaces and in Unicode's composed form, by which equal ones are told."""
    small = text.lower() if text.isascii() else unicodedata.normalize("NFC", text.casefold())
    spelt = " ".join(small.split())
    return (
        text if spelt == text else spelt
    )  # many texts are so already, and need not be in memory twice


def spans(text: str) -> np.ndarray:
    """Character spans (start, stop) of raw words, in order; (K, 2) int64.

    A raw word is a run of letters and digits, or any other mark by itself.
    """
    matches = [match.span() for match in _WORD.finditer(text)]
    return np.array(matches, dtype=np.int64).reshape(-1, 2)


def spans_of_much(text: str) -> np.ndarray:
    """The same as `spans`, in a fraction of the time for a long text."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    kind = _kinds()[codes]
    # A mark is a word by itself, a letter one only where no letter stands before it.
    before = np.concatenate([[SPACE], kind[:-1]])
    after = np.concatenate([kind[1:], [SPACE]])
    begins = (kind == MARK) | ((kind == LETTER) & (before != LETTER))
    ends = (kind == MARK) | ((kind == LETTER) & (after != LETTER))
    return np.stack([np.flatnonzero(begins), np.flatnonzero(ends) + 1], 1)


SPACE, MARK, LETTER = 0, 1, 2
"""Kinds of characters in `_kinds`."""


@cache
def _kinds() -> np.ndarray:
    """What every character there is counts as, (characters,) uint8."""
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    kinds = np.full(len(every), MARK, np.uint8)
    for kind, pattern in ((SPACE, r"\s+"), (LETTER, r"[^\W_]+")):
        for match in re.finditer(pattern, every):
            kinds[match.start() : match.end()] = kind
    return kinds


@cache
def stop_words() -> frozenset[str]:
    """NLTK's 179 English stop words."""
    lines = (files(__package__) / "stopwords.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


def numbers(text: str, words: np.ndarray) -> np.ndarray:
    """A number for each raw word (K, 2) of a text, equal for words that differ in case only; (K,) int64."""
    starts, stops = words.T.tolist()
    hashes = [_number(text[start:stop]) for start, stop in zip(starts, stops, strict=True)]
    return np.array(hashes, dtype=np.int64)


@lru_cache(1 << 18)
def _number(word: str) -> int:
    return crc32(word.lower().encode())


def word_of(offsets: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The first raw word that each piece's characters overlap, -1 for none; (P,) int64.

    Several pieces may share one character (byte-level tokenizers); a piece may begin with the space before its word.

    Args:
        offsets: the pieces' character spans, (P, 2).
        words: the raw words' character spans in order, (K, 2), see `spans`.
    """
    if not len(words):
        return np.full(len(offsets), -1, np.int64)
    word_starts, word_stops = words.T
    starts, stops = offsets.T
    candidate = np.searchsorted(word_stops, starts, side="right")
    exists = candidate < len(words)
    candidate = np.minimum(candidate, len(words) - 1)
    not_empty = starts < stops
    overlaps = exists & not_empty & (word_starts[candidate] < stops)
    return np.where(overlaps, candidate, -1)


def rewritten(
    text: str, changes: Sequence[tuple[int, int, str]], tags: Tags = ()
) -> tuple[str, Tags]:
    """A text with other words in some places, and its tags where they are then.

    `changes` are (start, stop, new words) in order and apart; an empty place inserts, before a tag that starts there.
    """
    parts = []
    done = 0
    for start, stop, new in changes:
        parts += [text[done:start], new]
        done = stop
    parts.append(text[done:])

    def moved(place: int) -> int:
        return place + sum(len(new) - stop + start for start, stop, new in changes if stop <= place)

    return "".join(parts), tuple(
        (moved(start), moved(stop), number) for start, stop, number in tags
    )
