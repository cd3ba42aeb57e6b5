"""CLIP and its kin: the text tower alone, and the two towers together."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from transformers import (
    AutoModel,
    CLIPImageProcessorPil,
    CLIPTextModelWithProjection,
    CLIPVisionModelWithProjection,
    PreTrainedTokenizerBase,
    Siglip2TextModel,
    SiglipTextModel,
    SiglipVisionModel,
)

from groundling.core.batch import (
    Batch,
    ClipWindows,
    EncoderOutput,
    Example,
    OutputSizes,
    Sample,
    TextRow,
    collate,
    require,
)
from groundling.core.errors import InputError
from groundling.data.samples import ClipRowEncoder
from groundling.data.text.words import word_spans
from groundling.models.attention import (
    AttentionCallback,
    AttentionMap,
    capture_attention,
    window_positions,
)
from groundling.models.formats import Encoder, ModelFormat
from groundling.models.loading import (
    load_config,
    load_processor,
    load_tokenizer,
    load_weights,
    model_type,
    weights_sha256,
)


class ClipTextTower(nn.Module):
    """A CLIP-like text tower with its projection, and the (unused, but counted) logit scale of its model.

    The projection is applied to every piece after the final LayerNorm, not to the end token only; at the end token
    this equals CLIP's text feature (XDBERT, Section 2.2; so does its release, Splend1d/XDBERT).
    """

    def __init__(self, tower: Any, projection: Any, logit_scale: Tensor) -> None:
        """`tower`: HF's text model; `projection`: the Linear into the joint space; `logit_scale`: ()."""
        super().__init__()
        self.tower = tower
        self.projection = projection
        self.logit_scale = nn.Parameter(
            logit_scale.detach().clone().reshape(()), requires_grad=False
        )
        # SigLIP attends to its padding, always of full length, and pools the last position.
        self.fixed_length = (
            tower.config.max_position_embeddings if "siglip" in tower.config.model_type else 0
        )

    @property
    def embed_dim(self) -> int:
        """Width of a projected piece."""
        return int(self.projection.out_features)

    @property
    def context_length(self) -> int:
        """Positions of one window, special tokens included."""
        return int(self.tower.config.max_position_embeddings)

    @property
    def token_embedding_weight(self) -> Tensor:
        """The tower's token embeddings (vocabulary, D)."""
        return self.token_embedding.weight

    @property
    def token_embedding(self) -> nn.Embedding:
        """The module that embeds the tower's tokens."""
        table: nn.Embedding = self.tower.get_input_embeddings()
        return table

    def forward(
        self, windows: ClipWindows, attention: AttentionCallback | None = None
    ) -> tuple[Tensor, Tensor]:
        """Projected piece states (W, S, E) and the text feature (W, E) of each window; neither is normalised.

        `attention` is told every layer's map over the places of a window, named `self`.
        """
        with nullcontext() if attention is None else self._capture_attention(windows, attention):
            states = self._states(windows)
        return self._with_ends(self.projection(states), windows)

    def unprojected(self, windows: ClipWindows) -> tuple[Tensor, Tensor]:
        """The same before the projection: piece states (W, S, D) and the state (W, D) at each window's end."""
        return self._with_ends(self._states(windows), windows)

    def _with_ends(self, states: Tensor, windows: ClipWindows) -> tuple[Tensor, Tensor]:
        """States of the real pieces, and those of the places where the tower pools."""
        if self.fixed_length:
            return states[:, : windows.input_ids.shape[1]], states[:, -1]
        # The end token's own place is known; HF would look for its id, and silently take position 0 if it is absent.
        number = torch.arange(len(windows.input_ids), device=windows.input_ids.device)
        return states, states[number, windows.eot_index]

    def _states(self, windows: ClipWindows) -> Tensor:
        """The tower's last states (W, S, D), or (W, full length, D) of SigLIP."""
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

    def _capture_attention(
        self, windows: ClipWindows, attention: AttentionCallback
    ) -> AbstractContextManager[None]:
        places = window_positions(windows)
        pieces = windows.input_ids.shape[1]

        def tell(layer: int, weights: Tensor) -> None:
            # SigLIP reads its padding too; what falls on it is not among the columns.
            inside = weights[:, :, :pieces, :pieces]
            attention(AttentionMap("self", layer, inside, places, places))

        return capture_attention(self.tower, tell)


