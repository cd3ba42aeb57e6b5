"""Joins: how a text and the regions of its images become one sequence for a BERT encoder.

Everything in which VisualBERT, VL-BERT and UNITER differ before their heads is here. The order is text (with its
padding, which the mask hides), regions, and what a join adds after them; positions are those of a sequence without
padding. A join owns what BERT lacks and reads BERT's own embeddings, so that BERT stays a stock model.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertModel

from groundling.batch import Batch, Regions, Tokens
from groundling.errors import InputError


class Joined(NamedTuple):
    """One sequence of both modalities, embedded: S places."""

    states: Tensor  # (B, S, H)
    mask: Tensor  # (B, S) bool
    text: slice  # the T places of the text
    regions: slice  # the R places of the regions


class Join(nn.Module):
    """From BERT's embedding module and a batch to one sequence; without regions, to the text's alone."""

    kind: ClassVar[str]
    after: ClassVar[int] = 0
    """Positions that are needed after the text's."""
    whole: ClassVar[bool] = False
    """Whether it reads the whole image as a region."""

    def __init__(self, width: int, **options: Any) -> None:
        """`width` of a region's features; it and `options` are written beside the weights."""
        super().__init__()
        self.width, self.options = width, {"width": width, **options}

    def table(self) -> Tensor | None:
        """The weight (H, D) that embeds features, if a head is tied to it."""
        return None

    def forward(self, embeddings: Any, batch: Batch) -> Joined:
        """Text and regions of a batch through `embeddings`, BERT's own module, and the join."""
        text, regions = batch.text, batch.regions
        assert text is not None, "a single-stream model reads batch.text"
        if regions is not None and regions.features.shape[-1] != self.width:
            found = regions.features.shape[-1]
            raise InputError(
                f"regions have features of width {found}; this {self.kind} model reads {self.width}"
            )
        words, rest = self.parts(embeddings, text, regions)
        mask = text.mask if regions is None else torch.cat([text.mask, regions.mask], 1)
        start, stop = words.shape[1], mask.shape[1]
        states = torch.cat([words, rest], 1)
        mask = F.pad(mask, (0, states.shape[1] - stop), value=True)
        return Joined(states, mask, slice(0, start), slice(start, stop))

    def parts(
        self, embeddings: Any, text: Tokens, regions: Regions | None
    ) -> tuple[Tensor, Tensor]:
        """Embedded text (B, T, H) and, after it, regions with what else a join adds (B, R + more, H)."""
        raise NotImplementedError

    def segments(self, regions: Regions, rows: Sequence[int]) -> Tensor:
        """Segment row (B, R) of each region, by the number of its image."""
        if (most := int(regions.image.max()) + 1) > len(rows):
            raise InputError(
                f"a sample has {most} images; this {self.kind} model has segments for {len(rows)}"
            )
        return regions.image.new_tensor(rows)[regions.image]


def fresh(module: nn.Module) -> None:
    """Initialise new Linears as BERT does: N(0, 0.02), biases zero."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=0.02)
            nn.init.zeros_(part.bias)


def add_types(bert: BertModel, copies: Sequence[int | None]) -> None:
    """Append rows to BERT's segment table, in place: copies of the given rows, None for a random one."""
    table = bert.embeddings.token_type_embeddings
    old = table.weight.detach()
    rows = [torch.randn_like(old[0]) * 0.02 if row is None else old[row] for row in copies]
    table.weight = nn.Parameter(torch.stack([*old, *rows]))
    table.num_embeddings = bert.config.type_vocab_size = len(table.weight)


class VisualBertJoin(Join):
    """VisualBERT (Section 3.2): a projected feature + visual segment + visual position, under BERT's own LayerNorm.

    Segment and position tables are the regions' own and start as copies of BERT's. As in the authors' code the
    position is always 0, and where pieces of the text name a region (VCR), the mean of the mentions' text positions is
    added to it (paper: their sum alone). The segment is the number of the image (NLVR2), 0 for a single one; HF's
    default is 1. With `boxes`, x1, y1, x2, y2, width and height are appended to the features (Flickr30k, code).
    """

    kind = "visualbert"

    def __init__(self, bert: BertModel, width: int = 2048, boxes: bool = False) -> None:
        super().__init__(width, boxes=boxes)
        self.boxes, self.projection = boxes, nn.Linear(width + 6 * boxes, bert.config.hidden_size)
        fresh(self)
        self.position = deepcopy(bert.embeddings.position_embeddings)
        self.segment = deepcopy(bert.embeddings.token_type_embeddings)

    def parts(
        self, embeddings: Any, text: Tokens, regions: Regions | None
    ) -> tuple[Tensor, Tensor]:
        """Text (B, T, H) and regions (B, R, H)."""
        words = embeddings(input_ids=text.ids, token_type_ids=text.types)
        if regions is None:
            return words, words[:, :0]
        features = regions.features
        if self.boxes:
            features = torch.cat(
                [features, regions.boxes, regions.boxes[..., 2:] - regions.boxes[..., :2]], -1
            )
        segment = self.segment(self.segments(regions, range(self.segment.num_embeddings)))
        looks = self.projection(features) + segment + self.position.weight[0]
        if text.region is not None:
            positions = embeddings.position_embeddings.weight[: words.shape[1]]
            looks = looks + _mentions(text.region, text.word, looks.shape[1]) @ positions
        return words, embeddings.dropout(embeddings.LayerNorm(looks))


