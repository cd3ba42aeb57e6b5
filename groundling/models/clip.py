"""CLIP and its kin: the text tower alone, and the two towers together."""

from __future__ import annotations

import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoModel,
    CLIPImageProcessorPil,
    CLIPTextModelWithProjection,
    PreTrainedTokenizerBase,
    Siglip2TextModel,
    SiglipTextModel,
)

from groundling.batch import Batch, Encoded, Sizes, Windows
from groundling.data.samples import WindowInput
from groundling.errors import InputError
from groundling.models.kinds import Kind
from groundling.models.loading import load_config, load_tokenizer, load_weights


class ClipText(nn.Module):
    """A CLIP-like text tower with its projection, and the (unused, but counted) logit scale of its model.

    The projection is applied to every piece after the final LayerNorm, not to the end token only (XDBERT's code; at
    the end token this equals CLIP's text feature).
    """

    def __init__(self, tower: Any, projection: Any, logit_scale: Tensor) -> None:
        super().__init__()
        self.tower, self.projection = tower, projection
        self.logit_scale = nn.Parameter(
            logit_scale.detach().clone().reshape(()), requires_grad=False
        )
        # SigLIP attends to its padding, always of full length, and pools the last position.
        self.fixed_length = (
            tower.config.max_position_embeddings if "siglip" in tower.config.model_type else 0
        )

    @property
    def width(self) -> int:
        """Width of a projected piece."""
        return self.projection.out_features

    @property
    def window(self) -> int:
        """Positions of one window, special tokens included."""
        return int(self.tower.config.max_position_embeddings)

    @property
    def table(self) -> Tensor:
        """The tower's token embeddings (vocabulary, D)."""
        return self.tower.get_input_embeddings().weight

    def forward(self, windows: Windows) -> tuple[Tensor, Tensor]:
        """Projected piece states (N, S, E) and the text feature (N, E) of each window; neither is normalised."""
        ids, mask = windows.ids, windows.mask
        if self.fixed_length:
            ids = F.pad(ids, (0, self.fixed_length - ids.shape[1]), value=windows.pad)
            states = self.tower(input_ids=ids).last_hidden_state
            pooled = self.projection(states[:, -1])
            return self.projection(states[:, : mask.shape[1]]), pooled
        states = self.projection(
            self.tower(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        )
        # The end token's own place is known; HF would look for its id, and silently take position 0 if it is absent.
        return states, states[torch.arange(len(ids), device=ids.device), windows.last]


def clip_text(model: Any) -> ClipText:
    """The text tower of a loaded HF model: CLIPModel, CLIPTextModelWithProjection, SiglipModel or SiglipTextModel."""
    kind = model.config.model_type
    scale = model.logit_scale if hasattr(model, "logit_scale") else torch.tensor(math.log(1 / 0.07))
    tower = model.text_model if hasattr(model, "text_model") else model
    if "siglip" in kind:
        return ClipText(tower, tower.head, scale)
    if hasattr(model, "text_projection"):
        return ClipText(tower, model.text_projection, scale)
    raise InputError(f"a {kind} model has no text projection; expected a CLIP or SigLIP model")


def load_clip_text(source: str | Path) -> tuple[ClipText, PreTrainedTokenizerBase]:
    """A frozen-able text tower and its tokenizer from a hub id or folder; the vision tower is dropped."""
    config = load_config(source)
    if config.model_type not in CLIP_LIKE:
        raise InputError(
            f"{source}: a {config.model_type} model is no CLIP-like teacher; expected {sorted(CLIP_LIKE)}"
        )
    tokenizer = load_tokenizer(source)
    return clip_text(load_weights(CLIP_LIKE[config.model_type], source)), tokenizer


CLIP_LIKE: dict[str, Any] = {
    "clip": AutoModel,
    "siglip": AutoModel,
    "siglip2": AutoModel,
    "clip_text_model": CLIPTextModelWithProjection,
    "siglip_text_model": SiglipTextModel,
    "siglip2_text_model": Siglip2TextModel,
}
"""Which HF class loads a folder of each CLIP-like model type."""


class ClipEncoder(nn.Module):
    """A CLIP-like text tower as a text encoder by itself (XDBERT Table 1, first row).

    The paper does not say how it reads pairs. Here the mean text feature of the first text's windows stands beside that
    of the second's; for a single text the second half is zero.
    """

    def __init__(self, clip: ClipText, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.clip, self.tokenizer = clip, tokenizer
        self.sizes = Sizes(pooled=2 * clip.width)

    def inputs(self, max_length: int) -> tuple[None, WindowInput]:
        """Two windows per text at most (XDBERT Appendix B); longer texts are cut and counted."""
        return None, WindowInput(self.tokenizer, self.clip.window, TUNING_WINDOWS)

    def word_embeddings(self) -> nn.Module:
        """The tower's token embeddings."""
        return self.clip.tower.get_input_embeddings()

    def forward(self, batch: Batch) -> Encoded:
        """`pooled` (B, 2E), from the windows' text features (N, E)."""
        windows = batch.clip
        assert windows is not None, "a CLIP text tower reads batch.clip"
        features = self.clip(windows)[1]
        place = windows.row * 2 + windows.types
        both = 2 * windows.key_mask.shape[0]
        total = features.new_zeros(both, features.shape[1]).index_add(0, place, features)
        number = torch.bincount(place, minlength=both).clamp(min=1).unsqueeze(-1)
        return Encoded(pooled=(total / number).view(-1, 2 * features.shape[1]))

    def export(self, folder: Path) -> None:
        """Write the tower as `save_clip_text` does, with its tokenizer."""
        save_clip_text(self.clip, self.tokenizer, folder)


TUNING_WINDOWS = 2
"""Most CLIP windows per text in fine-tuning (XDBERT Appendix B)."""


def save_clip_text(clip: ClipText, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a stock HF text tower with its projection; `load_clip_text` and transformers read it."""
    config = deepcopy(clip.tower.config)  # a tower that goes on training keeps its own
    config.projection_dim = config.projection_size = clip.width
    model = CLIP_LIKE[config.model_type](config)
    own = model.text_model if hasattr(model, "text_model") else model
    own.load_state_dict(clip.tower.state_dict())
    if not clip.fixed_length:
        model.text_projection.load_state_dict(clip.projection.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class TwoTowers(nn.Module):
    """An HF `CLIPModel` that sees one window of text and one image per sample."""

    mean: Tensor
    std: Tensor

    def __init__(self, clip: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.clip, self.tokenizer = clip, tokenizer
        self.register_buffer("mean", torch.tensor(IMAGE_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(IMAGE_STD).view(1, 3, 1, 1), persistent=False)
        self.sizes = Sizes()

    def forward(self, batch: Batch) -> Encoded:
        """Unit-length embeddings of both sides and CLIP's learned scale; either side may be absent."""
        text = image = None
        if batch.clip is not None:
            assert len(batch.clip.ids) == len(batch), "a caption is one window"
            text = F.normalize(
                self.clip.get_text_features(
                    batch.clip.ids, attention_mask=batch.clip.mask.long()
                ).pooler_output,
                dim=-1,
            )
        if batch.pixels is not None:
            pixels = (batch.pixels.float() / 255 - self.mean) / self.std
            image = F.normalize(self.clip.get_image_features(pixels).pooler_output, dim=-1)
        return Encoded(
            text_embedding=text, image_embedding=image, scale=self.clip.logit_scale.exp()
        )

    def export(self, folder: Path) -> None:
        """Write a stock HF CLIP folder, with tokenizer and image processor."""
        self.clip.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        side = self.clip.config.vision_config.image_size
        CLIPImageProcessorPil(
            size={"shortest_edge": side},
            crop_size={"height": side, "width": side},
            image_mean=IMAGE_MEAN,
            image_std=IMAGE_STD,
        ).save_pretrained(folder)


def _is_tower(source: str) -> bool:
    if Path(source).is_dir() and not (Path(source) / "config.json").exists():
        return False
    return load_config(source).model_type in CLIP_LIKE


TOWER = Kind("CLIP-like text tower", _is_tower, lambda source: ClipEncoder(*load_clip_text(source)))

IMAGE_MEAN = [0.48145466, 0.4578275, 0.40821073]
IMAGE_STD = [0.26862954, 0.26130258, 0.27577711]
"""Per-channel statistics of CLIP's published preprocessing (RGB, 0..1)."""
