"""Which words of a text matter: keywords without a model and without a corpus, and what they make each word worth.

CLIP-TD (Section 3.1.2) takes the published extractor YAKE, whose package stands under the AGPL. Here are its published
formulas (Campos et al., Information Sciences 509, 2020, Section 3), written anew; any other extractor may take their
place, see `Keywords`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from statistics import fmean, median, pstdev
from typing import NamedTuple, Protocol

import numpy as np

from groundling.data.words import stop_words

LONGEST = 3
"""Most words of a keyword (YAKE's default; CLIP-TD says "n-grams")."""
SHORTEST = 3
"""Characters of a word; a shorter one counts as a stop word, as in YAKE."""

_WORD = r"[^\W_]+"
_TOKEN = re.compile(
    rf"\d+(?:[.,]\d+)+|{_WORD}(?:-{_WORD})*(?:['’](?:{_WORD})?)?|(?P<mark>[^\w\s]|_)"
)
"""A number, a word with what follows its apostrophe, or a mark by itself."""
_SENTENCE = re.compile(r"(?<=[.!?])[\"'”’)]*\s+(?=\S)")
_NUMBER = re.compile(r"[\d.,]+")


class Keyword(NamedTuple):
    """A phrase that matters to a text."""

    phrase: str
    """As it first stands in the text."""
    spans: tuple[tuple[int, int], ...]
    """First character and the one after the last, wherever it stands."""
    score: float
    """At least 0; the lower, the more it matters."""


class Keywords(Protocol):
    """Finds the keywords of a text; any such function is one. A text may have none."""

    def __call__(self, text: str) -> list[Keyword]:
        """The keywords of a text, in any order."""
        ...


class _Token(NamedTuple):
    """A word of a sentence."""

    span: tuple[int, int]
    surface: str
    """In lower case."""
    term: str
    """What it is counted as: singular and plural are one."""
    sentence: int
    stops: bool
    """Whether it is a stop word."""
    odd: bool
    """A number, or letters and digits mixed: no keyword contains it, and it is nobody's neighbour."""
    number: bool
    capital: bool
    """Whether its first letter alone is a capital, and it is not the first of its sentence."""
    acronym: bool


@dataclass
class _Term:
    """What is counted of all tokens that are the same word."""

    counts: bool
    """Whether it is neither a stop word nor a number."""
    count: int = 0
    capitals: int = 0
    acronyms: int = 0
    sentences: list[int] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)

    def add(self, token: _Token) -> None:
        """One more token."""
        self.count += 1
        self.capitals += token.capital
        self.acronyms += token.acronym
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


class BuiltIn:
    """YAKE's published formulas, for English; lists keywords best first, of equal ones the earlier in the text."""

    def __init__(self, stopwords: Collection[str] | None = None) -> None:
        """`stopwords` in lower case; without, NLTK's."""
        self.stopwords = stop_words() if stopwords is None else stopwords

    def __call__(self, text: str) -> list[Keyword]:
        """All keywords of a text; none if it holds only stop words, numbers and marks."""
        runs = self._runs(text)
        terms = _counted(runs)
        known = [term.count for term in terms.values() if term.counts]
        if not known:
            return []
        typical = fmean(known) + pstdev(known)
        most = max(term.count for term in terms.values())
        sentences = 1 + max(run[-1].sentence for run in runs)
        scores = {
            name: term.score(typical, most, sentences)
            for name, term in terms.items()
            if term.counts
        }
        keywords = []
        for found in self._candidates(runs).values():
            score = _joint(found, scores, terms)
            spans = tuple((tokens[0].span[0], tokens[-1].span[1]) for tokens in found)
            keywords.append(Keyword(text[slice(*spans[0])], spans, score))
        return sorted(keywords, key=lambda keyword: (keyword.score, keyword.spans[0]))

    def _runs(self, text: str) -> list[list[_Token]]:
        """The words of a text in runs between marks."""
        runs: list[list[_Token]] = []
        for number, (start, stop) in enumerate(_sentences(text)):
            run: list[_Token] = []
            first = True
            for match in _TOKEN.finditer(text, start, stop):
                if match["mark"] is not None:
                    runs.append(run)
                    run = []
                    continue
                run.append(self._token(match, number, first))
                first = False
            runs.append(run)
        return [run for run in runs if run]

    def _token(self, match: re.Match[str], sentence: int, first: bool) -> _Token:
        word = match[0]
        whole = word.lower().replace("’", "'")
        # "girl's" is "girl"; "isn't" is one stop word.
        bare = re.split(r"['’]", word)[0]
        surface = bare.lower()
        listed = whole in self.stopwords or surface in self.stopwords
        return _Token(
            span=(match.start(), match.start() + len(bare)),
            surface=surface,
            term=surface[:-1] if surface.endswith("s") and len(surface) > SHORTEST else surface,
            sentence=sentence,
            stops=listed or len(surface) < SHORTEST,
            odd=any(character.isdigit() for character in word),
            number=_NUMBER.fullmatch(word) is not None,
            capital=bare.istitle() and not first,
            acronym=bare.isupper() and len(bare) > 1,
        )

    def _candidates(
        self, runs: Sequence[Sequence[_Token]]
    ) -> Mapping[tuple[str, ...], list[Sequence[_Token]]]:
        """Every phrase that begins and ends with no stop word and holds no number, wherever it stands."""
        found: dict[tuple[str, ...], list[Sequence[_Token]]] = {}
        for run in runs:
            for start in range(len(run)):
                for tokens in _phrases(run[start : start + LONGEST]):
                    found.setdefault(tuple(token.surface for token in tokens), []).append(tokens)
        return found


