"""Raw words: the word of each token of a fast tokenizer, lengths, and a lexicon of words' tokens.

Two tokenizers are aligned through character offsets in one raw string, never through their own word
numbers, which disagree on digits, apostrophes, accents and emoji.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from itertools import chain
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from scipy import stats
from tokenizers import Tokenizer

from groundling.core.batch import Tags

_WORD = re.compile(r"[^\W_]+|[^\w\s]|_")


def normalize(text: str) -> str:
    """A text in lower case, with single spaces and in Unicode's composed
    form (NFC), to compare texts.
    """
    small = text.lower() if text.isascii() else unicodedata.normalize("NFC", text.casefold())
    spelt = " ".join(small.split())
    return (
        text if spelt == text else spelt
    )  # many texts are normalised already, and need not be in memory twice


def word_spans(text: str) -> np.ndarray:
    """Character spans (start, stop) of raw words, in order; (K, 2) int64.

    A raw word is a run of letters and digits, or any other single mark.
    """
    matches = [match.span() for match in _WORD.finditer(text)]
    return np.array(matches, dtype=np.int64).reshape(-1, 2)


def fast_word_spans(text: str) -> np.ndarray:
    """The same as `spans`, several times faster for a long text."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    kind = _kinds()[codes]
    # A mark is a word by itself; a letter begins a word unless a letter precedes it.
    before = np.concatenate([[SPACE], kind[:-1]])
    after = np.concatenate([kind[1:], [SPACE]])
    begins = (kind == MARK) | ((kind == LETTER) & (before != LETTER))
    ends = (kind == MARK) | ((kind == LETTER) & (after != LETTER))
    return np.stack([np.flatnonzero(begins), np.flatnonzero(ends) + 1], 1)


SPACE, MARK, LETTER = 0, 1, 2
"""Kinds of characters in `_kinds`."""


@cache
def _kinds() -> np.ndarray:
    """The kind of every Unicode character, (characters,) uint8."""
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


def word_type_ids(text: str, words: np.ndarray) -> np.ndarray:
    """A number for each raw word (K, 2) of a text, equal for words that differ
    only in case; (K,) int64.
    """
    starts, stops = words.T.tolist()
    hashes = [_number(text[start:stop]) for start, stop in zip(starts, stops, strict=True)]
    return np.array(hashes, dtype=np.int64)


@lru_cache(1 << 18)
def _number(word: str) -> int:
    return crc32(word.lower().encode())


