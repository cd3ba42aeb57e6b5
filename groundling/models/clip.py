"""CLIP-like models: text tower, image tower, a frozen pair of both, and a trainable dual encoder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from transformers import (
    MODEL_MAPPING,
    AutoModel,
    CLIPImageProcessorPil,
    CLIPTextModelWithProjection,
    CLIPVisionModelWithProjection,
    PreTrainedTokenizerBase,
    Siglip2TextModel,
    SiglipTextModel,
    SiglipVisionModel,
)

from groundling.core.batch import Batch, ClipWindows, EncoderOutput, OutputSizes, require
from groundling.core.errors import InputError, require_known
from groundling.data.samples import ClipRowEncoder
from groundling.models.attention import AttentionCallback, capture_attention, window_positions
from groundling.models.hub import VECTORS
from groundling.models.loading import (
    Encoder,
    ModelFormat,
    load_config,
    load_processor,
    load_tokenizer,
    load_weights,
    model_type,
)


class ClipTextTower(nn.Module):
    """A CLIP-like text tower with its projection, and its model's logit scale (unused, but counted as a parameter).

    The projection is applied to every token after the final LayerNorm, not only to the end token,
    where it equals CLIP's text feature (XDBERT, Section 2.2, and its release, Splend1d/XDBERT).
    """

    embed_dim: int
    """Width of a projected token."""
    states_width: int
    """Width of a token's state before the projection."""
    context_length: int
    """Positions of one window, special tokens included."""

    def __init__(self, tower: Any, projection: Any, logit_scale: Tensor) -> None:
        """`tower`: HF's text model; `projection`: the Linear into the joint space; `logit_scale`: ()."""
        super().__init__()
        self.tower = tower
        self.projection = projection
        self.logit_scale = nn.Parameter(
            logit_scale.detach().clone().reshape(()), requires_grad=False
        )
        self.embed_dim = int(projection.out_features)
        self.states_width = int(projection.in_features)
        self.context_length = int(tower.config.max_position_embeddings)
        # SigLIP attends to its padding, always of full length, and pools the last position.
        self.fixed_length = self.context_length if "siglip" in tower.config.model_type else 0

    @property
    def token_embedding(self) -> nn.Embedding:
        """The tower's token embedding module."""
        table: nn.Embedding = self.tower.get_input_embeddings()
        return table

    def forward(
        self, windows: ClipWindows, attention: AttentionCallback | None = None
    ) -> tuple[Tensor, Tensor]:
        """Projected token states (W, S, E) and the text feature (W, E) of each window; neither is normalised.

        `attention` is called with every layer's map over the positions of a window, named `self`.
        """
        # SigLIP attends to its padding too, which is left out of the maps.
        with capture_attention(self.tower, attention, lambda: window_positions(windows)):
            states = self._states(windows)
        return self._with_ends(self.projection(states), windows)

    def forward_unprojected(self, windows: ClipWindows) -> tuple[Tensor, Tensor]:
        """As `forward`, without the projection: token states (W, S, D) and each window's end state (W, D)."""
        return self._with_ends(self._states(windows), windows)

    def _with_ends(self, states: Tensor, windows: ClipWindows) -> tuple[Tensor, Tensor]:
        """States without the padding that SigLIP reads, and the states at the positions where the tower pools."""
        if self.fixed_length:
            return states[:, : windows.input_ids.shape[1]], states[:, -1]
        # The end token's position is known; HF searches for its id and silently takes position 0 without one.
        number = torch.arange(len(windows.input_ids), device=windows.input_ids.device)
        return states, states[number, windows.eot_index]

    def _states(self, windows: ClipWindows) -> Tensor:
        """The tower's last states (W, S, D); for SigLIP (W, full length, D)."""
        if not self.fixed_length:
            mask = windows.attention_mask.long()
            states: Tensor = self.tower(
                input_ids=windows.input_ids, attention_mask=mask
            ).last_hidden_state
            return states
        missing = self.fixed_length - windows.input_ids.shape[1]
        padded = F.pad(windows.input_ids, (0, missing), value=windows.pad_token_id)
        states = self.tower(input_ids=padded).last_hidden_state
        return states


