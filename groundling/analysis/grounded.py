"""The visually grounded ratio of a text (XDBERT, Section 4 and Appendix D).

A token is grounded if it is no stop word, no punctuation, and occurs more than 100 times in COCO's captions; stop words
and punctuation count on neither side. Nobody published code; NLTK's list and WordPiece occurrences reproduce the
totals printed in Appendix D where these are consistent.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Literal, NamedTuple

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from groundling.config import CountsConfig
from groundling.data.captions import caption_lines
from groundling.data.corpora import CHUNK
from groundling.data.samples import backend
from groundling.data.words import spans
from groundling.errors import InputError
from groundling.models.loading import load_tokenizer
from groundling.runs import data_hash, read_json, write_json

Variant = Literal["pieces", "inherit", "words"]
_CORE = re.compile(r"[^\W_](?:.*[^\W_])?", re.DOTALL)


class Piece(NamedTuple):
    """A piece of a text: as shown, as counted (empty for punctuation), and its raw word's number (-1: punctuation)."""

    shown: str
    key: str
    word: int


@lru_cache(1 << 17)
def _fold(text: str) -> str:
    """Lower case without accents, as uncased BERT's pieces are."""
    return "".join(
        c for c in unicodedata.normalize("NFD", text.lower()) if not unicodedata.combining(c)
    )


def _words(text: str) -> list[str]:
    return [text[start:stop].lower() for start, stop in spans(text)]


def _pieces(texts: Sequence[str], engine: Tokenizer) -> Iterator[list[Piece]]:
    """Pieces spelt the same for every tokenizer, from character offsets: "dog", and "##s" inside a word.

    A tokenizer's own spelling would not do: byte-level ones write a word's end and a text's first word alike.
    """
    for text, encoding in zip(
        texts, engine.encode_batch(list(texts), add_special_tokens=False), strict=True
    ):
        starts = spans(text)[:, 0].tolist()
        found = []
        for start, stop in encoding.offsets:
            core = _CORE.search(text, start, stop)
            if core is None:
                found.append(Piece(text[start:stop].strip(), "", -1))
                continue
            word = bisect_right(starts, core.start()) - 1
            mark = "" if starts[word] == core.start() else "##"
            found.append(Piece(mark + text[start:stop].strip(), mark + _fold(core.group()), word))
        yield found


def count_pieces(captions: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """How often each piece occurs in the captions, most frequent first; punctuation is left out."""
    engine, counts = backend(tokenizer), Counter[str]()
    for start in range(0, len(captions), CHUNK):
        for found in _pieces(captions[start : start + CHUNK], engine):
            counts.update(piece.key for piece in found if piece.key)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _vocabulary(tokenizer: PreTrainedTokenizerBase) -> str:
    return hashlib.sha256("\n".join(sorted(tokenizer.get_vocab())).encode()).hexdigest()


def count(config: CountsConfig, out: str | Path) -> str:
    """Count caption files into the JSON table that `Grounding.read` reads, with its provenance; says how much."""
    if not config.captions or not config.tokenizer:
        raise InputError("data counts needs --captions FILE [FILE ...] and --tokenizer")
    tokenizer = load_tokenizer(config.tokenizer)
    captions = [caption for path in config.captions for caption in caption_lines(path)]
    words = Counter(word for caption in captions for word in _words(caption))
    pieces = count_pieces(captions, tokenizer)
    table = {
        "provenance": {
            "files": {str(path): data_hash(path) for path in config.captions},
            "tokenizer": {"source": config.tokenizer, "vocabulary_sha256": _vocabulary(tokenizer)},
            "captions": len(captions),
        },
        "pieces": pieces,
        "words": dict(sorted(words.items(), key=lambda item: (-item[1], item[0]))),
    }
    out = Path(out)
    if out.is_dir():
        raise InputError(f"{out}: is a folder; --out names the file of the table")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, table)
    return f"{out}: {len(pieces):,} pieces and {len(words):,} words of {len(captions):,} captions"


def stop_words() -> frozenset[str]:
    """NLTK's 179 English stop words."""
    lines = (files(__package__) / "stopwords.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


class Grounding:
    """Which tokens are visually grounded, and each text's ratio of them."""

    def __init__(
        self,
        counts: Mapping[str, Mapping[str, int]],
        tokenizer: PreTrainedTokenizerBase,
        threshold: int = 100,
        stopwords: Collection[str] | None = None,
    ) -> None:
        """`counts` holds `pieces` (of this tokenizer) and `words`; grounded is what occurs more than `threshold`."""
        self.pieces, self.words, self.threshold = counts["pieces"], counts["words"], threshold
        self.engine = backend(tokenizer)
        self.stopwords = stop_words() if stopwords is None else stopwords

    @classmethod
    def read(
        cls, path: str | Path, tokenizer: PreTrainedTokenizerBase, threshold: int = 100
    ) -> Grounding:
        """From a table of `count`; raises InputError if it is none, or another tokenizer's."""
        path, table = Path(path), read_json(Path(path))
        try:
            theirs, filled = table["provenance"]["tokenizer"], table["pieces"] and table["words"]
            same = theirs["vocabulary_sha256"] == _vocabulary(tokenizer)
        except (KeyError, TypeError):
            filled = False
        if not filled:
            raise InputError(
                f"{path}: no count table; expected filled `provenance`, `pieces` and `words`"
            )
        if not same:
            raise InputError(
                f"{path}: counted with another tokenizer ({theirs.get('source')}) than {tokenizer.name_or_path}"
            )
        return cls(table, tokenizer, threshold)

    def _status(self, token: str, counts: Mapping[str, int]) -> bool | None:
        # "##s" is no stop word, though "s" is one: so it stands in Appendix D ("dump ##s").
        if token in self.stopwords or not any(c.isalnum() for c in token):
            return None
        return counts.get(token, 0) > self.threshold

    def grounded(self, piece: str) -> bool:
        """Whether a piece, spelt as in the table, is grounded."""
        return self._status(piece, self.pieces) is True

    def tokens(self, text: str, variant: Variant = "pieces") -> list[tuple[str, bool | None]]:
        """Tokens in order, each grounded (True), not grounded (False), or a stop word or punctuation (None).

        Counted are `pieces` by themselves (the paper), pieces that `inherit` their word's status, or raw `words`.
        """
        words = [self._status(word, self.words) for word in _words(text)]
        if variant == "words":
            return [
                (text[start:stop], status)
                for (start, stop), status in zip(spans(text), words, strict=True)
            ]
        found = next(_pieces([text], self.engine))
        if variant == "inherit":
            return [(piece.shown, None if piece.word < 0 else words[piece.word]) for piece in found]
        return [(piece.shown, self._status(piece.key, self.pieces)) for piece in found]

    def shares(
        self, text: str, pair: str | None = None, variant: Variant = "pieces"
    ) -> tuple[int, int]:
        """How many tokens of both texts together are grounded, and how many not."""
        statuses = [
            status for part in (text, pair or "") for _, status in self.tokens(part, variant)
        ]
        return statuses.count(True), statuses.count(False)

    def ratio(self, text: str, pair: str | None = None, variant: Variant = "pieces") -> float:
        """Grounded / (grounded + not grounded) over both texts together; NaN if there is neither."""
        grounded, rest = self.shares(text, pair, variant)
        return grounded / (grounded + rest) if grounded + rest else float("nan")
