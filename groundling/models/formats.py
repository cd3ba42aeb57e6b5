"""The interface of models that can be fine-tuned, and how a format of model folders is recognised and loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Batch, EncoderOutput, OutputSizes
from groundling.core.errors import InputError
from groundling.data.samples import ClipRowEncoder, TextRowEncoder
from groundling.models.attention import AttentionCallback


class Encoder(nn.Module):
    """A model that can read text alone, so that every text task can be run on it. Abstract."""

    sizes: OutputSizes
    """Widths of its outputs."""
    text_tokenizer: PreTrainedTokenizerBase | None = None
    """Tokenizer of its text encoder, for masked LM; None without one."""
    clip_backbone: Any = None
    """The `FrozenClip` whose features of text and image are its input; None if it reads them itself."""

    def inputs(self, max_length: int) -> tuple[TextRowEncoder | None, ClipRowEncoder | None]:
        """How texts become its input, at most `max_length` tokens: for a text encoder, for a CLIP text tower."""
        raise NotImplementedError

    def word_embeddings(self) -> nn.Module:
        """Its input embeddings."""
        raise NotImplementedError

    def forward(self, batch: Batch, attention: AttentionCallback | None = None) -> EncoderOutput:
        """Outputs for a batch made by its own `inputs`; `attention` is called with each attention map."""
        raise NotImplementedError

    def return_layers(self) -> None:
        """From now on, outputs include `layers` and `encode_again`.

        Raises InputError if this model cannot return them, as by default.
        """
        raise InputError(f"a {type(self).__name__} does not return its layers")

    def export(self, folder: Path) -> None:
        """Write a folder that its `ModelFormat` can load."""
        raise NotImplementedError


@dataclass(frozen=True)
class ModelFormat:
    """A format of model folders other than a plain Hugging Face text encoder."""

    name: str
    """Its name in messages."""
    matches: Callable[[str], bool]
    """Whether a hub id or folder has this format."""
    load: Callable[[str], Encoder]
    """Load the model from that hub id or folder."""
    for_inspection: bool = False
    """Whether `groundling visualize` alone loads it so."""
