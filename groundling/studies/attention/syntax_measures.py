"""Does a word look where the thing is that it depends on, or that depends on it? (VisualBERT, Section 3, Table 2)

An arc joins w1, the word that a phrase with boxes hangs by, and any other word w2. A head is right if the region that
gets most of w2's attention is the phrase's. Relations are told apart by which end the phrase is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from groundling.core.batch import Example, Gold
from groundling.data.regions.paired import Mark
from groundling.data.text.conllu import ROOT, Parse, Word, aligned, characters
from groundling.models.attention import AttentionMap, Place
from groundling.studies.attention.dependencies import Scheme, relabelled
from groundling.studies.attention.grounding import MEASURES, Facts, Grounding, Hits, Phrase, State
from groundling.studies.attention.leaderboard import halves
from groundling.studies.attention.passes import Sums
from groundling.tasks.flickr_entities import PROTOCOLS, Caption
from groundling.tasks.flickr_entities import Phrase as Entity

End = Literal["head", "dependent"]
"""Which end of an arc the phrase is."""
PROTOCOL = "any-box"
"""A region is right that matches any of a phrase's boxes."""
TABLE_2: dict[str, End] = {
    "det": "head",
    "pobj": "dependent",
    "amod": "head",
    "nsubj": "dependent",
    "prep": "head",
    "dobj": "dependent",
    "punct": "head",
    "partmod": "head",
    "nn": "head",
    "num": "head",
}
"""The ten relations of the paper's table in its order, and the end that the phrase is in them."""


@dataclass(frozen=True)
class Parsed:
    """A caption with its parse."""

    caption: Caption
    words: tuple[Word, ...]
    spans: np.ndarray
    """(W, 2): first character of each word in the caption, and the one after its last."""


@dataclass(frozen=True)
class Arc:
    """An arc between a phrase's word and another one."""

    relation: str
    entity: End
    """Which end the phrase is."""
    phrase: Entity
    other: int
    """Number of the other word in the parse."""


class Matched(NamedTuple):
    """Captions with their parses, and what found none."""

    parsed: list[Parsed]
    """In the order of the captions."""
    unparsed: list[str]
    """Ids of captions without a parse."""
    unaligned: list[str]
    """Where sentences begin that name a caption, or an image, none of whose words they have."""
    elsewhere: int
    """Sentences that name another caption or image, or are of no caption here."""


def matched(captions: Sequence[Caption], parses: Sequence[Parse], scheme: Scheme) -> Matched:
    """Each caption's parse, its labels those of `scheme`.

    A parse whose id is IMAGE#NUMBER is that caption's; one that names an image, that of its caption with these words;
    any other, that of every caption with these words and no parse of its own. The first of several counts.
    """
    by_id = {caption.id: caption for caption in captions}
    by_text: dict[str, list[Caption]] = defaultdict(list)
    by_image: dict[str, list[Caption]] = defaultdict(list)
    for caption in captions:
        by_text[characters(caption.text)].append(caption)
        by_image[caption.image].append(caption)
    found: dict[str, Parsed] = {}
    unaligned = []
    elsewhere = 0
    # Those that name their caption go before those that only have its words.
    for parse in sorted(parses, key=lambda parse: parse.id not in by_id):
        if parse.id in by_id:
            candidates = [by_id[parse.id]]
        elif parse.image:
            candidates = by_image.get(parse.image, [])
        else:
            candidates = by_text.get(parse.characters, [])
        elsewhere += not candidates
        fits = False
        for caption in candidates:
            spans = aligned(parse, caption.text)
            if spans is None:
                continue
            fits = True
            if caption.id not in found:
                found[caption.id] = Parsed(caption, relabelled(parse.words, scheme), spans)
        if candidates and not fits:
            unaligned.append(f"{parse.where}: {' '.join(parse.tokens)[:60]!r}")
    parsed = [found[caption.id] for caption in captions if caption.id in found]
    unparsed = [caption.id for caption in captions if caption.id not in found]
    return Matched(parsed, unparsed, unaligned, elsewhere)


def arcs_of(one: Parsed, other_phrases: bool = False) -> tuple[list[Arc], Counter[str]]:
    """The arcs at the words that a caption's phrases with boxes hang by, and what was passed by.

    Those inside a phrase count too. `other_phrases`: so do those whose other end is in another phrase with boxes, which
    has a thing of its own to look at.
    """
    told: Counter[str] = Counter()
    members = [_members(phrase, one.spans) for phrase in one.caption.phrases]
    arcs = []
    for number, phrase in enumerate(one.caption.phrases):
        own = members[number]
        tops = [place for place in own if one.words[place].head not in own]
        if len(tops) != 1:
            told["phrases_of_several_heads"] += 1
            continue
        others = set().union(*members[:number], *members[number + 1 :]) - own
        for relation, entity, place in _at(one.words, tops[0]):
            if place in others and not other_phrases:
                told["arcs_to_other_phrases"] += 1
                continue
            arcs.append(Arc(relation, entity, phrase, place))
    return arcs, told


def _members(phrase: Entity, spans: np.ndarray) -> set[int]:
    """Numbers of the words that stand in a phrase, if only with some of their characters."""
    touched = (spans[:, 0] < phrase.stop) & (spans[:, 1] > phrase.start)
    return set(np.flatnonzero(touched).tolist())


