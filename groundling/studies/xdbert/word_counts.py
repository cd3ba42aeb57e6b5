"""The visually grounded ratio of a text (XDBERT, Section 4 and Appendix D).

A token is grounded if it is no stop word, no punctuation, and occurs more than 100 times in COCO's captions; stop words
and punctuation count on neither side. Nobody published code; NLTK's list and WordPiece occurrences reproduce the
totals printed in Appendix D where these are consistent.

`count` makes the table of how often words and pieces occur in captions, by which `grounded` tells what is visual.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerBase

from groundling.core.errors import InputError
from groundling.data.captions.captions import Wanted, caption_lines
from groundling.data.corpora.files import CHUNK
from groundling.data.samples import backend
from groundling.data.text.words import spans, stop_words
from groundling.models.loading import load_tokenizer
from groundling.runs.folder import disk_errors, read_json, write_json
from groundling.runs.hashing import data_hash
from groundling.runs.work import Work
from groundling.studies.xdbert.commands import CountsConfig

Variant = Literal["pieces", "inherit", "words"]
"""What is counted: pieces by themselves (the paper), pieces that inherit their word's status, or raw words."""

_CORE = re.compile(r"[^\W_](?:.*[^\W_])?", re.DOTALL)
"""A piece from its first letter or digit to its last."""

NO_WORD = -1
"""The raw word of a piece of punctuation."""


def count(config: CountsConfig, work: Work) -> str:
    """Count caption files into the JSON table that `Grounding.read` reads; returns a sentence that says how much.

    The table tells where it comes from: a hash of every caption file and of the tokenizer's vocabulary. Raises
    InputError if a file or the tokenizer cannot be read, or `out` cannot be written.
    """
    tokenizer = load_tokenizer(config.tokenizer)
    captions: list[str] = []
    wanted = Wanted(config.caption_splits, config.columns).of(config.captions)
    for file, own in zip(config.captions, wanted, strict=True):
        captions += caption_lines(file, own.splits, own.columns)
    pieces = count_pieces(captions, tokenizer)
    words = count_words(captions)
    provenance = {
        "files": {str(file): data_hash(file) for file in config.captions},
        "tokenizer": {
            "source": config.tokenizer,
            "vocabulary_sha256": vocabulary_hash(tokenizer),
        },
        "captions": len(captions),
    }
    out = work.out
    if out.is_dir():
        raise InputError(f"{out}: is a folder; --out names the file of the table")
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, {"provenance": provenance, "pieces": pieces, "words": words})
    return f"{out}: {len(pieces):,} pieces and {len(words):,} words of {len(captions):,} captions"


class Piece(NamedTuple):
    """A piece of a text."""

    shown: str
    """As it stands in the text, with "##" before it inside a word."""
    key: str
    """As it is counted: lower case without accents; empty for punctuation."""
    word: int
    """Its raw word's number in the text; NO_WORD for punctuation."""


