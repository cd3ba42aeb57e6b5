"""What a model reads of one image and text, and its attention between them: boxes, words, heat maps, ranked heads."""

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
"""What models of one stream call their maps."""
BLOCKS = ((WORDS, WORDS), (WORDS, BOXES), (BOXES, WORDS))
"""Who reads whom, as far as the page shows it: what boxes make of each other would be most of its bytes."""
OF_PATCHES = (*BLOCKS, (BOXES, BOXES))
"""The same of boxes that are patches."""
IMAGE_PLACES = (PositionKind.REGION, PositionKind.WHOLE_IMAGE, PositionKind.IMAGE_CLASS)
END = "[END]"
"""What a join's own places at the end are called."""
WEIGHT_STEPS = 255
"""A weight is told in steps of this share of the largest of its row."""
ROW_MAX_STEPS = 65535
"""The largest of a row is told in steps of this share of 1."""
MAX_PAGE_CHARACTERS = 20 * 2**20
"""Characters from which a browser takes long to open a page."""


@dataclass(frozen=True)
class WordView:
    """A word of the text, or a special piece by itself."""

    text: str
    """As it is written."""
    raw: int = -1
    """Its number among the text's words, by which models with other pieces find it; -1: no word of the text."""
    pieces: int = 1
    """How many places of the sequence it has."""


@dataclass(frozen=True)
class RegionView:
    """What a model sees of an image; a region of a detector, or a patch."""

    boxes: np.ndarray
    """(R, 4): x1, y1, x2, y2 as shares of the photo's width and height."""
    whole: np.ndarray
    """(R,) bool: the whole image; of patches, their class token."""
    names: Sequence[str] = ()
    """What each is, if anybody says."""
    are_patches: bool = False
    """They are a photo's patches; what these read of each other is shown, too."""

    @staticmethod
    def none() -> RegionView:
        """Of a model that reads texts alone."""
        return RegionView(np.zeros((0, 4), np.float32), np.zeros(0, bool))

    def title(self, number: int) -> str:
        """What a figure calls a region: its number, in which the whole image does not count, and its name."""
        if self.whole[number]:
            return "class token" if self.are_patches else "whole image"
        name = self.names[number] if self.names else ""
        return f"{number - int(self.whole[:number].sum())} {name}".strip()


@dataclass
class LayerView:
    """The attention of one layer."""

    name: str
    """What sort of layer it is, see `AttentionMap.name`; the two directions between text and image are one."""
    number: int
    """Counted from 0 among the layers of this name."""
    heads: int
    blocks: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    """(heads, rows, columns) by who reads whom, of `BLOCKS`."""
    even: dict[str, np.ndarray] = field(default_factory=dict)
    """(rows,) by who reads: the share that every place would get if a row gave the same to all that it may read."""

    def to_json(self) -> dict[str, Any]:
        """As the page has it."""
        blocks = {
            f"{row}_{column}": pack_attention(block) for (row, column), block in self.blocks.items()
        }
        even = {row: shares.round(6).tolist() for row, shares in self.even.items()}
        told = {"name": self.name, "number": self.number, "heads": self.heads}
        return {**told, "blocks": blocks, "even": even}


@dataclass(frozen=True)
class ModelAnswer:
    """What a model says to an image and a text."""

    title: str
    """What its head tells, such as the answer; of a model without a head, that there is none."""
    ranked: Sequence[tuple[str, float | None]] = ()
    """The most likely answers, best first, each with its probability; None of a number."""

    def to_json(self) -> dict[str, Any]:
        """As the page has it."""
        return {"about": self.title, "ranked": [list(one) for one in self.ranked]}


