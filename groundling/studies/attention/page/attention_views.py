"""One model's view of an image and a text: words, boxes, attention, heat maps."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from groundling.core.batch import Batch, Sample, collate, require
from groundling.core.errors import InputError
from groundling.data.text import word_spans
from groundling.models.attention import AttentionMap, PositionKind, SequencePositions
from groundling.models.loading import Encoder
from groundling.studies.attention.figures import draw_heat_maps

if TYPE_CHECKING:
    from matplotlib.figure import Figure


WORDS = "words"
BOXES = "boxes"
BLOCKS = ((WORDS, WORDS), (WORDS, BOXES), (BOXES, WORDS))
"""Query and key sides on the page, without attention among boxes, which would be most bytes."""
OF_PATCHES = (*BLOCKS, (BOXES, BOXES))
"""The same for patches, with attention among them."""
IMAGE_PLACES = (PositionKind.REGION, PositionKind.WHOLE_IMAGE, PositionKind.IMAGE_CLASS)
END = "[END]"
"""Label of the positions that an architecture adds at the end."""
WEIGHT_STEPS = 255
"""A weight is stored in steps of 1 / WEIGHT_STEPS of its row's largest weight."""
ROW_MAX_STEPS = 65535
"""A row's largest weight is stored in steps of 1 / ROW_MAX_STEPS."""


@dataclass(frozen=True)
class WordView:
    """A word of the text, or one special token."""

    text: str
    """The word as written."""
    word_index: int = -1
    """Its index among the text's words, for any tokenizer; -1: not a word of the text."""
    tokens: int = 1
    """Number of its positions in the sequence."""


@dataclass(frozen=True)
class RegionBoxesView:
    """The boxes that a model reads from an image: a detector's regions, or patches."""

    boxes: np.ndarray = field(default_factory=lambda: np.zeros((0, 4), np.float32))
    """(R, 4): x1, y1, x2, y2 as shares of the photo's width and height; a model of text has none."""
    is_whole_image: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    """(R,) bool: the whole image or, with patches, the class token."""
    names: Sequence[str] = ()
    """Class name of each; empty if unknown."""
    are_patches: bool = False
    """Whether they are patches, whose attention to each other is shown, too."""

    def title(self, number: int) -> str:
        """A region's label: its number, with the whole image not counted, and its name."""
        if self.is_whole_image[number]:
            return "class token" if self.are_patches else "whole image"
        name = self.names[number] if self.names else ""
        return f"{number - int(self.is_whole_image[:number].sum())} {name}".strip()


@dataclass
class LayerView:
    """The attention of one layer."""

    name: str
    """`self`, the stream for a layer of one of two (`image`, `text`), or e.g. `text over regions`."""
    number: int
    """Counted from 0 among the layers of this name."""
    heads: int
    blocks: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    """(heads, rows, columns) by query and key side, see `BLOCKS`."""
    even: dict[str, np.ndarray] = field(default_factory=dict)
    """(rows,) by query side: the share of one position under even attention."""

    def to_json(self) -> dict[str, Any]:
        """The JSON object of the page."""
        blocks = {
            f"{row}_{column}": pack_attention(block) for (row, column), block in self.blocks.items()
        }
        even = {row: shares.round(6).tolist() for row, shares in self.even.items()}
        header = {"name": self.name, "number": self.number, "heads": self.heads}
        return {**header, "blocks": blocks, "even": even}


@dataclass(frozen=True)
class ModelAnswer:
    """A model's answer to an image and a text."""

    title: str
    """The title of the answer, or the reason why there is none."""
    ranked: Sequence[tuple[str, float | None]] = ()
    """The most likely answers, best first, with probabilities; None for a regression."""


