"""Keyword extraction without a model or a corpus, and the keyword scores of words.

CLIP-TD (Section 3.1.2) uses the published extractor YAKE, whose package has the AGPL licence. This
is a new implementation of its published formulas (Campos et al., Information Sciences 509, 2020,
Section 3), on the tokens of segtok, as in YAKE; any other extractor may replace it, see `KeywordExtractor`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from html import unescape
from importlib.resources import files
from itertools import chain
from math import log, sqrt
from statistics import fmean, median
from string import ascii_uppercase, punctuation
from typing import NamedTuple

import numpy as np
from segtok.segmenter import split_multi
from segtok.tokenizer import split_contractions, web_tokenizer

LONGEST = 3
"""Maximum number of words of a keyword (YAKE's default; CLIP-TD says "n-grams")."""
SHORTEST = 3
"""Minimum number of characters of a word; a shorter one counts as a stop word, as in YAKE."""

_LINE_END = re.compile(r"[\n\r\u2028]")
_ESCAPE = re.compile(r"&#?\w+;?")


@cache
def keyword_stop_words() -> frozenset[str]:
    """The English stop words of YAKE, which are the SMART system's."""
    lines = (files(__package__) / "keyword_stopwords.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


def is_stop_word(word: str) -> bool:
    """Whether a word in lower case is a stop word for YAKE: it or its singular is listed, or it is short."""
    stopwords = keyword_stop_words()
    if word in stopwords:
        return True
    singular = _singular(word)
    characters = sum(character not in punctuation for character in singular)
    return singular in stopwords or characters < SHORTEST


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > SHORTEST else word


class Keyword(NamedTuple):
    """A keyword of a text."""

    phrase: str
    """The phrase at its first occurrence."""
    spans: tuple[tuple[int, int], ...]
    """First character and last character + 1 of each occurrence."""
    score: float
    """Score, at least 0; lower is more important."""


KeywordExtractor = Callable[[str], list[Keyword]]
"""Extracts the keywords of a text, perhaps none, in any order."""


class _Word(NamedTuple):
    surface: str
    """The word in lower case."""
    term: str
    """The term that it is counted as: singular and plural are one."""
    is_odd: bool
    """Whether it is a number, has several marks, or letters and digits: never in a keyword, and no neighbour."""
    is_capitalised: bool
    """Whether only its first letter is a capital; never for the first word of a sentence."""
    is_acronym: bool
    span: tuple[int, int]
    sentence: int


@dataclass
class _TermStatistics:
    is_stop_word: bool
    """Whether it is a stop word, at its first occurrence in the text."""
    count: int = 0
    capitals: int = 0
    acronyms: int = 0
    sentences: list[int] = field(default_factory=list)
    left_neighbours: Counter[str] = field(default_factory=Counter)
    right_neighbours: Counter[str] = field(default_factory=Counter)

    def add(self, word: _Word) -> None:
        self.count += 1
        self.capitals += word.is_capitalised
        self.acronyms += word.is_acronym
        self.sentences.append(word.sentence)

    def relatedness(self, max_count: int) -> float:
        """Its number of distinct neighbours, as a share of all; a word with many distinct ones is vague."""
        sides = filter(None, (self.left_neighbours, self.right_neighbours))
        spread = sum(len(side) / side.total() for side in sides)
        return 1 + spread * self.count / max_count

    def score(self, typical: float, max_count: int, sentences: int) -> float:
        """YAKE's S(t), lower is better, from casing, position, frequency, relatedness and spread."""
        related = self.relatedness(max_count)
        position = log(log(3 + median(set(self.sentences))))
        case = max(self.acronyms, self.capitals) / (1 + log(self.count))
        frequency = self.count / typical
        spread = len(set(self.sentences)) / sentences
        return related * position / (case + (frequency + spread) / related)


def extract_yake_keywords(text: str) -> list[Keyword]:
    """All keywords by YAKE's published formulas, for English: best first, ties in order of the text.

    There are none if the text contains only stop words, numbers and marks.
    """
    plain = _plain(text)
    sentences = _sentences(plain)
    runs: list[list[_Word]] = []
    for number, spans in enumerate(sentences):
        runs += _runs(plain, number, spans)
    terms = _count_terms(runs)
    known = {name: term for name, term in terms.items() if not term.is_stop_word}
    if not known:
        return []
    counts = [term.count for term in known.values()]
    mean = fmean(counts)
    typical = mean + sqrt(fmean((count - mean) ** 2 for count in counts))
    most = max(term.count for term in terms.values())
    scores = {name: term.score(typical, most, len(sentences)) for name, term in known.items()}
    keywords = []
    for found in _candidates(runs, terms).values():
        score = _phrase_score(found, scores, terms)
        places = tuple((tokens[0].span[0], tokens[-1].span[1]) for tokens in found)
        start, stop = places[0]
        keywords.append(Keyword(text[start:stop], places, score))
    return sorted(keywords, key=lambda keyword: (keyword.score, keyword.spans[0]))


def _count_terms(runs: Iterable[Sequence[_Word]]) -> dict[str, _TermStatistics]:
    terms: dict[str, _TermStatistics] = {}
    for run in runs:
        before: _Word | None = None
        for word in run:
            if word.term not in terms:
                terms[word.term] = _TermStatistics(is_stop_word(word.surface))
            terms[word.term].add(word)
            if before is not None and not (before.is_odd or word.is_odd):
                terms[before.term].right_neighbours[word.term] += 1
                terms[word.term].left_neighbours[before.term] += 1
            before = word
    return terms


def _plain(text: str) -> str:
    """A text as YAKE reads it, of the same length: an escape becomes its character and blanks, a line end a blank."""
    text = _ESCAPE.sub(lambda escape: unescape(escape[0]).ljust(len(escape[0])), text)
    # segtok also makes one character of an escape, but then its position is lost; any other mark works as well.
    return _LINE_END.sub(" ", text.replace("&", "+"))


@lru_cache(1)
def _sentences(text: str) -> list[list[tuple[int, int]]]:
    """First token's start and last token's end for each sentence, as segtok splits them."""
    sentences = []
    place = 0
    # YAKE puts a blank before a text that begins with no capital: segtok then splits "1. Dogs" into two sentences.
    begun = text if text[:1] in ascii_uppercase else f" {text}"
    for sentence in filter(None, split_multi(begun)):
        tokens = []
        for token in split_contractions(web_tokenizer(sentence)):
            start = text.index(token, place)
            place = start + len(token)
            # The part after an apostrophe is dropped: "girl's" becomes "girl".
            if token and not (token.startswith("'") and len(token) > 1):
                tokens.append((start, place))
        sentences.append(tokens)
    return sentences


def _runs(text: str, sentence: int, spans: Sequence[tuple[int, int]]) -> Iterator[list[_Word]]:
    run: list[_Word] = []
    for place, (start, stop) in enumerate(spans):
        word = text[start:stop]
        if all(character in punctuation for character in word):
            yield run
            run = []
        else:
            run.append(_word(word, (start, stop), sentence, place == 0))
    yield run


def _word(word: str, span: tuple[int, int], sentence: int, is_first: bool) -> _Word:
    surface = word.lower()
    digits = any(character.isdigit() for character in word)
    letters = any(character.isalpha() for character in word)
    marks = sum(character in punctuation for character in word)
    is_number = word.replace(",", "").replace(".", "").isdigit()
    return _Word(
        surface=surface,
        term=_singular(surface),
        is_odd=digits == letters or marks > 1 or is_number,
        is_capitalised=not is_first and word[0].isupper() and word[1:] == word[1:].lower(),
        is_acronym=word.isupper() and len(word) > 1,
        span=span,
        sentence=sentence,
    )


def _candidates(
    runs: Sequence[Sequence[_Word]], terms: Mapping[str, _TermStatistics]
) -> Mapping[tuple[str, ...], list[Sequence[_Word]]]:
    """Every phrase that begins and ends with a non-stop word and contains nothing odd, with all occurrences."""
    found: dict[tuple[str, ...], list[Sequence[_Word]]] = {}
    for run in runs:
        for start in range(len(run)):
            for tokens in _phrases(run[start : start + LONGEST], terms):
                found.setdefault(tuple(token.surface for token in tokens), []).append(tokens)
    return found


def _phrases(
    tokens: Sequence[_Word], terms: Mapping[str, _TermStatistics]
) -> Iterator[Sequence[_Word]]:
    if terms[tokens[0].term].is_stop_word:
        return
    for length, last in enumerate(tokens, 1):
        if last.is_odd:
            return
        if not terms[last.term].is_stop_word:
            yield tokens[:length]


def _phrase_score(
    keyword: Sequence[Sequence[_Word]],
    scores: Mapping[str, float],
    terms: Mapping[str, _TermStatistics],
) -> float:
    """YAKE's S(kw) of a phrase, from all its occurrences; a stop word inside counts by its co-occurrence alone."""
    words = [token.term for token in keyword[0]]
    product = 1.0
    total = 0.0
    for place, word in enumerate(words):
        if not terms[word].is_stop_word:
            product *= scores[word]
            total += scores[word]
            continue
        before, after = terms[words[place - 1]], terms[words[place + 1]]
        together = before.right_neighbours[word] / before.count
        together *= after.left_neighbours[word] / after.count
        product *= 2 - together
        total -= 1 - together
    return product / (len(keyword) * (1 + total))


def keyword_importance(text: str, words: np.ndarray, keywords: KeywordExtractor) -> np.ndarray:
    """The importance of each raw word (K,) float64: 1 / (1 + score) of its best keyword, 0 for stop words and marks.

    CLIP-TD Section 3.1.2 adds YAKE's score itself, of which lower is better; the decreasing transform is this
    library's choice. `words` (K, 2) are character spans.
    """
    plain = _plain(text)
    says = np.zeros(len(text), bool)
    for start, stop in chain.from_iterable(_sentences(plain)):
        says[start:stop] = not is_stop_word(plain[start:stop].lower())
    counts = np.array([text[start].isalnum() and says[start] for start, _ in words], bool)
    worth = np.zeros(len(words))
    for keyword in keywords(text):
        # YAKE's own score can be negative, where stop words follow each other.
        value = 1 / (1 + max(0.0, float(keyword.score)))
        for start, stop in keyword.spans:
            covered = counts & (words[:, 0] < stop) & (words[:, 1] > start)
            worth[covered] = np.maximum(worth[covered], value)
    return worth


# -- the words to distil -----------------------------------------------------------------------------------------------


def token_scores(
    relevance: np.ndarray, importance: np.ndarray, candidates: np.ndarray
) -> np.ndarray:
    """Score (K,) of each raw word: its shares of relevance and of importance, added (CLIP-TD Eq. 5).

    Shares are relative to the sum of absolute values over `candidates` (K,) bool, and keep their signs; other words
    score 0.
    """
    return _shares(relevance, candidates) + _shares(importance, candidates)


def _shares(values: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    kept = np.where(candidates, values, 0.0)
    total = np.abs(kept).sum()
    return kept / total if total > 0 else kept


def select_tokens(scores: np.ndarray, candidates: np.ndarray, m: int) -> np.ndarray:
    """The m candidates (or all) with the highest scores (K,), best first; ties go to the earlier."""
    places = np.flatnonzero(candidates)
    best_first = np.argsort(-scores[places], kind="stable")
    return places[best_first][:m]


def select_random_tokens(candidates: np.ndarray, m: int, rng: np.random.Generator) -> np.ndarray:
    """A uniformly random choice of m candidates (K,); the control of CLIP-TD's Table 2."""
    places = np.flatnonzero(candidates)
    return rng.permutation(places)[:m]
