"""The heads of a token-image matching model: contextual tokens and images as unit vectors of one space."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn

from groundling.core.batch import EncoderOutput, require
from groundling.core.errors import InputError, convert_read_errors
from groundling.models.heads import HEADS, load_head

MATCHING_HEADS = "token_image_matching"
"""The name of the heads in a model's file of heads."""
HIDDEN = 256
"""Width between the two Linear layers (airsplay/vokenization, xmatching/model.py)."""
DROPOUT = 0.3
"""Dropout between them (there as well)."""


class TokenImageMatchingHeads(nn.Module):
    """Maps token states and image features to unit vectors, whose dot product is the relevance of image to token.

    Each side has Linear, ReLU, dropout and Linear. Without a text head, tokens keep their own width, and the image
    side maps to it, also between its layers (VidLanKD's teacher).
    """

    def __init__(
        self,
        states: int,
        image: int,
        *,
        hidden: int = HIDDEN,
        width: int = 64,
        has_text_head: bool = True,
    ) -> None:
        """`states`: width of the concatenated layers; `image`: width of an image feature; `width` of the vectors."""
        super().__init__()
        if not has_text_head:
            hidden = width = states
        self.states_width = states
        self.image_width = image
        self.width = width
        self.text = _two_layers(states, hidden, width) if has_text_head else nn.Identity()
        self.image = _two_layers(image, hidden, width)

    def token_vectors(self, states: Tensor) -> Tensor:
        """Unit vectors (n, width) of token states (n, states)."""
        return F.normalize(self.text(states), dim=-1)

    def image_vectors(self, features: Tensor) -> Tensor:
        """Unit vectors (n, width) of image features (n, image)."""
        return F.normalize(self.image(features), dim=-1)


def _two_layers(width: int, hidden: int, out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(hidden, out)
    )


def concatenated_layers(encoded: EncoderOutput, count: int, flag: str) -> Tensor:
    """The last `count` layers of a text encoder, first to last: (N, T, count * D).

    Raises InputError, which names `flag`, if the encoder has fewer layers.
    """
    layers = require(encoded.layers, "layers", flag)
    there = len(layers) - 1  # the first are the embeddings
    if count > there:
        raise InputError(f"{flag}={count}: this encoder has {there} layers; set at most {there}")
    # Of some families the last of `layers` lacks the final LayerNorm, which `text` has.
    final = require(encoded.text, "text", flag)
    return torch.cat([*layers[len(layers) - count : -1], final], dim=-1)


def load_matching_heads(folder: str | Path) -> TokenImageMatchingHeads:
    """The heads that a run of `token_image_matching` wrote beside its model, in eval mode and frozen.

    Raises InputError if the folder has none.
    """
    file = Path(folder) / HEADS
    advice = "expected the folder `model` of a run of `adapt --arm token_image_matching`"
    prefix = f"{MATCHING_HEADS}."
    with convert_read_errors(file), safe_open(file, framework="pt") as stored:
        shapes = {
            key.removeprefix(prefix): tuple(stored.get_slice(key).get_shape())
            for key in list(stored.keys())
            if key.startswith(prefix)
        }
    first, last = shapes.get("image.0.weight", ()), shapes.get("image.3.weight", ())
    if not first or not last:
        raise InputError(f"{file}: has no heads called {MATCHING_HEADS}; {advice}")
    own = shapes.get("text.0.weight")
    heads = TokenImageMatchingHeads(
        own[1] if own else last[0],
        first[1],
        hidden=first[0],
        width=last[0],
        has_text_head=own is not None,
    )
    if not load_head(Path(folder), heads, MATCHING_HEADS):
        raise InputError(f"{file}: its {MATCHING_HEADS} heads do not fit together; is it damaged?")
    return heads.eval().requires_grad_(False)
