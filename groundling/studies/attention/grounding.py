"""Does a head look where a phrase's own thing is? Every head as a ready-made classifier (VisualBERT, Section 3).

A head answers with the region that gets most of what it sends from the phrase; it is right if that region is one of
the phrase's own. Text is left out, whole images are no answer, and of equals the first region counts.

Sizes: Q phrases, H heads of a map, R regions, S columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import entr

from groundling.core.batch import Example, RegionRow, Row, Sample, needed
from groundling.core.errors import InputError
from groundling.data.regions.paired import Mark
from groundling.data.text.words import spans
from groundling.models.attention import AttentionMap, Place, Places
from groundling.studies.attention.passes import Seen, Sums

Reading = Literal["last", "mean"]
"""Where in a phrase heads are asked: at its last piece, or the mean over all of its pieces."""


Measure = Literal["accuracy", "pointing"]
"""By which rule a head is right: its region matches a gold box by IoU; or the centre of its patch lies in one."""


POINTING = (
    "regions are patches of the photo, and a head is right whose patch has its centre in a gold box (pointing): not to "
    "be compared with accuracies by IoU"
)
"""What a reader of such numbers must know."""


class State(IntEnum):
    """What became of a phrase."""

    ASKED = 0
    CUT = 1
    """Cut off, or perhaps in part, with the end of a text that was too long."""
    NO_PIECES = 2
    """The tokenizer makes nothing of it."""
    SPLITS_WORD = 3
    """It begins or ends within a word."""


MEASURES = ("region_share", "special_share", "entropy")
"""What is summed over phrases beside being right: the shares of attention that regions and special pieces (such as
[CLS] and [SEP]) get, and the entropy in nats of a phrase's attention over all that is there."""


FIRST = np.zeros(1, np.int64)
"""The piece that stands where a phrase cannot be asked for; nothing comes of it."""


@dataclass(frozen=True)
class Phrase:
    """Words of a text that name something in its image."""

    example: Example
    """With the boxes that are right, for a task's `mark`."""
    start: int
    """Its first character in the text."""
    stop: int
    """The character after its last one."""


def words_of(text: str, start: int, stop: int) -> tuple[range, bool]:
    """Numbers of the raw words that the characters from `start` to before `stop` touch, and whether none is split.

    Raises InputError if that is no part of the text, or holds no word.
    """
    words = spans(text)
    touched = np.flatnonzero((words[:, 0] < stop) & (words[:, 1] > start))
    if not 0 <= start < stop <= len(text) or not len(touched):
        raise InputError(
            f"a phrase from character {start} to {stop} is no part of {text[:60]!r}, which has {len(text)} characters"
        )
    first, last = int(touched[0]), int(touched[-1])
    whole = bool(words[first, 0] >= start and words[last, 1] <= stop)
    return range(first, last + 1), whole


def pieces_of(row: Row, words: range, dropped: int = 0) -> tuple[np.ndarray, State]:
    """The pieces of a text that belong to some of its raw words, and whether all of these are there.

    `dropped`: pieces that were cut off the text's end.
    """
    pieces = np.flatnonzero((row.word >= words.start) & (row.word < words.stop))
    if dropped and words.stop > row.word.max(initial=-1):
        return pieces, State.CUT
    if not len(pieces) or row.word[pieces[-1]] != words[-1]:
        return pieces, State.NO_PIECES
    return pieces, State.ASKED


def pointing(example: Example, row: RegionRow) -> np.ndarray:
    """Which patches (R,) are right for an example, 1 or 0: those whose centre lies in one of its gold boxes.

    Patches are too small to match a box by IoU.
    """
    gold = needed(example.gold, "gold", "a phrase with boxes")
    boxes = row.boxes * np.array(gold.size * 2, np.float32)
    centre = (boxes[:, None, :2] + boxes[:, None, 2:]) / 2
    inside = (centre >= gold.boxes[:, :2]) & (centre <= gold.boxes[:, 2:])
    return np.asarray(inside.all(2).any(1), np.int64)