@dataclass
class AttentionView:
    """What one model reads of one image and text, and its attention."""

    words: list[WordView]
    boxes: RegionView
    layers: list[LayerView]
    notes: list[str] = field(default_factory=list)
    """What a reader must know, a line each."""
    answer: ModelAnswer | None = None
    """What the model says to them."""

    def to_json(self) -> dict[str, Any]:
        """As the page has it."""
        return {
            "words": [[word.text, word.raw, word.pieces] for word in self.words],
            "boxes": np.round(self.boxes.boxes, 4).tolist(),
            "whole": np.flatnonzero(self.boxes.whole).tolist(),
            "names": list(self.boxes.names),
            "patches": self.boxes.are_patches,
            "layers": [layer.to_json() for layer in self.layers],
            "notes": self.notes,
            "answer": None if self.answer is None else self.answer.to_json(),
        }

    def shares(self, head: str) -> np.ndarray:
        """What a head, LAYER-HEAD, gives from words (K) to boxes (R); raises InputError if there is none such."""
        layer, number = self._layer_of(head)
        return np.asarray(layer.blocks[WORDS, BOXES][number])

    def even(self, head: str) -> float:
        """What each box would get from a word in the layer of LAYER-HEAD if all that it may read got the same."""
        layer, _ = self._layer_of(head)
        return float(layer.even[WORDS].max())

    def _layer_of(self, head: str) -> tuple[LayerView, int]:
        """The layer of LAYER-HEAD, and the head's number in it."""
        for layer in self.layers:
            names = [f"{layer.number}-{place}" for place in range(layer.heads)]
            if (WORDS, BOXES) in layer.blocks and head in names:
                return layer, names.index(head)
        there = [layer for layer in self.layers if (WORDS, BOXES) in layer.blocks]
        spans = ", ".join(f"{one.number}-0 to {one.number}-{one.heads - 1}" for one in there)
        raise InputError(
            f"--heat-maps {head}: no such head; expected LAYER-HEAD of a layer whose words read boxes: {spans}"
        )

    def box_attention(self) -> dict[tuple[str, int], np.ndarray]:
        """By name and number of the layer, each head's (H,) mean share of words' attention that is on boxes.

        Words are those of the text; the whole image is no box. None of a layer whose words read no boxes.
        """
        is_word = np.array([word.raw >= 0 for word in self.words], bool)
        found = {}
        for layer in self.layers:
            block = layer.blocks.get((WORDS, BOXES))
            if block is not None and is_word.any() and (~self.boxes.whole).any():
                on_boxes = block[:, is_word][:, :, ~self.boxes.whole].sum(-1)
                found[layer.name, layer.number] = on_boxes.mean(1)
        return found


def pack_attention(block: np.ndarray) -> str:
    """Attention (H, rows, columns) in base64: each row's largest weight in two bytes, then one byte a weight.

    A weight is off by at most half of 1/255 of its row's largest as told, which is rounded up to a 65,535th.
    """
    heads, rows, columns = block.shape
    largest = block.max(-1) if columns else np.zeros((heads, rows))
    told = np.ceil(largest * ROW_MAX_STEPS).clip(0, ROW_MAX_STEPS).astype("<u2")
    scale = np.maximum(told, 1).astype(np.float64) / ROW_MAX_STEPS
    steps = np.rint(block / scale[..., None] * WEIGHT_STEPS).clip(0, WEIGHT_STEPS).astype(np.uint8)
    return base64.b64encode(told.tobytes() + steps.tobytes()).decode()


def collect_view(
    student: Encoder, sample: Sample, boxes: RegionView, layers: Collection[int], device: str
) -> AttentionView:
    """Ask a model about one sample of one row, and keep what it attends to; `layers`: only these, none for all.

    Raises InputError if it gives no attention maps, or has no such layer.
    """
    reading = _MapCollector(sample, student, boxes, layers)
    batch: Batch = collate([sample]).to(device)
    with torch.no_grad():
        student(batch, attention=reading)
    missing = set(layers) - {layer.number for layer in reading.told}
    if missing or not reading.told:
        there = len({number for _, number in reading.seen})
        wanted = f"--layers {min(missing)}: " if missing else ""
        raise InputError(f"{wanted}the model has {there} layers that tell what they attend to")
    return AttentionView(reading.words, boxes, reading.told)


