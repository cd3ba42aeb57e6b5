"""Raw words, and which of them each piece of any fast tokenizer belongs to.

Two tokenizers are aligned through character offsets on one raw string, never through their own word numbers, which
disagree on digits, apostrophes, accents and emoji.
"""

import re
from zlib import crc32

import numpy as np

_WORD = re.compile(r"[^\W_]+|[^\w\s]|_")


def spans(text: str) -> np.ndarray:
    """Character spans of raw words: runs of letters and digits, and each other mark by itself; (K, 2)."""
    return np.array([m.span() for m in _WORD.finditer(text)], dtype=np.int64).reshape(-1, 2)


def numbers(text: str, words: np.ndarray) -> np.ndarray:
    """A number per raw word, equal for words that differ in case only; (K,)."""
    return np.array(
        [crc32(text[start:stop].lower().encode()) for start, stop in words], dtype=np.int64
    )


def word_of(offsets: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The first raw word that each piece's character span (P, 2) overlaps, -1 for none; (P,).

    Several pieces may share one character (byte-level tokenizers); a piece may begin with the space before its word.
    """
    if not len(words):
        return np.full(len(offsets), -1, np.int64)
    first = np.searchsorted(words[:, 1], offsets[:, 0], side="right")
    inside = np.minimum(first, len(words) - 1)
    overlaps = (
        (first < len(words)) & (words[inside, 0] < offsets[:, 1]) & (offsets[:, 0] < offsets[:, 1])
    )
    return np.where(overlaps, inside, -1)