class _One(NamedTuple):
    """A phrase as `_Asked` has all of a batch."""

    place: int
    row: int
    state: State
    right: np.ndarray
    answers: bool
    pieces: np.ndarray


class _Asked(NamedTuple):
    """The Q phrases of a batch; P of their pieces are looked at."""

    place: np.ndarray
    """(Q,) number of each one's sample among all."""
    row: np.ndarray
    """(Q,) its row of the batch."""
    state: np.ndarray
    """(Q,)."""
    right: np.ndarray
    """(Q, R) bool: regions that are the phrase's own."""
    answers: np.ndarray
    """(Q,) bool: there is a region to answer with."""
    piece: np.ndarray
    """(P,) pieces of the texts, phrase after phrase; a phrase that is not asked has the first one, which counts not."""
    first: np.ndarray
    """(Q,) where each phrase's pieces begin."""


class Facts(NamedTuple):
    """What does not depend on heads, of Q phrases."""

    state: np.ndarray
    """(Q,) `State`."""
    possible: np.ndarray
    """(Q,) bool: a region is right."""
    confident: np.ndarray
    """(Q,) bool: the region of the highest confidence is."""
    chance: np.ndarray
    """(Q,) share of the regions that are."""
    ranked: np.ndarray
    """(Q,) bool: regions of its image differ in their confidence."""
    regions: np.ndarray
    """(Q,) how many there are to answer with."""


class Hits(NamedTuple):
    """What a pass found, of Q phrases in their order and M heads of all layers."""

    facts: Facts
    hits: np.ndarray
    """(Q, M) bool: the head is right."""
    means: np.ndarray
    """(2, M, MEASURES): of either half of the texts, over the phrases that were asked; NaN for a half without any."""
    heads: list[tuple[str, int, int]]
    """Name of the map, layer and head of each of the M; layers and heads count from 0."""
    measure: Measure = "accuracy"
    """By which rule they are right."""