@dataclass
class ModelAttentionView:
    """One model's words, boxes and attention for an image and a text."""

    words: list[WordView]
    boxes: RegionBoxesView
    layers: list[LayerView]
    notes: list[str] = field(default_factory=list)
    """Notes for the reader, one line each."""
    answer: ModelAnswer | None = None
    """The model's answer; None if its head is not used."""

    def to_json(self) -> dict[str, Any]:
        """The JSON object of the page."""
        return {
            "words": [[word.text, word.word_index, word.tokens] for word in self.words],
            "boxes": np.round(self.boxes.boxes, 4).tolist(),
            "whole": np.flatnonzero(self.boxes.is_whole_image).tolist(),
            "names": list(self.boxes.names),
            "patches": self.boxes.are_patches,
            "layers": [layer.to_json() for layer in self.layers],
            "notes": self.notes,
            "answer": None if self.answer is None else vars(self.answer),
        }

    def layer_of(self, head: str) -> tuple[LayerView, int]:
        """The layer of LAYER-HEAD, and the head's index in it; raises InputError without it."""
        usable = [layer for layer in self.layers if (WORDS, BOXES) in layer.blocks]
        for layer in usable:
            names = [f"{layer.number}-{place}" for place in range(layer.heads)]
            if head in names:
                return layer, names.index(head)
        raise InputError(
            f"heat_maps={head}: no such head; expected LAYER-HEAD of a layer whose words attend to boxes"
        )


def pack_attention(block: np.ndarray) -> str:
    """Attention (H, rows, columns) in base64: row maxima in two bytes, then a byte per weight.

    The error of a weight is at most half of 1/255 of its row's stored maximum, which is rounded up
    to a multiple of 1/65,535.
    """
    heads, rows, columns = block.shape
    largest = block.max(-1) if columns else np.zeros((heads, rows))
    row_maxima = np.ceil(largest * ROW_MAX_STEPS).clip(0, ROW_MAX_STEPS).astype("<u2")
    scale = np.maximum(row_maxima, 1).astype(np.float64) / ROW_MAX_STEPS
    steps = np.rint(block / scale[..., None] * WEIGHT_STEPS).clip(0, WEIGHT_STEPS).astype(np.uint8)
    return base64.b64encode(row_maxima.tobytes() + steps.tobytes()).decode()


def collect_view(
    student: Encoder, sample: Sample, boxes: RegionBoxesView, layers: Collection[int], device: str
) -> ModelAttentionView:
    """Run a model on a sample of one row and collect the attention of `layers` (empty: all).

    Raises InputError if the model gives no attention maps, or has no such layer.
    """
    collector = _WordBoxMapCollector(sample, student, boxes, layers)
    batch: Batch = collate([sample]).to(device)
    with torch.no_grad():
        student(batch, attention=collector)
    if not collector.layer_views:
        count = len({number for _, number in collector.layers_with_maps})
        raise InputError(f"layers: the model has {count} layers with attention maps")
    return ModelAttentionView(collector.words, boxes, collector.layer_views)


