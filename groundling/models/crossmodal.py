"""XDBERT: a text encoder and CLIP's text tower, joined by a cross-modal encoder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from groundling.batch import Batch, Encoded
from groundling.data.samples import TextInput, WindowInput
from groundling.errors import InputError
from groundling.models.clip import TUNING_WINDOWS, ClipText, load_clip_text, save_clip_text
from groundling.models.kinds import Kind
from groundling.models.text import TextEncoder, load_text_encoder


class Attention(nn.Module):
    """Post-LN multi-head attention of one stream over another (or itself), with residual and LayerNorm."""

    def __init__(self, width: int, over: int, heads: int, dropout: float) -> None:
        """Queries from states `width` wide, keys and values from states `over` wide."""
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key, self.value = nn.Linear(over, width), nn.Linear(over, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)

    def _split(self, projected: Tensor) -> Tensor:
        """(B, T, D) by head: (B, heads, T, D / heads)."""
        return projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def weights(self, states: Tensor, over: Tensor, key_mask: Tensor) -> Tensor:
        """Attention weights (B, heads, T, V) of the same call; rows sum to 1 over the places of `key_mask`."""
        q, k = self._split(self.query(states)), self._split(self.key(over))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        return scores.masked_fill(~key_mask[:, None, None, :], -torch.inf).softmax(-1)

    def forward(self, states: Tensor, over: Tensor, key_mask: Tensor) -> Tensor:
        """States (B, T, D) after attending over (B, V, D') where `key_mask` (B, V) is True."""
        q, k, v = (
            self._split(self.query(states)),
            self._split(self.key(over)),
            self._split(self.value(over)),
        )
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=key_mask[:, None, None, :], dropout_p=dropout
        )
        return self.norm(
            states
            + F.dropout(self.out(mixed.transpose(1, 2).flatten(2)), self.dropout, self.training)
        )


class FeedForward(nn.Module):
    """Post-LN feed-forward block."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.up, self.down, self.dropout = (
            nn.Linear(width, inner),
            nn.Linear(inner, width),
            nn.Dropout(dropout),
        )
        self.norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, states: Tensor) -> Tensor:
        """States (B, T, D), transformed."""
        return self.norm(states + self.dropout(self.down(F.gelu(self.up(states)))))


class CrossLayer(nn.Module):
    """One cross-modal layer: both cross-attentions read the old states, then self-attention, then feed-forward.

    LXMERT-like, but with separate cross-attentions per side, because the widths differ; the CLIP side's feed-forward
    is as wide as the *text encoder's* (XDBERT's code; parameter counts of Table 6).
    """

    def __init__(
        self, text: int, text_heads: int, clip: int, clip_heads: int, inner: int, dropout: float
    ) -> None:
        super().__init__()
        self.text_cross = Attention(text, clip, text_heads, dropout)
        self.clip_cross = Attention(clip, text, clip_heads, dropout)
        self.text_self = Attention(text, text, text_heads, dropout)
        self.clip_self = Attention(clip, clip, clip_heads, dropout)
        self.text_forward = FeedForward(text, inner, dropout)
        self.clip_forward = FeedForward(clip, inner, dropout)

    def forward(
        self, text: Tensor, clip: Tensor, text_mask: Tensor, clip_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Both streams, updated: text (B, T, D) and CLIP (B, V, E)."""
        crossed = self.text_cross(text, clip, clip_mask), self.clip_cross(clip, text, text_mask)
        text = self.text_self(crossed[0], crossed[0], text_mask)
        clip = self.clip_self(crossed[1], crossed[1], clip_mask)
        return self.text_forward(text), self.clip_forward(clip)


def cross_layers(config: PreTrainedConfig, clip: ClipText, layers: int) -> nn.ModuleList:
    """The cross-modal encoder between a text encoder of this configuration and a CLIP-like text tower."""
    dropout = getattr(config, "hidden_dropout_prob", None)
    return nn.ModuleList(
        CrossLayer(
            config.hidden_size,
            config.num_attention_heads,
            clip.width,
            max(
                1, clip.width // 64
            ),  # CLIP's own head width; the tower's head count need not divide the projection
            config.intermediate_size,
            0.1
            if dropout is None
            else dropout,  # ModernBERT names several dropouts, and this is none of them
        )
        for _ in range(layers)
    )


