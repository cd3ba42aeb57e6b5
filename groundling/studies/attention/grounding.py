"""Attention heads as classifiers of phrases without training (VisualBERT, Section 3).

A head predicts the region that gets most of the attention from the phrase; it is right if that region matches a gold
box of the phrase. Text tokens and whole-image regions do not compete. Ties go to the first region.

Sizes: Q phrases, H heads of a map, M heads of all layers, R regions, S columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy.special import entr

from groundling.core.batch import Example, RegionRow, Sample, require
from groundling.core.errors import InputError
from groundling.core.registry import resolve
from groundling.core.resampling import bootstrap_sums, interval
from groundling.core.rng import generator
from groundling.data.regions.samples import RegionLabeler
from groundling.data.text import word_spans
from groundling.models.attention import AttentionMap, PositionKind
from groundling.runs.report import TableRow, format_table
from groundling.runs.run import Run
from groundling.studies.attention.commands import GroundingSettings, HeadsConfig
from groundling.studies.attention.figures import draw_head_accuracies, write_figures
from groundling.studies.attention.inspected_models import (
    AttentionBatch,
    RegionModel,
    consume_attention,
    shuffle_images,
)
from groundling.studies.attention.models import pointing_game
from groundling.tasks import Task
from groundling.tasks import grounding as entities

PhrasePooling = Literal["last", "mean"]
"""Query of a phrase: the attention from its last token, or the mean over all of its tokens."""
GroundingMetric = Literal["accuracy", "pointing"]
"""When a head is right: accuracy, a region's IoU with a gold box; pointing, a patch in one."""
MEASURES = ("region_share", "special_share", "entropy")
"""Measures of a phrase's attention that are summed over phrases: the shares on regions and on
special tokens (such as [CLS] and [SEP]), and the entropy over all positions, in nats.
"""
NONE = np.zeros(0, np.int64)
"""The tokens of a phrase that cannot be scored."""


class PhraseStatus(IntEnum):
    """Whether a phrase is scored, and if not, why."""

    SCORED = 0
    TRUNCATED = 1
    """All or perhaps part of it was truncated with the end of its text."""
    NO_TOKENS = 2
    """The tokenizer gives it no token."""
    SPLITS_WORD = 3
    """It begins or ends within a word."""


@dataclass(frozen=True)
class PhraseSpan:
    """A span of a text that names something in its image."""

    example: Example
    """With its gold boxes, for a task's `mark`."""
    start: int
    """Its first character in the text."""
    stop: int
    """The character after its last one."""
    group: int = 0
    """Groups are scored separately."""


def query_tokens(phrase: PhraseSpan, sample: Sample) -> tuple[np.ndarray, PhraseStatus]:
    """Indices of the tokens of a phrase's words in its text's sample; `NONE` if it is not scored.

    Raises InputError if the span is outside the text or has no word.
    """
    text, start, stop = phrase.example.text, phrase.start, phrase.stop
    words = word_spans(text)
    touched = np.flatnonzero((words[:, 0] < stop) & (words[:, 1] > start))
    if not 0 <= start < stop <= len(text) or not len(touched):
        raise InputError(
            f"{phrase.example.id}: a phrase from character {start} to {stop} is not in {text[:60]!r}, which has "
            f"{len(text)} characters"
        )
    first, last = int(touched[0]), int(touched[-1])
    if words[first, 0] < start or words[last, 1] > stop:
        return NONE, PhraseStatus.SPLITS_WORD
    word = require(sample.text, "text", "heads").word_ids
    tokens = np.flatnonzero((word >= first) & (word <= last))
    if sample.truncated_tokens and last >= word.max(initial=-1):
        return NONE, PhraseStatus.TRUNCATED
    if not len(tokens) or word[tokens[-1]] != last:
        return NONE, PhraseStatus.NO_TOKENS
    return tokens, PhraseStatus.SCORED


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


def _baselines_of(right: np.ndarray, regions: RegionRow) -> tuple[float, ...]:
    """The `PhraseBaselines` of one phrase, without its state; `right` (R,)."""
    candidates = np.flatnonzero(~regions.is_whole_image)
    if not len(candidates):
        return 0, 0, 0, 0
    confidence = regions.confidence[candidates]
    own = right[candidates]
    best = int(confidence.argmax())
    ranked = bool((confidence != confidence[0]).any())
    return float(own.any()), float(own[best]), float(own.mean()), float(ranked)