def last_token_positions(word: Tensor, words: int) -> Tensor:
    """Where the last piece of each raw word stands: (N, K), -1 where a word has none, from the words (N, V) of pieces.

    A causal tower has seen the whole word only there.
    """
    place = torch.arange(word.shape[1], device=word.device).expand(len(word), -1)
    last = torch.full((len(word), words + 1), -1, device=word.device)
    # Several writes to one word: the largest place wins.
    return last.scatter_reduce(1, word + 1, place, "amax")[:, 1:]


def make_clip_text_tower(model: Any) -> ClipTextTower:
    """The text tower of a loaded HF model: CLIPModel, CLIPTextModelWithProjection, SiglipModel or SiglipTextModel.

    Raises InputError for a model without a text projection.
    """
    kind = model.config.model_type
    scale = model.logit_scale if hasattr(model, "logit_scale") else torch.tensor(math.log(1 / 0.07))
    tower = model.text_model if hasattr(model, "text_model") else model
    if "siglip" in kind:
        return ClipTextTower(tower, tower.head, scale)
    if hasattr(model, "text_projection"):
        return ClipTextTower(tower, model.text_projection, scale)
    raise InputError(f"a {kind} model has no text projection; expected a CLIP or SigLIP model")


def load_clip_text_tower(source: str | Path) -> tuple[ClipTextTower, PreTrainedTokenizerBase]:
    """A frozen-able text tower and its tokenizer from a hub id or folder; the vision tower is dropped.

    Raises InputError if it is no CLIP-like model.
    """
    config = load_config(source)
    if config.model_type not in CLIP_LIKE:
        raise InputError(
            f"{source}: a {config.model_type} model is no CLIP-like teacher; expected {sorted(CLIP_LIKE)}"
        )
    tokenizer = load_tokenizer(source)
    return make_clip_text_tower(load_weights(CLIP_LIKE[config.model_type], source)), tokenizer


CLIP_LIKE: dict[str, Any] = {
    "clip": AutoModel,
    "siglip": AutoModel,
    "siglip2": AutoModel,
    "clip_text_model": CLIPTextModelWithProjection,
    "siglip_text_model": SiglipTextModel,
    "siglip2_text_model": Siglip2TextModel,
}
"""Which HF class loads a folder of each CLIP-like model type."""


class ClipImageTower(nn.Module):
    """A CLIP-like image tower with its projection; SigLIP's has none, its pooler ends in the joint space."""

    mean: Tensor
    std: Tensor

    def __init__(self, tower: Any, projection: nn.Module, processor: Any) -> None:
        """`tower`: HF's vision model; `processor`: its image processor, which says how pictures are prepared."""
        super().__init__()
        self.tower = tower
        self.projection = projection
        self.processor = processor
        mean, std, _ = _normalization(processor)
        self.scale = float(processor.rescale_factor) if processor.do_rescale else 1.0
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    @property
    def pooled_width(self) -> int:
        """Width of the pooled feature before the projection."""
        return int(self.tower.config.hidden_size)

    @property
    def embed_dim(self) -> int:
        """Width of the projected feature."""
        if isinstance(self.projection, nn.Linear):
            return self.projection.out_features
        return self.pooled_width

    def preprocess(self, image: Image.Image) -> np.ndarray:
        """An RGB image as the tower's processor scales and cuts it: (3, S, S) uint8, not yet normalised.

        Raises InputError if the processor makes something else of it.
        """
        made = self.processor(
            images=image, do_rescale=False, do_normalize=False, return_tensors="np"
        )
        pixels: np.ndarray = made["pixel_values"][0]
        side = int(self.tower.config.image_size)
        if pixels.shape != (3, side, side) or pixels.dtype != np.uint8:
            raise InputError(
                f"the image processor makes {pixels.dtype} {pixels.shape} of a picture, but the tower reads "
                f"(3, {side}, {side}); mend preprocessor_config.json"
            )
        return pixels

    def forward(self, pixels: Tensor) -> Tensor:
        """Pooled features (B, D) of pixels (B, 3, S, S) uint8; `projection` takes them to the joint space (B, E)."""
        normal = (pixels.float() * self.scale - self.mean) / self.std
        pooled: Tensor = self.tower(pixel_values=normal).pooler_output
        return pooled


