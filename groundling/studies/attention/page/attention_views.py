"""One model's view of an image and a text: words, boxes, attention, heat maps, ranked heads."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from groundling.core.batch import Batch, Sample, collate, require
from groundling.core.errors import InputError, convert_errors
from groundling.data.text.words import word_spans
from groundling.models.attention import AttentionMap, PositionKind, SequencePositions
from groundling.models.formats import Encoder
from groundling.models.loading import saved_sha256
from groundling.runs.folder import read_json
from groundling.studies.attention.figures import draw_heat_maps
from groundling.studies.attention.page.image_text_pairs import PhraseEntity
from groundling.tasks.flickr_entities import BAN

if TYPE_CHECKING:
    from matplotlib.figure import Figure


WORDS = "words"
BOXES = "boxes"
SELF = "self"
"""Map name of single-stream models."""
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
MAX_PAGE_CHARACTERS = 20 * 2**20
"""Most characters of a page; browsers are slow with larger ones."""


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

    boxes: np.ndarray
    """(R, 4): x1, y1, x2, y2 as shares of the photo's width and height."""
    is_whole_image: np.ndarray
    """(R,) bool: the whole image or, with patches, the class token."""
    names: Sequence[str] = ()
    """Class name of each; empty if unknown."""
    are_patches: bool = False
    """Whether they are patches, whose attention to each other is shown, too."""

    @staticmethod
    def empty() -> RegionBoxesView:
        """No boxes, for a model that reads text only."""
        return RegionBoxesView(np.zeros((0, 4), np.float32), np.zeros(0, bool))

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
    """The map's name (`AttentionMap.name`); `cross` for both directions of cross-attention."""
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

    def to_json(self) -> dict[str, Any]:
        """The JSON object of the page."""
        return {"about": self.title, "ranked": [list(one) for one in self.ranked]}


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
            "answer": None if self.answer is None else self.answer.to_json(),
        }

    def shares(self, head: str) -> np.ndarray:
        """Attention (K, R) from words to boxes of LAYER-HEAD; raises InputError without it."""
        layer, number = self._layer_of(head)
        return np.asarray(layer.blocks[WORDS, BOXES][number])

    def even(self, head: str) -> float:
        """The share of one box under even attention, in the layer of LAYER-HEAD."""
        layer, _ = self._layer_of(head)
        return float(layer.even[WORDS].max())

    def _layer_of(self, head: str) -> tuple[LayerView, int]:
        """The layer of LAYER-HEAD, and the head's index in it."""
        for layer in self.layers:
            names = [f"{layer.number}-{place}" for place in range(layer.heads)]
            if (WORDS, BOXES) in layer.blocks and head in names:
                return layer, names.index(head)
        usable = [layer for layer in self.layers if (WORDS, BOXES) in layer.blocks]
        spans = ", ".join(f"{one.number}-0 to {one.number}-{one.heads - 1}" for one in usable)
        raise InputError(
            f"heat_maps={head}: no such head; expected LAYER-HEAD of a layer whose words attend to boxes: {spans}"
        )

    def box_attention(self) -> dict[tuple[str, int], np.ndarray]:
        """Each head's mean attention (H,) from words to boxes, by name and number of the layer.

        Special tokens and the whole image are not counted. Layers whose words do not attend to
        boxes are left out.
        """
        is_word = np.array([word.word_index >= 0 for word in self.words], bool)
        found = {}
        for layer in self.layers:
            block = layer.blocks.get((WORDS, BOXES))
            if block is not None and is_word.any() and (~self.boxes.is_whole_image).any():
                on_boxes = block[:, is_word][:, :, ~self.boxes.is_whole_image].sum(-1)
                found[layer.name, layer.number] = on_boxes.mean(1)
        return found


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
    missing = set(layers) - {layer.number for layer in collector.layer_views}
    if missing or not collector.layer_views:
        layer_count = len({number for _, number in collector.layers_with_maps})
        prefix = f"layers={min(missing)}: " if missing else ""
        raise InputError(f"{prefix}the model has {layer_count} layers with attention maps")
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
        self.weights = 0
        self.layers_with_maps: set[tuple[str, int]] = set()

    def __call__(self, attention_map: AttentionMap) -> None:
        name = attention_map.name
        reader, _, read = name.partition(" over ")
        if read:  # both directions of cross-attention are one layer
            name = reader if read == reader else "cross"
        self.layers_with_maps.add((name, attention_map.layer))
        if self.layers and attention_map.layer not in self.layers:
            return
        # One matrix per side: the word or box of each position.
        rows = self._sides(attention_map.rows)
        columns = self._sides(attention_map.columns)
        weights = attention_map.weights[0].double().cpu().numpy()
        layer = self._layer(name, attention_map.layer, len(weights))
        for row, column in self.blocks:
            of_row = rows[row]
            of_column = columns[column]
            if not of_row.any() or not of_column.any():
                continue
            # From a word of several tokens: their mean; to it: their sum (Clark et al. 2019, Section 4.1).
            mean = of_row / np.maximum(of_row.sum(1, keepdims=True), 1)
            block = _times(_times(weights, of_column).swapaxes(1, 2), mean).swapaxes(1, 2)
            layer.blocks[row, column] = block
            layer.even[row] = _even(weights, mean)
            self.weights += block.size
        self._check_weight()

    def _check_weight(self) -> None:
        """Raises InputError once a single pair exceeds the size of a page."""
        if self.weights * 4 // 3 <= MAX_PAGE_CHARACTERS:
            return
        fit = len(self.layer_views) - 1
        some = f"pass layers with at most {fit} of them" if fit else "a single layer is too large"
        box_count = f"{len(self.boxes.boxes)} {'patches' if self.boxes.are_patches else 'boxes'}"
        raise InputError(
            f"the page would exceed {MAX_PAGE_CHARACTERS >> 20} MB, with attention among {box_count} in "
            f"these layers; {some}"
        )

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


