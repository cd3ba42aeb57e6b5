"""Attention maps and what their rows and columns are; passed on layer by layer, so none is kept in memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, nn

from groundling.core.batch import ClipWindows, Regions, Tokens
from groundling.core.errors import InputError


class PositionKind(IntEnum):
    """The type of a position in a sequence."""

    PADDING = 0
    TOKEN = 1
    SPECIAL = 2
    REGION = 3
    WHOLE_IMAGE = 4
    ADDED = 5
    """What a `MultimodalEmbeddings` adds after the regions, such as VL-BERT's [END]."""
    IMAGE_CLASS = 6
    """The class token before an image's patches."""


@dataclass(frozen=True)
class SequencePositions:
    """What the rows or columns of an attention map are."""

    kinds: Tensor
    """(N, S) long: the `PositionKind` of each position."""
    indices: Tensor
    """(N, S) long: index of the token in its text, or of the region in its image."""

    def first(self, count: int) -> SequencePositions:
        """The first `count` positions."""
        return SequencePositions(self.kinds[:, :count], self.indices[:, :count])

    @staticmethod
    def concatenate(*parts: SequencePositions) -> SequencePositions:
        """Concatenate the positions of several sequences."""
        kinds = torch.cat([part.kinds for part in parts], 1)
        return SequencePositions(kinds, torch.cat([part.indices for part in parts], 1))


@dataclass(frozen=True)
class AttentionMap:
    """The attention weights of one layer."""

    name: str
    """`self`, or in a cross-modal layer query and key side: `text over clip`, `clip over text`, ..."""
    layer: int
    """Layer index, from 0, among the maps of this name."""
    weights: Tensor
    """(N, heads, rows, columns); each row sums to 1 over the columns that are not padding."""
    rows: SequencePositions
    """The queries."""
    columns: SequencePositions
    """The keys."""


AttentionCallback = Callable[[AttentionMap], None]
"""Called with each map as it is computed; to keep memory constant it must not keep the tensors."""


def _with_indices(kinds: Tensor) -> SequencePositions:
    return SequencePositions(
        kinds, torch.arange(kinds.shape[1], device=kinds.device).expand_as(kinds)
    )


def _tokens(mask: Tensor, special: Tensor) -> SequencePositions:
    inner = torch.where(special, int(PositionKind.SPECIAL), int(PositionKind.TOKEN))
    return _with_indices(torch.where(mask, inner, int(PositionKind.PADDING)))


def text_positions(tokens: Tokens) -> SequencePositions:
    """The T positions of a text encoder's input."""
    return _tokens(tokens.attention_mask, tokens.special_tokens_mask)


def clip_positions(windows: ClipWindows) -> SequencePositions:
    """The V positions of CLIP's text side, with a text's windows concatenated."""
    return _tokens(windows.key_mask, windows.special_tokens_mask)


def window_positions(windows: ClipWindows) -> SequencePositions:
    """The S positions of each of the W windows of a CLIP text tower."""
    return _tokens(
        windows.attention_mask, windows.special_tokens_mask.flatten()[windows.flat_position]
    )


def region_positions(regions: Regions) -> SequencePositions:
    """The R positions of the regions."""
    return _image_positions(regions, PositionKind.WHOLE_IMAGE)


def patch_positions(regions: Regions) -> SequencePositions:
    """The R positions of an image's class token and patches."""
    return _image_positions(regions, PositionKind.IMAGE_CLASS)


def _image_positions(regions: Regions, whole: PositionKind) -> SequencePositions:
    inner = torch.where(regions.is_whole_image, int(whole), int(PositionKind.REGION))
    return _with_indices(torch.where(regions.mask, inner, int(PositionKind.PADDING)))


def added_positions(rows: int, count: int, device: torch.device) -> SequencePositions:
    """`count` positions that a `MultimodalEmbeddings` adds after the regions, in each of `rows` rows."""
    return _with_indices(torch.full((rows, count), int(PositionKind.ADDED), device=device))


@contextmanager
def capture_attention(
    encoder: Any,
    attention: AttentionCallback | None,
    places: Callable[[], SequencePositions],
    name: str = "self",
    configured: Any = None,
) -> Iterator[None]:
    """Within the context, `attention`, if given, is called with the map of each self-attention of an encoder.

    Only eager attention returns weights, so the encoder uses it within the context. Raises InputError if it
    returned none.

    Args:
        encoder: the module that attends.
        attention: receives the maps; of layers over fewer or more positions those that both have.
        places: returns the positions.
        name: the maps' name.
        configured: the Hugging Face model with the configuration, if it is a part of `encoder`.
    """
    if attention is None:
        yield
        return
    positions = places()
    configured = configured or encoder
    before = configured.config._attn_implementation
    latest: list[Tensor] = []
    count = 0

    def hook(module: nn.Module, inputs: object, output: object) -> None:
        nonlocal count
        weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        if not isinstance(weights, Tensor) or weights.ndim != 4:
            return
        # The modules around the attention return the same tensor: it is reported once.
        if latest and latest[0] is weights:
            return
        latest[:] = [weights]
        size = min(weights.shape[-1], positions.kinds.shape[1])
        here = positions.first(size)
        attention(AttentionMap(name, count, weights[:, :, :size, :size], here, here))
        count += 1

    configured.set_attn_implementation("eager")
    hooks = [module.register_forward_hook(hook) for module in encoder.modules()]
    # With `output_attentions` the whole encoder would collect the weights of all layers: set it on its modules only.
    for module in list(encoder.modules())[1:]:
        if _takes_output_attentions(module):
            hooks.append(
                module.register_forward_pre_hook(request_attention_weights, with_kwargs=True)
            )
    try:
        yield
    finally:
        configured.set_attn_implementation(before)
        for registered in hooks:
            registered.remove()
    if count == 0:
        raise InputError(f"a {configured.config.model_type} model returns no attention weights")


ON_REQUEST = "output_attentions"
"""The argument that makes the attention of some families (DeBERTa, MPNet) return its weights."""


def _takes_output_attentions(module: nn.Module) -> bool:
    """Whether this module takes `output_attentions` and none of its submodules does."""
    takers = [
        part
        for part in module.modules()
        if ON_REQUEST in inspect.signature(part.forward).parameters
    ]
    return takers == [module]


def request_attention_weights(
    module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A hook before a module's call that requests its attention weights."""
    call = inspect.signature(module.forward).bind(*inputs, **options)
    call.arguments[ON_REQUEST] = True
    return call.args, call.kwargs