def load_clip_image_tower(source: str | Path) -> ClipImageTower:
    """A frozen-able image tower and its image processor from a hub id or folder; the text tower is dropped.

    Raises InputError if it is no CLIP-like model with an image side, or has no image processor.
    """
    config = load_config(source)
    if config.model_type not in SEEING:
        raise InputError(
            f"{source}: a {config.model_type} model has no CLIP-like image side; expected {sorted(SEEING)}"
        )
    model = load_weights(SEEING[config.model_type], source)
    tower = model.vision_model if hasattr(model, "vision_model") else model
    projects = hasattr(model, "visual_projection")
    projection = model.visual_projection if projects else nn.Identity()
    return ClipImageTower(tower, projection, load_processor(source))


SEEING: dict[str, Any] = {
    "clip": AutoModel,
    "siglip": AutoModel,
    "clip_vision_model": CLIPVisionModelWithProjection,
    "siglip_vision_model": SiglipVisionModel,
}
"""Which HF class loads a folder of each CLIP-like model type for its image side."""


class FrozenClip:
    """A CLIP-like image side and text side, frozen; either may be absent, or come from a model of its own."""

    def __init__(
        self,
        image: ClipImageTower | None,
        text: ClipTextTower | None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        joined: bool = True,
    ) -> None:
        """The tokenizer is the text side's own. `joined`: both sides are of one model, so that they share a space."""
        for side in (image, text):
            if side is not None:
                side.eval().requires_grad_(False)
        self.image = image
        self.text = text
        self.share_space = joined
        self.windows: ClipRowEncoder | None = None
        if text is not None:
            own = require(tokenizer, "tokenizer", "a text side")
            self.windows = ClipRowEncoder(own, text.context_length, max_windows=1)

    def to(self, device: torch.device | str) -> None:
        """Move both sides."""
        for side in (self.image, self.text):
            if side is not None:
                side.to(device)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        side = self.text if self.text is not None else require(self.image, "image", "a teacher")
        return next(side.parameters()).device

    def encode_images(self, batch: Batch, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Of each row's picture the pooled feature (U, D), and its embedding in the joint space (U, E).

        `names` (U,) tell pictures apart; each is looked at once.
        """
        side = require(self.image, "image", "what is asked of this teacher")
        first = {name: place for place, name in reversed(list(enumerate(names)))}
        order = {name: number for number, name in enumerate(first)}
        pixels = require(batch.pixels, "pixels", "a teacher of images")
        pooled = side(pixels[list(first.values())])[[order[name] for name in names]]
        return pooled, side.projection(pooled)

    def encode_texts(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Of each row's text the states of its pieces (U, V, D), and the one at its end (U, D); not projected."""
        side = require(self.text, "text", "what is asked of this teacher")
        windows = require(batch.clip, "clip", "a teacher of texts")
        states, ends = side.unprojected(windows)
        return windows.flatten_states(states), ends

    def tokenize(self, texts: Sequence[str]) -> list[tuple[TextRow, int]]:
        """Each text in one window, and how many pieces were cut off its end."""
        windows = require(self.windows, "text", "what is asked of this teacher")
        examples = [Example(str(number), text) for number, text in enumerate(texts)]
        return windows.rows(examples, [(word_spans(text),) for text in texts])

    @torch.no_grad()
    def embed_texts(self, rows: Sequence[TextRow], batch: int = 64) -> Tensor:
        """The embeddings (len(rows), E), of unit length, in the joint space of texts as `rows` makes them.

        Read so many at a time, on the towers' device.
        """
        side = require(self.text, "text", "a text's embedding")
        embedded = []
        for start in range(0, len(rows), batch):
            some = rows[start : start + batch]
            samples = [Sample(str(number), clip=row) for number, row in enumerate(some)]
            _, ends = self.encode_texts(collate(samples).to(self.device))
            embedded.append(F.normalize(side.projection(ends), dim=-1))
        return torch.cat(embedded)

    def tokenize_words(self, text: str) -> TextRow:
        """Each raw word of a text as a text by itself, in a window of its own; an empty text has one window."""
        words = [text[start:stop] for start, stop in word_spans(text)]
        rows = [row for row, _ in self.tokenize(words or [""])]
        window = [np.full(len(row.input_ids), number, np.int64) for number, row in enumerate(rows)]
        return TextRow(
            input_ids=np.concatenate([row.input_ids for row in rows]),
            special_tokens_mask=np.concatenate([row.special_tokens_mask for row in rows]),
            word_ids=np.concatenate([row.word_ids for row in rows]),
            token_type_ids=np.concatenate([row.token_type_ids for row in rows]),
            pad_token_id=rows[0].pad_token_id,
            window_index=np.concatenate(window),
        )

    @cached_property
    def image_key(self) -> dict[str, Any]:
        """Weights and preprocessing of the image side, as JSON."""
        side = require(self.image, "image", "what is asked of this teacher")
        preprocessing = json.loads(json.dumps(side.processor.to_dict(), default=str))
        return {"weights": weights_sha256(side), "preprocessing": preprocessing}

    @cached_property
    def text_key(self) -> dict[str, Any]:
        """Weights and tokenizer of the text side, as JSON."""
        side = require(self.text, "text", "what is asked of this teacher")
        windows = require(self.windows, "text", "what is asked of this teacher")
        tokenizer = hashlib.sha256(windows.engine.to_str().encode()).hexdigest()
        return {
            "weights": weights_sha256(side),
            "tokenizer": tokenizer,
            "positions": side.context_length,
        }


def load_frozen_clip(source: str | Path) -> FrozenClip:
    """Both sides of a CLIP-like model from a hub id or folder; raises InputError if it lacks one."""
    return FrozenClip(load_clip_image_tower(source), *load_clip_text_tower(source))


class ClipTextEncoder(Encoder):
    """A CLIP-like text tower as a text encoder by itself (XDBERT Table 1, first row).

    The paper does not say how it reads pairs. Here the mean text feature of the first text's windows stands beside that
    of the second's; for a single text the second half is zero.
    """

    def __init__(self, clip: ClipTextTower, tokenizer: PreTrainedTokenizerBase) -> None:
        """The tokenizer is the tower's own."""
        super().__init__()
        self.clip = clip
        self.tokenizer = tokenizer
        self.sizes = OutputSizes(pooler_output=2 * clip.embed_dim)

    def inputs(self, max_length: int) -> tuple[None, ClipRowEncoder]:
        """Two windows per text at most (XDBERT Appendix B); longer texts are cut and counted."""
        return None, ClipRowEncoder(self.tokenizer, self.clip.context_length, TUNING_WINDOWS)

    def word_embeddings(self) -> nn.Embedding:
        """The tower's token embeddings."""
        return self.clip.token_embedding

    def forward(self, batch: Batch, attention: AttentionCallback | None = None) -> EncoderOutput:
        """`pooled` (N, 2E), from the windows' text features (W, E); `attention` as in `ClipTextTower`."""
        windows = require(batch.clip, "clip", "a CLIP text tower")
        _, features = self.clip(windows, attention)
        place = windows.row_index * 2 + windows.token_type_ids
        both = 2 * windows.key_mask.shape[0]
        total = features.new_zeros(both, features.shape[1]).index_add(0, place, features)
        number = torch.bincount(place, minlength=both).clamp(min=1).unsqueeze(-1)
        return EncoderOutput(pooler_output=(total / number).view(-1, 2 * features.shape[1]))

    def export(self, folder: Path) -> None:
        """Write the tower as `save_clip_text` does, with its tokenizer."""
        save_clip_text(self.clip, self.tokenizer, folder)


TUNING_WINDOWS = 2
"""Most CLIP windows per text in fine-tuning (XDBERT Appendix B)."""


def save_clip_text(clip: ClipTextTower, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a stock HF text tower with its projection; `load_clip_text_tower` and transformers read it."""
    config = deepcopy(clip.tower.config)  # a tower that goes on training keeps its own
    config.projection_dim = config.projection_size = clip.embed_dim
    model = CLIP_LIKE[config.model_type](config)
    tower = model.text_model if hasattr(model, "text_model") else model
    tower.load_state_dict(clip.tower.state_dict())
    if not clip.fixed_length:
        model.text_projection.load_state_dict(clip.projection.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class ClipDualEncoder(nn.Module):
    """An HF `CLIPModel` that sees one window of text and one image per sample."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, clip: Any, tokenizer: PreTrainedTokenizerBase, processor: Any = None
    ) -> None:
        """`clip`: HF's `CLIPModel`, with its tokenizer and image processor; without one, CLIP's published."""
        super().__init__()
        self.clip = clip
        self.tokenizer = tokenizer
        self.processor = processor or _published_processor(clip.config.vision_config.image_size)
        mean, std, self.max_pixel = _normalization(self.processor)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)
        self.sizes = OutputSizes()

    def forward(self, batch: Batch) -> EncoderOutput:
        """Unit-length embeddings of both sides and CLIP's learned scale; either side may be absent.

        Raises InputError if a caption has more than one window.
        """
        text = None
        image = None
        if batch.clip is not None:
            text = F.normalize(self._text(batch.clip, len(batch)), dim=-1)
        if batch.pixels is not None:
            pixels = (batch.pixels.float() / self.max_pixel - self.mean) / self.std
            image = F.normalize(self.clip.get_image_features(pixels).pooler_output, dim=-1)
        scale = self.clip.logit_scale.exp()
        return EncoderOutput(text_embeds=text, image_embeds=image, scale=scale)

    def _text(self, windows: ClipWindows, captions: int) -> Tensor:
        if len(windows.input_ids) != captions:
            raise InputError(
                f"{len(windows.input_ids)} windows for {captions} captions; expected one each"
            )
        mask = windows.attention_mask.long()
        features: Tensor = self.clip.get_text_features(
            windows.input_ids, attention_mask=mask
        ).pooler_output
        return features

    def export(self, folder: Path) -> None:
        """Write a stock HF CLIP folder, with tokenizer and image processor."""
        self.clip.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        self.processor.save_pretrained(folder)


