"""Which words of a text matter: keywords without a model and without a corpus, and what they make each word worth.

CLIP-TD (Section 3.1.2) takes the published extractor YAKE, whose package stands under the AGPL. Here are its published
formulas (Campos et al., Information Sciences 509, 2020, Section 3), written anew, on the tokens of segtok, which YAKE
takes, too; any other extractor may take their place, see `KeywordExtractor`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from html import unescape
from importlib.resources import files
from itertools import chain
from math import log, sqrt
from statistics import fmean, median
from string import ascii_uppercase, punctuation
from typing import NamedTuple, Protocol

import numpy as np
from segtok.segmenter import split_multi
from segtok.tokenizer import split_contractions, web_tokenizer

LONGEST = 3
"""Most words of a keyword (YAKE's default; CLIP-TD says "n-grams")."""
SHORTEST = 3
"""Characters of a word; a shorter one counts as a stop word, as in YAKE."""

_LINE_END = re.compile(r"[\n\r\u2028]")
_ESCAPE = re.compile(r"&#?\w+;?")


@cache
def keyword_stop_words() -> frozenset[str]:
    """The English stop words of YAKE, which are the SMART system's."""
    lines = (files(__package__) / "keyword_stopwords.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


def is_stop_word(word: str, stopwords: Collection[str]) -> bool:
    """Whether a word in lower case says nothing to YAKE: it or its singular is listed, or it is short."""
    if word in stopwords:
        return True
    singular = _singular(word)
    characters = sum(character not in punctuation for character in singular)
    return singular in stopwords or characters < SHORTEST


def _singular(word: str) -> str:
    """A word without the s at its end."""
    return word[:-1] if word.endswith("s") and len(word) > SHORTEST else word


class Keyword(NamedTuple):
    """A phrase that matters to a text."""

    phrase: str
    """As it first stands in the text."""
    spans: tuple[tuple[int, int], ...]
    """First character and the one after the last, wherever it stands."""
    score: float
    """At least 0; the lower, the more it matters."""


class KeywordExtractor(Protocol):
    """Finds the keywords of a text; any such function is one. A text may have none."""

    def __call__(self, text: str) -> list[Keyword]:
        """The keywords of a text, in any order."""
        ...


class _WordShape(NamedTuple):
    """What the spelling of a word tells."""

    surface: str
    """In lower case."""
    term: str
    """What it is counted as: singular and plural are one."""
    odd: bool
    """A number, a mark, several marks inside, or letters and digits: in no keyword, and nobody's neighbour."""
    capital: bool
    """Whether its first letter alone is a capital."""
    acronym: bool


class _SentenceWord(NamedTuple):
    """A word of a sentence."""

    word: _WordShape
    span: tuple[int, int]
    sentence: int
    first: bool
    """Whether its sentence begins with it."""


@dataclass
class _TermStatistics:
    """What is counted of all tokens that are the same word."""

    stops: bool
    """Whether it is a stop word, as it first stands in the text."""
    count: int = 0
    capitals: int = 0
    acronyms: int = 0
    sentences: list[int] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)

    def add(self, token: _SentenceWord) -> None:
        """One more token."""
        self.count += 1
        self.capitals += token.word.capital and not token.first
        self.acronyms += token.word.acronym
        self.sentences.append(token.sentence)

    def relatedness(self, most: int) -> float:
        """How many different neighbours it has, as a share of all it has; a word among many different ones is vague."""
        spread = sum(len(side) / side.total() for side in (self.left, self.right) if side)
        return 1 + spread * self.count / most

    def score(self, typical: float, most: int, sentences: int) -> float:
        """YAKE's S(t), the lower the better, from casing, position, frequency, relatedness and spread."""
        related = self.relatedness(most)
        position = log(log(3 + median(set(self.sentences))))
        case = max(self.acronyms, self.capitals) / (1 + log(self.count))
        frequency = self.count / typical
        spread = len(set(self.sentences)) / sentences
        return related * position / (case + (frequency + spread) / related)


class YakeExtractor:
    """YAKE's published formulas, for English; lists keywords best first, of equal ones the earlier in the text."""

    def __init__(self, stopwords: Collection[str] | None = None) -> None:
        """`stopwords` in lower case; without, YAKE's."""
        self.stopwords = keyword_stop_words() if stopwords is None else stopwords

    def __call__(self, text: str) -> list[Keyword]:
        """All keywords of a text; none if it holds only stop words, numbers and marks."""
        plain = _plain(text)
        sentences = _sentences(plain)
        runs = [
            run for number, spans in enumerate(sentences) for run in _runs(plain, number, spans)
        ]
        terms = self._counted(runs)
        known = [term.count for term in terms.values() if not term.stops]
        if not known:
            return []
        mean = fmean(known)
        typical = mean + sqrt(fmean((count - mean) ** 2 for count in known))
        most = max(term.count for term in terms.values())
        scores = {
            name: term.score(typical, most, len(sentences))
            for name, term in terms.items()
            if not term.stops
        }
        keywords = []
        for found in _candidates(runs, terms).values():
            score = _phrase_score(found, scores, terms)
            spans = tuple((tokens[0].span[0], tokens[-1].span[1]) for tokens in found)
            keywords.append(Keyword(text[slice(*spans[0])], spans, score))
        return sorted(keywords, key=lambda keyword: (keyword.score, keyword.spans[0]))

    def _counted(self, runs: Iterable[Sequence[_SentenceWord]]) -> dict[str, _TermStatistics]:
        """Every word of a text by its term, with its neighbours."""
        terms: dict[str, _TermStatistics] = {}
        for run in runs:
            before: _WordShape | None = None
            for token in run:
                word = token.word
                if word.term not in terms:
                    terms[word.term] = _TermStatistics(is_stop_word(word.surface, self.stopwords))
                terms[word.term].add(token)
                if before is not None and not (before.odd or word.odd):
                    terms[before.term].right[word.term] += 1
                    terms[word.term].left[before.term] += 1
                before = word
        return terms


def _plain(text: str) -> str:
    """A text as YAKE reads it, of the same length: of an escape its character and blanks, of a line's end a blank."""
    text = _ESCAPE.sub(lambda escape: unescape(escape[0]).ljust(len(escape[0])), text)
    # segtok makes one character of an escape, too, which then stands nowhere in the text; any other mark is as good.
    return _LINE_END.sub(" ", text.replace("&", "+"))


@lru_cache(1)
def _sentences(text: str) -> list[list[tuple[int, int]]]:
    """First character of each sentence's tokens and the one after the last, as segtok tells them apart."""
    sentences = []
    place = 0
    # YAKE reads a blank before a text that begins with no capital: "1. Dogs" are two sentences to segtok then.
    begun = text if text[:1] in ascii_uppercase else f" {text}"
    for sentence in filter(None, split_multi(begun)):
        tokens = []
        for token in split_contractions(web_tokenizer(sentence)):
            start = text.index(token, place)
            place = start + len(token)
            # What follows an apostrophe is no word: "girl's" is "girl".
            if token and not (token.startswith("'") and len(token) > 1):
                tokens.append((start, place))
        sentences.append(tokens)
    return sentences


def _runs(
    text: str, sentence: int, spans: Sequence[tuple[int, int]]
) -> Iterator[list[_SentenceWord]]:
    """The words of a sentence in runs between marks, from its tokens."""
    run: list[_SentenceWord] = []
    for place, (start, stop) in enumerate(spans):
        word = text[start:stop]
        if all(character in punctuation for character in word):
            yield run
            run = []
        else:
            run.append(_SentenceWord(_word(word), (start, stop), sentence, place == 0))
    yield run


@lru_cache(1 << 16)
def _word(word: str) -> _WordShape:
    surface = word.lower()
    digits = any(character.isdigit() for character in word)
    letters = any(character.isalpha() for character in word)
    marks = sum(character in punctuation for character in word)
    is_number = word.replace(",", "").replace(".", "").isdigit()
    return _WordShape(
        surface=surface,
        term=_singular(surface),
        odd=digits == letters or marks > 1 or is_number,
        capital=word[0].isupper() and word[1:] == word[1:].lower(),
        acronym=word.isupper() and len(word) > 1,
    )


def _candidates(
    runs: Sequence[Sequence[_SentenceWord]], terms: Mapping[str, _TermStatistics]
) -> Mapping[tuple[str, ...], list[Sequence[_SentenceWord]]]:
    """Every phrase that begins and ends with no stop word and holds nothing odd, wherever it stands."""
    found: dict[tuple[str, ...], list[Sequence[_SentenceWord]]] = {}
    for run in runs:
        for start in range(len(run)):
            for tokens in _phrases(run[start : start + LONGEST], terms):
                found.setdefault(tuple(token.word.surface for token in tokens), []).append(tokens)
    return found


def _phrases(
    tokens: Sequence[_SentenceWord], terms: Mapping[str, _TermStatistics]
) -> Iterator[Sequence[_SentenceWord]]:
    """The phrases that begin with the first of some tokens."""
    if terms[tokens[0].word.term].stops:
        return
    for length, last in enumerate(tokens, 1):
        if last.word.odd:
            return
        if not terms[last.word.term].stops:
            yield tokens[:length]


def _phrase_score(
    found: Sequence[Sequence[_SentenceWord]],
    scores: Mapping[str, float],
    terms: Mapping[str, _TermStatistics],
) -> float:
    """YAKE's S(kw) of a phrase that stands in several places.

    A stop word inside enters through how often its neighbours go with it, not through a score of its own.
    """
    words = [token.word.term for token in found[0]]
    product = 1.0
    total = 0.0
    for place, word in enumerate(words):
        if not terms[word].stops:
            product *= scores[word]
            total += scores[word]
            continue
        before, after = terms[words[place - 1]], terms[words[place + 1]]
        together = before.right[word] / before.count
        together *= after.left[word] / after.count
        product *= 2 - together
        total -= 1 - together
    return product / (len(found) * (1 + total))


def keyword_importance(
    text: str,
    words: np.ndarray,
    keywords: KeywordExtractor,
    stopwords: Collection[str] | None = None,
) -> np.ndarray:
    """What each raw word is worth to a text: (K,) float64, 1 / (1 + score) of its best keyword, 0 without one.

    Every word that a keyword's characters overlap has its score, but stop words and marks have none (CLIP-TD Section
    3.1.2 adds YAKE's score itself, of which lower is better; a decreasing transform is ours).

    Args:
        text: the text.
        words: the raw words' character spans, (K, 2), see `data/text/words.py`.
        keywords: what finds the keywords of a text.
        stopwords: in lower case; without, YAKE's.
    """
    stops = keyword_stop_words() if stopwords is None else stopwords
    plain = _plain(text)
    says = np.zeros(len(text), bool)
    for start, stop in chain.from_iterable(_sentences(plain)):
        says[start:stop] = not is_stop_word(plain[start:stop].lower(), stops)
    counts = np.array([text[start].isalnum() and says[start] for start, _ in words], bool)
    worth = np.zeros(len(words))
    for keyword in keywords(text):
        # YAKE's own can be below 0, where stop words follow each other.
        value = 1 / (1 + max(0.0, float(keyword.score)))
        for start, stop in keyword.spans:
            covered = counts & (words[:, 0] < stop) & (words[:, 1] > start)
            worth[covered] = np.maximum(worth[covered], value)
    return worth


# -- which words a teacher distils -------------------------------------------------------------------------------------


def token_scores(
    relevance: np.ndarray, importance: np.ndarray, candidates: np.ndarray
) -> np.ndarray:
    """Score (K,) of each raw word: its shares of relevance and of importance, added (CLIP-TD Eq. 5).

    Shares are of the sum of absolute values over candidates, and keep their signs; numbers that are all 0 have shares
    of 0. Words that are no candidates score 0.

    Args:
        relevance: cosine of image and word, (K,); cosines may be negative.
        importance: what each word is worth to its text, (K,), see `data/text/keywords.py`.
        candidates: which words may be chosen, (K,) bool.
    """
    return _shares(relevance, candidates) + _shares(importance, candidates)


def _shares(values: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    kept = np.where(candidates, values, 0.0)
    total = np.abs(kept).sum()
    return kept / total if total > 0 else kept


def select_tokens(scores: np.ndarray, candidates: np.ndarray, m: int) -> np.ndarray:
    """The m candidates with the highest scores (K,), best first, of equal ones the earlier; all if there are fewer."""
    places = np.flatnonzero(candidates)
    best_first = np.argsort(-scores[places], kind="stable")
    return places[best_first][:m]


def select_random_tokens(candidates: np.ndarray, m: int, rng: np.random.Generator) -> np.ndarray:
    """Some m of the candidates (K,), every set of them as likely; the control of CLIP-TD's Table 2."""
    places = np.flatnonzero(candidates)
    return rng.permutation(places)[:m]