# Heat maps of heads: words by boxes, or by the text's entities (VisualBERT, Figures 1 and 5).

MIN_ATTENDED_SHARE = 0.1
"""A region of no entity gets its own column if a word gives it at least this share of attention.

The paper shows regions that the model is "actively attending to" without a threshold.
"""


def draw_heads(
    view: ModelAttentionView, heads: Sequence[str], entities: Sequence[PhraseEntity] = ()
) -> Figure:
    """Draw heads (LAYER-HEAD) of a model on an image and a text: words by boxes.

    With `entities`, regions are grouped by them, see `group_regions`. Raises InputError for a head that
    does not exist, and if nothing is left to draw.
    """
    maps = {head: view.shares(head) for head in heads}
    if entities:
        return _grouped(view, maps, entities)
    boxes = [view.boxes.title(number) for number in range(len(view.boxes.boxes))]
    even = [100 * view.even(head) for head in heads]
    return draw_heat_maps(maps, [word.text for word in view.words], boxes, "box", min(even))


def _grouped(
    view: ModelAttentionView, maps: Mapping[str, np.ndarray], entities: Sequence[PhraseEntity]
) -> Figure:
    """The heat maps of the text's words by entities."""
    words = [place for place, word in enumerate(view.words) if word.word_index >= 0]
    of_words = {head: shares[words] for head, shares in maps.items()}
    groups = group_regions(view.boxes, entities, np.stack(list(of_words.values())))
    if not any(len(group.regions) for group in groups):
        raise InputError(
            "heat_maps: no region matches an entity of the text, and no word attends to another region in these "
            "heads; choose another example (example), or a store whose regions match"
        )
    sums = {head: sum_groups(shares, groups) for head, shares in of_words.items()}
    labels = [view.words[place].text for place in words]
    return draw_heat_maps(sums, labels, [group.title for group in groups], "regions by entity")


class HeatmapRegionGroup(NamedTuple):
    """A column of a heat map: the regions of an entity, or one other region."""

    title: str
    regions: np.ndarray
    """Indices of its regions; empty for an entity without a matching region."""