def load_clip_dual_encoder(
    source: str | Path,
) -> tuple[ClipDualEncoder, Callable[[Image.Image], np.ndarray]]:
    """A whole CLIP from a hub id or folder, to be trained on, and how its processor cuts pictures.

    Raises InputError if it is no CLIP; SigLIP's sigmoid loss is not the one that is trained here.
    """
    kind = load_config(source).model_type
    if kind != "clip":
        raise InputError(f"{source}: a {kind} model; expected a CLIP with both towers")
    clip = load_weights(AutoModel, source)
    processor = load_processor(source)
    towers = ClipDualEncoder(clip, load_tokenizer(source), processor)
    return towers, ClipImageTower(clip.vision_model, clip.visual_projection, processor).preprocess


def _published_processor(side: int) -> CLIPImageProcessorPil:
    """CLIP's preprocessing for images of a side, in pixels."""
    return CLIPImageProcessorPil(
        size={"shortest_edge": side},
        crop_size={"height": side, "width": side},
        image_mean=IMAGE_MEAN,
        image_std=IMAGE_STD,
    )


def _normalization(processor: Any) -> tuple[Tensor, Tensor, float]:
    """Means and deviations (1, 3, 1, 1) by which a processor makes pixels normal, and which number it takes for 1."""
    normal = bool(processor.do_normalize)
    mean = torch.tensor(processor.image_mean if normal else [0.0, 0.0, 0.0])
    std = torch.tensor(processor.image_std if normal else [1.0, 1.0, 1.0])
    white = 1 / processor.rescale_factor if processor.do_rescale else 1.0
    return mean.view(1, 3, 1, 1), std.view(1, 3, 1, 1), float(white)


def _is_tower(source: str) -> bool:
    return model_type(source) in CLIP_LIKE


TOWER = ModelFormat(
    "CLIP-like text tower", _is_tower, lambda source: ClipTextEncoder(*load_clip_text_tower(source))
)

IMAGE_MEAN = [0.48145466, 0.4578275, 0.40821073]
IMAGE_STD = [0.26862954, 0.26130258, 0.27577711]
"""Per-channel statistics of CLIP's published preprocessing (RGB, 0..1)."""