def last_token_positions(word: Tensor, words: int) -> Tensor:
    """Position (N, K) of the last token of each raw word, -1 for a word without tokens, from `word` (N, V).

    A causal tower has read the whole word only at its last token.
    """
    place = torch.arange(word.shape[1], device=word.device).expand(len(word), -1)
    last = torch.full((len(word), words + 1), -1, device=word.device)
    # Of several tokens of one word the largest position is kept.
    return last.scatter_reduce(1, word + 1, place, "amax")[:, 1:]


def make_clip_text_tower(model: Any) -> ClipTextTower:
    """The text tower of a CLIPModel, CLIPTextModelWithProjection, SiglipModel or SiglipTextModel."""
    scale = model.logit_scale if hasattr(model, "logit_scale") else torch.tensor(math.log(1 / 0.07))
    tower = model.text_model if hasattr(model, "text_model") else model
    is_siglip = "siglip" in model.config.model_type
    return ClipTextTower(tower, tower.head if is_siglip else model.text_projection, scale)


def load_clip_text_tower(source: str | Path) -> tuple[ClipTextTower, PreTrainedTokenizerBase]:
    """Load a text tower and its tokenizer from a hub id or folder, without the image tower.

    Raises InputError if it is no CLIP-like model.
    """
    if str(source).startswith(VECTORS):
        raise InputError(f"{source}: a text tower is read, which stored vectors have not")
    kind = load_config(source).model_type
    require_known(kind, CLIP_LIKE, f"{source}: a {kind} model has no CLIP-like text tower")
    tokenizer = load_tokenizer(source)
    return make_clip_text_tower(load_weights(CLIP_LIKE[kind], source)), tokenizer


CLIP_LIKE: dict[str, Any] = {
    "clip": AutoModel,
    "siglip": AutoModel,
    "siglip2": AutoModel,
    "clip_text_model": CLIPTextModelWithProjection,
    "siglip_text_model": SiglipTextModel,
    "siglip2_text_model": Siglip2TextModel,
}
"""The HF class that loads the text tower of each CLIP-like model type."""


class ClipImageTower(nn.Module):
    """An image encoder with its projection into the space of texts, which is the identity for SigLIP and without texts.

    The pooled feature is the model's own (ResNet's and ConvNeXt's mean, DINOv2's first position), or the first
    position's last state if the checkpoint has no pooler, as those of ViT have none.
    """

    mean: Tensor
    std: Tensor
    pooled_width: int
    """Width of the pooled feature before the projection."""
    embed_dim: int
    """Width of the projected feature."""

    def __init__(self, tower: Any, projection: nn.Module, processor: Any) -> None:
        """`tower`: HF's vision model; `processor`: its image processor."""
        super().__init__()
        self.tower = tower
        self.projection = projection
        self.processor = processor
        self.preprocessing = json.loads(json.dumps(processor.to_dict(), default=str))
        mean, std, _ = _normalization(processor)
        self.scale = float(processor.rescale_factor) if processor.do_rescale else 1.0
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)
        self.shape = self._pixels(Image.new("RGB", (8, 8))).shape
        sizes = tower.config.to_dict()
        self.pooled_width = int(sizes.get("hidden_size") or sizes["hidden_sizes"][-1])
        self.embed_dim = int(getattr(projection, "out_features", self.pooled_width))

    def preprocess(self, image: Image.Image) -> np.ndarray:
        """An RGB image resized and cropped by the tower's processor: (3, S, S) uint8, not normalised.

        Raises InputError if the processor returns another shape or type.
        """
        pixels = self._pixels(image)
        if pixels.shape != self.shape or pixels.dtype != np.uint8:
            found = f"{pixels.dtype} {pixels.shape}"
            raise InputError(f"the image processor returns {found}, expected uint8 {self.shape}")
        return pixels

    def _pixels(self, image: Image.Image) -> np.ndarray:
        processed = self.processor(
            images=image, do_rescale=False, do_normalize=False, return_tensors="np"
        )
        pixels: np.ndarray = processed["pixel_values"][0]
        return pixels

    def forward(self, pixels: Tensor) -> Tensor:
        """Pooled features (B, D) of pixels (B, 3, S, S) uint8; `projection` maps them to the joint space (B, E)."""
        normal = (pixels.float() * self.scale - self.mean) / self.std
        read = self.tower(pixel_values=normal)
        pooled: Tensor | None = read.get("pooler_output")
        if pooled is None:
            pooled = read.last_hidden_state[:, 0]
        return pooled.flatten(1)