def _mentions(region: Tensor, word: Tensor, count: int) -> Tensor:
    """Weights (B, R, T) of pieces for the regions they name: equal over a region's mentions, of sum 1 (0 if none)."""
    again = (region[:, 1:] == region[:, :-1]) & (
        word[:, 1:] == word[:, :-1]
    )  # a mention counts at its first piece
    named = (
        F.one_hot(region + 1, count + 1)[..., 1:].transpose(1, 2) * ~F.pad(again, (1, 0))[:, None]
    )
    return named / named.sum(-1, keepdim=True).clamp(min=1)


def sinusoids(boxes: Tensor) -> Tensor:
    """VL-BERT's embedding of boxes (B, R, 4) as 2048 numbers; centre, width and height as percentages (code).

    For each of the four, 256 sines and 256 cosines of the number over 1000^(k / 256). The paper (Section 3.2) takes
    normalised corners.
    """
    first, second = boxes[..., :2], boxes[..., 2:]
    places = 100 * torch.cat([(first + second) / 2, second - first], -1)
    divisors = 1000 ** (torch.arange(256, device=boxes.device, dtype=boxes.dtype) / 256)
    angles = places[..., None] / divisors  # (B, R, 4, 256)
    return torch.cat([angles.sin(), angles.cos()], -1).flatten(-2)


class VLBertJoin(Join):
    """VL-BERT (Section 3.2): every piece is a word + what it sees, every region an [IMG] + what it is, then [END].

    A piece sees the whole image, which must be among the sample's regions, or the region that it names (VCR); of a
    sample without regions, a learned vector (text-only pre-training). What a region is comes from its geometry and
    appearance, through two LayerNorms whose gains start at 0: the model begins as BERT. All regions share the position
    after the text, [END] has the one after that (code). Hidden regions get learned vectors in place of appearance and
    [IMG] (code, pre-computed features); with `pixels`, where they are hidden in the picture already, of [IMG] alone
    (code, end to end). Segment 2, of regions and [END], is a third row of BERT's own table.
    """

    kind = "vlbert"
    after = 2
    whole = True

    def __init__(self, bert: BertModel, width: int = 2048, pixels: bool = False) -> None:
        super().__init__(width, pixels=pixels)
        hidden, segments = bert.config.hidden_size, bert.config.type_vocab_size
        if segments < 3:
            raise InputError(
                f"VL-BERT needs 3 segments, this BERT has {segments}; `add_types` appends one"
            )
        self.dropout = nn.Dropout(bert.config.hidden_dropout_prob)
        self.visual = nn.Linear(2048 + width, hidden)  # keeps PyTorch's own initialisation (code)
        self.norm_text, self.norm_region = (
            nn.LayerNorm(hidden, eps=1e-12),
            nn.LayerNorm(hidden, eps=1e-12),
        )
        nn.init.zeros_(self.norm_text.weight)
        nn.init.zeros_(self.norm_region.weight)
        self.image_word, self.mask_word, self.end, self.no_image = (
            nn.Parameter(torch.randn(1, hidden) * 0.02) for _ in range(4)
        )
        self.mask_visual = None if pixels else nn.Parameter(torch.zeros(1, width))

    def parts(
        self, embeddings: Any, text: Tokens, regions: Regions | None
    ) -> tuple[Tensor, Tensor]:
        """Text (B, T, H), and regions with [END] (B, R + 1, H)."""
        size, count = text.ids.shape
        place = text.mask.sum(1, keepdim=True)  # (B, 1): the first after the sample's own text
        seen, last, places = (
            self.no_image.expand(size, count, -1),
            self.end.expand(size, 1, -1),
            place + 1,
        )
        if regions is not None:
            masked = torch.zeros_like(regions.mask) if regions.masked is None else regions.masked
            appearance = regions.features
            if self.mask_visual is not None:
                appearance = torch.where(masked[..., None], self.mask_visual, appearance)
            both = torch.cat([sinusoids(regions.boxes), appearance], -1)
            looks = self.visual(self.dropout(both)).relu()  # (B, R, H)
            chosen = self._seen(text, regions)[..., None].expand(-1, -1, looks.shape[-1])
            seen = torch.where(regions.mask.any(1)[:, None, None], looks.gather(1, chosen), seen)
            names = torch.where(masked[..., None], self.mask_word, self.image_word)
            last = torch.cat([names + self.norm_region(looks), last], 1)
            places = torch.cat([place.expand(masked.shape), places], 1)
        seen = embeddings.word_embeddings(text.ids) + self.norm_text(seen)
        words = embeddings(inputs_embeds=seen, token_type_ids=text.types)
        return words, embeddings(
            inputs_embeds=last, position_ids=places, token_type_ids=torch.full_like(places, 2)
        )

    def _seen(self, text: Tokens, regions: Regions) -> Tensor:
        """The region (B, T) that each piece of the text sees."""
        whole = regions.whole & regions.mask
        if (regions.mask.any(1) & ~whole.any(1)).any():
            raise InputError(
                "VL-BERT reads the whole image as a region; a sample of this data has regions, but not it"
            )
        first = whole.int().argmax(1, keepdim=True).expand(text.ids.shape)
        return first if text.region is None else torch.where(text.region >= 0, text.region, first)


