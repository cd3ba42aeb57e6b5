"""Base classes of transformers' models that can be inspected but not trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import nn
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Example, OutputSizes, RegionRow, require
from groundling.core.errors import convert_errors, prefix_errors
from groundling.data.images import ImageInput, read_image
from groundling.data.regions import RegionSource
from groundling.data.samples import TextRowEncoder, check_vocabulary
from groundling.vision_language import RegionEncoder


class TransformersRegionReader(RegionEncoder):
    """Abstract: a model of transformers for text with regions or patches, and its tokenizer."""

    has_inclusive_boxes = False
    """Boxes are not clipped to the last pixel."""
    regions_provenance: Mapping[str, Any] = {}
    """How its training regions were made: not recorded."""

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase, regions: int) -> None:
        """`regions`: their width. Raises InputError for a tokenizer larger than the model's."""
        super().__init__()
        self.model = model
        self.tokenizer = self.text_tokenizer = tokenizer
        table = self.word_embeddings().weight
        check_vocabulary(tokenizer, table)
        width = model.config.hidden_size
        self.sizes = OutputSizes(
            text=width,
            input_embeddings=(table.shape[0], table.shape[1]),
            visual=width,
            pooler_output=width if model.pooler is not None else 0,
            regions=regions,
        )

    @property
    def architecture_name(self) -> str:
        """The model type in transformers."""
        return str(self.model.config.model_type)

    def inputs(self, max_length: int) -> tuple[TextRowEncoder, None]:
        """Texts of at most `max_length` tokens or the model's limit (released ViLTs: 40)."""
        limit = self.model.config.max_position_embeddings
        return TextRowEncoder(self.tokenizer, min(max_length, limit)), None

    def word_embeddings(self) -> nn.Embedding:
        """Its input embeddings."""
        table: nn.Embedding = self.model.get_input_embeddings()
        return table

    def export(self, folder: Path) -> None:
        """Write a stock HF folder."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


class PatchReader(RegionEncoder):
    """Abstract: a model whose regions are a photo's patches, made by its image processor.

    The first region is the class token: it has `is_whole_image`, and its features are zeros, which are
    not used.
    """

    region_source = "patches"
    reads_whole_image = True
    has_inclusive_boxes = False
    """Boxes are not clipped to the last pixel."""
    regions_provenance: Mapping[str, Any] = {}
    """Empty: the model makes its patches itself."""
    note: str = ""
    """A note for the reader of its page; empty: none."""

    @property
    def needs_photo(self) -> bool:
        """Whether it cannot read a text without a photo."""
        return True

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