def reads_images(config: Any) -> bool:
    """Whether a model is an image encoder, or has an image tower."""
    return config.model_type in IMAGE_TOWERS or main_input(config) == "pixel_values"


def load_clip_image_tower(source: str | Path) -> ClipImageTower:
    """Load an image tower without its text tower, or any image encoder, with its processor, from a hub id or folder.

    Raises InputError if it reads no images, or has no image processor.
    """
    config = load_config(source)
    kind = config.model_type
    if not reads_images(config):
        raise InputError(f"{source}: a {kind} model has no image tower")
    # A tower that was saved without its projection is an image encoder like any other.
    is_alone = config.architectures == ["CLIPVisionModel"]
    loaded_as = AutoModel if is_alone else IMAGE_TOWERS.get(kind, AutoModel)
    model = load_weights(loaded_as, source)
    tower = model.vision_model if hasattr(model, "vision_model") else model
    projects = hasattr(model, "visual_projection")
    projection = model.visual_projection if projects else nn.Identity()
    return ClipImageTower(tower, projection, load_processor(source))


IMAGE_TOWERS: dict[str, Any] = {
    "clip": AutoModel,
    "siglip": AutoModel,
    "clip_vision_model": CLIPVisionModelWithProjection,
    "siglip_vision_model": SiglipVisionModel,
}
"""The HF class that loads the image tower of each CLIP-like model type."""


def main_input(config: Any) -> str:
    """The name of the input that the model of a configuration reads; empty if transformers has no such model."""
    model = MODEL_MAPPING.get(type(config), None)
    return str(getattr(model, "main_input_name", ""))


class ClipTextEncoder(Encoder):
    """A CLIP-like text tower used as a text encoder (XDBERT Table 1, first row).

    The paper does not define how it reads sentence pairs. Here the output concatenates the mean text
    features of the first text's windows and of the second's; for a single text the second half is 0.
    """

    def __init__(self, clip: ClipTextTower, tokenizer: PreTrainedTokenizerBase) -> None:
        """`tokenizer`: the tower's."""
        super().__init__()
        self.clip = clip
        self.tokenizer = tokenizer
        self.sizes = OutputSizes(pooler_output=2 * clip.embed_dim)

    def inputs(self, max_length: int) -> tuple[None, ClipRowEncoder]:
        """At most two windows per text (XDBERT Appendix B); truncated tokens are counted."""
        return None, ClipRowEncoder(self.tokenizer, self.clip.context_length, TUNING_WINDOWS)

    def word_embeddings(self) -> nn.Embedding:
        """The tower's token embeddings."""
        return self.clip.token_embedding

    def forward(self, batch: Batch, attention: AttentionCallback | None = None) -> EncoderOutput:
        """`pooler_output` (N, 2E), the mean of the windows' text features (W, E); `attention` as in `ClipTextTower`."""
        windows = require(batch.clip, "clip", "a CLIP text tower")
        _, features = self.clip(windows, attention)
        place = windows.row_index * 2 + windows.token_type_ids
        both = 2 * windows.key_mask.shape[0]
        total = features.new_zeros(both, features.shape[1]).index_add(0, place, features)
        number = torch.bincount(place, minlength=both).clamp(min=1).unsqueeze(-1)
        return EncoderOutput(pooler_output=(total / number).view(-1, 2 * features.shape[1]))

    def export(self, folder: Path) -> None:
        """Write the tower and its tokenizer with `save_clip_text`."""
        save_clip_text(self.clip, self.tokenizer, folder)


TUNING_WINDOWS = 2
"""Maximum number of CLIP windows per text in fine-tuning (XDBERT Appendix B)."""


