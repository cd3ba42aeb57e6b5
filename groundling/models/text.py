"""Any Hugging Face text encoder, as it is."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from torch import nn
from transformers import AutoModel, PreTrainedTokenizerBase

from groundling.batch import Batch, Encoded, Sizes
from groundling.data.samples import TextInput
from groundling.errors import InputError
from groundling.models.loading import load_config, load_tokenizer, load_weights


class TextEncoder(nn.Module):
    """A stock HF encoder and its tokenizer; `encoder` *is* the HF module, which is what gets exported."""

    def __init__(self, encoder: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.encoder, self.tokenizer = encoder, tokenizer
        self.has_types = "token_type_ids" in inspect.signature(encoder.forward).parameters and bool(
            getattr(encoder.config, "type_vocab_size", 0)
        )
        table = encoder.get_input_embeddings().weight
        if len(tokenizer) > table.shape[0]:
            raise InputError(
                f"{tokenizer.name_or_path}: the tokenizer knows {len(tokenizer)} pieces, the encoder {table.shape[0]}"
            )
        self.sizes = Sizes(
            text=encoder.config.hidden_size,
            word_table=(table.shape[0], table.shape[1]),
            pooled=encoder.config.hidden_size
            if getattr(encoder, "pooler", None) is not None
            else 0,
        )

    @property
    def max_length(self) -> int:
        """Most pieces the encoder and its tokenizer can take, special ones included."""
        limit = getattr(self.encoder.config, "max_position_embeddings", None) or 512
        for name, module in self.encoder.named_modules():
            # RoBERTa-like tables spend their first rows on padding: positions start at padding_idx + 1.
            if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
                limit = module.num_embeddings - (
                    0 if module.padding_idx is None else module.padding_idx + 1
                )
        return min(limit, self.tokenizer.model_max_length)

    def forward(self, batch: Batch, hidden: bool = False) -> Encoded:
        """Encode `batch.text`; with `hidden`, also every layer's states."""
        assert batch.text is not None, "a text encoder reads batch.text"
        inputs: dict[str, Any] = {
            "input_ids": batch.text.ids,
            "attention_mask": batch.text.mask.long(),
        }
        if self.has_types:
            inputs["token_type_ids"] = batch.text.types
        out = self.encoder(**inputs, output_hidden_states=hidden)
        return Encoded(
            text=out.last_hidden_state,
            pooled=out.pooler_output if self.sizes.pooled else None,
            word_table=self.encoder.get_input_embeddings().weight,
            hidden=tuple(out.hidden_states) if hidden else (),
        )

    def inputs(self, max_length: int) -> tuple[TextInput, None]:
        """Texts of at most `max_length` pieces, or what the encoder can take."""
        return TextInput(self.tokenizer, min(max_length, self.max_length)), None

    def word_embeddings(self) -> nn.Module:
        """The encoder's input embeddings."""
        return self.encoder.get_input_embeddings()

    def export(self, folder: Path) -> None:
        """Write a stock HF folder: `AutoModel.from_pretrained(folder)` needs nothing of groundling."""
        self.encoder.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def load_text_encoder(source: str | Path) -> TextEncoder:
    """A text encoder with its tokenizer from a hub id or a folder."""
    config = load_config(source)
    one_encoder = hasattr(config, "hidden_size") and hasattr(
        config, "vocab_size"
    )  # not CLIP, with two; not of images
    if not one_encoder or config.is_encoder_decoder:
        raise InputError(f"{source}: a {config.model_type} model is no text encoder")
    tokenizer = load_tokenizer(source)
    return TextEncoder(load_weights(AutoModel, source), tokenizer)