class Grounding:
    """Asks every head for every phrase; of each phrase and head one bit is kept, and of each layer a few sums."""

    def __init__(
        self,
        phrases: Sequence[Sequence[Phrase]],
        mark: Mark,
        half: Sequence[int],
        reading: Reading = "last",
    ) -> None:
        """`phrases` and `half` (0 or 1) of each sample of the pass; `mark`: which regions are right for a phrase."""
        self.phrases = phrases
        self.mark = mark
        self.half = half
        self.reading = reading
        self.layers: list[tuple[str, int]] = []
        self.heads = 0
        # Room for all at once: many small arrays, one by one, would keep memory from being given back between batches.
        self.first = np.cumsum([0, *(len(own) for own in phrases)])
        self.bits: list[np.ndarray] = []
        self.facts = np.zeros((self.first[-1], len(Facts._fields)))
        self.sums: list[Sums] = []
        self.asked = Sums(2)
        self._now: tuple[Seen, _Asked] | None = None

    def see(self, seen: Seen, one: AttentionMap) -> None:
        """Score a layer's heads on a batch; a map that is not of text over regions is passed by.

        Raises InputError if a head gives regions no attention at all, or phrases do not fit their texts.
        """
        holds = _numpy(one.columns.holds)
        is_seen = (holds == Place.REGION) | (holds == Place.WHOLE_IMAGE)
        if not is_seen.any() or not (_numpy(one.rows.holds) == Place.PIECE).any():
            return
        if self._now is None or self._now[0] is not seen:
            self._now = (seen, self._ask(seen))
        asked = self._now[1]
        number = self._number(one)
        rows = self._rows(one, asked)
        is_region = (holds == Place.REGION)[asked.row][:, None]
        share = np.where(is_region, rows, 0).sum(-1)
        self._check(share, asked, seen, one)
        # The first of the largest; -1 keeps text out.
        picked = np.where(is_region, rows, -1).argmax(-1)
        region = np.take_along_axis(_numpy(one.columns.number)[asked.row], picked, 1)
        # An image without an answer picks a piece, whose number may be none of a region's.
        region = np.minimum(region, asked.right.shape[1] - 1)
        is_asked = asked.state == State.ASKED
        right = np.take_along_axis(asked.right, region, 1) & (is_asked & asked.answers)[:, None]
        is_special = (holds == Place.SPECIAL)[asked.row][:, None]
        special = np.where(is_special, rows, 0).sum(-1)
        measured = np.stack([share, special, entr(rows.astype(float)).sum(-1)], -1)
        bits = np.packbits(right, axis=-1)
        for place in dict.fromkeys(asked.place.tolist()):
            own = asked.place == place
            self.bits[number][self.first[place] : self.first[place + 1]] = bits[own]
            self.sums[number].add(self.half[place], measured[own & is_asked].sum(0))

    def _number(self, one: AttentionMap) -> int:
        """Number of a map among those of text over regions; a new one makes room for its sums."""
        layer = (one.name, one.layer)
        heads = one.weights.shape[1]
        if layer not in self.layers:
            if self.heads not in (0, heads):
                raise InputError(
                    f"layers of {self.heads} and of {heads} heads cannot stand in one table"
                )
            self.heads = heads
            self.layers.append(layer)
            self.bits.append(np.zeros((self.first[-1], -(-heads // 8)), np.uint8))
            self.sums.append(Sums(2, heads, len(MEASURES)))
        return self.layers.index(layer)

    def _rows(self, one: AttentionMap, asked: _Asked) -> np.ndarray:
        """What each phrase sends (Q, H, S), the mean over its pieces."""
        owner = np.repeat(asked.row, np.diff([*asked.first, len(asked.piece)]))
        place = _row_of(one.rows, owner, asked.piece)
        rows = one.weights[owner, :, place].float().cpu().numpy()
        counts = np.diff([*asked.first, len(rows)])
        mean: np.ndarray = np.add.reduceat(rows, asked.first, axis=0) / counts[:, None, None]
        return mean

    def _check(self, share: np.ndarray, asked: _Asked, seen: Seen, one: AttentionMap) -> None:
        wrong = ~(share > 0).all(-1) & asked.answers & (asked.state == State.ASKED)
        if wrong.any():
            query = int(wrong.argmax())
            sample = seen.samples[int(asked.row[query])]
            raise InputError(
                f"{sample.id}: layer {one.layer} has a head that gives its regions no attention at all, or no number; "
                "the model is damaged, or hides its regions as padding"
            )

    def _ask(self, seen: Seen) -> _Asked:
        """The phrases of a batch, of which what does not depend on heads is kept."""
        asked = []
        for row, (sample, place) in enumerate(zip(seen.samples, seen.places, strict=True)):
            regions = needed(sample.regions, "regions", "heads")
            own = [self._one(phrase, sample, regions, place, row) for phrase in self.phrases[place]]
            facts = [[one.state, *_facts(one.right, regions)] for one in own]
            self.facts[self.first[place] : self.first[place + 1]] = facts
            count = sum(one.state == State.ASKED for one in own)
            self.asked.add(self.half[place], np.array(count))
            asked += own
        most = max(len(one.right) for one in asked)
        pieces = [len(one.pieces) for one in asked]
        return _Asked(
            place=np.array([one.place for one in asked]),
            row=np.array([one.row for one in asked]),
            state=np.array([one.state for one in asked]),
            right=np.stack([np.pad(one.right, (0, most - len(one.right))) for one in asked]),
            answers=np.array([one.answers for one in asked]),
            piece=np.concatenate([one.pieces for one in asked]),
            first=np.cumsum([0, *pieces[:-1]]),
        )

    def _one(
        self, phrase: Phrase, sample: Sample, regions: RegionRow, place: int, row: int
    ) -> _One:
        pieces, state = self._pieces(phrase, sample)
        right = self.mark(phrase.example, regions).astype(bool) & ~regions.whole
        return _One(place, row, state, right, bool((~regions.whole).any()), pieces)

    def _pieces(self, phrase: Phrase, sample: Sample) -> tuple[np.ndarray, State]:
        """The pieces at which heads are asked; the text's first one where they cannot be."""
        try:
            words, whole = words_of(phrase.example.text, phrase.start, phrase.stop)
        except InputError as error:
            raise InputError(f"{phrase.example.id}: {error}") from None
        if not whole:
            return FIRST, State.SPLITS_WORD
        text = needed(sample.text, "text", "heads")
        pieces, state = pieces_of(text, words, sample.dropped)
        if state != State.ASKED:
            return FIRST, state
        return pieces[-1:] if self.reading == "last" else pieces, state

    def kept(self) -> dict[str, Any]:
        """Bits, facts, sums and the names of layers."""
        self._now = None
        return {
            "layers": self.layers,
            "heads": self.heads,
            "facts": self.facts,
            "bits": self.bits,
            "sums": [one.kept() for one in self.sums],
            "asked": self.asked.kept(),
        }

    def merge(self, parts: Sequence[dict[str, Any]]) -> None:
        """What all processes found; one without a batch knows no layers."""
        told = [part for part in parts if part["layers"]]
        self.asked.merge([part["asked"] for part in told])
        self.layers = told[0]["layers"] if told else []
        self.heads = told[0]["heads"] if told else 0
        # Where one process has something, the others have zeros.
        self.facts = np.sum([part["facts"] for part in parts], axis=0)
        self.bits = [
            np.bitwise_or.reduce([part["bits"][number] for part in told])
            for number in range(len(self.layers))
        ]
        self.sums = [Sums(2, self.heads, len(MEASURES)) for _ in self.layers]
        for number, sums in enumerate(self.sums):
            sums.merge([part["sums"][number] for part in told])

    def result(self) -> Hits:
        """What was found; raises InputError if the model told no map of text over regions."""
        if not self.layers:
            raise InputError("this model's attention has no text that looks at regions")
        # (layers, Q, H)
        hits = np.unpackbits(np.stack(self.bits), axis=-1, count=self.heads).astype(bool)
        with np.errstate(invalid="ignore"):
            means = np.stack([one.values() for one in self.sums], 1) / self.asked.values().reshape(
                2, 1, 1, 1
            )
        state, possible, confident, chance, ranked, regions = self.facts.T
        return Hits(
            Facts(
                state.astype(int),
                possible > 0,
                confident > 0,
                chance,
                ranked > 0,
                regions.astype(int),
            ),
            hits.transpose(1, 0, 2).reshape(len(self.facts), -1),
            means.reshape(2, -1, len(MEASURES)),
            [(name, layer, head) for name, layer in self.layers for head in range(self.heads)],
            "pointing" if self.mark is pointing else "accuracy",
        )


def _facts(right: np.ndarray, regions: RegionRow) -> tuple[float, ...]:
    """Of a phrase: see `Facts`; `right` (R,)."""
    candidates = np.flatnonzero(~regions.whole)
    if not len(candidates):
        return 0, 0, 0, 0, 0
    confidence = regions.confidence[candidates]
    own = right[candidates]
    best = int(confidence.argmax())
    ranked = bool((confidence != confidence[0]).any())
    return float(own.any()), float(own[best]), float(own.mean()), float(ranked), len(candidates)


def _row_of(rows: Places, owner: np.ndarray, piece: np.ndarray) -> np.ndarray:
    """Which row of a map (P,) a text's piece (P,) is, in the batch's row `owner` (P,)."""
    holds = _numpy(rows.holds)[owner]
    is_text = (holds == Place.PIECE) | (holds == Place.SPECIAL)
    found: np.ndarray = (is_text & (_numpy(rows.number)[owner] == piece[:, None])).argmax(-1)
    return found


def _numpy(tensor: Any) -> np.ndarray:
    array: np.ndarray = tensor.cpu().numpy()
    return array