class _MapCollector:
    """Takes the maps of one row as they are made, and keeps them by words and boxes."""

    def __init__(
        self, sample: Sample, student: Encoder, boxes: RegionView, layers: Collection[int]
    ) -> None:
        self.words: list[WordView] = []
        self.word_of: list[int] = []
        for place, word in _words(sample, student):
            if place == len(self.words):
                self.words.append(word)
            else:
                self.words[place] = replace(word, pieces=self.words[place].pieces + 1)
            self.word_of.append(place)
        self.boxes = boxes
        self.blocks = OF_PATCHES if boxes.are_patches else BLOCKS
        self.layers = layers
        self.told: list[LayerView] = []
        self.weights = 0
        self.seen: set[tuple[str, int]] = set()

    def __call__(self, one: AttentionMap) -> None:
        name = one.name
        reader, _, read = name.partition(" over ")
        if read:  # both directions of a layer between two streams stand together
            name = reader if read == reader else "cross"
        self.seen.add((name, one.layer))
        if self.layers and one.layer not in self.layers:
            return
        # One matrix per side: which word or box each place of the map belongs to.
        rows = self._sides(one.rows)
        columns = self._sides(one.columns)
        weights = one.weights[0].double().cpu().numpy()
        layer = self._layer(name, one.layer, len(weights))
        for row, column in self.blocks:
            of_row = rows[row]
            of_column = columns[column]
            if not of_row.any() or not of_column.any():
                continue
            # From a word of several pieces: their mean; to it: their sum (Clark et al. 2019, Section 4.1).
            mean = of_row / np.maximum(of_row.sum(1, keepdims=True), 1)
            block = _times(_times(weights, of_column).swapaxes(1, 2), mean).swapaxes(1, 2)
            layer.blocks[row, column] = block
            layer.even[row] = _even(weights, mean)
            self.weights += block.size
        self._check_weight()

    def _check_weight(self) -> None:
        """Raises InputError as soon as one pair alone would make a page too heavy."""
        if self.weights * 4 // 3 <= MAX_PAGE_CHARACTERS:
            return
        fit = len(self.told) - 1
        some = f"pass --layers with at most {fit} of them" if fit else "one layer is too much"
        told = f"{len(self.boxes.boxes)} {'patches' if self.boxes.are_patches else 'boxes'}"
        raise InputError(
            f"what {told} read of each other in these layers would make a page of more than {MAX_PAGE_CHARACTERS >> 20} MB; {some}"
        )

    def _layer(self, name: str, number: int, heads: int) -> LayerView:
        for layer in self.told:
            if (layer.name, layer.number) == (name, number):
                return layer
        self.told.append(LayerView(name, number, heads))
        return self.told[-1]

    def _sides(self, places: SequencePositions) -> dict[str, np.ndarray]:
        """(K, S) and (R, S) of 0 and 1: which word and which box each of S places belongs to."""
        holds = places.kinds[0].tolist()
        numbers = places.indices[0].tolist()
        self._make_room(sum(kind == PositionKind.ADDED for kind in holds))
        words = np.zeros((len(self.words), len(holds)))
        boxes = np.zeros((len(self.boxes.boxes), len(holds)))
        for place, (kind, number) in enumerate(zip(holds, numbers, strict=True)):
            if kind in IMAGE_PLACES:
                boxes[number, place] = 1
            elif kind == PositionKind.ADDED:
                words[self.first_added + number, place] = 1
            elif kind != PositionKind.PADDING:
                words[self.word_of[number], place] = 1
        return {WORDS: words, BOXES: boxes}

    @property
    def first_added(self) -> int:
        """Number of the first word that stands for what a join adds."""
        return max(self.word_of, default=-1) + 1

    def _make_room(self, added: int) -> None:
        """Words for what a join adds behind the regions."""
        while len(self.words) < self.first_added + added:
            self.words.append(WordView(END))


def _even(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Of rows (K, S), means of a map's, the even share (K,) of one place; `weights` is (H, S, S').

    A place that a mask hides, as a causal one does later words, has a weight of exactly 0 in every head.
    """
    readable = (weights > 0).any(0).sum(1)
    shares: np.ndarray = rows @ (1 / np.maximum(readable, 1))
    return shares


def _times(weights: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Weights (H, S, S') summed into (H, S, K) by `of` (K, S'), whose rows mostly pick one place each."""
    if (of.sum(1) == 1).all() and (of.max(1) == 1).all():
        return weights[:, :, of.argmax(1)]
    summed: np.ndarray = weights @ of.T
    return summed


def _words(sample: Sample, student: Encoder) -> Iterator[tuple[int, WordView]]:
    """For each piece of a row the number of its word on the page, and the word; special pieces are by themselves."""
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
        piece = text.engine.id_to_token(int(number)) or "?"
        yield place, WordView(raw[word], int(word)) if is_raw else WordView(piece)


# Heat maps of heads: words by boxes, or by the things that a text names (VisualBERT, Figures 1 and 5).

MIN_ATTENDED_SHARE = 0.1
"""Share of some word's attention from which a region of no entity stands by itself.

The paper shows regions that the model is "actively attending to" and does not say how much that is.
"""


