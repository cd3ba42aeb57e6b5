"""CLIP-BERT: a text encoder that reads a CLIP vector as one more token (Norlund et al. 2021)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Batch, EncoderOutput, Tokens, require
from groundling.core.errors import InputError, convert_errors, convert_read_errors
from groundling.data.samples import ClipRowEncoder, TextRowEncoder
from groundling.models.attention import (
    AttentionCallback,
    PositionKind,
    SequencePositions,
    capture_attention,
    text_positions,
)
from groundling.models.clip import ClipTextTower
from groundling.models.loading import Encoder, ModelFormat
from groundling.models.text_encoder import (
    TextEncoder,
    embed_words,
    load_text_encoder,
    make_attention_mask,
)
from groundling.runs.folder import disk_errors

FEATURE = "clip_image_unnormalized"
"""The feature (N, E) that fills the slot."""
PROJECTION = "visual_token.safetensors"
"""The file that identifies the folder of a CLIP-BERT."""
FAMILIES = ("bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")
"""Families whose only positions are those added to the embeddings, so that a token can have none."""


class VisualTokenEncoder(Encoder):
    """A text encoder with a slot for a CLIP vector: Linear(vector) is one more token after the text.

    CLIP-BERT (Norlund, Hagström and Johansson, BlackboxNLP 2021, 2109.11321); details are from the authors' later code
    (lovhag/measure-visual-commonsense-knowledge, models/src/clip_bert/modeling_bert.py). The token follows the padding,
    and every token reads it. It has no position and no segment embedding; the embeddings' LayerNorm and dropout apply
    to it, as there. A new projection starts as a Linear of BERT does, also as there. Transformers' modules add a
    position and a segment to every input, so both are subtracted from the token's vector beforehand, which differs by
    rounding only. Families with relative or rotary positions are refused: no token can be without a position there.

    The slot is filled from the feature `clip_image_unnormalized` of a batch, or see `fill_from_text`; a batch
    without it has no such token, and the outputs are those of the text encoder (the paper's *implicit* mode).
    """

    def __init__(self, text: TextEncoder, width: int) -> None:
        """`width` E of the vectors. Raises InputError for a family with relative positions, or a width of 0."""
        super().__init__()
        family = text.encoder.config.model_type
        if family not in FAMILIES:
            raise InputError(f"a visual token needs one of {', '.join(FAMILIES)}, not {family}")
        if not width:
            raise InputError("a visual token needs image features, so the width must be above 0")
        self.text = text
        self.project = nn.Linear(width, text.sizes.input_embeddings[1])
        nn.init.normal_(self.project.weight, std=text.encoder.config.initializer_range)
        nn.init.zeros_(self.project.bias)
        self.sizes = text.sizes
        self.clip: ClipTextTower | None = None
        self.windows: ClipRowEncoder | None = None

    def fill_from_text(self, clip: ClipTextTower, tokenizer: PreTrainedTokenizerBase) -> None:
        """From now on, fill the slot with CLIP's text vector of the text itself: the paper's *explicit* mode.

        The vector is not normalised, as in the authors' code, where CLIP reads the query with its `[MASK]` as
        written. The tower is frozen, truncates texts to its context length, and is not exported.
        """
        self.clip = clip.eval().requires_grad_(False)
        self.windows = ClipRowEncoder(tokenizer, clip.context_length, max_windows=1)

    def forward(self, batch: Batch, attention: AttentionCallback | None = None) -> EncoderOutput:
        """Outputs of the text's T tokens; the visual token's state is dropped.

        `attention` is called with every layer's map, named `self`, of T positions and the visual token.
        """
        vectors = batch.features.get(FEATURE)
        if self.clip is not None:
            windows = require(batch.clip, "clip", "a CLIP-BERT that reads CLIP's text vectors")
            with torch.no_grad():
                vectors = self.clip(windows)[1]
        if vectors is None:
            plain: EncoderOutput = self.text(batch, attention)
            return plain
        if vectors.shape[-1] != self.project.in_features:
            raise InputError("the visual token was trained with another CLIP")
        tokens = require(batch.text, "text", "a CLIP-BERT")
        encoder = self.text.encoder
        with capture_attention(encoder, attention, lambda: _positions(tokens)):
            out = encoder(**self._arguments(batch, tokens, vectors))
        states = out.last_hidden_state[:, :-1]
        sentence = self.text.sentence
        return EncoderOutput(
            text=states,
            pooler_output=out.pooler_output if self.sizes.pooler_output else None,
            sentence_embedding=sentence.pooling(states, tokens.attention_mask)
            if sentence is not None
            else None,
            input_embeddings=self.word_embeddings().weight,
        )

    def _arguments(self, batch: Batch, tokens: Tokens, vectors: Tensor) -> dict[str, Any]:
        """Arguments of the Hugging Face module: T tokens and the visual token."""
        words = embed_words(self.word_embeddings(), batch, "a CLIP-BERT")
        tables = self.text.encoder.embeddings
        padding = tables.position_embeddings.padding_idx
        # RoBERTa-like models reserve the first rows of the table.
        first = 0 if padding is None else padding + 1
        added = tables.position_embeddings.weight[first]
        arguments: dict[str, Any] = {}
        if self.text.has_types:
            added = added + tables.token_type_embeddings.weight[0]
            arguments["token_type_ids"] = _append(tokens.token_type_ids, 0)
        visual = self.project(vectors.to(self.project.weight.dtype)).to(words.dtype) - added
        mask = make_attention_mask(tokens, batch)
        place = torch.arange(words.shape[1], device=words.device)
        return {
            **arguments,
            "inputs_embeds": torch.cat([words, visual.unsqueeze(1)], 1),
            "attention_mask": None if mask is None else _append(mask, 1),
            # The visual token's position is a valid one: the longest text leaves none beyond it.
            "position_ids": first + _append(place.unsqueeze(0), 0),
        }

    def inputs(self, max_length: int) -> tuple[TextRowEncoder, ClipRowEncoder | None]:
        """The text encoder's input and, after `fill_from_text`, one CLIP window per text."""
        return self.text.inputs(max_length)[0], self.windows

    def word_embeddings(self) -> nn.Embedding:
        """The text encoder's input embeddings."""
        return self.text.word_embeddings()

    def export(self, folder: Path) -> None:
        """Write `text` as a stock HF folder, and the projection beside it."""
        self.text.export(folder / "text")
        with disk_errors(folder / PROJECTION):
            own = {name: value.cpu() for name, value in self.project.state_dict().items()}
            save_file(own, folder / PROJECTION)


def _append(values: Tensor, value: int) -> Tensor:
    return torch.cat([values, torch.full_like(values[:, :1], value)], 1)


def _positions(tokens: Tokens) -> SequencePositions:
    text = text_positions(tokens)
    kinds = torch.full_like(text.kinds[:, :1], int(PositionKind.WHOLE_IMAGE))
    return SequencePositions.concatenate(text, SequencePositions(kinds, torch.zeros_like(kinds)))


def is_visual_token_encoder(source: str | Path) -> bool:
    """Whether a folder was written by `VisualTokenEncoder.export`."""
    return (Path(source) / PROJECTION).exists()


def load_visual_token_encoder(folder: str | Path) -> VisualTokenEncoder:
    """Load a CLIP-BERT from a folder written by its `export`; raises InputError if its parts do not fit."""
    path = Path(folder) / PROJECTION
    with convert_read_errors(path):
        weights = load_file(path)
    text = load_text_encoder(Path(folder) / "text")
    with convert_errors(f"{path}: does not fit the encoder in `text`"):
        model = VisualTokenEncoder(text, weights["weight"].shape[1])
        model.project.load_state_dict(weights)
    return model


CLIP_BERT = ModelFormat("CLIP-BERT", is_visual_token_encoder, load_visual_token_encoder)
