"""Attention heads as classifiers of phrases without training (VisualBERT, Section 3).

A head predicts the region that gets most of the attention from the phrase; it is right if that
region matches a gold box of the phrase. Text tokens and whole-image regions do not compete. Ties go
to the first region.

Sizes: Q phrases, H heads of a map, R regions, S columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import entr

from groundling.core.batch import Example, RegionRow, Sample, TextRow, require
from groundling.core.errors import InputError, prefix_errors
from groundling.core.rng import generator
from groundling.data.regions.samples import RegionLabeler
from groundling.data.text.words import word_spans
from groundling.models.attention import AttentionMap, PositionKind, SequencePositions
from groundling.stats.resampling import bootstrap_sums, interval
from groundling.studies.attention.forward_passes import AttentionBatch

PhrasePooling = Literal["last", "mean"]
"""Query of a phrase: the attention from its last token, or the mean over all of its tokens."""


GroundingMetric = Literal["accuracy", "pointing"]
"""When a head is right: accuracy, a region's IoU with a gold box; pointing, a patch in one."""


POINTING = (
    "regions are patches of the photo, and a head is right if the centre of its patch is in a gold box (pointing): do "
    "not compare with accuracies by IoU"
)
"""The note on results by pointing."""


class PhraseStatus(IntEnum):
    """Whether a phrase is scored, and if not, why."""

    SCORED = 0
    TRUNCATED = 1
    """All or perhaps part of it was truncated with the end of its text."""
    NO_TOKENS = 2
    """The tokenizer gives it no token."""
    SPLITS_WORD = 3
    """It begins or ends within a word."""


MEASURES = ("region_share", "special_share", "entropy")
"""Measures of a phrase's attention that are summed over phrases: the shares on regions and on
special tokens (such as [CLS] and [SEP]), and the entropy over all positions, in nats.
"""


FIRST = np.zeros(1, np.int64)
"""Placeholder token for a phrase that cannot be scored; its attention is ignored."""


@dataclass(frozen=True)
class PhraseSpan:
    """A span of a text that names something in its image."""

    example: Example
    """With its gold boxes, for a task's `mark`."""
    start: int
    """Its first character in the text."""
    stop: int
    """The character after its last one."""


def words_in_span(text: str, start: int, stop: int) -> tuple[range, bool]:
    """Indices of the raw words in the characters `start` to `stop`, and whether they are whole.

    Raises InputError if the span is outside the text or has no word.
    """
    words = word_spans(text)
    touched = np.flatnonzero((words[:, 0] < stop) & (words[:, 1] > start))
    if not 0 <= start < stop <= len(text) or not len(touched):
        raise InputError(
            f"a phrase from character {start} to {stop} is not in {text[:60]!r}, which has {len(text)} characters"
        )
    first, last = int(touched[0]), int(touched[-1])
    whole = bool(words[first, 0] >= start and words[last, 1] <= stop)
    return range(first, last + 1), whole


def tokens_of_words(
    row: TextRow, words: range, dropped: int = 0
) -> tuple[np.ndarray, PhraseStatus]:
    """Indices of the tokens of a range of raw words, and whether the words are complete.

    `dropped`: number of tokens truncated from the text's end.
    """
    tokens = np.flatnonzero((row.word_ids >= words.start) & (row.word_ids < words.stop))
    if dropped and words.stop > row.word_ids.max(initial=-1):
        return tokens, PhraseStatus.TRUNCATED
    if not len(tokens) or row.word_ids[tokens[-1]] != words[-1]:
        return tokens, PhraseStatus.NO_TOKENS
    return tokens, PhraseStatus.SCORED


def pointing_game(example: Example, row: RegionRow) -> np.ndarray:
    """Which patches (R,) are right, 1 or 0: those with their centre in one of the gold boxes.

    Patches are too small to match a box by IoU.
    """
    gold = require(example.gold_boxes, "gold_boxes", "a phrase with boxes")
    boxes = row.boxes * np.array(gold.image_size * 2, np.float32)
    centre = (boxes[:, None, :2] + boxes[:, None, 2:]) / 2
    inside = (centre >= gold.boxes[:, :2]) & (centre <= gold.boxes[:, 2:])
    return np.asarray(inside.all(2).any(1), np.int64)


class _BatchPhrase(NamedTuple):
    """One phrase of a `_PhraseBatch`."""

    place: int
    row: int
    state: PhraseStatus
    right: np.ndarray
    has_regions: bool
    tokens: np.ndarray