def save_clip_text(clip: ClipTextTower, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a stock HF text tower with its projection; `load_clip_text_tower` and transformers read it."""
    config = deepcopy(clip.tower.config)  # the tower may be trained further with its own
    config.projection_dim = config.projection_size = clip.embed_dim
    model = CLIP_LIKE[config.model_type](config)
    tower = model.text_model if hasattr(model, "text_model") else model
    tower.load_state_dict(clip.tower.state_dict())
    if not clip.fixed_length:
        model.text_projection.load_state_dict(clip.projection.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class ClipDualEncoder(nn.Module):
    """A trainable HF `CLIPModel` or `SiglipModel` with one window of text and one image per sample."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, clip: Any, tokenizer: PreTrainedTokenizerBase, processor: Any = None
    ) -> None:
        """`clip`: HF's model; `tokenizer`: its own; `processor`: its image processor, by default CLIP's."""
        super().__init__()
        self.clip = clip
        self.is_siglip = "siglip" in clip.config.model_type
        self.logit_bias: Tensor | None = clip.logit_bias if self.is_siglip else None
        self.tokenizer = tokenizer
        side = clip.config.vision_config.image_size
        square = {"height": side, "width": side}
        self.processor = processor or CLIPImageProcessorPil(
            size={"shortest_edge": side}, crop_size=square
        )
        mean, std, self.max_pixel = _normalization(self.processor)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)
        self.sizes = OutputSizes()

    def forward(self, batch: Batch) -> EncoderOutput:
        """Unit-length embeddings of texts and images (either may be absent), the learned scale, and SigLIP's bias."""
        text = None
        image = None
        if batch.clip is not None:
            ids = batch.clip.input_ids
            mask = None
            if self.is_siglip:  # it attends to its padding, always of full length
                length = self.clip.config.text_config.max_position_embeddings
                ids = F.pad(ids, (0, length - ids.shape[1]), value=batch.clip.pad_token_id)
            else:
                mask = batch.clip.attention_mask.long()
            features: Tensor = self.clip.get_text_features(ids, attention_mask=mask).pooler_output
            text = F.normalize(features, dim=-1)
        if batch.pixels is not None:
            pixels = (batch.pixels.float() / self.max_pixel - self.mean) / self.std
            image = F.normalize(self.clip.get_image_features(pixels).pooler_output, dim=-1)
        scale = self.clip.logit_scale.exp().reshape(())
        bias = None if self.logit_bias is None else self.logit_bias.reshape(())
        return EncoderOutput(text_embeds=text, image_embeds=image, scale=scale, bias=bias)

    @property
    def device(self) -> torch.device:
        """Its device."""
        device: torch.device = self.clip.logit_scale.device
        return device

    def start_sigmoid(self) -> None:
        """Start with SigLIP's scale of 10 and bias of -10 (Section 3.2); a CLIP's folder does not hold the bias."""
        self.logit_bias = nn.Parameter(torch.tensor(-10.0))
        with torch.no_grad():
            self.clip.logit_scale.fill_(math.log(10))

    def export(self, folder: Path) -> None:
        """Write a stock HF folder, with tokenizer and image processor."""
        self.clip.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        self.processor.save_pretrained(folder)


def load_clip_dual_encoder(
    source: str | Path,
) -> tuple[ClipDualEncoder, Callable[[Image.Image], np.ndarray]]:
    """Load a trainable CLIP or SigLIP from a hub id or folder, and the function that prepares its images.

    Raises InputError for another model.
    """
    kind = load_config(source).model_type
    if kind not in ("clip", "siglip"):
        raise InputError(f"{source}: a {kind} model; expected a CLIP or SigLIP with both towers")
    clip = load_weights(AutoModel, source)
    processor = load_processor(source)
    towers = ClipDualEncoder(clip, load_tokenizer(source), processor)
    return towers, ClipImageTower(clip.vision_model, nn.Identity(), processor).preprocess


def _normalization(processor: Any) -> tuple[Tensor, Tensor, float]:
    """A processor's mean and standard deviation (1, 3, 1, 1), and the pixel value that it scales to 1."""
    normal = bool(processor.do_normalize)
    mean = torch.tensor(processor.image_mean if normal else [0.0, 0.0, 0.0])
    std = torch.tensor(processor.image_std if normal else [1.0, 1.0, 1.0])
    white = 1 / processor.rescale_factor if processor.do_rescale else 1.0
    # Image processors may have one number for all channels.
    return mean.expand(3).view(1, 3, 1, 1), std.expand(3).view(1, 3, 1, 1), float(white)


TOWER = ModelFormat(
    "CLIP-like text tower",
    lambda source: model_type(source) in CLIP_LIKE,
    lambda source: ClipTextEncoder(*load_clip_text_tower(source)),
)