class _Query(NamedTuple):
    """A scored phrase of a batch."""

    number: int
    """Its index among the Q phrases."""
    row: int
    """Its row of the batch."""
    tokens: np.ndarray
    """Indices of the tokens whose attention is pooled."""
    right: np.ndarray
    """(R,) bool: the regions that match its gold boxes."""


class HeadGrounding:
    """Scores every head on every phrase; keeps who is right, and sums per layer, group and half."""

    def __init__(
        self,
        phrases: Sequence[Sequence[PhraseSpan]],
        mark: RegionLabeler,
        half: Sequence[int],
        pooling: PhrasePooling = "last",
    ) -> None:
        """`phrases` of each sample and its `half` (0 or 1); `mark` gives a phrase's right regions."""
        self.phrases = phrases
        self.mark = mark
        self.pooling = pooling
        counts = [len(own) for own in phrases]
        self.offsets = np.cumsum([0, *counts])
        count = int(self.offsets[-1])
        self.half = np.repeat(np.array(half, int), counts)
        self.groups = np.array([one.group for own in phrases for one in own], int)
        self.layers: list[tuple[str, int]] = []
        # Allocated at once: many small arrays would fragment memory between batches.
        self.baselines = PhraseBaselines(
            *(np.zeros(count, kind) for kind in (int, bool, bool, float, bool))
        )
        self.hits: list[np.ndarray] = []
        self.sums: list[np.ndarray] = []
        self._batch: AttentionBatch | None = None

    def consume(self, batch: AttentionBatch, attention_map: AttentionMap) -> None:
        """Score a layer's heads on a batch; maps other than text over regions are skipped.

        Raises InputError if a head gives regions no attention, or a phrase is not in its text.
        """
        columns, rows = attention_map.columns, attention_map.rows
        kinds = columns.kinds.cpu().numpy()
        has_regions = np.isin(kinds, (PositionKind.REGION, PositionKind.WHOLE_IMAGE)).any()
        if not has_regions or not (rows.kinds == PositionKind.TOKEN).any():
            return
        if self._batch is not batch:
            self._batch = batch
            self._queries = self._find_queries(batch)
        hits, sums = self._arrays_of(attention_map)
        is_text = np.isin(rows.kinds.cpu().numpy(), (PositionKind.TOKEN, PositionKind.SPECIAL))
        tokens = rows.indices.cpu().numpy()
        regions = columns.indices.cpu().numpy()
        weights = attention_map.weights.float().cpu().numpy()
        for query in self._queries:
            row = query.row
            asked = is_text[row] & np.isin(tokens[row], query.tokens)
            attention = weights[row][:, asked].sum(1).astype(float) / asked.sum()
            is_region = kinds[row] == PositionKind.REGION
            share = np.where(is_region, attention, 0).sum(-1)
            if is_region.any():
                if not (share > 0).all():
                    raise InputError(
                        f"a head of layer {attention_map.layer} gives the regions no attention, or NaN; the model is "
                        "damaged, or masks its regions as padding"
                    )
                # Ties go to the first; -1 excludes text.
                best = np.where(is_region, attention, -1).argmax(-1)
                hits[query.number] = query.right[regions[row][best]]
            special = np.where(kinds[row] == PositionKind.SPECIAL, attention, 0).sum(-1)
            measures = np.stack([share, special, entr(attention).sum(-1)], -1)
            sums[self.groups[query.number], self.half[query.number]] += measures

    def _arrays_of(self, attention_map: AttentionMap) -> tuple[np.ndarray, np.ndarray]:
        """The hits and sums of a layer, which are made at its first map."""
        layer = (attention_map.name, attention_map.layer)
        if layer not in self.layers:
            heads = attention_map.weights.shape[1]
            self.layers.append(layer)
            self.hits.append(np.zeros((len(self.groups), heads), bool))
            groups = int(self.groups.max(initial=0)) + 1
            self.sums.append(np.zeros((groups, 2, heads, len(MEASURES))))
        place = self.layers.index(layer)
        return self.hits[place], self.sums[place]

    def _find_queries(self, batch: AttentionBatch) -> list[_Query]:
        """The scored phrases of a batch; the statistics of all that do not depend on heads are kept."""
        queries = []
        for row, (sample, place) in enumerate(zip(batch.samples, batch.places, strict=True)):
            regions = require(sample.regions, "regions", "heads")
            for number, phrase in enumerate(self.phrases[place], self.offsets[place]):
                tokens, status = query_tokens(phrase, sample)
                right = self.mark(phrase.example, regions).astype(bool) & ~regions.is_whole_image
                values = (status, *_baselines_of(right, regions))
                for column, value in zip(self.baselines, values, strict=True):
                    column[number] = value
                if status == PhraseStatus.SCORED:
                    asked = tokens[-1:] if self.pooling == "last" else tokens
                    queries.append(_Query(number, row, asked, right))
        return queries

    def result(self, group: int = 0) -> HeadLeaderboard:
        """The result for a group's phrases; raises InputError without maps of text over regions."""
        if not self.layers:
            raise InputError("this model has no attention from text to regions")
        own = self.groups == group
        is_scored = own & (self.baselines.status == PhraseStatus.SCORED)
        counts = np.bincount(self.half[is_scored], minlength=2)
        with np.errstate(invalid="ignore"):
            means = np.stack([sums[group] for sums in self.sums], 1) / counts.reshape(2, 1, 1, 1)
        heads = means.shape[2]
        return HeadLeaderboard(
            PhraseBaselines(*(values[own] for values in self.baselines)),
            np.concatenate([hits[own] for hits in self.hits], 1),
            means.reshape(2, -1, len(MEASURES)),
            [(name, layer, head) for name, layer in self.layers for head in range(heads)],
            self.half[own],
            "pointing" if self.mark is pointing_game else "accuracy",
        )