class _PhraseBatch(NamedTuple):
    """The Q phrases of a batch, with P query tokens in all."""

    place: np.ndarray
    """(Q,) index of each one's sample in the pass."""
    row: np.ndarray
    """(Q,) its row of the batch."""
    state: np.ndarray
    """(Q,) `PhraseStatus`."""
    right: np.ndarray
    """(Q, R) bool: the regions that match its gold boxes."""
    has_regions: np.ndarray
    """(Q,) bool: its image has a region."""
    token: np.ndarray
    """(P,) token indices, phrase by phrase; `FIRST` for a phrase that is not scored."""
    first: np.ndarray
    """(Q,) index in `token` of each phrase's first token."""


class PhraseBaselines(NamedTuple):
    """Statistics of Q phrases without heads: upper bound, chance, confidence baseline."""

    status: np.ndarray
    """(Q,) `PhraseStatus`."""
    has_matching_region: np.ndarray
    """(Q,) bool: some region is right."""
    confident_is_right: np.ndarray
    """(Q,) bool: the region of the highest confidence is right."""
    chance: np.ndarray
    """(Q,) share of the regions that are right."""
    has_confidence: np.ndarray
    """(Q,) bool: regions of its image differ in their confidence."""
    region_count: np.ndarray
    """(Q,) number of regions, whole images not counted."""


class GroundingResult(NamedTuple):
    """Result of a pass for Q phrases, in order, and the M heads of all layers."""

    baselines: PhraseBaselines
    is_right: np.ndarray
    """(Q, M) bool: the head is right."""
    means: np.ndarray
    """(2, M, MEASURES): means over the scored phrases of each half; NaN for a half without any."""
    heads: list[tuple[str, int, int]]
    """Map name, layer and head of each of the M; layers and heads count from 0."""
    measure: GroundingMetric = "accuracy"
    """When a head is right."""