def count_pieces(captions: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """How often each piece occurs in the captions, most frequent first; punctuation is left out."""
    engine = backend(tokenizer)
    counts = Counter[str]()
    for start in range(0, len(captions), CHUNK):
        for pieces in _pieces(captions[start : start + CHUNK], engine):
            counts.update(piece.key for piece in pieces if piece.key)
    return _most_frequent_first(counts)


def count_words(captions: Sequence[str]) -> dict[str, int]:
    """How often each raw word occurs in the captions in lower case, most frequent first; punctuation is counted too."""
    counts = Counter[str]()
    for caption in captions:
        counts.update(_words(caption))
    return _most_frequent_first(counts)


def vocabulary_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of a tokenizer's sorted pieces: what tells whether a table was counted with it."""
    pieces = sorted(tokenizer.get_vocab())
    return hashlib.sha256("\n".join(pieces).encode()).hexdigest()


class Grounding:
    """Which tokens are visually grounded, and each text's ratio of them."""

    def __init__(
        self,
        counts: Mapping[str, Mapping[str, int]],
        tokenizer: PreTrainedTokenizerBase,
        threshold: int = 100,
        stopwords: Collection[str] | None = None,
    ) -> None:
        """A token is grounded if it occurs more than `threshold` times.

        Args:
            counts: `pieces` of this tokenizer and raw `words`, each with how often it occurs in captions.
            tokenizer: Cuts texts into the same pieces.
            threshold: The paper's 100 is of COCO's 414,113 training captions.
            stopwords: Count neither as grounded nor as not; without, NLTK's.
        """
        self.pieces = counts["pieces"]
        self.words = counts["words"]
        self.threshold = threshold
        self.engine = backend(tokenizer)
        self.stopwords = stop_words() if stopwords is None else stopwords

    @classmethod
    def read(
        cls, path: str | Path, tokenizer: PreTrainedTokenizerBase, threshold: int = 100
    ) -> Grounding:
        """From a table written by `groundling data counts`.

        Raises InputError if the file is no such table, or was counted with another tokenizer.
        """
        path = Path(path)
        table = read_json(path)
        try:
            counted_with = table["provenance"]["tokenizer"]
            theirs = counted_with["vocabulary_sha256"]
            source = counted_with.get("source")
            filled = _are_counts(table["pieces"]) and _are_counts(table["words"])
        except (KeyError, TypeError, AttributeError):
            filled = False
        if not filled:
            raise InputError(
                f"{path}: no count table; expected filled `provenance`, `pieces` and `words`"
            )
        if theirs != vocabulary_hash(tokenizer):
            raise InputError(
                f"{path}: counted with another tokenizer ({source}) than {tokenizer.name_or_path}"
            )
        return cls(table, tokenizer, threshold)

    def grounded(self, piece: str) -> bool:
        """Whether a piece, spelt as in the table, is grounded."""
        return self._status(piece, self.pieces) is True

    def tokens(self, text: str, variant: Variant = "pieces") -> list[tuple[str, bool | None]]:
        """Tokens in order, each grounded (True), not grounded (False), or a stop word or punctuation (None)."""
        if variant == "words":
            shown = [text[start:stop] for start, stop in spans(text)]
            return list(zip(shown, self._word_statuses(text), strict=True))
        pieces = next(_pieces([text], self.engine))
        if variant == "pieces":
            return [(piece.shown, self._status(piece.key, self.pieces)) for piece in pieces]
        words = self._word_statuses(text)
        inherited = []
        for piece in pieces:
            status = None if piece.word == NO_WORD else words[piece.word]
            inherited.append((piece.shown, status))
        return inherited

    def shares(
        self, text: str, pair: str | None = None, variant: Variant = "pieces"
    ) -> tuple[int, int]:
        """How many tokens of both texts together are grounded, and how many not."""
        tokens = self.tokens(text, variant) + self.tokens(pair or "", variant)
        statuses = [status for _, status in tokens]
        return statuses.count(True), statuses.count(False)

    def ratio(self, text: str, pair: str | None = None, variant: Variant = "pieces") -> float:
        """Grounded / (grounded + not grounded) over both texts together; NaN if there is neither."""
        grounded, rest = self.shares(text, pair, variant)
        if grounded + rest == 0:
            return float("nan")
        return grounded / (grounded + rest)

    def _word_statuses(self, text: str) -> list[bool | None]:
        return [self._status(word, self.words) for word in _words(text)]

    def _status(self, token: str, counts: Mapping[str, int]) -> bool | None:
        # "##s" is no stop word, though "s" is one: so it stands in Appendix D ("dump ##s").
        if token in self.stopwords:
            return None
        if not any(character.isalnum() for character in token):
            return None
        return counts.get(token, 0) > self.threshold


def _words(text: str) -> list[str]:
    return [text[start:stop].lower() for start, stop in spans(text)]


def _pieces(texts: Sequence[str], engine: Tokenizer) -> Iterator[list[Piece]]:
    """Pieces of each text, spelt the same for every tokenizer: "dog", and "##s" inside a word.

    A tokenizer's own spelling would not do: byte-level ones write a word's end and a text's first word alike.
    """
    encodings = engine.encode_batch(list(texts), add_special_tokens=False)
    for text, encoding in zip(texts, encodings, strict=True):
        yield _spelt(text, encoding)


def _spelt(text: str, encoding: Encoding) -> list[Piece]:
    word_starts = spans(text)[:, 0].tolist()
    pieces = []
    for start, stop in encoding.offsets:
        shown = text[start:stop].strip()
        core = _CORE.search(text, start, stop)
        if core is None:
            pieces.append(Piece(shown, "", NO_WORD))
            continue
        word = bisect_right(word_starts, core.start()) - 1
        mark = "" if word_starts[word] == core.start() else "##"
        pieces.append(Piece(mark + shown, mark + _fold(core.group()), word))
    return pieces


@lru_cache(1 << 17)
def _fold(text: str) -> str:
    """Lower case without accents, as uncased BERT's pieces are."""
    decomposed = unicodedata.normalize("NFD", text.lower())
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def _most_frequent_first(counts: Mapping[str, int]) -> dict[str, int]:
    """Equally frequent ones by alphabet."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _are_counts(table: Mapping[str, object]) -> bool:
    """Whether it has counts at all, and nothing else."""
    return len(table) > 0 and all(isinstance(count, int) for count in table.values())