def group_regions(
    boxes: RegionBoxesView, entities: Sequence[PhraseEntity], shares: np.ndarray
) -> list[HeatmapRegionGroup]:
    """The regions of each entity, then single other regions that a word attends to, starred.

    A region belongs to the entity of the gold box with the largest intersection over union, if this
    is at least .5, as in `groundling heads`; ties go to the first. A patch belongs to the entity of
    the smallest gold box around its centre. The whole image belongs to none.

    Args:
        boxes: R regions.
        entities: the text's entities with their boxes.
        shares: (H, W, R), attention from words to regions in the heads that are drawn.
    """
    measure = _inside_boxes if boxes.are_patches else BAN.iou
    best = [measure(boxes.boxes, entity.boxes).max(1) for entity in entities]
    overlap = np.stack(best, 1)  # (R, entities)
    is_theirs = (overlap.max(1) >= BAN.threshold) & ~boxes.is_whole_image
    nearest = overlap.argmax(1)
    groups = []
    for number, entity in enumerate(entities):
        regions = np.flatnonzero(is_theirs & (nearest == number))
        title = entity.phrase if len(regions) else f"{entity.phrase} (no region)"
        groups.append(HeatmapRegionGroup(title, regions))
    is_attended = shares.max((0, 1)) >= MIN_ATTENDED_SHARE
    for region in np.flatnonzero(is_attended & ~is_theirs):
        groups.append(HeatmapRegionGroup(f"{boxes.title(int(region))} *", np.array([region])))
    return groups


