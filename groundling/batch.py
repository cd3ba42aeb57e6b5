"""What a model may see (`Batch`) and all that a model says (`Encoded`).

Sizes, everywhere: B samples, T text pieces, K raw words, N windows of S pieces, V visual-side pieces, D/E widths. A
multiple-choice sample of C choices takes C rows of every input, one after the other, and one row of labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from groundling.errors import InputError

IGNORE = -100
"""Label of a position that no loss may score (PyTorch's convention)."""


@dataclass(frozen=True)
class Row:
    """One tokenised text of one sample, without padding."""

    ids: np.ndarray  # (T,) int64
    special: np.ndarray  # (T,) bool: added by the tokenizer, not part of the text
    word: np.ndarray  # (T,) int64: which raw word the piece belongs to, -1 for none
    types: np.ndarray  # (T,) int64: 0 first text, 1 second text
    pad: int
    """Id that fills a batch up; never identifies padding (an attention mask does)."""
    window: np.ndarray | None = (
        None  # (T,) int64: which window of a CLIP text tower; None for a text encoder
    )
    region: np.ndarray | None = (
        None  # (T,) int64: the region a piece names (VCR's tags), -1 for none
    )


@dataclass(frozen=True)
class RegionRow:
    """The regions of one sample's images, best first; see `data/regions.py` for where they come from."""

    features: np.ndarray  # (R, D) float32
    boxes: np.ndarray  # (R, 4) float32: x1, y1, x2, y2 as shares of the image's width and height
    confidence: np.ndarray  # (R,) float32, 0..1; 1 for annotated boxes and the whole image
    image: np.ndarray  # (R,) int64: which of the sample's images
    whole: np.ndarray  # (R,) bool: True for a region that is the whole image
    classes: np.ndarray | None = None  # (R, C) float32: the detector's distribution over classes
    masked: np.ndarray | None = (
        None  # (R,) bool: features that are hidden from the model; a join puts its own there
    )
    cover: np.ndarray | None = (
        None  # (R, 14, 14) bool: the cells of its box that an object fills (VCR's masks)
    )


@dataclass(frozen=True)
class Sample:
    """One example, tokenised and decoded once; objectives rewrite copies of it."""

    id: str
    text: Row | None = None
    clip: Row | None = None
    words: np.ndarray | None = None  # (K,) int64: a number per raw word, equal for equal words
    pixels: np.ndarray | None = None  # (3, H, W) uint8; one picture for all choices
    regions: RegionRow | None = None
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    features: Mapping[str, np.ndarray] = field(default_factory=dict)
    dropped: int = 0
    """Pieces of the text that did not fit and were cut off."""
    choices: tuple[Sample, ...] = ()
    """The inputs of a multiple-choice example, in place of its own; C of them in every sample of a data set."""

    def with_label(self, name: str, value: np.ndarray) -> Sample:
        """A copy that also carries the label `name`."""
        return replace(self, labels={**self.labels, name: value})


@dataclass(frozen=True)
class Tokens:
    """The text encoder's side of a batch."""

    ids: Tensor  # (B, T) long
    mask: Tensor  # (B, T) bool: True where there is a piece
    special: Tensor  # (B, T) bool
    word: Tensor  # (B, T) long, -1 for none
    types: Tensor  # (B, T) long
    region: Tensor | None = None  # (B, T) long: the region a piece names, -1 for none


@dataclass(frozen=True)
class Regions:
    """The regions' side of a batch."""

    features: Tensor  # (B, R, D) float
    boxes: Tensor  # (B, R, 4) float: x1, y1, x2, y2 as shares of width and height
    mask: Tensor  # (B, R) bool: True where there is a region
    image: Tensor  # (B, R) long: which of the sample's images
    whole: Tensor  # (B, R) bool
    confidence: Tensor  # (B, R) float
    classes: Tensor | None = None  # (B, R, C) float
    masked: Tensor | None = (
        None  # (B, R) bool: features are zero, a join puts its learned vector there
    )
    cover: Tensor | None = None  # (B, R, 14, 14) bool: the cells of a box that its object fills


@dataclass(frozen=True)
class Windows:
    """A CLIP text tower's side of a batch: as many windows as each sample needs, and no more."""

    ids: Tensor  # (N, S) long
    mask: Tensor  # (N, S) bool
    row: Tensor  # (N,) long: the sample a window belongs to
    slot: Tensor  # (N, S) long: place of a piece in the flat (B * V) layout; 0 where mask is False
    last: Tensor  # (N,) long: index of each window's last piece (its end token)
    types: Tensor  # (N,) long: 0 first text, 1 second text
    key_mask: Tensor  # (B, V) bool
    special: Tensor  # (B, V) bool
    word: Tensor  # (B, V) long, -1 for none
    flat_ids: Tensor  # (B, V) long
    pad: int = 0  # the tokenizer's padding id, for towers that read padding (SigLIP)

    def join(self, states: Tensor) -> Tensor:
        """Per-window states (N, S, D) laid end to end per sample: (B, V, D), zeros where there is no piece."""
        b, v = self.key_mask.shape
        flat = states.new_zeros(b * v, states.shape[-1])
        return flat.index_put((self.slot[self.mask],), states[self.mask]).view(b, v, -1)


@dataclass(frozen=True)
class Batch:
    """Everything a model may see of B samples; frozen, use `dataclasses.replace`."""

    ids: tuple[str, ...]  # B sample ids
    text: Tokens | None = None
    clip: Windows | None = None
    words: Tensor | None = (
        None  # (B, K) long: equal numbers for equal raw words, -1 beyond a sample's words
    )
    pixels: Tensor | None = (
        None  # (B, 3, H, W) uint8, zeros beyond a picture; of a multiple choice only one
    )
    extent: Tensor | None = None  # (B, 2) long: width and height of each picture in `pixels`
    regions: Regions | None = None
    labels: Mapping[str, Tensor] = field(
        default_factory=dict
    )  # by name: (B,) or (B, L), IGNORE where unlabelled
    features: Mapping[str, Tensor] = field(
        default_factory=dict
    )  # what frozen teachers said, by name: (B, ...)
    dropped: int = 0  # pieces of these texts that did not fit, counted for the report

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same batch on another device."""
        return _each_tensor(self, lambda t: t.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory (called by `DataLoader`)."""
        return _each_tensor(self, Tensor.pin_memory)

    def require(self, needs: Sequence[str], who: str) -> None:
        """Raise InputError naming the first of `needs` (fields, `labels.x`, `features.x`) that is missing."""
        for need in needs:
            part, _, name = need.partition(".")
            have: Any = {f.name: self.__dict__[f.name] for f in fields(self)}.get(part)
            if have is None or (name and name not in have):
                raise InputError(
                    f"{who} needs `{need}` in the batch, which this data or model set-up does not provide"
                )


def _each_tensor(value: Any, change: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {k: _each_tensor(v, change) for k, v in value.items()}
    if isinstance(value, (Batch, Tokens, Windows, Regions)):
        return replace(
            value, **{f.name: _each_tensor(value.__dict__[f.name], change) for f in fields(value)}
        )
    return value


@dataclass(frozen=True)
class Encoded:
    """Everything a model says of a batch, by name; a field is None where the model has no such thing."""

    text: Tensor | None = (
        None  # (B, T, D): the text encoder alone, last layer; this is what gets exported
    )
    pooled: Tensor | None = None  # (B, D): the text encoder's own pooler
    visual: Tensor | None = (
        None  # (B, V, Dv): CLIP pieces before they meet the text; regions (single stream) after it
    )
    joint_text: Tensor | None = None  # (B, T, D): the text side after the cross-modal encoder
    joint_visual: Tensor | None = None  # (B, V, Dv): the visual side after the cross-modal encoder
    text_embedding: Tensor | None = None  # (B, E): two-tower models, unit length
    image_embedding: Tensor | None = None  # (B, E): two-tower models, unit length
    scale: Tensor | None = None  # (): two-tower models, inverse temperature
    word_table: Tensor | None = (
        None  # (vocabulary, E): input embeddings of the text side, for tied heads
    )
    clip_table: Tensor | None = (
        None  # (vocabulary, Ev): input embeddings of the CLIP side, for tied heads
    )
    region_table: Tensor | None = (
        None  # (D, features): weight that embeds a region's features, for tied heads
    )
    hidden: tuple[Tensor, ...] = ()  # every layer's text states (B, T, D), embeddings first
    attention: tuple[Tensor, ...] = ()  # every layer's attention maps (B, heads, T, T)

    def require(self, who: str, *needs: str) -> None:
        """Raise InputError naming the first of `needs` that the model did not give."""
        for need in needs:
            if self.__dict__[need] is None:
                raise InputError(f"{who} needs `{need}`, which this model does not provide")


class Sizes(NamedTuple):
    """Widths of a model's outputs, from which heads are built; 0 where the model has no such output."""

    text: int = 0
    word_table: tuple[int, int] = (0, 0)  # (vocabulary, width)
    visual: int = 0
    clip_table: tuple[int, int] = (0, 0)
    pooled: int = 0
    teacher: int = 0
    """Width of the frozen teacher's features, if there is a teacher."""
    regions: int = 0
    """Width of a region's features, of a model that reads regions."""
    classes: int = 0
    """Classes, background included, that regions are described by."""
    background: bool = True
    """The first of these classes is none, background; False where all are something, as in a store of one's own."""


def _pad(rows: Sequence[np.ndarray], fill: float | int, width: int) -> Tensor:
    out = np.full((len(rows), width), fill, dtype=rows[0].dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return torch.from_numpy(out)


def _tokens(rows: Sequence[Row]) -> Tokens:
    width = max(len(r.ids) for r in rows)
    return Tokens(
        ids=_pad([r.ids for r in rows], rows[0].pad, width),
        mask=_pad([np.ones(len(r.ids), bool) for r in rows], False, width),
        special=_pad([r.special for r in rows], True, width),
        word=_pad([r.word for r in rows], -1, width),
        types=_pad([r.types for r in rows], 0, width),
        region=None
        if rows[0].region is None
        else _pad([r.region for r in rows if r.region is not None], -1, width),
    )


def _regions(rows: Sequence[RegionRow]) -> Regions:
    return Regions(
        features=_stack([r.features for r in rows], 0),
        boxes=_stack([r.boxes for r in rows], 0),
        mask=_stack([np.ones(len(r.boxes), bool) for r in rows], False),
        image=_stack([r.image for r in rows], 0),
        whole=_stack([r.whole for r in rows], False),
        confidence=_stack([r.confidence for r in rows], 0),
        classes=None
        if rows[0].classes is None
        else _stack([r.classes for r in rows if r.classes is not None], 0),
        masked=None
        if rows[0].masked is None
        else _stack([r.masked for r in rows if r.masked is not None], False),
        cover=None
        if rows[0].cover is None
        else _stack([r.cover for r in rows if r.cover is not None], False),
    )


def _windows(rows: Sequence[Row]) -> Windows:
    width = max(len(r.ids) for r in rows)
    pieces: list[np.ndarray] = []
    slots: list[np.ndarray] = []
    owner: list[int] = []
    second: list[int] = []
    for b, row in enumerate(rows):
        assert row.window is not None, "a CLIP row carries its window numbers"
        starts = np.flatnonzero(np.diff(row.window, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(row.ids)], strict=True):
            pieces.append(row.ids[start:stop])
            slots.append(np.arange(start, stop) + b * width)
            owner.append(b)
            second.append(int(row.types[start]))
    span = max(len(p) for p in pieces)
    return Windows(
        ids=_pad(pieces, rows[0].pad, span),
        mask=_pad([np.ones(len(p), bool) for p in pieces], False, span),
        row=torch.tensor(owner),
        slot=_pad(slots, 0, span),
        last=torch.tensor([len(p) - 1 for p in pieces]),
        types=torch.tensor(second),
        key_mask=_pad([np.ones(len(r.ids), bool) for r in rows], False, width),
        special=_pad([r.special for r in rows], True, width),
        word=_pad([r.word for r in rows], -1, width),
        flat_ids=_pad([r.ids for r in rows], rows[0].pad, width),
        pad=rows[0].pad,
    )


def _stack(values: Sequence[np.ndarray], fill: int) -> Tensor:
    """(...) arrays that may differ in their first axis, padded with `fill` and stacked: (B, ...)."""
    if values[0].ndim == 0:
        return torch.from_numpy(np.stack(values))
    out = np.full(
        (len(values), max(len(v) for v in values), *values[0].shape[1:]), fill, values[0].dtype
    )
    for i, value in enumerate(values):
        out[i, : len(value)] = value
    return torch.from_numpy(out)


def _pictures(pixels: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """(3, H, W) arrays, each in the upper left of zeros: (B, 3, H, W); and their widths and heights (B, 2)."""
    sizes = np.array([picture.shape[:0:-1] for picture in pixels])
    out = np.zeros((len(pixels), 3, sizes[:, 1].max(), sizes[:, 0].max()), np.uint8)
    for i, picture in enumerate(pixels):
        out[i, :, : picture.shape[1], : picture.shape[2]] = picture
    return torch.from_numpy(out), torch.from_numpy(sizes)


def collate(samples: Sequence[Sample]) -> Batch:
    """Pad samples to what this batch needs, field by field."""
    inputs = [row for s in samples for row in (s.choices or (s,))]
    first, seen = inputs[0], [s.pixels for s in samples if s.pixels is not None]
    pixels, extent = _pictures(seen) if seen else (None, None)
    return Batch(
        ids=tuple(s.id for s in samples),
        text=None
        if first.text is None
        else _tokens([s.text for s in inputs if s.text is not None]),
        clip=None
        if first.clip is None
        else _windows([s.clip for s in inputs if s.clip is not None]),
        words=None
        if first.words is None
        else _stack([s.words for s in inputs if s.words is not None], -1),
        pixels=pixels,
        extent=extent,
        regions=None
        if first.regions is None
        else _regions([s.regions for s in inputs if s.regions is not None]),
        labels={
            name: _stack([s.labels[name] for s in samples], IGNORE) for name in samples[0].labels
        },
        features={
            name: _stack([s.features[name] for s in samples], 0) for name in samples[0].features
        },
        dropped=sum(s.dropped for s in samples),
    )
