"""The interface of multimodal embeddings: text and regions as one input sequence of a BERT encoder.

VisualBERT, VL-BERT and UNITER differ, up to their heads, only in their `MultimodalEmbeddings`
(`vision_language/`). The sequence is text (its padding is masked), regions, and positions that the
embeddings add, such as VL-BERT's [END]; position ids do not count padding. A `MultimodalEmbeddings`
has the layers that BERT lacks and uses BERT's own embeddings, so that BERT stays a stock model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertModel, PreTrainedTokenizerBase

from groundling.core.batch import Batch, Example, Regions, require, to_device
from groundling.core.errors import InputError
from groundling.data.samples import TextRowEncoder
from groundling.models.text_encoder import embed_words


class EmbeddedSequence(NamedTuple):
    """The embedded sequence of text and regions, S positions."""

    states: Tensor
    """(N, S, H)."""
    mask: Tensor
    """(N, S) bool."""
    text: slice
    """The T positions of the text."""
    regions: slice
    """The R positions of the regions."""


class RoiAlignSpec(NamedTuple):
    """How a paper's CNN computes a region's features from pixels."""

    bins: int
    """RoIAlign's bins per side, the input of the CNN's last stage, which has stride 1."""
    dilation: int
    """Dilation of that stage's 3 x 3 convolutions."""


class MultimodalEmbeddings(nn.Module):
    """Embeds text and regions of a batch as one sequence, or the text alone, with BERT's embedding module."""

    kind: ClassVar[str]
    """Its architecture's name, saved with the weights."""
    added_position_count: ClassVar[int] = 0
    """Number of position ids it uses after those of the text."""
    reads_whole_image: bool = False
    """Whether it reads the whole image as a region."""
    reads_tagged_regions: ClassVar[bool] = True
    """Whether a word that names an object of the image (VCR) also reads that object's region."""
    has_inclusive_boxes: ClassVar[bool] = False
    """Whether box coordinates include the last pixel, so that the whole image is W - 1 by H - 1 pixels."""
    region_pooling: ClassVar[RoiAlignSpec | None] = None
    """How its paper computes features from pixels; None: stored features only."""

    def __init__(self, width: int, **options: Any) -> None:
        """`width` of a region's features; `width` and `options` are saved with the weights."""
        super().__init__()
        self.width = width
        self.options = {"width": width, **options}

    def feature_projection_weight(self) -> Tensor | None:
        """The feature projection's weight (H, D) if a head is tied to it, else None."""
        return None

    def add_images(self, images: int, bert: BertModel) -> None:
        """Prepare itself and its BERT for samples of several images; by default nothing is needed."""

    def prepare(self, model: Any, examples: Sequence[Example], pretraining: bool) -> None:
        """Prepare the `SingleStreamModel` that it is part of for a task's examples; by default nothing is needed."""

    def make_text_input(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int
    ) -> TextRowEncoder:
        """How texts become its input, at most `max_length` tokens; by default as for BERT."""
        return TextRowEncoder(tokenizer, max_length)

    def forward(self, embeddings: Any, batch: Batch) -> EmbeddedSequence:
        """Embed text and regions of a batch; `embeddings` is BERT's embedding module."""
        tokens = require(batch.text, "text", f"a {self.kind} model")
        regions = batch.regions
        words = embed_words(embeddings.word_embeddings, batch, f"a {self.kind} model")
        text, rest = self.embed_parts(embeddings, words, batch)
        mask = (
            tokens.attention_mask
            if regions is None
            else torch.cat([tokens.attention_mask, regions.mask], 1)
        )
        states = torch.cat([text, rest], 1)
        text_places = slice(0, text.shape[1])
        region_places = slice(text.shape[1], mask.shape[1])
        added = states.shape[1] - mask.shape[1]
        if text.shape[1] != words.shape[1] or added < 0:
            shapes = f"{tuple(text.shape)} and {tuple(rest.shape)}"
            raise InputError(f"{self.kind}: `embed_parts` returns too little: {shapes}")
        return EmbeddedSequence(
            states, F.pad(mask, (0, added), value=True), text_places, region_places
        )

    def prepare_last_stage(self, states: Tensor, object_masks: Tensor) -> Tensor:
        """Input of the CNN's last stage, from regions (R, C, bins, bins) and their `object_masks` (R, 14, 14)."""
        return states

    def mask_last_stage(self, states: Tensor, object_masks: Tensor) -> Tensor:
        """Output (R, D, bins, bins) of the CNN's last stage, masked by the regions' `object_masks` (R, 14, 14)."""
        return states

    def embed_parts(self, embeddings: Any, words: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Embedded text (N, T, H), and the regions followed by any added positions (N, R + added, H).

        `words` (N, T, E) are the word embeddings without positions and segments. Abstract.
        """
        raise NotImplementedError

    def masked_features(
        self, batch: Batch, regions: Regions, hidden: Tensor | None = None
    ) -> Tensor:
        """Features (N, R, D) of the regions: masked ones replaced by `hidden` (1, D) or (D,), then perturbed."""
        features = regions.features
        if hidden is not None and regions.masked is not None:
            features = torch.where(regions.masked[..., None], hidden, features)
        if "regions" in batch.perturbation:
            features = features + batch.perturbation["regions"]
        return features

    # Its result depends on the batch's values, which `torch.compile` does not support.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def segment_ids(self, batch: Batch, rows: Sequence[int]) -> Tensor:
        """Segment id (N, R) of each region, from `rows` by its image; raises InputError for too many images."""
        on_host = require(batch.cpu_copy.regions, "regions", f"a {self.kind} model")
        if int(on_host.image_index.max()) >= len(rows):
            raise InputError(f"a sample has more than the {len(rows)} images of this model")
        image = require(batch.regions, "regions", f"a {self.kind} model").image_index
        return to_device(torch.tensor(rows), image.device)[image]


def init_linears(module: nn.Module) -> None:
    """Initialise all Linears of a module as BERT does: weights N(0, 0.02), biases zero."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=0.02)
            nn.init.zeros_(part.bias)


def add_token_types(bert: BertModel, copies: Sequence[int | None]) -> None:
    """Append token type embeddings to a BERT, in place: copies of the given rows, random for None."""
    table = bert.embeddings.token_type_embeddings
    old = table.weight.detach()
    rows = [torch.randn_like(old[0]) * 0.02 if row is None else old[row] for row in copies]
    table.weight = nn.Parameter(torch.stack([*old, *rows]))
    table.num_embeddings = len(table.weight)
    bert.config.type_vocab_size = len(table.weight)


def check_segments(bert: BertModel, last: int) -> None:
    """Raises InputError if a BERT has no token type embedding of index `last`."""
    segments = bert.config.type_vocab_size
    if last >= segments:
        raise InputError(f"this model needs segments 0 to {last}, but the BERT has {segments}")