def align_words(offsets: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The first raw word that each token's characters overlap, -1 for none; (P,) int64.

    Several tokens may share one character (byte-level tokenizers); a token may begin with
    the space before its word.

    Args:
        offsets: the tokens' character spans, (P, 2).
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


def replace_words(
    text: str, changes: Sequence[tuple[int, int, str]], tags: Tags = ()
) -> tuple[str, Tags]:
    """A text with some words replaced, and its tags at their new positions.

    `changes` are (start, stop, new words) in order, without overlap; an empty span inserts,
    before a tag that starts there.
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


# How well lengths alone show whether two texts are the same, which a matching objective could learn
# instead. XDBERT's MATCH asks whether the text encoder and CLIP read the same text. For lines,
# whose lengths differ, the number of tokens answers that; for blocks of equal length it does not.

TELLING = 0.6
"""Area under the ROC curve from which lengths cause a warning; .5 is chance."""


def length_auc(lengths: np.ndarray, other_lengths: np.ndarray, is_same: np.ndarray) -> float:
    """Area under the ROC curve of "these are the same text" from lengths (N,) of both sides.

    `is_same` (N,) bool is the truth.

    The score is the ratio of lengths, relative to the median ratio of equal texts, because
    two tokenizers make different numbers of tokens. 1: always right, .5: chance; NaN
    without pairs of both kinds.
    """
    right = int(is_same.sum())
    wrong = len(is_same) - right
    if not right or not wrong:
        return float("nan")
    ratio = np.log(np.maximum(lengths, 1) / np.maximum(other_lengths, 1))
    mismatch = np.abs(ratio - np.median(ratio[is_same]))
    ranks = stats.rankdata(-mismatch)
    return float((ranks[is_same].sum() - right * (right + 1) / 2) / (right * wrong))


# A cache of the tokens of words: a text is assembled from its words, several times as fast as it is
# tokenised. This needs a tokenizer that gives a word the same tokens in any context, and single
# blanks between words; any other text is an entry by itself.

MOST_ENTRIES = 1 << 19
"""Maximum number of distinct words, or texts, in the cache."""
MOST_CHARACTERS = 1 << 24
"""Maximum total number of their characters."""
CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
"""The pattern by which CLIP's tokenizer splits, after alternatives for its special tokens.

None of these matches a space.
"""
LITERALS = r"(?:[^\s\\.^$*+?{}\[\]()]|\\[^\w\s])*"
"""Alternatives that match only themselves, such as a tokenizer's special tokens."""


class TokenizerOutput(NamedTuple):
    """The tokens of several texts, concatenated."""

    ids: np.ndarray
    """(P,) uint32: token ids."""
    word: np.ndarray
    """(P,) int32: the raw word of each token within its own text, -1 for none."""
    counts: np.ndarray
    """(texts,) int64: number of tokens of each text."""


class TokenizedTexts(NamedTuple):
    """Tokens and raw words of several texts."""

    words: np.ndarray
    """(W,) uint32: the number of each raw word, see `words.word_type_ids`."""
    word_counts: np.ndarray
    """(texts,) int64: number of raw words of each text."""
    tokens: tuple[TokenizerOutput, ...]
    """The tokens, one entry per tokenizer."""


class TokenizationCache:
    """Caches the tokens and raw words of every word, for one tokenizer or several."""

    def __init__(self, *engines: Tokenizer) -> None:
        """`engines` are without padding and truncation; the first one's tokens are counted."""
        self.engines = engines
        blanks = [_blank_of(engine) for engine in engines]
        self.by_word = None not in blanks
        """Whether entries are words; otherwise they are texts."""
        self.blank = "" if set(blanks) <= {""} else " "
        """Prefix of an entry that is a word, except for the first word of a text."""
        self._clear()

    def _clear(self) -> None:
        self._index = _StringIndex()
        self._words = _RaggedColumns(np.uint32)
        self._tokens = [_RaggedColumns(np.uint32, np.int32) for _ in self.engines]
        self._characters = 0

    def counts(self, entries: Iterable[str]) -> np.ndarray:
        """Number of tokens of each entry, which is a text by itself or `blank` and
        a word; (entries,) int64.
        """
        rows = self._numbers(list(entries))
        return self._tokens[0].counts.array[rows]

    def count(self, entry: str) -> int:
        """The same for one entry, which is not cached, because parts of words hardly ever repeat."""
        if entry in self._index:
            return int(self.counts([entry])[0])
        return len(self.engines[0].encode(entry, add_special_tokens=False).ids)

    def counts_in(self, texts: Sequence[str]) -> np.ndarray:
        """Number of tokens of each text, (texts,) int64."""
        entries, of_text = self._entries(texts)
        return _sums(self.counts(entries), of_text)

    def read(self, texts: Sequence[str]) -> TokenizedTexts:
        """Tokens and raw words of some texts."""
        entries, of_text = self._entries(texts)
        rows = self._numbers(entries)
        (words,), word_counts = self._words.gather(rows)
        before = _before(word_counts, of_text)
        tokens = []
        for table in self._tokens:
            (ids, word), counts = table.gather(rows)
            word = np.where(word < 0, -1, word + np.repeat(before, counts)).astype(np.int32)
            tokens.append(TokenizerOutput(ids, word, _sums(counts, of_text)))
        return TokenizedTexts(words, _sums(word_counts, of_text), tuple(tokens))

    def _entries(self, texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
        """The entries of some texts, concatenated, and the number of entries of each text."""
        entries: list[str] = []
        counts = []
        for text in texts:
            own = [text]
            if self.by_word:
                words = text.split()
                if " ".join(words) == text:
                    # The text has no newline here, so one can separate words from blanks that
                    # belong to the next word.
                    own = text.replace(" ", "\n ").split("\n") if self.blank else words
            entries += own
            counts.append(len(own))
        return entries, np.array(counts, np.int64)

    def _numbers(self, entries: Sequence[str]) -> np.ndarray:
        """The rows of entries, some of which may be new."""
        if len(self._index) > MOST_ENTRIES or self._characters > MOST_CHARACTERS:
            self._clear()
        rows = np.fromiter(map(self._index.__getitem__, entries), np.int64, len(entries))
        if self._index.new:
            self._learn(self._index.new)
            self._index.new = []
        return rows

    def _learn(self, entries: Sequence[str]) -> None:
        """Add the rows of new entries."""
        lengths = np.array([len(entry) for entry in entries])
        starts = np.cumsum(lengths + 1) - lengths - 1
        joined = "\n".join(entries)  # raw words never cross line ends
        spans = fast_word_spans(joined)
        first = np.searchsorted(spans[:, 0], starts)
        self._words.add(np.diff(first, append=len(spans)), word_type_ids(joined, spans))
        for engine, table in zip(self.engines, self._tokens, strict=True):
            encodings = engine.encode_batch(list(entries), add_special_tokens=False)
            counts = np.array([len(one.ids) for one in encodings], np.int64)
            total = int(counts.sum())
            ids = np.fromiter(chain.from_iterable(one.ids for one in encodings), np.uint32, total)
            places = chain.from_iterable(chain.from_iterable(one.offsets for one in encodings))
            offsets = np.fromiter(places, np.int64, 2 * total).reshape(-1, 2)
            word = align_words(offsets + np.repeat(starts, counts)[:, None], spans)
            word = np.where(word < 0, -1, word - np.repeat(first, counts))
            table.add(counts, ids, word)
        self._characters += len(joined)


class _StringIndex(dict[str, int]):
    """Assigns a number to every string, and lists the new strings."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []

    def __missing__(self, entry: str) -> int:
        number = len(self)
        self[entry] = number
        self.new.append(entry)
        return number


class _GrowingArray:
    """An array that grows at its end; `array` may be longer than the added values."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self.array = np.zeros(1024, dtype)
        self.size = 0

    def add(self, values: np.ndarray) -> None:
        size = self.size + len(values)
        if size > len(self.array):
            grown = np.zeros(2 * size, self.array.dtype)
            grown[: self.size] = self.array[: self.size]
            self.array = grown
        self.array[self.size : size] = values
        self.size = size


class _RaggedColumns:
    """Rows of different lengths, in one column or in several with the same lengths."""

    def __init__(self, *dtypes: type[np.generic]) -> None:
        self.columns = [_GrowingArray(dtype) for dtype in dtypes]
        self.starts = _GrowingArray(np.int64)
        self.counts = _GrowingArray(np.int64)

    def add(self, counts: np.ndarray, *columns: np.ndarray) -> None:
        self.starts.add(np.cumsum(counts) - counts + self.columns[0].size)
        self.counts.add(counts)
        for own, values in zip(self.columns, columns, strict=True):
            own.add(values)

    def gather(self, rows: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """The columns of some rows, concatenated, and the length of each row."""
        counts = self.counts.array[rows]
        moved = self.starts.array[rows] - (np.cumsum(counts) - counts)
        places = np.arange(int(counts.sum())) + np.repeat(moved, counts)
        return [column.array[places] for column in self.columns], counts


def _sums(values: np.ndarray, of_text: np.ndarray) -> np.ndarray:
    """Values of entries, summed for each text."""
    ends = np.cumsum(of_text)
    total = np.concatenate([[0], np.cumsum(values)])
    return total[ends] - total[ends - of_text]


def _before(values: np.ndarray, of_text: np.ndarray) -> np.ndarray:
    """For each entry, the sum of the entries before it in its text."""
    own = np.cumsum(values) - values
    firsts = np.cumsum(of_text) - of_text
    # A text without entries may be at the very end.
    return own - np.repeat(np.append(own, 0)[firsts], of_text)


def _blank_of(engine: Tokenizer) -> str | None:
    """The context on which a word's tokens depend: none (""), or whether a blank precedes it (" ").

    None if neither is certain. It is certain for the tokenizers of BERT, of CLIP,
    and of GPT-2 and RoBERTa.
    """
    parts = json.loads(engine.to_str())
    kinds = [(parts[name] or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model")]
    if not all(_is_inside_words(token) for token in parts["added_tokens"]):
        return None
    if kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"]:
        # A blank in normalised text may come from a Chinese or a removed character.
        eaten = any(token["lstrip"] and token["normalized"] for token in parts["added_tokens"])
        return None if eaten else ""
    if kinds == ["Sequence", "Sequence", "BPE"] and _is_clip(parts):
        return ""
    if kinds == [None, "ByteLevel", "BPE"] and parts["pre_tokenizer"]["use_regex"]:
        return " "
    return None


def _is_inside_words(token: dict[str, Any]) -> bool:
    """Whether an added token consumes nothing of the word after it, not even the blank."""
    return not (token["rstrip"] or any(map(str.isspace, token["content"])))


def _is_clip(parts: dict[str, Any]) -> bool:
    splits = parts["pre_tokenizer"]["pretokenizers"]
    normalizers = [one["type"] for one in parts["normalizer"]["normalizers"]]
    if [one["type"] for one in splits] != ["Split", "ByteLevel"]:
        return False
    if normalizers != ["NFC", "Replace", "Lowercase"]:
        return False
    pattern = str(splits[0]["pattern"].get("Regex", ""))
    special = pattern.removesuffix(CLIP_WORDS)
    space = parts["normalizer"]["normalizers"][1]
    return (
        special != pattern
        and re.fullmatch(LITERALS, special) is not None
        and (splits[0]["behavior"], splits[0]["invert"]) == ("Removed", True)
        and not splits[1]["add_prefix_space"]
        and (space["pattern"], space["content"]) == ({"Regex": r"\s+"}, " ")
    )