# Which heads ground phrases, without selection bias: the best of 144 heads on a split overestimates its accuracy, so
# heads are selected on one half of the images and scored on the other, in both directions. Every number is reported
# with a baseline, chance, and the accuracy of the same heads with the region features of other images.


def score_heads(
    config: GroundingSettings,
    examples: Sequence[Example],
    phrases: Sequence[Sequence[PhraseSpan]],
    task: Task,
    pooling: PhrasePooling,
    device: torch.device,
) -> tuple[PhraseBaselines, list[HeadLeaderboard]]:
    """The statistics of all phrases, and every group's scores, with the control if it is on.

    `examples`: each text of an image once; `phrases`: those of every text. `task` says which regions
    are right. Raises InputError if the model reads no regions or gives no attention to them.
    """
    model = RegionModel(config, device)
    mark = model.mark(require(task.label_regions, "label_regions", task.name))
    images = [one.images[0] for one in examples]
    half_of = assign_halves(images, config.seed)
    passes = []
    for is_control in (False, True)[: 1 + config.shuffled_images_control]:
        partner = shuffle_images(images, config.seed) if is_control else None
        scores = HeadGrounding(phrases, mark, [half_of[one] for one in images], pooling)
        consume_attention(model.model, model.samples(examples, partner), scores, config.batch)
        passes.append(scores)
    number = {image: place for place, image in enumerate(half_of)}
    image = np.repeat([number[one] for one in images], [len(own) for own in phrases])
    boards = []
    for group in range(1 + passes[0].groups.max(initial=0)):
        own_images = image[passes[0].groups == group]
        result, *shuffled = (scores.result(group) for scores in passes)
        board = replace(
            result,
            image=own_images,
            min_region_share=config.min_region_attention,
            seed=config.seed,
            is_right_shuffled=shuffled[0].is_right if shuffled else None,
        )
        boards.append(board)
    return passes[0].baselines, boards


def assign_halves(images: Sequence[str], seed: int) -> dict[str, int]:
    """0 or 1 for every image, in equal numbers; the same for the same seed and images."""
    different = sorted(set(images))
    order = generator(seed, "halves").permutation(len(different))
    return {different[place]: int(rank % 2) for rank, place in enumerate(order)}