class UniterJoin(Join):
    """UNITER (Section 3.1): LN(LN(projected feature) + LN(projected box) + segment), beside BERT's embedded text.

    The box is x1, y1, x2, y2, width, height and their product. With regions, a piece of text `i` has segment
    `text_types[i]` and a region of image `j` segment `image_types[j]` of BERT's own table (code; VCR: text types
    (0, 2, 3), NLVR2: image types (1, 2), with rows appended by `add_types`); without regions segments are BERT's.
    A hidden region's features are a learned vector.
    """

    kind = "uniter"

    def __init__(
        self,
        bert: BertModel,
        width: int = 2048,
        text_types: Sequence[int] = (0, 0),
        image_types: Sequence[int] = (1,),
    ) -> None:
        super().__init__(width, text_types=list(text_types), image_types=list(image_types))
        hidden, segments = bert.config.hidden_size, bert.config.type_vocab_size
        if max(*text_types, *image_types) >= segments:
            raise InputError(
                f"segments {text_types}, {image_types}: this BERT has {segments}; `add_types` appends some"
            )
        self.text_types, self.image_types = text_types, image_types
        self.feature, self.box = nn.Linear(width, hidden), nn.Linear(7, hidden)
        fresh(self)
        self.feature_norm, self.box_norm, self.norm = (
            nn.LayerNorm(hidden, eps=1e-12) for _ in range(3)
        )
        # The authors' table; row 0, for regions that are not hidden, is zero there and never read here.
        self.mask = nn.Embedding(2, width, padding_idx=0)
        nn.init.normal_(self.mask.weight.detach()[1:], std=0.02)

    def table(self) -> Tensor:
        """The feature Linear's, to whose transpose UNITER's feature regression is tied."""
        return self.feature.weight

    def parts(
        self, embeddings: Any, text: Tokens, regions: Regions | None
    ) -> tuple[Tensor, Tensor]:
        """Text (B, T, H) and regions (B, R, H)."""
        types = (
            text.types if regions is None else text.types.new_tensor(self.text_types)[text.types]
        )
        words = embeddings(input_ids=text.ids, token_type_ids=types)
        if regions is None:
            return words, words[:, :0]
        features = regions.features
        if regions.masked is not None:
            features = torch.where(regions.masked[..., None], self.mask.weight[1], features)
        sides = regions.boxes[..., 2:] - regions.boxes[..., :2]
        box = torch.cat([regions.boxes, sides, sides.prod(-1, keepdim=True)], -1)
        segment = embeddings.token_type_embeddings(self.segments(regions, self.image_types))
        looks = self.feature_norm(self.feature(features)) + self.box_norm(self.box(box)) + segment
        return words, embeddings.dropout(self.norm(looks))


JOINS: dict[str, Any] = {join.kind: join for join in (VisualBertJoin, VLBertJoin, UniterJoin)}
"""Joins by the name that is written beside their weights."""
