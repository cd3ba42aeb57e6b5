"""XDBERT: a text encoder and CLIP's text tower under a cross-modal encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from groundling.core.batch import Batch, ClipWindows, EncoderOutput, Tokens, require
from groundling.core.errors import convert_errors, convert_read_errors
from groundling.data.samples import ClipRowEncoder, TextRowEncoder
from groundling.models.attention import (
    AttentionCallback,
    AttentionMap,
    clip_positions,
    text_positions,
)
from groundling.models.clip import (
    TUNING_WINDOWS,
    ClipTextTower,
    load_clip_text_tower,
    save_clip_text,
)
from groundling.models.loading import Encoder, ModelFormat
from groundling.models.text_encoder import TextEncoder, load_text_encoder


class CrossAttentionBlock(nn.Module):
    """Post-LN multi-head attention from one sequence to another (or itself), with residual and LayerNorm."""

    def __init__(self, width: int, key_width: int, heads: int, dropout: float) -> None:
        """`width` of the query states, `key_width` of the key and value states."""
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.key = nn.Linear(key_width, width)
        self.value = nn.Linear(key_width, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)

    def _split(self, projected: Tensor) -> Tensor:
        """Split (N, T, D) by head: (N, heads, T, D / heads)."""
        by_head: Tensor = projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return by_head

    def weights(self, states: Tensor, context: Tensor, key_mask: Tensor) -> Tensor:
        """Attention weights (N, heads, T, V) of `forward`; each row sums to 1 over the positions in `key_mask`."""
        query = self._split(self.query(states))
        key = self._split(self.key(context))
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        inside: Tensor = scores.masked_fill(~key_mask[:, None, None, :], -torch.inf)
        return inside.softmax(-1)

    def forward(self, states: Tensor, context: Tensor, key_mask: Tensor) -> Tensor:
        """States (N, T, D) after attending over `context` (N, V, D') where `key_mask` (N, V) is True."""
        mixed = F.scaled_dot_product_attention(
            self._split(self.query(states)),
            self._split(self.key(context)),
            self._split(self.value(context)),
            attn_mask=key_mask[:, None, None, :],
            dropout_p=self.dropout if self.training else 0.0,
        )
        update = self.out(mixed.transpose(1, 2).flatten(2))
        normed: Tensor = self.norm(states + F.dropout(update, self.dropout, self.training))
        return normed


class FeedForwardBlock(nn.Module):
    """Post-LN feed-forward block."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        """`width` of the states, `inner` of the hidden layer."""
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, states: Tensor) -> Tensor:
        """Updated states (N, T, D)."""
        update = self.down(F.gelu(self.up(states)))
        normed: Tensor = self.norm(states + self.dropout(update))
        return normed


class CrossModalLayer(nn.Module):
    """One cross-modal layer: cross-attention in both directions at once, then self-attention, then feed-forward.

    As LXMERT's, but with a cross-attention per side, because their widths differ. The CLIP side's
    feed-forward is as wide as the *text encoder's* (parameter counts of XDBERT Table 6; its release).
    """

    def __init__(
        self, text: int, text_heads: int, clip: int, clip_heads: int, inner: int, dropout: float
    ) -> None:
        """`text`, `clip`: widths of the two sides; `inner`: hidden width of both feed-forward blocks."""
        super().__init__()
        self.text_cross = CrossAttentionBlock(text, clip, text_heads, dropout)
        self.clip_cross = CrossAttentionBlock(clip, text, clip_heads, dropout)
        self.text_self = CrossAttentionBlock(text, text, text_heads, dropout)
        self.clip_self = CrossAttentionBlock(clip, clip, clip_heads, dropout)
        self.text_forward = FeedForwardBlock(text, inner, dropout)
        self.clip_forward = FeedForwardBlock(clip, inner, dropout)

    def forward(
        self,
        text: Tensor,
        clip: Tensor,
        text_mask: Tensor,
        clip_mask: Tensor,
        report: Callable[[str, str, Tensor], None] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Updated states of the text (N, T, D) and of CLIP (N, V, E).

        `report` is called with query side, key side and weights (N, heads, rows, columns) of each attention.
        """
        crossed_text = self.text_cross(text, clip, clip_mask)
        crossed_clip = self.clip_cross(clip, text, text_mask)
        if report is not None:
            report("text", "clip", self.text_cross.weights(text, clip, clip_mask))
            report("clip", "text", self.clip_cross.weights(clip, text, text_mask))
            report("text", "text", self.text_self.weights(crossed_text, crossed_text, text_mask))
            report("clip", "clip", self.clip_self.weights(crossed_clip, crossed_clip, clip_mask))
        text = self.text_self(crossed_text, crossed_text, text_mask)
        clip = self.clip_self(crossed_clip, crossed_clip, clip_mask)
        return self.text_forward(text), self.clip_forward(clip)


INNER = ("intermediate_size", "hidden_dim", "d_inner", "ffn_dim")
"""Configuration names of the feed-forward width, by model family (DistilBERT: `hidden_dim`)."""
DROPOUT = ("hidden_dropout_prob", "dropout", "hidden_dropout")
"""Configuration names of the hidden states' dropout; ModernBERT has none of these."""


def make_cross_modal_layers(
    config: PreTrainedConfig, clip: ClipTextTower, layers: int
) -> nn.ModuleList:
    """Make the cross-modal layers between a text encoder of this configuration and a CLIP-like text tower.

    Settings missing from the configuration are BERT's. Raises InputError for an encoder without attention heads.
    """
    settings = config.to_dict()
    inner_widths = [settings[name] for name in INNER if settings.get(name)]
    dropouts = [settings[name] for name in DROPOUT if settings.get(name) is not None]
    with convert_errors(f"no cross-modal layers for a {config.model_type} model"):
        return nn.ModuleList(
            CrossModalLayer(
                text=config.hidden_size,
                text_heads=config.num_attention_heads,
                clip=clip.embed_dim,
                # 64 is CLIP's head width; the tower's number of heads may not divide the projection's width.
                clip_heads=max(1, clip.embed_dim // 64),
                inner=inner_widths[0] if inner_widths else 4 * config.hidden_size,
                dropout=dropouts[0] if dropouts else 0.1,
            )
            for _ in range(layers)
        )


class CrossModalEncoder(Encoder):
    """XDBERT during adaptation (Section 2.1): a text encoder, a CLIP-like text tower, `layers` cross-modal layers.

    New weights have PyTorch's default initialisation, as in the release (Splend1d/XDBERT, utils_model.py).
    """

    def __init__(
        self,
        text: TextEncoder,
        clip: ClipTextTower,
        layers: int,
        clip_tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        super().__init__()
        self.text = text
        self.clip = clip
        self.clip_tokenizer = clip_tokenizer
        self.text_tokenizer = text.text_tokenizer
        self.cross = make_cross_modal_layers(text.encoder.config, clip, layers)
        vocabulary, width = clip.token_embedding.weight.shape
        # No pooler: the text encoder's pooler was not trained on states that include CLIP.
        self.sizes = text.sizes._replace(
            visual=clip.embed_dim, clip_input_embeddings=(vocabulary, width), pooler_output=0
        )

    def forward(self, batch: Batch, attention: AttentionCallback | None = None) -> EncoderOutput:
        """States before (`text`, `visual`) and after the cross-modal layers (`joint_text`, `joint_visual`).

        `attention` is called with the four maps of every cross-modal layer, e.g. `text over clip`.
        """
        tokens = require(batch.text, "text", "a cross-modal model")
        windows = require(batch.clip, "clip", "a cross-modal model")
        text_output: EncoderOutput = self.text(batch)
        text = require(text_output.text, "text", "a cross-modal model")
        visual = windows.flatten_states(self.clip(windows)[0])
        clip, report = visual, None
        for number, layer in enumerate(self.cross):
            if attention is not None:
                report = partial(_report_map, attention, number, tokens, windows)
            text, clip = layer(text, clip, tokens.attention_mask, windows.key_mask, report)
        return replace(
            text_output,
            pooler_output=None,
            visual=visual,
            joint_text=text,
            joint_visual=clip,
            clip_input_embeddings=self.clip.token_embedding.weight,
        )

    def return_layers(self) -> None:
        """From now on, outputs include the text encoder's `layers` and `encode_again`."""
        self.text.return_layers()

    def pack_texts(self, on: bool) -> bool:
        """See `Encoder.pack_texts`; the cross-modal layers read padded texts."""
        return self.text.pack_texts(on)

    def inputs(self, max_length: int) -> tuple[TextRowEncoder, ClipRowEncoder]:
        """The text encoder's input, and at most two CLIP windows per text (XDBERT Appendix B)."""
        windows = ClipRowEncoder(self.clip_tokenizer, self.clip.context_length, TUNING_WINDOWS)
        return self.text.inputs(max_length)[0], windows

    def word_embeddings(self) -> nn.Embedding:
        """The text encoder's input embeddings."""
        return self.text.word_embeddings()

    def export(self, folder: Path) -> None:
        """Write `text` and `clip` as stock HF folders, and the cross-modal layers beside them."""
        self.text.export(folder / "text")
        save_clip_text(self.clip, self.clip_tokenizer, folder / "clip")
        save_file(self.cross.state_dict(), folder / LAYERS)


def _report_map(
    attention: AttentionCallback,
    layer: int,
    tokens: Tokens,
    windows: ClipWindows,
    query: str,
    key: str,
    weights: Tensor,
) -> None:
    places = {"text": text_positions(tokens), "clip": clip_positions(windows)}
    attention(AttentionMap(f"{query} over {key}", layer, weights, places[query], places[key]))


LAYERS = "cross_layers.safetensors"
"""The file that identifies the folder of a cross-modal model."""


def load_cross_modal_encoder(folder: str | Path) -> CrossModalEncoder:
    """Load a cross-modal model from a folder written by its `export`; raises InputError if its parts do not fit."""
    folder = Path(folder)
    with convert_read_errors(folder / LAYERS):
        weights = load_file(folder / LAYERS)
    clip, tokenizer = load_clip_text_tower(folder / "clip")
    layers = len({name.partition(".")[0] for name in weights})
    model = CrossModalEncoder(load_text_encoder(folder / "text"), clip, layers, tokenizer)
    with convert_errors(f"{folder / LAYERS}: does not fit the encoders in `text` and `clip`"):
        model.cross.load_state_dict(weights)
    return model


WHOLE = ModelFormat(
    "cross-modal model", lambda source: (Path(source) / LAYERS).exists(), load_cross_modal_encoder
)