@dataclass(frozen=True)
class HeadLeaderboard:
    """Result of a pass for Q phrases, in order, and the M heads of all layers: accuracies and best heads."""

    baselines: PhraseBaselines
    is_right: np.ndarray
    """(Q, M) bool: the head is right."""
    half_means: np.ndarray
    """(2, M, MEASURES): means over a half's scored phrases; NaN for a half without any."""
    heads: list[tuple[str, int, int]]
    """Map name, layer and head of each of the M; layers and heads count from 0."""
    half: np.ndarray
    """(Q,): the half (0 or 1) of the images that its image is in."""
    measure: GroundingMetric = "accuracy"
    """When a head is right."""
    image: np.ndarray = field(default_factory=lambda: NONE)
    """(Q,) int: index of its image, from 0."""
    min_region_share: float = 0.0
    """Heads whose share of attention from phrases to regions is not above this are not selected."""
    seed: int = 0
    is_right_shuffled: np.ndarray | None = None
    """`is_right` in the same pass with the region features of other images."""

    @cached_property
    def scored_phrases(self) -> np.ndarray:
        """(Q,) bool: the phrase is scored."""
        return np.asarray(self.baselines.status == PhraseStatus.SCORED)

    @cached_property
    def active(self) -> np.ndarray:
        """(2, M) bool: the active heads of each half."""
        return np.asarray(self.half_means[..., 0] > self.min_region_share)

    @cached_property
    def means(self) -> np.ndarray:
        """(M, MEASURES) over both halves."""
        weight = np.array([(self.scored_phrases & (self.half == half)).sum() for half in (0, 1)])
        sums = np.nan_to_num(self.half_means) * weight[:, None, None]
        return np.asarray(sums.sum(0) / weight.sum())

    @property
    def is_active(self) -> np.ndarray:
        """(M,) bool: the active heads of all phrases."""
        return np.asarray(self.means[:, 0] > self.min_region_share)

    def best_heads(self, hits: np.ndarray, among: np.ndarray) -> list[int | None]:
        """The best active head of each half by `hits` (Q, M), of the heads `among` (M,) bool.

        None for a half without a phrase or an active head. Ties go to the first head.
        """
        best: list[int | None] = []
        for half in (0, 1):
            own = self.scored_phrases & (self.half == half)
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

    def intervals(self, columns: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
        """Means of columns (Q,) over scored phrases, per cent, with 95 % intervals over images.

        All columns share the draws, so the interval of a column of differences is that of a paired comparison.
        """
        values = [np.where(self.scored_phrases, column, 0.0) for column in columns.values()]
        values.append(self.scored_phrases.astype(float))
        sums = np.stack([np.bincount(self.image, weights=one) for one in values], 1)
        drawn = bootstrap_sums(sums, generator(self.seed, "heads", "bootstrap"))
        drawn = drawn[drawn[:, -1] > 0]  # a resample may lack a rare relation
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
        """All numbers: overall, by layer and by head; raises InputError without phrases."""
        if not self.scored_phrases.any():
            raise InputError("no phrase is left on which a head can be scored")
        heads = self.heads
        return {
            "measure": self.measure,
            "active_heads": int(self.is_active.sum()),
            **self._summary(np.ones(len(heads), bool)),
            "layers": [self._layer(layer) for layer in dict.fromkeys(one[:2] for one in heads)],
            "heads": self._heads(),
        }

    def name(self, head: int) -> str:
        """LAYER-HEAD, counted from 0, after the map's name if there are several maps."""
        name, layer, number = self.heads[head]
        several = len({name for name, _, _ in self.heads}) > 1
        return f"{name} {layer}-{number}" if several else f"{layer}-{number}"

    def _summary(self, among: np.ndarray) -> dict[str, Any]:
        """Baselines, accuracies of heads `among` (M,), and the selected heads."""
        facts = self.baselines
        columns: dict[str, np.ndarray] = {
            "upper_bound": facts.has_matching_region,
            "chance": facts.chance,
        }
        if facts.has_confidence.any():
            columns["confidence"] = facts.confident_is_right
        chosen = self.best_heads(self.is_right, among)
        best = self.held_out(self.is_right, chosen)
        if best is not None:
            rule = columns.get("confidence", facts.chance)
            columns["held_out"] = best
            columns["held_out_less_rule"] = best.astype(float) - rule
        if self.is_right_shuffled is not None:
            hits = self.is_right_shuffled
            own = self.held_out(hits, chosen)
            other = self.held_out(hits, self.best_heads(hits, among))
            if best is not None and own is not None and other is not None:
                columns["other_images"] = own
                columns["other_images_best"] = other
                columns["held_out_less_other_images"] = best.astype(float) - own
        return {
            **dict.fromkeys(COLUMNS),
            **self.intervals(columns),
            "chosen": [None if head is None else self.name(head) for head in chosen],
            "best": self._best(among),
        }

    def _best(self, among: np.ndarray) -> dict[str, Any] | None:
        """The best active head on all phrases, selected and scored on the same phrases."""
        heads = np.flatnonzero(among & self.is_active)
        if not len(heads):
            return None
        hits = self.is_right[self.scored_phrases]
        head = int(heads[hits[:, heads].sum(0).argmax()])
        estimate = self.intervals({"best": self.is_right[:, head]})["best"]
        return {
            "head": self.name(head),
            **estimate,
            "region_share": _round(100 * self.means[head, 0]),
        }

    def _layer(self, layer: tuple[str, int]) -> dict[str, Any]:
        among = np.array([(name, number) == layer for name, number, _ in self.heads])
        summary = self._summary(among)
        accuracy = self.is_right[self.scored_phrases][:, among].mean(0)
        shares = self.means[among].mean(0)
        return {
            "attention": layer[0],
            "layer": layer[1],
            "active_heads": int(self.is_active[among].sum()),
            "mean": _round(100 * accuracy.mean()),
            **{name: summary[name] for name in ("best", "held_out", "other_images")},
            **_rounded_measures(shares),
        }

    def _heads(self) -> list[dict[str, Any]]:
        columns: dict[str, np.ndarray] = {self.measure: self.is_right}
        if self.is_right_shuffled is not None:
            columns["other_images"] = self.is_right_shuffled
        accuracies = {
            name: 100 * right[self.scored_phrases].mean(0) for name, right in columns.items()
        }
        return [
            {
                **{"attention": name, "layer": layer, "head": head, "other_images": None},
                "active": bool(self.is_active[place]),
                **_rounded_measures(self.means[place]),
                **{column: _round(values[place]) for column, values in accuracies.items()},
            }
            for place, (name, layer, head) in enumerate(self.heads)
        ]


COLUMNS = (
    *("upper_bound", "chance", "confidence", "held_out", "other_images", "other_images_best"),
    *("held_out_less_rule", "held_out_less_other_images"),
)
"""Numbers reported for phrases, in per cent with an interval each; None where not available.

`held_out`: the best active head of one half of the images on the other half, both directions; `other_images`: the same
heads with the region features of other images; `other_images_best`: heads selected with these features; `rule`: the
region of the highest confidence, or chance without confidences.
"""


def _rounded_measures(means: np.ndarray) -> dict[str, float]:
    """The `MEASURES` by name: shares in per cent, the entropy in nats."""
    rounded = {}
    for name, value in zip(MEASURES, means.tolist(), strict=True):
        rounded[name] = round(value, 3) if name == "entropy" else _round(100 * value)
    return rounded


def _round(value: float) -> float:
    return round(float(value), 2)


# -- counts, notes and tables ------------------------------------------------------------------------------------------
COUNTED = "layers and heads count from 0"
LEFT_OUT = {
    "cut_off": "phrases truncated with the end of a text (max_length, or the model's limit)",
    "without_tokens": "phrases without a token",
    "split_a_word": "phrases that begin or end within a word",
}
"""Counts of phrases that are not scored, and the notes on them."""


def count_phrases(baselines: PhraseBaselines) -> dict[str, int]:
    """Number of scored phrases (`asked`), and of those in `LEFT_OUT`."""
    statuses = Counter(baselines.status.tolist())
    names = ("asked", *LEFT_OUT)
    return {name: statuses[status] for name, status in zip(names, PhraseStatus, strict=True)}


def notes_of_reports(
    counts: Mapping[str, Any],
    left_out: Mapping[str, str],
    reports: Sequence[Mapping[str, Any]],
) -> list[str]:
    """Notes on counts (`LEFT_OUT`, and more that are `left_out`), and on the groups' reports."""
    notes = [
        f"left out: {counts[name]:,} {what}"
        for name, what in {**left_out, **LEFT_OUT}.items()
        if counts[name]
    ]
    if any(one["measure"] == "pointing" for one in reports):
        notes.append(
            "regions are patches of the photo, and a head is right if the centre of its patch is in a gold box "
            "(pointing): do not compare with accuracies by IoU"
        )
    return notes


def format_value(estimate: Mapping[str, Any] | None) -> str:
    """A number of a report as text; a dash without one."""
    return "-" if estimate is None else f"{estimate['value']:.2f}"


def format_interval(estimate: Mapping[str, Any] | None) -> str:
    """Its interval as text."""
    return "-" if estimate is None else "{:.2f} to {:.2f}".format(*estimate["interval"])


# -- the command `heads` -----------------------------------------------------------------------------------------------
def heads(config: HeadsConfig, run: Run) -> dict[str, Any]:
    """Every head's accuracy as a classifier of phrases, with baselines and a control; writes `heads.svg`.

    Raises InputError: the model reads no regions or gives no attention, a file is missing or malformed, a phrase is not
    in its text, or no phrase is left.
    """
    task = resolve("tasks", Task, config.task)
    phrases, skipped = read_phrases(task, Path(config.data), config.split)
    firsts = [own[0].example for own in phrases]
    texts = [Example(one.id, one.text, images=one.images) for one in firsts]
    baselines, (board,) = score_heads(config, texts, phrases, task, config.query, run.state.device)
    report = board.report()
    counts = {
        "images": len({one.images for one in texts}),
        "texts": len(texts),
        **count_phrases(baselines),
        "without_box": skipped,
    }
    run.note(*notes_of_reports(counts, {}, [report]))
    if run.state.is_main_process:
        write_figures({"heads": draw_head_accuracies({"": report})}, run.folder)
    return {
        "active_above": config.min_region_attention,
        "counts": counts,
        **report,
        "notes": run.notes,
    }


# -- texts and phrases -------------------------------------------------------------------------------------------------
def read_phrases(task: Task, folder: Path, split: str) -> tuple[list[list[PhraseSpan]], int]:
    """The phrases of each text of a split, and the number of those without a box.

    Raises InputError for a task without boxes.
    """
    if task.label_regions is None:
        raise InputError(
            f"task={task.name}: its answers are not regions; expected flickr30k, refcoco+ or another task with boxes"
        )
    examples = task.read(folder, split)
    skipped = 0
    if task in (entities.FLICKR30K, entities.MERGED):
        captions = entities.read_captions(folder, split)
        skipped = sum(len(caption.skipped) for caption in captions)
    if not examples:
        raise InputError(f"{folder}: {split!r} has no phrase with a box")
    # Examples of the same text and image are merged, so that each text is read once.
    phrases: dict[tuple[str, tuple[str, ...]], list[PhraseSpan]] = {}
    for example in examples:
        # Without a tag, the whole text is the phrase, as in RefCOCO.
        (start, stop, _), *_ = example.region_tags or ((0, len(example.text), 0),)
        span = PhraseSpan(example, start, stop)
        phrases.setdefault((example.text, example.images), []).append(span)
    return list(phrases.values()), skipped


# -- tables ------------------------------------------------------------------------------------------------------------
def format_heads(result: dict[str, Any]) -> str:
    """The result as text: accuracies, and a table of layers."""
    counts = result["counts"]
    accuracies = [
        {"": label, "%": format_value(result[key]), "95 % interval": format_interval(result[key])}
        for key, label in ROWS.items()
    ]
    first, second = (name or "none" for name in result["chosen"])
    return "\n\n".join(
        [
            f"{counts['asked']:,} phrases of {counts['images']:,} images; {counts['without_box']:,} more have no box; "
            f"{COUNTED}",
            format_table(accuracies),
            f"heads selected on each half: {first}, {second}; {result['active_heads']} of {len(result['heads'])} "
            f"heads send more than {result['active_above']:.0%} of their attention from phrases to regions",
            format_table([_layer(layer) for layer in result["layers"]]),
        ]
    )


ROWS = {
    "upper_bound": "upper bound",
    "chance": "a region at random",
    "confidence": "the region of highest confidence",
    "held_out": "best active head of the other half",
    "other_images": "the same with other images",
    "other_images_best": "best active head with other images",
    "held_out_less_rule": "best active head less baseline",
    "held_out_less_other_images": "best active head less other images",
}
"""Row labels of the first table."""


def _layer(layer: dict[str, Any]) -> TableRow:
    return {
        "layer": str(layer["layer"]),
        "best active": layer["best"]["head"] if layer["best"] else "-",
        "%": format_value(layer["best"]),
        "held out": format_value(layer["held_out"]),
        "other images": format_value(layer["other_images"]),
        "mean of heads": f"{layer['mean']:.2f}",
        "active": str(layer["active_heads"]),
        "to regions": f"{layer['region_share']:.2f}",
    }
