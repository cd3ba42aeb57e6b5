"""Raw words: the word of each token of a fast tokenizer, lengths, and the tokens of many texts.

Two tokenizers are aligned through character offsets in one raw string, never through their own word
numbers, which disagree on digits, apostrophes, accents and emoji.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np
from scipy import stats
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from groundling.core.batch import Tags  # which loads torch

_WORD = re.compile(r"[^\W_]+|[^\w\s]|_")


def normalize(text: str) -> str:
    """A text in lower case, with single spaces and in Unicode's composed form (NFC), to compare texts."""
    small = text.lower() if text.isascii() else unicodedata.normalize("NFC", text.casefold())
    spelt = " ".join(small.split())
    return text if spelt == text else spelt  # most need not be in memory twice


def word_spans(text: str) -> np.ndarray:
    """Character spans (K, 2) int64 of raw words, in order: runs of letters and digits, or any other single mark."""
    places = chain.from_iterable(match.span() for match in _WORD.finditer(text))
    return np.fromiter(places, np.int64).reshape(-1, 2)


def words_of(text: str) -> list[str]:
    """The raw words of a text, in order."""
    return [text[start:stop] for start, stop in word_spans(text)]


@cache
def stop_words() -> frozenset[str]:
    """NLTK's 179 English stop words."""
    lines = (files(__package__) / "stopwords.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


def word_type_ids(text: str, words: np.ndarray) -> np.ndarray:
    """A number (K,) int64 for each raw word (K, 2) of a text, equal for words that differ only in case."""
    starts, stops = words.T.tolist()
    hashes = [_number(text[start:stop]) for start, stop in zip(starts, stops, strict=True)]
    return np.array(hashes, dtype=np.int64)


@lru_cache(1 << 18)
def _number(word: str) -> int:
    return crc32(word.lower().encode())


def align_words(offsets: np.ndarray, words: np.ndarray, before: int = 0) -> np.ndarray:
    """The first raw word (K, 2) that each token's characters (P, 2) overlap, from number `before`, or -1; (P,) int64.

    Several tokens may share one character (byte-level tokenizers); a token may begin with the space before its word.
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
    return np.where(overlaps, candidate + before, -1)


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


SOUNDS_OF_VOWELS = ("hour", "honest", "honor", "honour", "heir")
"""Beginnings with a consonant letter that take `an`."""
SOUNDS_OF_CONSONANTS = ("uni", "use", "usu", "eu", "ewe", "one", "once", "ukulele", "utensil")
"""Beginnings with a vowel letter that take `a`."""


def indefinite_article(word: str) -> str:
    """The article, a or an, for a word (lower case), by its sound."""
    if word.startswith(SOUNDS_OF_VOWELS):
        return "an"
    if word.startswith(SOUNDS_OF_CONSONANTS) or word[:1] not in "aeiou":
        return "a"
    return "an"


# How well lengths alone show whether two texts are the same, which a matching objective could learn instead: XDBERT's
# MATCH asks that. For lines, the number of tokens answers it; for blocks of equal length it does not.

TELLING = 0.6
"""Area under the ROC curve from which lengths cause a warning; .5 is chance."""


def length_auc(lengths: np.ndarray, other_lengths: np.ndarray, is_same: np.ndarray) -> float:
    """Area under the ROC curve of "these are the same text" (truth: `is_same`) from lengths (N,) of both sides.

    The score is the ratio of lengths, relative to the median ratio of equal texts, because two tokenizers make
    different numbers of tokens. 1: always right, .5: chance; NaN without pairs of both kinds.
    """
    right = int(is_same.sum())
    wrong = len(is_same) - right
    if not right or not wrong:
        return float("nan")
    ratio = np.log(np.maximum(lengths, 1) / np.maximum(other_lengths, 1))
    mismatch = np.abs(ratio - np.median(ratio[is_same]))
    ranks = stats.rankdata(-mismatch)
    return float((ranks[is_same].sum() - right * (right + 1) / 2) / (right * wrong))


# -- the tokens of many texts ------------------------------------------------------------------------------------------

MOST_WORDS = 1 << 19
"""Maximum number of words whose tokens are remembered."""
LONG_WORD = 40
"""Number of characters from which a word's number of tokens is not remembered: few occur twice."""
CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
"""Where CLIP's tokenizer splits, after its special tokens; none of these matches a space."""
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where Qwen's tokenizer splits; this matches a single space only where a word begins."""
LLAMA_3_WORDS = QWEN_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
"""The same with up to three digits at once."""


class TextTokens(NamedTuple):
    """Tokens and raw words of several texts, concatenated."""

    words: np.ndarray
    """(W,) uint32: the number of each raw word, see `word_type_ids`."""
    word_counts: np.ndarray
    """(texts,) int64: number of raw words of each text."""
    ids: list[np.ndarray]
    """By tokenizer: token ids (P,) uint32."""
    word: list[np.ndarray]
    """By tokenizer: the raw word (P,) int32 of each token within its own text, -1 for none."""
    counts: list[np.ndarray]
    """By tokenizer: number of tokens (texts,) int64 of each text."""


class TokenizationCache:
    """Tokenises texts with one fast tokenizer or several; each different word only once, where that is exact.

    It is for tokenizers that split at every space: a text with single spaces is then put together of words, each
    tokenised with the space before it. Any other text, and those of other tokenizers, are tokenised as they are.
    """

    def __init__(self, *engines: Tokenizer) -> None:
        """`engines` are without padding and truncation; the first one's tokens are counted."""
        self.engines = engines
        self.by_word = all(map(_splits_at_spaces, engines))
        self._forget()

    def _forget(self) -> None:
        self._numbers = defaultdict[str, int](count().__next__)
        self._counts: dict[str, int] = {}
        self._known = self._tokenize([])

    def counts(self, words: Sequence[str]) -> np.ndarray:
        """Number of tokens of each word, (words,) int64; a word begins with the space before it."""
        numbers = self._learn(words)
        return self._known.counts[0][numbers]

    def count(self, text: str) -> int:
        """Number of tokens of one text, without a space before it."""
        known = self._counts.get(text)
        if known is None:
            known = len(self.engines[0].encode(text, add_special_tokens=False).ids)
            if len(text) < LONG_WORD:
                self._counts[text] = known
        return known

    def counts_by_text(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Numbers of tokens of each text's words, or of the whole text if its words are not tokenised one by one."""
        if not self.by_word:
            encodings = self.engines[0].encode_batch_fast(list(texts), add_special_tokens=False)
            return [np.array([len(one.ids)], np.int64) for one in encodings]
        words, per_text = _split(texts)
        return np.split(self.counts(words), np.cumsum(per_text)[:-1])

    def read(self, texts: Sequence[str]) -> TextTokens:
        """Tokens and raw words of some texts."""
        if not self.by_word:
            return self._tokenize(texts)
        words, per_text = _split(texts)
        numbers = self._learn(words)
        known = self._known
        raw = known.word_counts[numbers]
        starts = np.cumsum(raw) - raw
        before = starts - np.repeat(starts[np.cumsum(per_text) - per_text], per_text)
        read = TextTokens(
            _rows(known.words, known.word_counts, numbers), _sums(raw, per_text), [], [], []
        )
        for ids, word, counts in zip(known.ids, known.word, known.counts, strict=True):
            moved = np.repeat(before, counts[numbers])
            own = _rows(word, counts, numbers)
            read.ids.append(_rows(ids, counts, numbers))
            read.word.append(np.where(own < 0, own, own + moved).astype(np.int32))
            read.counts.append(_sums(counts[numbers], per_text))
        return read

    def _learn(self, words: Sequence[str]) -> np.ndarray:
        """The numbers (words,) of words among those that are known; new ones are tokenised."""
        if max(len(self._numbers), len(self._counts)) > MOST_WORDS:
            self._forget()
        known = len(self._numbers)
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        if len(self._numbers) > known:
            new = [*islice(reversed(self._numbers), len(self._numbers) - known)][::-1]
            self._known = _joined(self._known, self._tokenize(new))
        return numbers

    def _tokenize(self, texts: Sequence[str]) -> TextTokens:
        joined = "\n".join(texts)  # raw words never cross line ends
        lengths = np.array([len(text) for text in texts], np.int64)
        starts = np.cumsum(lengths + 1) - lengths - 1
        spans = word_spans(joined)
        first = np.searchsorted(spans[:, 0], starts)
        words = word_type_ids(joined, spans).astype(np.uint32)
        read = TextTokens(words, np.diff(first, append=len(spans)), [], [], [])
        for engine in self.engines:
            encodings = engine.encode_batch(list(texts), add_special_tokens=False)
            counts = np.array([len(one.ids) for one in encodings], np.int64)
            total = int(counts.sum())
            ids = chain.from_iterable(one.ids for one in encodings)
            places = chain.from_iterable(chain.from_iterable(one.offsets for one in encodings))
            offsets = np.fromiter(places, np.int64, 2 * total).reshape(-1, 2)
            word = align_words(offsets + np.repeat(starts, counts)[:, None], spans)
            word = np.where(word < 0, -1, word - np.repeat(first, counts))
            read.ids.append(np.fromiter(ids, np.uint32, total))
            read.word.append(word.astype(np.int32))
            read.counts.append(counts)
        return read


def _splits_at_spaces(engine: Tokenizer) -> bool:
    """Whether texts have the tokens of their words, each with the space before it: BERT, CLIP, byte-level BPE."""
    parts = json.loads(engine.to_str())
    for token in parts["added_tokens"]:
        content = token["content"]
        eats_more = token["rstrip"] or (token["lstrip"] and token["normalized"])
        is_run = content.isspace() and len(content) > 1  # not in a text with single spaces
        if eats_more or (any(map(str.isspace, content)) and not is_run):
            return False
    kinds = [(parts[name] or {}).get("type") for name in ("normalizer", "pre_tokenizer")]
    if kinds == ["Sequence", "Sequence"]:
        normalizers = [one["type"] for one in parts["normalizer"]["normalizers"]]
        split, *rest = parts["pre_tokenizer"]["pretokenizers"]
        pattern = split.get("pattern", {}).get("Regex", "")
        special = pattern.removesuffix(CLIP_WORDS)
        return (
            special != pattern
            and not re.search(r"\s|\\s", special)
            and (split["behavior"], split["invert"]) == ("Removed", True)
            and [(one["type"], one["add_prefix_space"]) for one in rest] == [("ByteLevel", False)]
            and normalizers == ["NFC", "Replace", "Lowercase"]
            and parts["normalizer"]["normalizers"][1]["pattern"] == {"Regex": r"\s+"}
        )
    if kinds[0] in (None, "NFC"):  # which never composes a space with what follows
        return _is_byte_level(parts["pre_tokenizer"] or {})
    return kinds == ["BertNormalizer", "BertPreTokenizer"]


def _is_byte_level(splitter: dict[str, Any]) -> bool:
    """Whether a byte-level tokenizer splits before every single space: GPT-2, Llama 3, ModernBERT, Qwen, SmolLM."""
    first, *others = splitter.get("pretokenizers", [splitter])
    if not others:
        return first.get("type") == "ByteLevel" and bool(first["use_regex"])
    last = others[-1]
    if len(others) > 1 or (last["type"], last.get("add_prefix_space")) != ("ByteLevel", False):
        return False
    if first["type"] == "Digits":
        return bool(last["use_regex"])
    return (
        first["type"] == "Split"
        and first["pattern"].get("Regex") in (QWEN_WORDS, LLAMA_3_WORDS)
        and (first["behavior"], first["invert"], last["use_regex"]) == ("Isolated", False, False)
    )


def _split(texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """The words of texts, each with the space before it, and how many each text has; odd texts are one word."""
    words: list[str] = []
    counts = []
    for text in texts:
        own = [text]
        if " ".join(text.split()) == text:  # so no newline is in it
            own = text.replace(" ", "\n ").split("\n")
        words += own
        counts.append(len(own))
    return words, np.array(counts, np.int64)


def _rows(values: np.ndarray, counts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The values of some words, concatenated; `values` are those of all words, which have `counts` each."""
    lengths = counts[numbers]
    moved = (np.cumsum(counts) - counts)[numbers] - (np.cumsum(lengths) - lengths)
    return values[np.arange(int(lengths.sum())) + np.repeat(moved, lengths)]


def _sums(values: np.ndarray, per_text: np.ndarray) -> np.ndarray:
    """Values of words, summed for each text."""
    ends = np.cumsum(per_text)
    total = np.concatenate([[0], np.cumsum(values)])
    return total[ends] - total[ends - per_text]


def _joined(one: TextTokens, other: TextTokens) -> TextTokens:
    sides = [
        [np.concatenate(both) for both in zip(*side, strict=True)]
        for side in zip(one[2:], other[2:], strict=True)
    ]
    words, counts = (np.concatenate(both) for both in zip(one[:2], other[:2], strict=True))
    return TextTokens(words, counts, *sides)
