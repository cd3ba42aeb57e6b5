"""Models of transformers that can be inspected but not trained: ViLT, and CLIP's two towers.

Their regions are a photo's patches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from transformers import (
    CLIPModel,
    CLIPTextModel,
    CLIPVisionModel,
    PreTrainedTokenizerBase,
    ViltConfig,
    ViltModel,
)

from groundling.core.batch import (
    Batch,
    EncoderOutput,
    Example,
    OutputSizes,
    RegionRow,
    Regions,
    require,
    to_device,
)
from groundling.core.errors import InputError, convert_errors, prefix_errors
from groundling.data.images import ImageInput, read_image
from groundling.data.regions import RegionSource
from groundling.data.samples import TextRowEncoder, check_vocabulary
from groundling.models.attention import (
    AttentionCallback,
    SequencePositions,
    capture_attention,
    patch_positions,
    text_positions,
)
from groundling.models.loading import (
    ModelFormat,
    load_processor,
    load_tokenizer,
    load_weights,
    model_type,
)
from groundling.models.text_encoder import embed_words
from groundling.vision_language import RegionEncoder


class PatchReader(RegionEncoder):
    """Abstract: a model whose regions are a photo's patches, made by its image processor.

    The first region is the class token: it has `is_whole_image`, and its features are zeros, which are not used.
    """

    region_source = "patches"
    reads_whole_image = True
    has_inclusive_boxes = False
    """Boxes are not clipped to the last pixel."""
    regions_provenance: Mapping[str, Any] = {}
    """Empty: the model makes its patches itself."""
    note: str = ""
    """A note for the reader of its page; empty: none."""
    needs_photo = True
    """Whether it cannot read a text without a photo."""

    def patches(self, photo: Image.Image) -> RegionRow:
        """Class token and patches of an RGB photo; raises InputError if it cannot be read."""
        raise NotImplementedError

    def patch_parameters(self) -> Sequence[nn.Parameter]:
        """The weights that embed patches and positions and are in no Linear or Embedding."""
        raise NotImplementedError


class PatchStore(RegionSource):
    """Patches by image id, with a region store's interface; computed at every access."""

    def __init__(self, model: PatchReader, photos: Mapping[str, ImageInput]) -> None:
        """`photos`: a file or picture by image id; rotated by its EXIF orientation."""
        self.model = model
        self.photos = photos
        self.counts: dict[str, int] = {}

    def __getitem__(self, image: str) -> RegionRow:
        """Raises InputError with the photo's name if it does not decode or is too small."""
        with prefix_errors(self.photos[image]):
            row = self.model.patches(read_image(self.photos[image]))
        self.counts[image] = len(row)
        return row

    def __contains__(self, image: object) -> bool:
        return image in self.photos

    def count(self, image: str) -> int:
        """The number of an image's patches, class token included."""
        return self.counts[image] if image in self.counts else len(self[image])


def preprocess_photo(processor: Any, photo: Image.Image) -> np.ndarray:
    """A photo's pixels from HF's image processor, (3, H, W) float32.

    Raises InputError if the processor fails, as with a very narrow photo.
    """
    with convert_errors(
        f"the model's image processor cannot read a photo of {photo.width} x {photo.height} pixels"
    ):
        pixels = processor(images=photo, return_tensors="np")["pixel_values"][0]
    return np.asarray(pixels, np.float32)


def cut_patches(pixels: np.ndarray, side: int, visible: np.ndarray | None = None) -> RegionRow:
    """The class token and the `side` x `side` patches of pixels (3, H, W), row by row.

    A patch's features are its flattened pixels, (3, side, side); the remainder at the right and
    lower edges is in no patch. `visible`: x1, y1, x2, y2 of the part of the photo that the pixels
    show, as shares of its width and height; None: all of it.
    """
    _, height, width = pixels.shape
    high, wide = height // side, width // side
    cut = pixels[:, : high * side, : wide * side].reshape(3, high, side, wide, side)
    features = cut.transpose(1, 3, 0, 2, 4).reshape(high * wide, -1)
    row, column = np.divmod(np.arange(high * wide), wide)
    corner = np.stack([column, row], 1)
    ends = np.concatenate([corner, corner + 1], 1) * side / np.array([width, height] * 2)
    if visible is not None:
        ends = visible[[0, 1, 0, 1]] + ends * (visible[2:] - visible[:2])[[0, 1, 0, 1]]
    count = 1 + len(features)
    return RegionRow(
        features=np.concatenate([np.zeros_like(features[:1]), features]),
        boxes=np.concatenate([[[0, 0, 1, 1]], ends]).astype(np.float32),
        confidence=np.ones(count, np.float32),
        image_index=np.zeros(count, np.int64),
        is_whole_image=np.arange(count) == 0,
    )