def _at(words: Sequence[Word], top: int) -> list[tuple[str, End, int]]:
    """The arcs at a word: relation, which end it is itself, and the number of the other one."""
    arcs: list[tuple[str, End, int]] = []
    if words[top].head != ROOT:
        arcs.append((words[top].relation, "dependent", words[top].head))
    for place, word in enumerate(words):
        if word.head == top:
            arcs.append((word.relation, "head", place))
    return arcs


class Questions(NamedTuple):
    """What heads are asked of a split's captions."""

    examples: list[Example]
    """Captions that have an arc."""
    phrases: list[list[Phrase]]
    """Of each, its arcs: from the other word, for the boxes of the phrase."""
    relations: list[list[int]]
    """The same arcs' relations, as numbers in `names`."""
    names: list[tuple[str, End]]
    """Every relation with the end that the phrase is, the most frequent first."""
    told: Counter[str]
    """What was passed by."""

    def halves(self, seed: int) -> dict[str, int]:
        """Which half of the images each one is in."""
        return halves([one.images[0] for one in self.examples], seed)


def questions(parsed: Sequence[Parsed], other_phrases: bool = False) -> Questions:
    """The arcs of all captions, see `arcs_of`."""
    told: Counter[str] = Counter()
    of_captions: list[tuple[Parsed, list[Arc]]] = []
    for one in parsed:
        arcs, passed_by = arcs_of(one, other_phrases)
        told += passed_by
        if arcs:
            of_captions.append((one, arcs))
    counts = Counter((arc.relation, arc.entity) for _, arcs in of_captions for arc in arcs)
    names = sorted(counts, key=lambda name: (-counts[name], name))
    number = {name: place for place, name in enumerate(names)}
    examples, phrases, relations = [], [], []
    for one, arcs in of_captions:
        caption = one.caption
        examples.append(Example(caption.id, caption.text, images=(caption.image,)))
        phrases.append([_asked(one, arc) for arc in arcs])
        relations.append([number[arc.relation, arc.entity] for arc in arcs])
    return Questions(examples, phrases, relations, names, told)


def _asked(one: Parsed, arc: Arc) -> Phrase:
    start, stop = one.spans[arc.other].tolist()
    caption = one.caption
    gold = Gold(PROTOCOLS[PROTOCOL](arc.phrase.boxes), caption.size)
    example = Example(caption.id, caption.text, images=(caption.image,), gold=gold)
    return Phrase(example, start, stop)


# -- asking ------------------------------------------------------------------------------------------------------------


class Arcs(Grounding):
    """Asks every head at the mean of a word's pieces, and sums by relation what regions get."""

    def __init__(
        self,
        phrases: Sequence[Sequence[Phrase]],
        mark: Mark,
        half: Sequence[int],
        relations: Sequence[Sequence[int]],
    ) -> None:
        """`phrases` of each sample and the number of each one's relation, see `Questions`; `half` of each sample."""
        super().__init__(phrases, mark, half, "mean")
        self.relations = relations
        self.count = 1 + max(number for own in relations for number in own)
        self.shares: list[Sums] = []

    def _rows(self, one: AttentionMap, asked: Any) -> np.ndarray:
        """As `Grounding`'s; what regions get of each is summed by its relation and half."""
        rows = super()._rows(one, asked)
        number = self.layers.index((one.name, one.layer))
        if number == len(self.shares):
            self.shares.append(Sums(self.count, 2, self.heads))
        is_region = one.columns.holds.cpu().numpy()[asked.row] == Place.REGION
        share = np.where(is_region[:, None], rows, 0).sum(-1)
        share[asked.state != State.ASKED] = 0
        places = dict.fromkeys(asked.place.tolist())
        relation = np.concatenate([self.relations[place] for place in places])
        half = np.array(self.half)[asked.place]
        sums = np.zeros((self.count, 2, self.heads))
        np.add.at(sums, (relation, half), share)
        self.shares[number].add(slice(None), sums)
        return rows

    def kept(self) -> dict[str, Any]:
        """As `Grounding`'s, and the sums by relation."""
        return {**super().kept(), "shares": [one.kept() for one in self.shares]}

    def merge(self, parts: Sequence[dict[str, Any]]) -> None:
        """As `Grounding`'s, and the sums by relation."""
        super().merge(parts)
        self.shares = [Sums(self.count, 2, self.heads) for _ in self.layers]
        for number, sums in enumerate(self.shares):
            sums.merge([part["shares"][number] for part in parts if part["shares"]])

    def by_relation(self) -> list[Hits]:
        """What was found of each relation's arcs; of what `Hits` measures only what regions get, 0 for the rest."""
        every = self.result()
        relation = np.concatenate(self.relations)
        half = np.repeat(self.half, [len(own) for own in self.relations])
        is_asked = every.facts.state == State.ASKED
        shares = np.stack([one.values() for one in self.shares], 2)  # (relations, 2, layers, H)
        found = []
        for number in range(self.count):
            own = relation == number
            counts = [(own & is_asked & (half == side)).sum() for side in (0, 1)]
            means = np.zeros((2, len(every.heads), len(MEASURES)))
            with np.errstate(invalid="ignore", divide="ignore"):
                means[..., 0] = shares[number].reshape(2, -1) / np.array(counts)[:, None]
            facts = Facts(*(values[own] for values in every.facts))
            found.append(Hits(facts, every.hits[own], means, every.heads, every.measure))
        return found