def draw_heads(
    view: AttentionView, heads: Sequence[str], entities: Sequence[PhraseEntity] = ()
) -> Figure:
    """Some heads (LAYER-HEAD) of a model on one image and text: words by boxes.

    Where boxes are known of what the text names, its `entities`, regions are grouped by them, see `group_regions`. Raises
    InputError for a head that there is not, and if nothing is left to draw.
    """
    maps = {head: view.shares(head) for head in heads}
    if entities:
        return _grouped(view, maps, entities)
    boxes = [view.boxes.title(number) for number in range(len(view.boxes.boxes))]
    even = [100 * view.even(head) for head in heads]
    return draw_heat_maps(maps, [word.text for word in view.words], boxes, "box", min(even))


def _grouped(
    view: AttentionView, maps: Mapping[str, np.ndarray], entities: Sequence[PhraseEntity]
) -> Figure:
    """The text's own words by what they name."""
    words = [place for place, word in enumerate(view.words) if word.raw >= 0]
    of_words = {head: shares[words] for head, shares in maps.items()}
    groups = group_regions(view.boxes, entities, np.stack(list(of_words.values())))
    if not any(len(group.regions) for group in groups):
        raise InputError(
            "--heat-maps: no region shows what the text names, and no word attends to another one in these heads; "
            "choose another example (--example), or a store whose regions fit"
        )
    sums = {head: sum_groups(shares, groups) for head, shares in of_words.items()}
    told = [view.words[place].text for place in words]
    return draw_heat_maps(
        sums, told, [group.title for group in groups], "regions, by what they show"
    )


class RegionGroup(NamedTuple):
    """A column."""

    title: str
    regions: np.ndarray
    """Numbers of its regions; none for an entity that no region shows."""


def group_regions(
    boxes: RegionView, entities: Sequence[PhraseEntity], shares: np.ndarray
) -> list[RegionGroup]:
    """The regions of each entity, then the others that some word attends to, one by one and starred.

    A region belongs to the entity of the gold box with which its intersection over union is largest, if that is at
    least .5, from which `groundling heads` counts it as right; of equals the first. A patch of the photo belongs to the
    entity of the smallest gold box around its centre. The whole image belongs to none.

    Args:
        boxes: R regions.
        entities: what the text names, each with its boxes.
        shares: (H, W, R), what the words give to regions in the heads that are drawn.
    """
    measure = _around if boxes.are_patches else BAN.iou
    best = [measure(boxes.boxes, entity.boxes).max(1) for entity in entities]
    overlap = np.stack(best, 1)  # (R, entities)
    is_theirs = (overlap.max(1) >= BAN.at) & ~boxes.whole
    nearest = overlap.argmax(1)
    groups = []
    for number, entity in enumerate(entities):
        regions = np.flatnonzero(is_theirs & (nearest == number))
        title = entity.phrase if len(regions) else f"{entity.phrase} (no region)"
        groups.append(RegionGroup(title, regions))
    is_attended = shares.max((0, 1)) >= MIN_ATTENDED_SHARE
    for region in np.flatnonzero(is_attended & ~is_theirs):
        groups.append(RegionGroup(f"{boxes.title(int(region))} *", np.array([region])))
    return groups


