"""Models that can only be inspected: what stock models have alike, and those that read a photo's patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import nn
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import OutputSizes, RegionRow
from groundling.core.errors import InputError, convert_errors, prefix_errors
from groundling.data.images import Picture, read_image
from groundling.data.samples import TextRowEncoder, check_vocabulary
from groundling.models.formats import RegionEncoder


class TransformersRegionReader(RegionEncoder):
    """A stock model of transformers that reads text beside regions or patches, and its tokenizer. Abstract."""

    has_inclusive_boxes = False
    """Boxes are not cut to their last pixel."""
    regions_provenance: Mapping[str, Any] = {}
    """What made the regions that it learned from: nobody says."""

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase, regions: int) -> None:
        """`regions`: width of their features. Raises InputError if the tokenizer knows more pieces than the model."""
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
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
        """As transformers has it."""
        return str(self.model.config.model_type)

    @property
    def special_ids(self) -> list[int]:
        """Ids of its tokenizer's special pieces."""
        ids: list[int] = self.tokenizer.all_special_ids
        return ids

    def inputs(self, max_length: int) -> tuple[TextRowEncoder, None]:
        """Texts of at most `max_length` pieces, or what the model can take (40 of the released ViLTs)."""
        limit = self.model.config.max_position_embeddings
        return TextRowEncoder(self.tokenizer, min(max_length, limit)), None

    def word_embeddings(self) -> nn.Embedding:
        """The table of its input words."""
        table: nn.Embedding = self.model.get_input_embeddings()
        return table

    def export(self, folder: Path) -> None:
        """Write a stock HF folder."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


class PatchReader(RegionEncoder):
    """A model whose regions are the patches of a photo, as its own image processor cuts it. Abstract.

    The first region is a class token: it is `whole`, and its features are zeros that nobody reads.
    """

    region_source = "patches"
    reads_whole_image = True
    has_inclusive_boxes = False
    """Its own boxes are as they should be."""
    regions_provenance: Mapping[str, Any] = {}
    """It makes them itself."""
    note: str = ""
    """What whoever looks at it must know, if anything."""

    @property
    def needs_photo(self) -> bool:
        """Whether it reads no text without one."""
        return True

    def patches(self, photo: Image.Image) -> RegionRow:
        """The class token and the patches of an RGB photo; raises InputError for a photo that it cannot read."""
        raise NotImplementedError

    def patch_parameters(self) -> Sequence[nn.Parameter]:
        """What embeds patches and their places: weights that are neither a Linear's nor an Embedding's."""
        raise NotImplementedError


class PatchStore:
    """The patches of photos, by image id, as a region store has regions: cut anew whenever they are asked for."""

    def __init__(self, model: PatchReader, photos: Mapping[str, Picture]) -> None:
        """`photos`: a file or picture by image id; they are turned as their EXIF says."""
        self.model = model
        self.photos = photos
        self.counts: dict[str, int] = {}

    def __getitem__(self, image: str) -> RegionRow:
        """Raises InputError, naming the photo, if it does not decode or cannot be cut."""
        with prefix_errors(self.photos[image]):
            row = self.model.patches(read_image(self.photos[image]))
        self.counts[image] = len(row)
        return row

    def __contains__(self, image: object) -> bool:
        return image in self.photos

    def count(self, image: str) -> int:
        """How many patches an image has, its class token included."""
        return self.counts[image] if image in self.counts else len(self[image])

    def size(self, image: str) -> tuple[int, int]:
        """Nobody needs to know: 0."""
        return 0, 0

    def in_annotated_order(self, image: str) -> bool:
        """No: patches are no annotated objects."""
        return False

    def appended_detections(self, image: str) -> int:
        """None, as there are no annotated objects."""
        return 0


def preprocess_photo(processor: Any, photo: Image.Image) -> np.ndarray:
    """A photo as HF's image processor makes it, (3, H, W) float32.

    Raises InputError if it cannot, as of a photo that is far too narrow.
    """
    with convert_errors(
        f"the model's image processor cannot read a photo of {photo.width} x {photo.height} pixels"
    ):
        pixels = processor(images=photo, return_tensors="np")["pixel_values"][0]
    return np.asarray(pixels, np.float32)


def cut_patches(pixels: np.ndarray, side: int, shown: np.ndarray | None = None) -> RegionRow:
    """Pixels (3, H, W) as the class token and patches of `side` x `side`, row by row from the upper left.

    A patch's features are its pixels, (3, side, side) laid end to end; what is left at the right and lower edges is in
    no patch. `shown`: x1, y1, x2, y2 of what the pixels show, in shares of the photo's width and height; None: all of
    it. Raises InputError if not even one patch fits.
    """
    _, height, width = pixels.shape
    high, wide = height // side, width // side
    if not high or not wide:
        raise InputError(
            f"{width} x {height} pixels are left of the photo, and a patch has {side} x {side}; pass one less narrow"
        )
    cut = pixels[:, : high * side, : wide * side].reshape(3, high, side, wide, side)
    features = cut.transpose(1, 3, 0, 2, 4).reshape(high * wide, -1)
    row, column = np.divmod(np.arange(high * wide), wide)
    corner = np.stack([column, row], 1)
    ends = np.concatenate([corner, corner + 1], 1) * side / np.array([width, height] * 2)
    if shown is not None:
        ends = shown[[0, 1, 0, 1]] + ends * (shown[2:] - shown[:2])[[0, 1, 0, 1]]
    count = 1 + len(features)
    return RegionRow(
        features=np.concatenate([np.zeros_like(features[:1]), features]),
        boxes=np.concatenate([[[0, 0, 1, 1]], ends]).astype(np.float32),
        confidence=np.ones(count, np.float32),
        image_index=np.zeros(count, np.int64),
        is_whole_image=np.arange(count) == 0,
    )
