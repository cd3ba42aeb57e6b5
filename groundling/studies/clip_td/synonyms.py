"""Explicit mitigation (CLIP-TD's EM): words that choices share with question or image become synonyms or hypernyms.

CLIP-TD Sections 4.1.2 and 8.4 tell the idea and no procedure, and nobody published code; this is one reading of it. All
four choices are edited alike, since a change in the right one alone would be a new cue. Answers are edited first;
rationales are asked after the right answer as it then reads. A replacement is no word of the context, so whoever edits
an edited file finds nothing new that is shared, and whatever could not be replaced before cannot be now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from groundling.core.errors import InputError
from groundling.studies.clip_td.lines import PARTS, Line, Part, Shifted, Text
from groundling.studies.clip_td.overlap import WORD, content, is_content, labels
from groundling.studies.clip_td.wordnet import (
    VERB,
    Reading,
    Synset,
    WordNet,
    article,
    form_of,
    inflected,
    like,
)
from groundling.tasks.vcr import Token

Ngram = tuple[str, ...]
"""Lemmas of content words that stand side by side."""
ARTICLES = {"a", "an"}


@dataclass(frozen=True)
class Context:
    """What the choices of an item share words with."""

    ngrams: frozenset[Ngram]
    """Those of the question (of rationales, of the right answer too), and the classes of the image's objects."""
    lemmas: frozenset[str]
    """The same, word by word."""


@dataclass(frozen=True)
class Span:
    """An n-gram in a choice."""

    start: int
    """Its first token."""
    stop: int
    """The token behind it."""
    ngram: Ngram


@dataclass(frozen=True)
class Replacement:
    """What stands for a span."""

    words: tuple[str, ...]
    """In the span's form and case."""
    note: dict[str, Any]
    """For the log: from, to, the meaning, and how they are related."""


