"""What every join of text and regions promises: one sequence for a BERT encoder.

Everything in which VisualBERT, VL-BERT and UNITER differ before their heads is in their joins (`vision_language/`).
The order is text (with its padding, which the mask hides), regions, and what a join adds after them; positions are
those of a sequence without padding. A join owns what BERT lacks and reads BERT's own embeddings, so that BERT stays a
stock model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertModel, PreTrainedTokenizerBase

from groundling.core.batch import Batch, Regions, require, to_device
from groundling.core.errors import InputError
from groundling.core.field_docs import with_field_docs
from groundling.data.samples import TextRowEncoder
from groundling.models.text_encoder import embed_words


@with_field_docs
class EmbeddedSequence(NamedTuple):
    """One sequence of both modalities, embedded: S places."""

    states: Tensor
    """(N, S, H)."""
    mask: Tensor
    """(N, S) bool."""
    text: slice
    """The T places of the text."""
    regions: slice
    """The R places of the regions."""


@with_field_docs
class RegionPooling(NamedTuple):
    """How a paper's CNN sees a region in the pixels."""

    bins: int
    """RoIAlign's bins a side, which the CNN's last stage reads, with stride 1."""
    dilation: int
    """Of that stage's 3 x 3 convolutions."""


@with_field_docs
class MultimodalEmbeddings(nn.Module):
    """From BERT's embedding module and a batch to one sequence; without regions, to the text's alone."""

    kind: ClassVar[str]
    """The name that is written beside the weights."""
    added_position_count: ClassVar[int] = 0
    """Positions that are needed after the text's."""
    reads_whole_image: bool = False
    """Whether it reads the whole image as a region."""
    reads_tagged_regions: ClassVar[bool] = True
    """Whether a word that names an object of the image (VCR) takes something of that object's region."""
    has_inclusive_boxes: ClassVar[bool] = False
    """Whether boxes end at their last pixel, so that the whole image is W - 1 by H - 1 pixels."""
    region_pooling: ClassVar[RegionPooling | None] = None
    """How its paper sees regions in pixels; None: stored features alone."""

    def __init__(self, width: int, **options: Any) -> None:
        """`width` of a region's features; it and `options` are written beside the weights."""
        super().__init__()
        self.width = width
        self.options = {"width": width, **options}

    def feature_projection_weight(self) -> Tensor | None:
        """The weight (H, D) that embeds features, if a head is tied to it."""
        return None

    def add_images(self, images: int, bert: BertModel) -> None:
        """Make room for samples of several images, in the join and in its BERT; most joins have it."""

    def make_text_input(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int
    ) -> TextRowEncoder:
        """How texts of at most `max_length` pieces become its input; for most joins as for BERT."""
        return TextRowEncoder(tokenizer, max_length)

    def forward(self, embeddings: Any, batch: Batch) -> EmbeddedSequence:
        """Text and regions of a batch through `embeddings`, BERT's own module, and the join.

        Raises InputError if the regions' features have another width than the join reads.
        """
        tokens = require(batch.text, "text", f"a {self.kind} model")
        regions = batch.regions
        if regions is not None:
            check_width(regions.features, self.width, f"{self.kind} model")
        words = embed_words(embeddings.word_embeddings, batch, f"a {self.kind} model")
        text, rest = self._parts(embeddings, words, batch)
        mask = (
            tokens.attention_mask
            if regions is None
            else torch.cat([tokens.attention_mask, regions.mask], 1)
        )
        states = torch.cat([text, rest], 1)
        text_places = slice(0, text.shape[1])
        region_places = slice(text.shape[1], mask.shape[1])
        added = states.shape[1] - mask.shape[1]
        return EmbeddedSequence(
            states, F.pad(mask, (0, added), value=True), text_places, region_places
        )

    def _parts(self, embeddings: Any, words: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """What `parts` returns; raises InputError if that is something else than the two, or of other lengths."""
        found: object = self.embed_parts(embeddings, words, batch)
        least = 0 if batch.regions is None else batch.regions.mask.shape[1]
        what = f"expected text {tuple(words.shape[:2])} x H and, of {least} regions or more, {len(words)} x R x H"
        if not isinstance(found, tuple) or len(found) != 2:
            raise InputError(f"{self.kind}: `parts` returns no pair of tensors; {what}")
        text, rest = found
        fits = text.ndim == rest.ndim == 3 and text.shape[:2] == words.shape[:2]
        if not (fits and len(rest) == len(words) and rest.shape[1] >= least):
            shapes = f"{tuple(text.shape)} and {tuple(rest.shape)}"
            raise InputError(f"{self.kind}: `parts` returns {shapes}; {what}")
        return text, rest

    def prepare_last_stage(self, states: Tensor, cover: Tensor) -> Tensor:
        """What a CNN's last stage reads of regions (R, C, bins, bins) whose objects fill `cover` (R, 14, 14)."""
        return states

    def mask_last_stage(self, states: Tensor, cover: Tensor) -> Tensor:
        """What counts of that stage's output (R, D, bins, bins) for regions whose objects fill `cover` (R, 14, 14)."""
        return states

    def embed_parts(self, embeddings: Any, words: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Embedded text (N, T, H) and, after it, regions with what else a join adds (N, R + more, H).

        `words` (N, T, E) are the word embeddings alone. Abstract.
        """
        raise NotImplementedError

    def masked_features(
        self, batch: Batch, regions: Regions, hidden: Tensor | None = None
    ) -> Tensor:
        """What the regions look like (N, R, D): `hidden` (1, D) or (D,) in place of masked ones, then perturbed."""
        features = regions.features
        if hidden is not None and regions.masked is not None:
            features = torch.where(regions.masked[..., None], hidden, features)
        if batch.perturbation is not None and batch.perturbation.regions is not None:
            features = features + batch.perturbation.regions
        return features

    # It asks what the batch holds, on which no compiled pass may depend.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def segment_ids(self, batch: Batch, rows: Sequence[int]) -> Tensor:
        """Segment row (N, R) of each region, by the number of its image; raises InputError for too many images."""
        on_host = require(batch.cpu_copy.regions, "regions", f"a {self.kind} model")
        most = int(on_host.image_index.max()) + 1
        if most > len(rows):
            raise InputError(
                f"a sample has {most} images; this {self.kind} model has segments for {len(rows)}"
            )
        image = require(batch.regions, "regions", f"a {self.kind} model").image_index
        return to_device(torch.tensor(rows), image.device)[image]


def init_linears(module: nn.Module) -> None:
    """Initialise new Linears as BERT does: N(0, 0.02), biases zero."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=0.02)
            nn.init.zeros_(part.bias)


def add_token_types(bert: BertModel, copies: Sequence[int | None]) -> None:
    """Append rows to BERT's segment table, in place: copies of the given rows, None for a random one."""
    table = bert.embeddings.token_type_embeddings
    old = table.weight.detach()
    rows = [torch.randn_like(old[0]) * 0.02 if row is None else old[row] for row in copies]
    table.weight = nn.Parameter(torch.stack([*old, *rows]))
    table.num_embeddings = len(table.weight)
    bert.config.type_vocab_size = len(table.weight)


def check_segments(bert: BertModel, last: int) -> None:
    """Raises InputError if a BERT has no segment of this number."""
    segments = bert.config.type_vocab_size
    if last >= segments:
        raise InputError(
            f"segments 0 to {last} are read, this BERT has {segments}; `add_token_types` appends some"
        )


def check_width(features: Tensor, width: int, who: str) -> None:
    """Raises InputError if regions' features (..., F) are not as wide as the model that reads them, which is `who`."""
    if features.shape[-1] != width:
        raise InputError(
            f"regions have features of width {features.shape[-1]}; this {who} reads {width}"
        )