class HeadGrounding:
    """Scores every head on every phrase; keeps a bit per phrase and head, and sums per layer."""

    def __init__(
        self,
        phrases: Sequence[Sequence[PhraseSpan]],
        mark: RegionLabeler,
        half: Sequence[int],
        pooling: PhrasePooling = "last",
    ) -> None:
        """`phrases` and `half` (0 or 1) of each sample; `mark` gives a phrase's right regions."""
        self.phrases = phrases
        self.mark = mark
        self.half = half
        self.pooling = pooling
        self.layers: list[tuple[str, int]] = []
        self.heads = 0
        # Allocated at once: many small arrays would fragment memory between batches.
        self.offsets = np.cumsum([0, *(len(own) for own in phrases)])
        self.bits: list[np.ndarray] = []
        self.facts = np.zeros((self.offsets[-1], len(PhraseBaselines._fields)))
        self.sums: list[np.ndarray] = []
        self.scored_counts = np.zeros(2)
        self._now: tuple[AttentionBatch, _PhraseBatch] | None = None

    def consume(self, batch: AttentionBatch, attention_map: AttentionMap) -> None:
        """Score a layer's heads on a batch; maps other than text over regions are skipped.

        Raises InputError if a head gives regions no attention, or a phrase is not in its text.
        """
        kinds = _numpy(attention_map.columns.kinds)
        is_seen = (kinds == PositionKind.REGION) | (kinds == PositionKind.WHOLE_IMAGE)
        if not is_seen.any() or not (_numpy(attention_map.rows.kinds) == PositionKind.TOKEN).any():
            return
        if self._now is None or self._now[0] is not batch:
            self._now = (batch, self._make_phrase_batch(batch))
        phrases = self._now[1]
        number = self._number(attention_map)
        rows = self._rows(attention_map, phrases)
        is_region = (kinds == PositionKind.REGION)[phrases.row][:, None]
        share = np.where(is_region, rows, 0).sum(-1)
        is_scored = phrases.state == PhraseStatus.SCORED
        if not (share[phrases.has_regions & is_scored] > 0).all():
            raise InputError(
                f"a head of layer {attention_map.layer} gives the regions no attention, or NaN; the model is damaged, "
                "or masks its regions as padding"
            )
        # Ties go to the first; -1 excludes text.
        best_column = np.where(is_region, rows, -1).argmax(-1)
        region = np.take_along_axis(
            _numpy(attention_map.columns.indices)[phrases.row], best_column, 1
        )
        # An image without regions gives the index of a token, which may exceed those of regions.
        region = np.minimum(region, phrases.right.shape[1] - 1)
        right = (
            np.take_along_axis(phrases.right, region, 1)
            & (is_scored & phrases.has_regions)[:, None]
        )
        is_special = (kinds == PositionKind.SPECIAL)[phrases.row][:, None]
        special = np.where(is_special, rows, 0).sum(-1)
        measures = np.stack([share, special, entr(rows.astype(float)).sum(-1)], -1)
        bits = np.packbits(right, axis=-1)
        for place in dict.fromkeys(phrases.place.tolist()):
            own = phrases.place == place
            self.bits[number][self.offsets[place] : self.offsets[place + 1]] = bits[own]
            self.sums[number][self.half[place]] += measures[own & is_scored].sum(0)

    def _number(self, attention_map: AttentionMap) -> int:
        """Index of a map among those of text over regions; a new one is appended with its sums."""
        layer = (attention_map.name, attention_map.layer)
        heads = attention_map.weights.shape[1]
        if layer not in self.layers:
            self.heads = heads
            self.layers.append(layer)
            self.bits.append(np.zeros((self.offsets[-1], -(-heads // 8)), np.uint8))
            self.sums.append(np.zeros((2, heads, len(MEASURES))))
        return self.layers.index(layer)

    def _rows(self, attention_map: AttentionMap, phrases: _PhraseBatch) -> np.ndarray:
        """Attention (Q, H, S) from each phrase, the mean over its query tokens."""
        owner = np.repeat(phrases.row, np.diff([*phrases.first, len(phrases.token)]))
        place = _row_of(attention_map.rows, owner, phrases.token)
        rows = attention_map.weights[owner, :, place].float().cpu().numpy()
        counts = np.diff([*phrases.first, len(rows)])
        mean: np.ndarray = np.add.reduceat(rows, phrases.first, axis=0) / counts[:, None, None]
        return mean

    def _make_phrase_batch(self, batch: AttentionBatch) -> _PhraseBatch:
        """The phrases of a batch; their statistics that do not depend on heads are kept."""
        phrases = []
        for row, (sample, place) in enumerate(zip(batch.samples, batch.places, strict=True)):
            regions = require(sample.regions, "regions", "heads")
            sample_phrases = [
                self._batch_phrase(phrase, sample, regions, place, row)
                for phrase in self.phrases[place]
            ]
            facts = [[one.state, *_baselines_of(one.right, regions)] for one in sample_phrases]
            self.facts[self.offsets[place] : self.offsets[place + 1]] = facts
            count = sum(one.state == PhraseStatus.SCORED for one in sample_phrases)
            self.scored_counts[self.half[place]] += count
            phrases += sample_phrases
        most = max(len(one.right) for one in phrases)
        tokens = [len(one.tokens) for one in phrases]
        return _PhraseBatch(
            place=np.array([one.place for one in phrases]),
            row=np.array([one.row for one in phrases]),
            state=np.array([one.state for one in phrases]),
            right=np.stack([np.pad(one.right, (0, most - len(one.right))) for one in phrases]),
            has_regions=np.array([one.has_regions for one in phrases]),
            token=np.concatenate([one.tokens for one in phrases]),
            first=np.cumsum([0, *tokens[:-1]]),
        )

    def _batch_phrase(
        self, phrase: PhraseSpan, sample: Sample, regions: RegionRow, sample_index: int, row: int
    ) -> _BatchPhrase:
        tokens, state = self._tokens(phrase, sample)
        right = self.mark(phrase.example, regions).astype(bool) & ~regions.is_whole_image
        return _BatchPhrase(
            sample_index, row, state, right, bool((~regions.is_whole_image).any()), tokens
        )

    def _tokens(self, phrase: PhraseSpan, sample: Sample) -> tuple[np.ndarray, PhraseStatus]:
        """A phrase's query tokens; the placeholder if it cannot be scored."""
        with prefix_errors(phrase.example.id):
            words, whole = words_in_span(phrase.example.text, phrase.start, phrase.stop)
        if not whole:
            return FIRST, PhraseStatus.SPLITS_WORD
        text = require(sample.text, "text", "heads")
        tokens, state = tokens_of_words(text, words, sample.truncated_tokens)
        if state != PhraseStatus.SCORED:
            return FIRST, state
        return tokens[-1:] if self.pooling == "last" else tokens, state

    def result(self) -> GroundingResult:
        """The result; raises InputError if the model gave no attention map of text over regions."""
        if not self.layers:
            raise InputError("this model has no attention from text to regions")
        # (layers, Q, H)
        hits = np.unpackbits(np.stack(self.bits), axis=-1, count=self.heads).astype(bool)
        with np.errstate(invalid="ignore"):
            means = np.stack(self.sums, 1) / self.scored_counts.reshape(2, 1, 1, 1)
        state, possible, confident, chance, ranked, regions = self.facts.T
        return GroundingResult(
            PhraseBaselines(
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
            "pointing" if self.mark is pointing_game else "accuracy",
        )


def _baselines_of(right: np.ndarray, regions: RegionRow) -> tuple[float, ...]:
    """The `PhraseBaselines` of one phrase, without its state; `right` (R,)."""
    candidates = np.flatnonzero(~regions.is_whole_image)
    if not len(candidates):
        return 0, 0, 0, 0, 0
    confidence = regions.confidence[candidates]
    own = right[candidates]
    best = int(confidence.argmax())
    ranked = bool((confidence != confidence[0]).any())
    return float(own.any()), float(own[best]), float(own.mean()), float(ranked), len(candidates)


def _row_of(rows: SequencePositions, owner: np.ndarray, token: np.ndarray) -> np.ndarray:
    """The row (P,) of a map that belongs to token `token` (P,) of the batch's row `owner` (P,)."""
    kinds = _numpy(rows.kinds)[owner]
    is_text = (kinds == PositionKind.TOKEN) | (kinds == PositionKind.SPECIAL)
    indices: np.ndarray = (is_text & (_numpy(rows.indices)[owner] == token[:, None])).argmax(-1)
    return indices


def _numpy(tensor: Any) -> np.ndarray:
    array: np.ndarray = tensor.cpu().numpy()
    return array


# Which heads ground phrases, without selection bias: the best of 144 heads on a split overestimates
# its accuracy, so heads are selected on one half of the images and scored on the other, in both
# directions. Every number is reported with a baseline, chance, and the accuracy of the same heads
# with the region features of other images. Sizes: Q phrases, M heads of all layers, I images.

NO_ACTIVE_HEAD = "no head sends more than {:.0%} of its attention from phrases to regions"


def assign_halves(images: Sequence[str], seed: int) -> dict[str, int]:
    """0 or 1 for every image, in equal numbers; the same for the same seed and images."""
    different = sorted(set(images))
    order = generator(seed, "halves").permutation(len(different))
    return {different[place]: int(rank % 2) for rank, place in enumerate(order)}


@dataclass(frozen=True)
class HeadLeaderboard:
    """Result of a pass for Q phrases, and the accuracies and best heads computed from it."""

    result: GroundingResult
    image: np.ndarray
    """(Q,) int: index of its image, from 0."""
    half: np.ndarray
    """(Q,): the half (0 or 1) that its image is in."""
    kinds: Sequence[tuple[str, ...]]
    """(Q) types of its entity, such as people; empty if not annotated."""
    min_region_share: float
    """Heads whose share of attention from phrases to regions is not above this are not selected."""
    seed: int
    shuffled_result: GroundingResult | None = None
    """The result of the same pass with the region features of other images."""

    @cached_property
    def scored_phrases(self) -> np.ndarray:
        """(Q,) bool: the phrase is scored."""
        return np.asarray(self.result.baselines.status == PhraseStatus.SCORED)

    @cached_property
    def active(self) -> np.ndarray:
        """(2, M) bool: the active heads of each half."""
        return np.asarray(self.result.means[..., 0] > self.min_region_share)

    @cached_property
    def means(self) -> np.ndarray:
        """(M, MEASURES) over both halves."""
        weight = np.array([(self.scored_phrases & (self.half == half)).sum() for half in (0, 1)])
        sums = np.nan_to_num(self.result.means) * weight[:, None, None]
        return np.asarray(sums.sum(0) / weight.sum())

    def best_heads(self, hits: np.ndarray, rows: np.ndarray, among: np.ndarray) -> list[int | None]:
        """The best active head of each half by `hits` (Q, M), for masks of phrases and heads.

        `rows` (Q,) and `among` (M,) are bool. None for a half without a phrase or an active head.
        Ties go to the first head.
        """
        best: list[int | None] = []
        for half in (0, 1):
            own = rows & (self.half == half)
            heads = np.flatnonzero(among & self.active[half])
            if not own.any() or not len(heads):
                best.append(None)
                continue
            best.append(int(heads[hits[own][:, heads].sum(0).argmax()]))
        return best

    def held_out(self, hits: np.ndarray, chosen: Sequence[int | None]) -> np.ndarray | None:
        """(Q,): whether the head selected on the other half is right; None without such heads."""
        first, second = chosen
        if first is None or second is None:
            return None
        return np.where(self.half == 0, hits[:, second], hits[:, first])

    def intervals(
        self, columns: Mapping[str, np.ndarray], rows: np.ndarray
    ) -> dict[str, dict[str, Any]]:
        """Means of columns (Q,) over phrases `rows`, per cent, with 95 % intervals over images.

        All columns share the draws, so the interval of a column of differences is that of a paired
        comparison.
        """
        values = [np.where(rows, column, 0.0) for column in columns.values()]
        values.append(rows.astype(float))
        sums = np.stack([np.bincount(self.image, weights=one) for one in values], 1)
        drawn = bootstrap_sums(sums, generator(self.seed, "heads", "bootstrap"))
        drawn = drawn[drawn[:, -1] > 0]  # a resample may lack a rare type
        shares = 100 * drawn[:, :-1] / drawn[:, -1:]
        total = 100 * sums[:, :-1].sum(0) / sums[:, -1].sum()
        low, high = interval(shares)
        estimates = {}
        for place, name in enumerate(columns):
            ends = [_round(low[place]), _round(high[place])]
            estimates[name] = {"value": _round(total[place]), "interval": ends}
        return estimates

    # -- the report ----------------------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """All numbers: overall, by layer, type and head; raises InputError without phrases."""
        if not self.scored_phrases.any():
            raise InputError("no phrase is left on which a head can be scored")
        all_heads = np.ones(len(self.result.heads), bool)
        accuracies, chosen = self._accuracies(self.scored_phrases, all_heads)
        kinds = sorted({kind for own in self.kinds for kind in own})
        notes = []
        if not self.has_confidence:
            notes.append(
                "these regions have no detector confidence, so there is no confidence baseline; chance is the accuracy "
                "of a random region"
            )
        if self.result.measure == "pointing":
            notes.append(POINTING)
        if not self.active.any():
            notes.append(
                NO_ACTIVE_HEAD.format(self.min_region_share)
                + "; min_region_attention=0 includes all heads"
            )
        return {
            "measure": self.result.measure,
            "active_heads": int((self.means[:, 0] > self.min_region_share).sum()),
            **accuracies,
            "chosen": [None if head is None else self.name(head) for head in chosen],
            "best": self._best(self.scored_phrases, all_heads),
            "layers": [self._layer(layer) for layer in self.layers],
            "kinds": {kind: self._kind_report(kind, all_heads) for kind in kinds},
            "heads": self._heads(kinds),
            "notes": notes,
        }

    @cached_property
    def has_confidence(self) -> bool:
        """Whether regions differ in their confidence."""
        return bool(self.result.baselines.has_confidence.any())

    @cached_property
    def layers(self) -> list[tuple[str, int]]:
        """Name and number of every layer."""
        return list(dict.fromkeys((name, layer) for name, layer, _ in self.result.heads))

    def name(self, head: int) -> str:
        """LAYER-HEAD, counted from 0, after the map's name if there are several maps."""
        name, layer, number = self.result.heads[head]
        several = len({name for name, _, _ in self.result.heads}) > 1
        return f"{name} {layer}-{number}" if several else f"{layer}-{number}"

    def _accuracies(
        self, rows: np.ndarray, among: np.ndarray
    ) -> tuple[dict[str, Any], list[int | None]]:
        """Accuracies of heads `among` and baselines on phrases `rows`, and the selected heads."""
        facts = self.result.baselines
        columns: dict[str, np.ndarray] = {
            "upper_bound": facts.has_matching_region,
            "chance": facts.chance,
        }
        if self.has_confidence:
            columns["confidence"] = facts.confident_is_right
        chosen = self.best_heads(self.result.is_right, rows, among)
        best = self.held_out(self.result.is_right, chosen)
        if best is not None:
            rule = columns.get("confidence", facts.chance)
            columns["held_out"] = best
            columns["held_out_less_rule"] = best.astype(float) - rule
        if self.shuffled_result is not None:
            own = self.held_out(self.shuffled_result.is_right, chosen)
            other = self.held_out(
                self.shuffled_result.is_right,
                self.best_heads(self.shuffled_result.is_right, rows, among),
            )
            if best is not None and own is not None and other is not None:
                columns["other_images"] = own
                columns["other_images_best"] = other
                columns["held_out_less_other_images"] = best.astype(float) - own
        accuracies: dict[str, Any] = {"phrases": int(rows.sum())}
        accuracies |= dict.fromkeys(COLUMNS)
        return accuracies | self.intervals(columns, rows), chosen

    def _best(self, rows: np.ndarray, among: np.ndarray) -> dict[str, Any] | None:
        """The best active head on all phrases, selected and scored on the same phrases."""
        heads = np.flatnonzero(among & (self.means[:, 0] > self.min_region_share))
        if not len(heads) or not rows.any():
            return None
        head = int(heads[self.result.is_right[rows][:, heads].sum(0).argmax()])
        estimate = self.intervals({"best": self.result.is_right[:, head]}, rows)["best"]
        return {
            "head": self.name(head),
            **estimate,
            "region_share": _round(100 * self.means[head, 0]),
        }

    def _layer(self, layer: tuple[str, int]) -> dict[str, Any]:
        among = np.array([(name, number) == layer for name, number, _ in self.result.heads])
        accuracies, chosen = self._accuracies(self.scored_phrases, among)
        accuracy = self.result.is_right[self.scored_phrases][:, among].mean(0)
        shares = self.means[among].mean(0)
        return {
            "attention": layer[0],
            "layer": layer[1],
            "active_heads": int((self.means[among, 0] > self.min_region_share).sum()),
            "mean": _round(100 * accuracy.mean()),
            "best": self._best(self.scored_phrases, among),
            "chosen": [None if head is None else self.name(head) for head in chosen],
            **{name: accuracies[name] for name in OF_LAYERS},
            **_rounded_measures(shares),
        }

    def _kind_report(self, kind: str, among: np.ndarray) -> dict[str, Any]:
        rows = self.scored_phrases & np.array([kind in own for own in self.kinds])
        if not rows.any():
            return {"phrases": 0}
        accuracies, chosen = self._accuracies(rows, among)
        return {
            **accuracies,
            "chosen": [None if head is None else self.name(head) for head in chosen],
            "best": self._best(rows, among),
        }

    def _heads(self, kinds: Sequence[str]) -> list[dict[str, Any]]:
        rows = {
            kind: self.scored_phrases & np.array([kind in own for own in self.kinds])
            for kind in kinds
        }
        shares = {
            kind: 100 * self.result.is_right[own].mean(0) for kind, own in rows.items() if own.any()
        }
        accuracy = 100 * self.result.is_right[self.scored_phrases].mean(0)
        null = (
            None
            if self.shuffled_result is None
            else 100 * self.shuffled_result.is_right[self.scored_phrases].mean(0)
        )
        table = []
        for place, (name, layer, head) in enumerate(self.result.heads):
            row: dict[str, Any] = {"attention": name, "layer": layer, "head": head}
            row |= {self.result.measure: _round(accuracy[place])}
            row |= {"active": bool(self.means[place, 0] > self.min_region_share)}
            row |= _rounded_measures(self.means[place])
            row |= {"other_images": None if null is None else _round(null[place])}
            row |= {kind: _round(values[place]) for kind, values in shares.items()}
            table.append(row)
        return table


COLUMNS = (
    *("upper_bound", "chance", "confidence", "held_out", "other_images", "other_images_best"),
    *("held_out_less_rule", "held_out_less_other_images"),
)
"""Numbers reported for phrases, in per cent with an interval each; None where not available.

`held_out`: the best active head of one half of the images on the other half, both directions;
`other_images`: the same heads with the region features of other images; `other_images_best`: heads
selected with these features; `rule`: the region of the highest confidence, or chance without
confidences.
"""
OF_LAYERS = ("held_out", "other_images")
"""Those of `COLUMNS` that are reported for each layer."""


def _rounded_measures(means: np.ndarray) -> dict[str, float]:
    """The `MEASURES` by name: shares in per cent, the entropy in nats."""
    rounded = {}
    for name, value in zip(MEASURES, means.tolist(), strict=True):
        rounded[name] = round(value, 3) if name == "entropy" else _round(100 * value)
    return rounded


def _round(value: float) -> float:
    return round(float(value), 2)