class Editor:
    """Replaces shared n-grams of a split's choices, those that enough items share."""

    def __init__(self, wordnet: WordNet, least: int = 10, longest: int = 3) -> None:
        """`least`: items that must share an n-gram; `longest`: words of the longest one. InputError below 1."""
        if least < 1 or longest < 1:
            raise InputError(f"--least {least}, --longest {longest}: expected at least 1 of each")
        self.wordnet = wordnet
        self.least = least
        self.longest = longest

    def shifted(self, lines: Sequence[Line]) -> Shifted:
        """Every line, its choices edited."""
        out = Shifted()
        edited = list(lines)
        notes: dict[tuple[str, Part, int], Any] = {}
        for part in PARTS:
            frequent = self._frequent(edited, part)
            for place, line in enumerate(edited):
                context = self.context(line, part)
                choices = []
                for number, choice in enumerate(line.choices(part)):
                    new, told = self.edit(choice, context, frequent, out.left)
                    notes[line.item.id, part, number] = told
                    choices.append(new)
                edited[place] = line.with_choices(part, choices)
        for before, after in zip(lines, edited, strict=True):
            out.add(before, after, notes)
        return out

    def context(self, line: Line, part: Part) -> Context:
        """What a line's choices are compared with."""
        asked = line.asked(part)
        classes = labels(line, self.wordnet.lemma)
        ngrams = {span.ngram for span in self._spans(asked)} | {(one,) for one in classes}
        lemmas = content(asked, self.wordnet.lemma) | classes
        return Context(frozenset(ngrams), frozenset(lemmas))

    def _frequent(self, lines: Sequence[Line], part: Part) -> set[Ngram]:
        """The n-grams that choices share with their context in enough items."""
        items = Counter[Ngram]()
        for line in lines:
            context = self.context(line, part)
            shared: set[Ngram] = set()
            for choice in line.choices(part):
                shared |= {span.ngram for span in self._spans(choice)} & context.ngrams
            items.update(shared)
        return {ngram for ngram, count in items.items() if count >= self.least}

    def _spans(self, text: Text) -> Iterator[Span]:
        """Every n-gram of neighbouring content words, the longest ones first, from left to right."""
        lemmas = [
            self.wordnet.lemma(token) if isinstance(token, str) and is_content(token) else ""
            for token in text
        ]
        for length in range(self.longest, 0, -1):
            for start in range(len(text) - length + 1):
                ngram = tuple(lemmas[start : start + length])
                if all(ngram):
                    yield Span(start, start + length, ngram)

    def edit(
        self, choice: Text, context: Context, frequent: set[Ngram], left: Counter[str]
    ) -> tuple[list[Token], list[dict[str, Any]]]:
        """The choice with what it shares replaced, and a note of each replacement; counts in `left` what stays."""
        found: dict[int, tuple[Span, Replacement]] = {}
        taken: set[int] = set()
        for span in self._spans(choice):
            inside = set(range(span.start, span.stop))
            if span.ngram not in context.ngrams or inside & taken:
                continue
            reason = "" if span.ngram in frequent else f"shared in fewer than {self.least} items"
            replacement = None
            if not reason:
                replacement, reason = self._replacement(choice, span, context)
            if replacement is not None:
                found[span.start] = (span, replacement)
                taken |= inside
            elif len(span.ngram) == 1:
                left[reason] += 1
        return _put(choice, found), [one.note for _, one in found.values()]

    def _replacement(
        self, choice: Text, span: Span, context: Context
    ) -> tuple[Replacement | None, str]:
        """What may stand for a span, or why nothing may."""
        tokens = [str(token) for token in choice[span.start : span.stop]]
        reading = self.wordnet.read(tokens[0] if len(tokens) == 1 else "_".join(span.ngram))
        changing = 0 if reading.pos == VERB else -1
        form = form_of(tokens[changing].lower(), Reading(span.ngram[changing], reading.pos))
        synset = self.wordnet.first(reading.lemma, reading.pos) if reading.pos else None
        if synset is None:
            return None, "not in WordNet"
        if form is None:
            return None, "comparatives stay"
        above = [self.wordnet.synset(offset, reading.pos) for offset in synset.hypernyms]
        reason = "no other word in WordNet"
        for relation, synsets in (("synonym", [synset]), ("hypernym", above)):
            for lemma, name in _by_frequency(synsets, reading.lemma):
                reason = "no other word outside the context, or in that form"
                words = inflected(lemma, reading.pos, form, self.wordnet)
                if words is None or not self._is_new(words, context):
                    continue
                cased = (like(words[0], tokens[0]), *words[1:])
                note = {"from": tokens, "to": list(cased), "meaning": name, "relation": relation}
                return Replacement(cased, note), ""
        return None, reason

    def _is_new(self, words: Sequence[str], context: Context) -> bool:
        """Whether words say something, and nothing that the context says."""
        lemmas = content(words, self.wordnet.lemma)
        return bool(lemmas) and not lemmas & context.lemmas


def _by_frequency(synsets: Sequence[Synset], but: str) -> list[tuple[str, str]]:
    """Other plain lemmas of some meanings, and the meaning's name, most frequent first, then in the files' order.

    Names (with a capital), abbreviations and numbers are left out.
    """
    found = []
    for synset in synsets:
        for lemma, count in zip(synset.lemmas, synset.counts, strict=True):
            plain = all(WORD.fullmatch(word) for word in lemma.split("_"))
            if plain and lemma.islower() and lemma != but:
                found.append((count, lemma, synset.name))
    found.sort(key=lambda one: -one[0])
    return [(lemma, name) for _, lemma, name in found]


def _put(choice: Text, found: dict[int, tuple[Span, Replacement]]) -> list[Token]:
    """The choice with its spans replaced, and a or an before them set right."""
    out: list[Token] = []
    place = 0
    while place < len(choice):
        if place not in found:
            out.append(choice[place])
            place += 1
            continue
        span, replacement = found[place]
        before = out[-1] if out else ""
        if isinstance(before, str) and before.lower() in ARTICLES:
            out[-1] = like(article(replacement.words[0].lower()), before)
        out += replacement.words
        place = span.stop
    return out