def _inside_boxes(patches: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """(R, G): 1 over the area of a box (G, 4) that holds a patch's (R, 4) centre, otherwise 0."""
    centre = (patches[:, None, :2] + patches[:, None, 2:]) / 2
    is_inside = ((centre >= boxes[None, :, :2]) & (centre <= boxes[None, :, 2:])).all(-1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    return np.asarray(is_inside / areas)


def sum_groups(shares: np.ndarray, groups: Sequence[HeatmapRegionGroup]) -> np.ndarray:
    """Attention (W, G) from words to groups, the sum of `shares` (W, R) over each group's regions.

    NaN for an entity without a matching region.
    """
    sums = [
        shares[:, group.regions].sum(1) if len(group.regions) else np.full(len(shares), np.nan)
        for group in groups
    ]
    return np.stack(sums, 1)


# The heads of a model that are shown first.

MAX_PANELS = 6
"""Number of layers whose best head is drawn, as in VisualBERT's Figures 1 and 5."""


@dataclass(frozen=True)
class RankedHeads:
    """The heads of one model, best first."""

    ranking: str
    """The measure of the ranking, in words."""
    heads: Sequence[tuple[str, int, int, float]]
    """Name and number of the layer, the head, and its share 0..1."""
    active: int = 0
    """Number of active heads by `groundling heads`; they come first."""
    file: str = ""
    """The result of `groundling heads`; empty if the ranking is by attention to boxes."""
    model: str = ""
    """The model's name in that result."""
    weights: str = ""
    """Hash of its weights (`saved_sha256`); empty for hub models and in older results."""
    untrained: bool = False
    """Whether the result is of the model with random weights."""

    @staticmethod
    def read(folder: str | Path) -> RankedHeads:
        """Read a result of `groundling heads`, ranked by its measure, active heads first.

        Raises InputError if it is not such a result.
        """
        path = Path(folder)
        path = path if path.is_file() else path / "result.json"
        content = read_json(path)
        with convert_errors(f"{path}: not a result of `groundling heads`"):
            measure = content.get("measure", "accuracy")
            rows = [
                (
                    bool(one["active"]),
                    str(one["attention"]),
                    one["layer"],
                    one["head"],
                    one[measure],
                )
                for one in content["heads"]
            ]
            best_first = sorted(rows, key=lambda row: (not row[0], -row[4]))
            heads = [(row[1], int(row[2]), int(row[3]), row[4] / 100) for row in best_first]
            stored_places = {row[1:4] for row in rows}
        if not heads or not all(0 <= share <= 1 for *_, share in heads):
            raise InputError(
                f"{path}: not a result of `groundling heads` (expected heads, each with an accuracy of 0 to 100)"
            )
        places = {(name, layer, head) for name, layer, head, _ in heads}
        if (
            not places == stored_places
            or len(places) < len(heads)
            or any(layer < 0 or head < 0 for _, layer, head in places)
        ):
            raise InputError(
                f"{path}: not a result of `groundling heads` (expected whole numbers of layers and heads, each head "
                "once)"
            )
        return RankedHeads(
            f"{measure} in {path.parent.name}",
            heads,
            active=sum(is_active for is_active, *_ in rows),
            file=str(path),
            model=str(content.get("model", "")),
            weights=str(content.get("weights", "")),
            untrained=bool(content.get("untrained", False)),
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON object of the page."""
        return {"by": self.ranking, "heads": self.heads}

    def check_model(self, source: str, folder: str) -> None:
        """Raises InputError if the result is of another model than the one in `folder`.

        Models are compared by the hash of their weights, so a folder may be moved; without a hash,
        by the folder's path.
        """
        if self.weights:
            is_same = self.weights == saved_sha256(folder)
        else:
            is_same = not self.model or Path(self.model).resolve() == Path(folder).resolve()
        result_model = f"{self.model} with random weights" if self.untrained else self.model
        if self.untrained or not is_same:
            raise InputError(
                f"heads={self.file}: a result of {result_model}, not of model={source}; pass this model's own "
                "result, or other_heads"
            )

    def check_sizes(self, heads: Mapping[tuple[str, int], int], all_layers: bool) -> None:
        """Raises InputError if the model and the result differ in their layers or heads.

        `heads`: number of heads by name and number of the layer; `all_layers`: whether these are all
        layers.
        """
        result_sizes: dict[str, tuple[int, int]] = {}
        for name, layer, head, _ in self.heads:
            layers, head_count = result_sizes.get(name, (0, 0))
            result_sizes[name] = (max(layers, layer + 1), max(head_count, head + 1))
        for (name, layer), size in heads.items():
            layers, head_count = result_sizes.get(name, (0, 0))
            model_layers = 1 + max(number for other, number in heads if other == name)
            if head_count != size or layer >= layers or (all_layers and model_layers != layers):
                raise InputError(
                    f"heads={self.file}: {layers} layers of {head_count} heads, but the model has {model_layers} "
                    f"of {size}; pass this model's own result"
                )

    def best(self, layers: Collection[int]) -> list[str]:
        """LAYER-HEAD of the best active head in each of the `MAX_PANELS` best layers, in order.

        This is how VisualBERT's authors chose the heads of their figures (Section 3). Raises
        InputError without a result of `groundling heads`, or without an active head in these
        layers.
        """
        if not self.file:
            raise InputError(
                "heat_maps=best: pass heads, the model's result of `groundling heads`, or name heads"
            )
        best: dict[int, int] = {}
        for _, layer, head, _ in self.heads[: self.active]:
            if layer in layers:
                best.setdefault(layer, head)
        if not best:
            raise InputError(
                f"heat_maps=best: {self.file} has no active head in the layers shown; name heads, or run "
                "`groundling heads --min-region-attention 0`"
            )
        return [f"{layer}-{best[layer]}" for layer in sorted(list(best)[:MAX_PANELS])]


class PerHeadBoxAttention:
    """Mean attention from words to boxes for each head, over the views of one model."""

    def __init__(self) -> None:
        self.total: dict[tuple[str, int], np.ndarray] = {}
        self.count: dict[tuple[str, int], int] = {}

    def add(self, view: ModelAttentionView) -> None:
        """Add the view of an image and a text."""
        for key, mass in view.box_attention().items():
            self.total[key] = self.total.get(key, 0) + mass
            self.count[key] = self.count.get(key, 0) + 1

    @property
    def heads(self) -> dict[tuple[str, int], int]:
        """Number of heads by layer (name, number), where words attend to boxes."""
        return {key: len(total) for key, total in self.total.items()}

    def ranked(self) -> RankedHeads | None:
        """The heads ranked by their mean; None for a model whose words do not attend to boxes."""
        heads = [
            (name, layer, head, round(float(share), 4))
            for (name, layer), total in self.total.items()
            for head, share in enumerate(total / self.count[name, layer])
        ]
        best_first = sorted(heads, key=lambda one: -one[3])
        return RankedHeads("attention from words to boxes", best_first) if heads else None
