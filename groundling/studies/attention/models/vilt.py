"""Hugging Face's ViLT, for inspection only: one stream of text and patches (Kim et al. 2021)."""

from __future__ import annotations

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
from groundling.data.samples import subsample
from groundling.models.attention import (
    AttentionCallback,
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
    """A `ViltModel` with patches as regions, whose features are the processor's pixels.

    transformers shuffles patches, which does not change attention; here they are in row order.
    """

    def __init__(
        self, model: ViltModel, tokenizer: PreTrainedTokenizerBase, processor: Any
    ) -> None:
        """Raises InputError if the tokenizer has more tokens than the model."""
        config: Any = model.config
        side = int(config.patch_size)
        super().__init__(model, tokenizer, regions=3 * side**2)
        self.processor = processor
        self.side = side
        self.square = int(config.image_size) // side

    def patches(self, photo: Image.Image) -> RegionRow:
        """Every patch of the photo, or `max_image_length` evenly spaced ones if there are more.

        In this case transformers draws a random subset in every forward pass.
        """
        row = cut_patches(preprocess_photo(self.processor, photo), self.side)
        limit = self.model.config.max_image_length
        if limit > 0:
            chosen = subsample(range(1, len(row)), limit)
            row = row.take(np.array([0, *chosen]))
        return row

    def forward(self, batch: Batch, attention: AttentionCallback | None = None) -> EncoderOutput:
        """Last states of `text` (N, T, H), and `visual` (N, R, H) of class token and patches.

        `attention` receives every layer's map over text, class token and patches, named `self`.
        Raises InputError without patches.
        """
        tokens = require(batch.text, "text", "a ViLT")
        regions = require(batch.regions, "regions", "a ViLT")
        # The copy on the host avoids a synchronisation with the GPU.
        places = require(batch.cpu_copy.regions, "regions", "a ViLT")
        features = regions.features
        if "regions" in batch.perturbation:
            features = features + batch.perturbation["regions"]

        def read() -> SequencePositions:
            return SequencePositions.concatenate(text_positions(tokens), patch_positions(regions))

        with capture_attention(self.model, attention, read):
            out = self.model(
                inputs_embeds=embed_words(self.word_embeddings(), batch, "a ViLT"),
                attention_mask=tokens.attention_mask.long(),
                token_type_ids=tokens.token_type_ids,
                image_embeds=self._embed_patches(features, regions.is_whole_image, places),
                pixel_mask=regions.mask.long(),
            )
        states, length = out.last_hidden_state, tokens.input_ids.shape[1]
        return EncoderOutput(
            text=states[:, :length],
            visual=states[:, length:],
            pooler_output=out.pooler_output,
            input_embeddings=self.word_embeddings().weight,
        )

    def _embed_patches(self, features: Tensor, is_whole_image: Tensor, regions: Regions) -> Tensor:
        """Embeddings (N, R, H) with positions, as in `ViltEmbeddings.visual_embed`."""
        embeddings = self.model.embeddings
        cut = embeddings.patch_embeddings.projection
        # A convolution with stride equal to its kernel size is a linear map of each patch.
        patches = F.linear(features.to(cut.weight.dtype), cut.weight.flatten(1), cut.bias)
        embedded: Tensor = embeddings.dropout(
            torch.where(is_whole_image.unsqueeze(-1), embeddings.cls_token, patches)
            + self._positions(regions)
        )
        return embedded

    def _positions(self, regions: Regions) -> Tensor:
        """Position embeddings (N, R, H): the model's grid, interpolated to each photo's grid."""
        table = self.model.embeddings.position_embeddings[0]
        grid = table[1:].T.view(1, -1, self.square, self.square)
        positions: Tensor = table.new_zeros(*regions.mask.shape, table.shape[-1])
        for number, boxes in enumerate(regions.boxes):
            whole = regions.is_whole_image[number]
            inner = (regions.mask[number] & ~whole).nonzero().squeeze(1)
            corner, size = boxes[inner, :2], boxes[inner, 2:] - boxes[inner, :2]
            # The number of whole patches in the photo; a remainder may be left at the edge.
            wide, high = (1 / size[0] + SLACK).long().tolist()
            column, row = to_device((corner / size).round().long(), table.device).unbind(-1)
            stretched = F.interpolate(grid, (high, wide), mode="bilinear", align_corners=True)
            positions[number, to_device(inner, table.device)] = stretched[0][:, row, column].T
            positions[number, to_device(whole.nonzero().squeeze(1), table.device)] = table[0]
        return positions

    def patch_parameters(self) -> list[nn.Parameter]:
        """The convolution's weights, the class token and the positions."""
        embeddings = self.model.embeddings
        return [
            *embeddings.patch_embeddings.parameters(),
            *(embeddings.cls_token, embeddings.position_embeddings),
        ]

    def export(self, folder: Path) -> None:
        """Write a stock HF folder, with tokenizer and image processor."""
        super().export(folder)
        self.processor.save_pretrained(folder)


SLACK = 1e-3
"""Tolerance for rounding errors in the number of patches."""


def load_vilt(source: str | Path) -> Vilt:
    """Load a folder of transformers' ViLT; raises InputError if it is incomplete."""
    model = load_weights(ViltModel, source)
    return Vilt(model, load_tokenizer(source), load_processor(source)).eval()


def _is_vilt(source: str) -> bool:
    return model_type(source) == ViltConfig.model_type


VILT = ModelFormat("ViLT of transformers", _is_vilt, load_vilt)