def _around(patches: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """(R, G): 0 where a patch (R, 4) has its centre outside a box (G, 4), else 1 over the box's share of the image."""
    centre = (patches[:, None, :2] + patches[:, None, 2:]) / 2
    is_inside = ((centre >= boxes[None, :, :2]) & (centre <= boxes[None, :, 2:])).all(-1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    return np.asarray(is_inside / areas)


def sum_groups(shares: np.ndarray, groups: Sequence[RegionGroup]) -> np.ndarray:
    """What words give to groups (W, G), the sum over their regions, of what they give to regions (W, R).

    NaN for an entity that no region shows.
    """
    sums = [
        shares[:, group.regions].sum(1) if len(group.regions) else np.full(len(shares), np.nan)
        for group in groups
    ]
    return np.stack(sums, 1)


# Which heads of a model are worth looking at first.

MAX_PANELS = 6
"""Layers whose best heads VisualBERT's Figures 1 and 5 show."""


@dataclass(frozen=True)
class RankedHeads:
    """The heads of one model, best first."""

    by: str
    """What they are ranked by, in words."""
    heads: Sequence[tuple[str, int, int, float]]
    """Name and number of the layer, the head, and its share 0..1."""
    active: int = 0
    """So many of them, the first, look at regions as `groundling heads` counts it."""
    file: str = ""
    """The result that says so; empty where nobody measured what they find."""
    model: str = ""
    """What that result calls the model."""
    weights: str = ""
    """Hash of its weights, see `saved_sha256`; empty of a hub's model, and in results of earlier versions."""
    untrained: bool = False
    """Random weights were in place of the model's own."""

    @staticmethod
    def read(folder: str | Path) -> RankedHeads:
        """What `groundling heads` found, by the measure that it names, of active heads first.

        Raises InputError for another folder.
        """
        path = Path(folder)
        path = path if path.is_file() else path / "result.json"
        content = read_json(path)
        with convert_errors(f"{path}: no result of `groundling heads`"):
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
            as_told = {row[1:4] for row in rows}
        if not heads or not all(0 <= share <= 1 for *_, share in heads):
            raise InputError(
                f"{path}: no result of `groundling heads` (expected heads, each with an accuracy of 0 to 100)"
            )
        places = {(name, layer, head) for name, layer, head, _ in heads}
        if (
            not places == as_told
            or len(places) < len(heads)
            or any(layer < 0 or head < 0 for _, layer, head in places)
        ):
            raise InputError(
                f"{path}: no result of `groundling heads` (expected whole numbers of layers and heads, each head once)"
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
        """As the page has it."""
        return {"by": self.by, "heads": self.heads}

    def check_model(self, source: str, folder: str) -> None:
        """Raises InputError if the result says that it is of another model than the one in `folder`.

        A folder that was moved is known by its weights; one of a result without their hash by its name.
        """
        if self.weights:
            is_same = self.weights == saved_sha256(folder)
        else:
            is_same = not self.model or Path(self.model).resolve() == Path(folder).resolve()
        told = f"{self.model} with random weights" if self.untrained else self.model
        if self.untrained or not is_same:
            raise InputError(
                f"--heads {self.file}: is of {told}, not of --model {source}; pass this model's own result, or "
                "--other-heads"
            )

    def check_sizes(self, heads: Mapping[tuple[str, int], int], every: bool) -> None:
        """Raises InputError unless the model's layers have the result's heads.

        `heads`: how many there are in a layer, by its name and number; `every`: no layer was left out.
        """
        theirs: dict[str, tuple[int, int]] = {}
        for name, layer, head, _ in self.heads:
            layers, most = theirs.get(name, (0, 0))
            theirs[name] = (max(layers, layer + 1), max(most, head + 1))
        for (name, layer), size in heads.items():
            layers, most = theirs.get(name, (0, 0))
            mine = 1 + max(number for other, number in heads if other == name)
            if most != size or layer >= layers or (every and mine != layers):
                raise InputError(
                    f"--heads {self.file}: has {layers} layers of {most} heads, the model {mine} of {size}; pass this "
                    "model's own result"
                )

    def best(self, layers: Collection[int]) -> list[str]:
        """LAYER-HEAD of the best active head in each of the best `MAX_PANELS` of some layers, in their order.

        So VisualBERT's authors chose what to show (Section 3). Raises InputError if heads were not measured, or none
        is active there.
        """
        if not self.file:
            raise InputError(
                "--heat-maps best: pass --heads, what `groundling heads` found of the model, or name heads"
            )
        best: dict[int, int] = {}
        for _, layer, head, _ in self.heads[: self.active]:
            if layer in layers:
                best.setdefault(layer, head)
        if not best:
            raise InputError(
                f"--heat-maps best: in {self.file} no head of the layers shown is active; name heads, or run "
                "`groundling heads --min-region-attention 0`"
            )
        return [f"{layer}-{best[layer]}" for layer in sorted(list(best)[:MAX_PANELS])]


class MeanBoxAttention:
    """Gathers how much of words' attention is on boxes, view by view of one model."""

    def __init__(self) -> None:
        self.total: dict[tuple[str, int], np.ndarray] = {}
        self.count: dict[tuple[str, int], int] = {}

    def add(self, view: AttentionView) -> None:
        """One more image and text."""
        for key, mass in view.box_attention().items():
            self.total[key] = self.total.get(key, 0) + mass
            self.count[key] = self.count.get(key, 0) + 1

    @property
    def heads(self) -> dict[tuple[str, int], int]:
        """How many heads there are in every layer whose words read boxes, by its name and number."""
        return {key: len(total) for key, total in self.total.items()}

    def ranked(self) -> RankedHeads | None:
        """The heads by their mean; None of a model whose words read no boxes."""
        heads = [
            (name, layer, head, round(float(share), 4))
            for (name, layer), total in self.total.items()
            for head, share in enumerate(total / self.count[name, layer])
        ]
        best_first = sorted(heads, key=lambda one: -one[3])
        return RankedHeads("attention of words to boxes", best_first) if heads else None