class CrossModal(nn.Module):
    """XDBERT during adaptation (Section 2.1): any text encoder, any CLIP-like text tower, `layers` cross-modal layers.

    New weights keep PyTorch's default initialisation, as in the authors' code.
    """

    def __init__(
        self,
        text: TextEncoder,
        clip: ClipText,
        layers: int = 2,
        clip_tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> None:
        """Without `clip_tokenizer` the whole model can be trained, but neither saved nor given text."""
        super().__init__()
        self.text, self.clip, self.clip_tokenizer = text, clip, clip_tokenizer
        self.cross = cross_layers(text.encoder.config, clip, layers)
        # No pooler: the text encoder's own has not seen the CLIP side.
        self.sizes = text.sizes._replace(
            visual=clip.width, clip_table=(clip.table.shape[0], clip.table.shape[1]), pooled=0
        )

    def forward(self, batch: Batch, maps: bool = False) -> Encoded:
        """Both sides alone (`text`, `visual`) and after meeting (`joint_text`, `joint_visual`).

        With `maps`, `attention` holds each cross-modal layer's (B, heads, T, V) weights of text over CLIP pieces.
        """
        assert batch.text is not None and batch.clip is not None, (
            "CrossModal reads batch.text and batch.clip"
        )
        alone = self.text(batch)
        visual = batch.clip.join(self.clip(batch.clip)[0])
        text, clip = alone.text, visual
        attention = []
        for layer in self.cross:
            assert isinstance(layer, CrossLayer)
            if maps:
                attention.append(layer.text_cross.weights(text, clip, batch.clip.key_mask))
            text, clip = layer(text, clip, batch.text.mask, batch.clip.key_mask)
        return replace(
            alone,
            pooled=None,
            visual=visual,
            joint_text=text,
            joint_visual=clip,
            clip_table=self.clip.table,
            attention=tuple(attention),
        )

    def inputs(self, max_length: int) -> tuple[TextInput, WindowInput]:
        """The text encoder's input, and at most two CLIP windows per text (XDBERT Appendix B)."""
        assert self.clip_tokenizer is not None, "a CrossModal that reads text has both tokenizers"
        windows = WindowInput(self.clip_tokenizer, self.clip.window, TUNING_WINDOWS)
        return self.text.inputs(max_length)[0], windows

    def word_embeddings(self) -> nn.Module:
        """The text encoder's input embeddings."""
        return self.text.word_embeddings()

    def export(self, folder: Path) -> None:
        """Write the whole model: `text` and `clip` as stock HF folders, the cross-modal layers beside them."""
        assert self.clip_tokenizer is not None, "a CrossModal that is saved has both tokenizers"
        self.text.export(folder / "text")
        save_clip_text(self.clip, self.clip_tokenizer, folder / "clip")
        save_file(self.cross.state_dict(), folder / LAYERS)


LAYERS = "cross_layers.safetensors"
"""Marks a folder of a whole cross-modal model."""


def load_crossmodal(folder: str | Path) -> CrossModal:
    """A whole cross-modal model from a folder written by its `export`."""
    folder = Path(folder)
    try:
        weights = load_file(folder / LAYERS)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{folder / LAYERS}: cannot be read ({error})") from None
    clip, tokenizer = load_clip_text(folder / "clip")
    layers = len({name.partition(".")[0] for name in weights})
    model = CrossModal(load_text_encoder(folder / "text"), clip, layers, tokenizer)
    try:
        model.cross.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"{folder / LAYERS}: does not fit the encoders beside it ({reason})"
        ) from None
    return model


WHOLE = Kind("cross-modal model", lambda source: (Path(source) / LAYERS).exists(), load_crossmodal)
