"""CLIP's two towers for attention analysis: patches attend to patches, words to words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn
from transformers import CLIPModel, CLIPTextModel, CLIPVisionModel, PreTrainedTokenizerBase

from groundling.core.batch import (
    Batch,
    EncoderOutput,
    OutputSizes,
    RegionRow,
    Regions,
    Tokens,
    require,
)
from groundling.core.errors import InputError
from groundling.data.samples import TextRowEncoder
from groundling.models.attention import (
    AttentionCallback,
    capture_attention,
    patch_positions,
    text_positions,
)
from groundling.models.formats import ModelFormat
from groundling.models.loading import load_processor, load_tokenizer, load_weights, model_type
from groundling.studies.attention.models import PatchReader, cut_patches, preprocess_photo

IMAGE, TEXT = "image over image", "text over text"
"""Names of the two towers' attention maps."""


class ClipTowers(PatchReader):
    """CLIP's towers of transformers, or one of them; text and patches do not attend to each other.

    Texts are truncated to the text tower's window. The layers of each tower count from 0.
    """

    def __init__(
        self,
        text: CLIPTextModel | None,
        image: CLIPVisionModel | None,
        tokenizer: PreTrainedTokenizerBase | None,
        processor: Any,
    ) -> None:
        """`tokenizer` of the text tower, `processor` of the image tower; None without that tower.

        Raises InputError if the processor does not define which part of a photo the tower receives.
        """
        super().__init__()
        self.text = text
        self.image = image
        self.tokenizer = self.text_tokenizer = tokenizer
        self.processor = processor
        if text is not None and image is not None:
            self.note = "Two separate towers: words attend to words, patches attend to patches."
        self.sizes = OutputSizes()
        if image is not None:
            self.sizes = OutputSizes(visual=image.config.hidden_size, regions=3 * self.side**2)

    @property
    def side(self) -> int:
        """Pixels of a patch's side."""
        config: Any = require(self.image, "image", "a CLIP without its image tower").config
        return int(config.patch_size)

    @property
    def _picture(self) -> int:
        """Side of the image tower's input in pixels."""
        config: Any = require(self.image, "image", "a photo").config
        return int(config.image_size)

    @property
    def architecture_name(self) -> str:
        """CLIP, with one tower or two."""
        return "clip"

    @property
    def needs_photo(self) -> bool:
        """True for an image tower alone."""
        return self.text is None

    def inputs(self, max_length: int) -> tuple[TextRowEncoder | None, None]:
        """Texts of at most `max_length` tokens or the tower's window; None without that tower."""
        if self.text is None or self.tokenizer is None:
            return None, None
        window = self.text.config.max_position_embeddings
        return TextRowEncoder(self.tokenizer, min(max_length, window)), None

    def word_embeddings(self) -> nn.Module:
        """The text tower's token embeddings."""
        table: nn.Module = require(self.text, "text", "word embeddings").get_input_embeddings()
        return table

    def patches(self, photo: Image.Image) -> RegionRow:
        """Class token and patches of the tower's input, mostly the photo's centre crop."""
        expected = self._picture
        pixels = preprocess_photo(self.processor, photo)
        if pixels.shape != (3, expected, expected):
            raise InputError(
                f"the image processor gives {pixels.shape} for a photo, but the tower reads (3, {expected}, "
                f"{expected}); correct preprocessor_config.json"
            )
        return cut_patches(pixels, self.side, visible_part(self.processor, photo.size, expected))

    def patch_parameters(self) -> list[nn.Parameter]:
        """The convolution's weights and the class token."""
        embeddings = require(self.image, "image", "patches").embeddings
        return [*embeddings.patch_embedding.parameters(), embeddings.class_embedding]

    def forward(self, batch: Batch, attention: AttentionCallback | None = None) -> EncoderOutput:
        """Last states of `text` (N, T, D) and `visual` (N, R, D); None without that input."""
        text = visual = None
        if self.image is not None and batch.regions is not None:
            visual = self._image_states(batch.regions, attention)
        if self.text is not None and batch.text is not None:
            text = self._text_states(batch.text, attention)
        return EncoderOutput(text=text, visual=visual)

    def _image_states(self, regions: Regions, attention: AttentionCallback | None) -> Tensor:
        side = self.side
        tower = require(self.image, "image", "patches")
        across = self._picture // side
        # Reassemble the tower's pixels from the patches.
        cut = regions.features[:, 1:].view(-1, across, across, 3, side, side)
        pixels = cut.permute(0, 3, 1, 4, 2, 5).reshape(-1, 3, across * side, across * side)
        with capture_attention(tower, attention, lambda: patch_positions(regions), IMAGE):
            states: Tensor = tower(pixel_values=pixels).last_hidden_state
        return states

    def _text_states(self, tokens: Tokens, attention: AttentionCallback | None) -> Tensor:
        tower = require(self.text, "text", "words")
        with capture_attention(tower, attention, lambda: text_positions(tokens), TEXT):
            states: Tensor = tower(
                input_ids=tokens.input_ids, attention_mask=tokens.attention_mask.long()
            ).last_hidden_state
        return states


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


MODEL_CLASSES: dict[str, Any] = {
    "clip": CLIPModel,
    "clip_text_model": CLIPTextModel,
    "clip_vision_model": CLIPVisionModel,
}
"""The transformers class that loads each model type."""


def load_clip_towers(source: str | Path) -> ClipTowers:
    """The towers that a CLIP folder has; raises InputError if it lacks the tokenizer or image processor of one."""
    kind = model_type(source)
    if kind not in MODEL_CLASSES:
        raise InputError(f"{source}: not a CLIP; expected a config.json with model_type clip")
    model = load_weights(MODEL_CLASSES[kind], source)
    text = model.text_model if kind == "clip" else model
    image = model.vision_model if kind == "clip" else model
    reads = isinstance(text, CLIPTextModel)
    sees = isinstance(image, CLIPVisionModel)
    return ClipTowers(
        text if reads else None,
        image if sees else None,
        load_tokenizer(source) if reads else None,
        load_processor(source) if sees else None,
    ).eval()


def _is_clip(source: str) -> bool:
    return model_type(source) in MODEL_CLASSES


CLIP = ModelFormat("CLIP's towers", _is_clip, load_clip_towers, for_inspection=True)