class _WordBoxMapCollector:
    """Collects the attention maps of one row, reduced to words and boxes."""

    def __init__(
        self, sample: Sample, student: Encoder, boxes: RegionBoxesView, layers: Collection[int]
    ) -> None:
        self.words: list[WordView] = []
        self.word_of: list[int] = []
        for place, word in _words(sample, student):
            if place == len(self.words):
                self.words.append(word)
            else:
                self.words[place] = replace(word, tokens=self.words[place].tokens + 1)
            self.word_of.append(place)
        self.boxes = boxes
        self.blocks = OF_PATCHES if boxes.are_patches else BLOCKS
        self.layers = layers
        self.layer_views: list[LayerView] = []
        self.layers_with_maps: set[tuple[str, int]] = set()

    def __call__(self, attention_map: AttentionMap) -> None:
        query, _, key = attention_map.name.partition(" over ")
        name = query if key in ("", query) else attention_map.name
        self.layers_with_maps.add((name, attention_map.layer))
        if self.layers and attention_map.layer not in self.layers:
            return
        # One matrix per side: the word or box of each position.
        rows = self._sides(attention_map.rows)
        columns = self._sides(attention_map.columns)
        weights = attention_map.weights[0].double().cpu().numpy()
        for row, column in self.blocks:
            of_row = rows[row]
            of_column = columns[column]
            if not of_row.any() or not of_column.any():
                continue
            # From a word of several tokens: their mean; to it: their sum (Clark et al. 2019, Section 4.1).
            mean = of_row / np.maximum(of_row.sum(1, keepdims=True), 1)
            block = _times(_times(weights, of_column).swapaxes(1, 2), mean).swapaxes(1, 2)
            layer = self._layer(name, attention_map.layer, len(weights))
            layer.blocks[row, column] = block
            layer.even[row] = _even(weights, mean)

    def _layer(self, name: str, number: int, heads: int) -> LayerView:
        for layer in self.layer_views:
            if (layer.name, layer.number) == (name, number):
                return layer
        self.layer_views.append(LayerView(name, number, heads))
        return self.layer_views[-1]

    def _sides(self, positions: SequencePositions) -> dict[str, np.ndarray]:
        """(K, S) and (R, S) of 0 and 1: the word and the box of each of S positions."""
        kinds = positions.kinds[0].tolist()
        numbers = positions.indices[0].tolist()
        self._make_room(sum(kind == PositionKind.ADDED for kind in kinds))
        words = np.zeros((len(self.words), len(kinds)))
        boxes = np.zeros((len(self.boxes.boxes), len(kinds)))
        for place, (kind, number) in enumerate(zip(kinds, numbers, strict=True)):
            if kind in IMAGE_PLACES:
                boxes[number, place] = 1
            elif kind == PositionKind.ADDED:
                words[self.first_added + number, place] = 1
            elif kind != PositionKind.PADDING:
                words[self.word_of[number], place] = 1
        return {WORDS: words, BOXES: boxes}

    @property
    def first_added(self) -> int:
        """Index of the first word for a position that the architecture adds."""
        return max(self.word_of, default=-1) + 1

    def _make_room(self, added: int) -> None:
        """Append words for positions that the architecture adds after the regions."""
        while len(self.words) < self.first_added + added:
            self.words.append(WordView(END))


def _even(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The share (K,) of a position under even attention, from weights (H, S, S') and rows (K, S).

    A masked position, such as a later word in a causal model, has a weight of exactly 0 in every
    head.
    """
    readable = (weights > 0).any(0).sum(1)
    shares: np.ndarray = rows @ (1 / np.maximum(readable, 1))
    return shares


def _times(weights: np.ndarray, selection: np.ndarray) -> np.ndarray:
    """Weights (H, S, S') times `selection` (K, S') transposed; fast if each row selects one position."""
    if (selection.sum(1) == 1).all() and (selection.max(1) == 1).all():
        return weights[:, :, selection.argmax(1)]
    summed: np.ndarray = weights @ selection.T
    return summed


def _words(sample: Sample, student: Encoder) -> Iterator[tuple[int, WordView]]:
    """For each token of a row, its word and the word's index; special tokens are words too."""
    if sample.text is None:
        return
    row = sample.text
    text = require(student.inputs(max(1, len(row.input_ids)))[0], "text", "visualize")
    example = require(sample.example, "example", "visualize")
    written = [example.text] if example.text_pair is None else [example.text, example.text_pair]
    raw = [part[start:stop] for part in written for start, stop in word_spans(part)]
    next_place = count()
    place = -1
    before = -1
    for number, is_special, word in zip(
        row.input_ids, row.special_tokens_mask, row.word_ids, strict=True
    ):
        is_raw = word >= 0 and not is_special
        if not is_raw or word != before:
            place = next(next_place)
        before = word if is_raw else -1
        token = text.engine.id_to_token(int(number)) or "?"
        yield place, WordView(raw[word], int(word)) if is_raw else WordView(token)


def draw_heads(view: ModelAttentionView, heads: Sequence[str]) -> Figure:
    """Heat maps of heads (LAYER-HEAD) of a model on an image and a text: words by boxes.

    Raises InputError for a head that does not exist.
    """
    maps = {}
    even = []
    for head in heads:
        layer, number = view.layer_of(head)
        maps[head] = layer.blocks[WORDS, BOXES][number]
        even.append(100 * float(layer.even[WORDS].max()))
    boxes = [view.boxes.title(number) for number in range(len(view.boxes.boxes))]
    return draw_heat_maps(maps, [word.text for word in view.words], boxes, "box", min(even))