def pointing_game(example: Example, row: RegionRow) -> np.ndarray:
    """Which patches (R,) are right, 1 or 0: those with their centre in one of the gold boxes.

    Patches are too small to match a box by IoU.
    """
    gold = require(example.gold_boxes, "gold_boxes", "a phrase with boxes")
    boxes = row.boxes * np.array(gold.image_size * 2, np.float32)
    centre = (boxes[:, None, :2] + boxes[:, None, 2:]) / 2
    inside = (centre >= gold.boxes[:, :2]) & (centre <= gold.boxes[:, 2:])
    return np.asarray(inside.all(2).any(1), np.int64)


# -- ViLT (Kim et al. 2021): one stream of text and patches ------------------------------------------------------------
class Vilt(PatchReader):
    """A `ViltModel` with patches as regions, whose features are the processor's pixels.

    transformers shuffles patches, which does not change attention; here they are in row order.
    """

    architecture_name = ViltConfig.model_type

    def __init__(
        self, model: ViltModel, tokenizer: PreTrainedTokenizerBase, processor: Any
    ) -> None:
        """Raises InputError if the tokenizer has more tokens than the model."""
        super().__init__()
        config: Any = model.config
        self.model: Any = model
        self.tokenizer = self.text_tokenizer = tokenizer
        self.processor = processor
        self.side = int(config.patch_size)
        self.square = int(config.image_size) // self.side
        table = self.word_embeddings().weight
        check_vocabulary(tokenizer, table)
        width = config.hidden_size
        self.sizes = OutputSizes(
            text=width,
            input_embeddings=(table.shape[0], table.shape[1]),
            visual=width,
            pooler_output=width if model.pooler is not None else 0,
            regions=3 * self.side**2,
        )

    def inputs(self, max_length: int) -> tuple[TextRowEncoder, None]:
        """Texts of at most `max_length` tokens or the model's limit (released ViLTs: 40)."""
        limit = self.model.config.max_position_embeddings
        return TextRowEncoder(self.tokenizer, min(max_length, limit)), None

    def word_embeddings(self) -> nn.Embedding:
        """Its input embeddings."""
        table: nn.Embedding = self.model.get_input_embeddings()
        return table

    def patches(self, photo: Image.Image) -> RegionRow:
        """Every patch of the photo, also of a ViLT with `max_image_length` (no released one)."""
        return cut_patches(preprocess_photo(self.processor, photo), self.side)

    def forward(self, batch: Batch, attention: AttentionCallback | None = None) -> EncoderOutput:
        """Last states of `text` (N, T, H), and `visual` (N, R, H) of class token and patches.

        `attention` receives every layer's map over text, class token and patches, named `self`.
        """
        tokens = require(batch.text, "text", "a ViLT")
        regions = require(batch.regions, "regions", "a ViLT")
        # The copy on the host avoids a synchronisation with the GPU.
        places = require(batch.cpu_copy.regions, "regions", "a ViLT")
        features = regions.features
        if "regions" in batch.perturbation:
            features = features + batch.perturbation["regions"]

        def every() -> SequencePositions:
            return SequencePositions.concatenate(text_positions(tokens), patch_positions(regions))

        with capture_attention(self.model, attention, every):
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


SLACK = 1e-3
"""Tolerance for rounding errors in the number of patches."""


def load_vilt(source: str | Path) -> Vilt:
    """Load a folder of transformers' ViLT; raises InputError if it is incomplete."""
    model = load_weights(ViltModel, source)
    return Vilt(model, load_tokenizer(source), load_processor(source)).eval()


VILT = ModelFormat(
    "ViLT of transformers", lambda source: model_type(source) == ViltConfig.model_type, load_vilt
)


# -- CLIP's two towers: patches attend to patches, words to words ------------------------------------------------------
IMAGE, TEXT = "image over image", "text over text"
"""Names of the two towers' attention maps."""