def _phrases(tokens: Sequence[_Token]) -> Iterator[Sequence[_Token]]:
    """The phrases that begin with the first of some tokens."""
    for length in range(1, len(tokens) + 1):
        last = tokens[length - 1]
        if last.odd:
            return
        if not (tokens[0].stops or last.stops):
            yield tokens[:length]


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    """First character of each sentence and the one after its last."""
    start = 0
    for match in _SENTENCE.finditer(text):
        yield start, match.start()
        start = match.end()
    yield start, len(text)


def _counted(runs: Sequence[Sequence[_Token]]) -> dict[str, _Term]:
    """Every word of a text by its term, with its neighbours."""
    terms: dict[str, _Term] = {}
    for run in runs:
        before: _Token | None = None
        for token in run:
            terms.setdefault(token.term, _Term(not (token.stops or token.number))).add(token)
            if before is not None and not (before.odd or token.odd):
                terms[before.term].right[token.term] += 1
                terms[token.term].left[before.term] += 1
            before = token
    return terms


def _joint(
    found: Sequence[Sequence[_Token]], scores: Mapping[str, float], terms: Mapping[str, _Term]
) -> float:
    """YAKE's S(kw) of a phrase that stands in several places.

    A stop word inside enters through how often its neighbours go with it, not through a score of its own.
    """
    tokens = found[0]
    product = 1.0
    total = 0.0
    for place, token in enumerate(tokens):
        if not token.stops:
            product *= scores[token.term]
            total += scores[token.term]
            continue
        before = terms[tokens[place - 1].term]
        after = terms[tokens[place + 1].term]
        together = before.right[token.term] / before.count
        together *= after.left[token.term] / after.count
        product *= 2 - together
        total -= 1 - together
    return product / (len(found) * (1 + total))


def keyword_importance(
    text: str, words: np.ndarray, keywords: Keywords, stopwords: Collection[str] | None = None
) -> np.ndarray:
    """What each raw word is worth to a text: (K,) float64, 1 / (1 + score) of its best keyword, 0 without one.

    Every word that a keyword's characters overlap has its score, but stop words and marks have none (CLIP-TD Section
    3.1.2 adds YAKE's score itself, of which lower is better; a decreasing transform is ours).

    Args:
        text: the text.
        words: the raw words' character spans, (K, 2), see `data/words.py`.
        keywords: what finds the keywords of a text.
        stopwords: in lower case; without, NLTK's.
    """
    stops = stop_words() if stopwords is None else stopwords
    worth = np.zeros(len(words))
    counts = np.array(
        [text[start:stop].lower() not in stops and text[start].isalnum() for start, stop in words],
        bool,
    )
    for keyword in keywords(text):
        # YAKE's own can be below 0, where stop words follow each other.
        value = 1 / (1 + max(0.0, float(keyword.score)))
        for start, stop in keyword.spans:
            covered = counts & (words[:, 0] < stop) & (words[:, 1] > start)
            worth[covered] = np.maximum(worth[covered], value)
    return worth
