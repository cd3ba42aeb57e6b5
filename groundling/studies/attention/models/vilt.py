"""Hugging Face's ViLT as a guest: one stream of text and a photo's patches (Kim et al. 2021)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, ViltConfig, ViltModel

from groundling.core.batch import (
    Batch,
    EncoderOutput,
    RegionRow,
    Regions,
    require,
    to_device,
)
from groundling.data.samples import thinned
from groundling.models.attention import (
    AttentionCallback,
    AttentionMap,
    SequencePositions,
    capture_attention,
    patch_positions,
    text_positions,
)
from groundling.models.formats import ModelFormat
from groundling.models.loading import load_processor, load_tokenizer, load_weights, model_type
from groundling.models.text_encoder import embed_words
from groundling.studies.attention.models import (
    PatchReader,
    TransformersRegionReader,
    cut_patches,
    preprocess_photo,
)


class Vilt(PatchReader, TransformersRegionReader):
    """A stock `ViltModel`, whose patches are regions: their features are their pixels, as HF's processor makes them.

    transformers puts patches in an order that it draws, which attention does not depend on; here they stand row by row.
    """

    def __init__(
        self, model: ViltModel, tokenizer: PreTrainedTokenizerBase, processor: Any
    ) -> None:
        """`processor` makes a photo's pixels. Raises InputError if the tokenizer knows more pieces than the model."""
        config: Any = model.config
        side = int(config.patch_size)
        super().__init__(model, tokenizer, regions=3 * side**2)
        self.processor = processor
        self.side = side
        self.square = int(config.image_size) // side

    def patches(self, photo: Image.Image) -> RegionRow:
        """Every patch of the photo; of more than the model's `max_image_length` as many, evenly spaced.

        There transformers draws as many, otherwise each time.
        """
        row = cut_patches(preprocess_photo(self.processor, photo), self.side)
        most = self.model.config.max_image_length
        if most > 0:
            kept = thinned(range(1, len(row)), most)
            row = row.take(np.array([0, *kept]))
        return row

    def forward(self, batch: Batch, attention: AttentionCallback | None = None) -> EncoderOutput:
        """Last states of `text` (N, T, H) and of class token and patches, `visual` (N, R, H).

        `attention` is told every layer's map over text, class token and patches, named `self`. Raises InputError
        without patches.
        """
        tokens = require(batch.text, "text", "a ViLT")
        regions = require(batch.regions, "regions", "a ViLT")
        # Where patches lie is read where no device has to be waited for.
        places = require(batch.cpu_copy.regions, "regions", "a ViLT")
        features = regions.features
        if batch.perturbation is not None and batch.perturbation.regions is not None:
            features = features + batch.perturbation.regions
        with nullcontext() if attention is None else self._watching(batch, attention):
            out = self.model(
                inputs_embeds=embed_words(self.word_embeddings(), batch, "a ViLT"),
                attention_mask=tokens.attention_mask.long(),
                token_type_ids=tokens.token_type_ids,
                image_embeds=self._embedded(features, regions.is_whole_image, places),
                pixel_mask=regions.mask.long(),
            )
        states, pieces = out.last_hidden_state, tokens.input_ids.shape[1]
        return EncoderOutput(
            text=states[:, :pieces],
            visual=states[:, pieces:],
            pooler_output=out.pooler_output,
            input_embeddings=self.word_embeddings().weight,
        )

    def _embedded(self, features: Tensor, whole: Tensor, places: Regions) -> Tensor:
        """Class token and patches (N, R, H) with their positions, as `ViltEmbeddings.visual_embed` makes them."""
        parts = self.model.embeddings
        cut = parts.patch_embeddings.projection
        # A convolution whose stride is its side takes every patch by itself.
        patches = F.linear(features.to(cut.weight.dtype), cut.weight.flatten(1), cut.bias)
        embedded: Tensor = parts.dropout(
            torch.where(whole.unsqueeze(-1), parts.cls_token, patches) + self._positions(places)
        )
        return embedded

    def _positions(self, places: Regions) -> Tensor:
        """Position embeddings (N, R, H): the model's square of them, stretched to the grid of each photo's patches."""
        table = self.model.embeddings.position_embeddings[0]
        grid = table[1:].T.view(1, -1, self.square, self.square)
        found: Tensor = table.new_zeros(*places.mask.shape, table.shape[-1])
        for number, boxes in enumerate(places.boxes):
            whole = places.is_whole_image[number]
            inner = (places.mask[number] & ~whole).nonzero().squeeze(1)
            corner, size = boxes[inner, :2], boxes[inner, 2:] - boxes[inner, :2]
            # So many patches fit in the photo, of which a part may be left at the edge.
            wide, high = (1 / size[0] + SLACK).long().tolist()
            column, row = to_device((corner / size).round().long(), table.device).unbind(-1)
            stretched = F.interpolate(grid, (high, wide), mode="bilinear", align_corners=True)
            found[number, to_device(inner, table.device)] = stretched[0][:, row, column].T
            found[number, to_device(whole.nonzero().squeeze(1), table.device)] = table[0]
        return found

    def _watching(self, batch: Batch, attention: AttentionCallback) -> AbstractContextManager[None]:
        text = text_positions(require(batch.text, "text", "a ViLT"))
        every = SequencePositions.concatenate(
            text, patch_positions(require(batch.regions, "regions", "a ViLT"))
        )

        def tell(layer: int, weights: Tensor) -> None:
            attention(AttentionMap("self", layer, weights, every, every))

        return capture_attention(self.model, tell)

    def patch_parameters(self) -> list[nn.Parameter]:
        """The convolution's weights, the class token and the positions."""
        parts = self.model.embeddings
        return [
            *parts.patch_embeddings.parameters(),
            *(parts.cls_token, parts.position_embeddings),
        ]

    def export(self, folder: Path) -> None:
        """Write a stock HF folder, with tokenizer and image processor."""
        super().export(folder)
        self.processor.save_pretrained(folder)


SLACK = 1e-3
"""What rounding may take from a whole number of patches."""


def load_vilt(source: str | Path) -> Vilt:
    """A ViLT of transformers, with or without its heads; raises InputError if its folder is not whole."""
    model = load_weights(ViltModel, source)
    return Vilt(model, load_tokenizer(source), load_processor(source)).eval()


def _is_vilt(source: str) -> bool:
    return model_type(source) == ViltConfig.model_type


VILT = ModelFormat("ViLT of transformers", _is_vilt, load_vilt)