class ClipTowers(PatchReader):
    """CLIP's two towers of transformers; text and patches do not attend to each other.

    Texts are truncated to the text tower's window. The layers of each tower count from 0.
    """

    architecture_name = "clip"
    note = "Two separate towers: words attend to words, patches attend to patches."
    needs_photo = False

    def __init__(
        self, model: CLIPModel, tokenizer: PreTrainedTokenizerBase, processor: Any
    ) -> None:
        super().__init__()
        self.text: CLIPTextModel = model.text_model
        self.image: CLIPVisionModel = model.vision_model
        self.tokenizer = self.text_tokenizer = tokenizer
        self.processor = processor
        config: Any = self.image.config
        self.side = int(config.patch_size)
        self.picture = int(config.image_size)
        """Side of the image tower's input in pixels."""
        self.sizes = OutputSizes(visual=config.hidden_size, regions=3 * self.side**2)

    def inputs(self, max_length: int) -> tuple[TextRowEncoder, None]:
        """Texts of at most `max_length` tokens or the tower's window."""
        window = self.text.config.max_position_embeddings
        return TextRowEncoder(self.tokenizer, min(max_length, window)), None

    def word_embeddings(self) -> nn.Module:
        """The text tower's token embeddings."""
        table: nn.Module = self.text.get_input_embeddings()
        return table

    def patches(self, photo: Image.Image) -> RegionRow:
        """Class token and patches of the tower's input, mostly the photo's centre crop."""
        expected = self.picture
        pixels = preprocess_photo(self.processor, photo)
        if pixels.shape != (3, expected, expected):
            raise InputError(
                f"the image processor gives {pixels.shape} for a photo, but the tower reads (3, {expected}, "
                f"{expected}); correct preprocessor_config.json"
            )
        return cut_patches(pixels, self.side, visible_part(self.processor, photo.size, expected))

    def patch_parameters(self) -> list[nn.Parameter]:
        """The convolution's weights and the class token."""
        embeddings = self.image.embeddings
        return [*embeddings.patch_embedding.parameters(), embeddings.class_embedding]

    def forward(self, batch: Batch, attention: AttentionCallback | None = None) -> EncoderOutput:
        """Last states of `text` (N, T, D) and `visual` (N, R, D); None without that input."""
        text = visual = None
        if batch.regions is not None:
            pixels = self._reassemble(batch.regions.features)
            regions = batch.regions
            with capture_attention(self.image, attention, lambda: patch_positions(regions), IMAGE):
                visual = self.image(pixel_values=pixels).last_hidden_state
        if batch.text is not None:
            tokens = batch.text
            with capture_attention(self.text, attention, lambda: text_positions(tokens), TEXT):
                text = self.text(
                    input_ids=tokens.input_ids, attention_mask=tokens.attention_mask.long()
                ).last_hidden_state
        return EncoderOutput(text=text, visual=visual)

    def _reassemble(self, features: Tensor) -> Tensor:
        """The tower's pixels (N, 3, H, W) from the patches that follow the class token."""
        across, side = self.picture // self.side, self.side
        cut = features[:, 1:].view(-1, across, across, 3, side, side)
        return cut.permute(0, 3, 1, 4, 2, 5).reshape(-1, 3, across * side, across * side)


def visible_part(processor: Any, size: tuple[int, int], side: int) -> np.ndarray:
    """The part of a photo of `size` (width, height) that CLIP's processor keeps: x1, y1, x2, y2.

    In shares of the photo, which exceed 0..1 where the processor pads a small photo. Raises
    InputError for a resizing rule that CLIP's processor does not have.
    """
    sides = np.array(size, float)
    if processor.do_resize:
        size_settings = dict(processor.size)
        if size_settings.get("shortest_edge"):
            shortest = int(size_settings["shortest_edge"])
            # The longer side is truncated to whole pixels (transformers, `get_resize_output_image_size`).
            sides = np.array([int(shortest * one / min(size)) for one in size], float)
        elif size_settings.get("height") and size_settings.get("width"):
            sides = np.array([size_settings["width"], size_settings["height"]], float)
        else:
            raise InputError(
                f"the image processor's size is {size_settings}; expected CLIP's shortest_edge, or height and width"
            )
    if not processor.do_center_crop:
        return np.array([0.0, 0.0, 1.0, 1.0])
    first = (sides - side) // 2
    shares: np.ndarray = np.concatenate([first, first + side]) / np.tile(sides, 2)
    return shares


def load_clip_towers(source: str | Path) -> ClipTowers:
    """Load a folder of transformers' CLIP; raises InputError if it is incomplete."""
    model = load_weights(CLIPModel, source)
    return ClipTowers(model, load_tokenizer(source), load_processor(source)).eval()


CLIP = ModelFormat(
    "CLIP's towers", lambda one: model_type(one) == "clip", load_clip_towers, for_inspection=True
)
