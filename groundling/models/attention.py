"""Attention maps with their names: what a model's rows and columns are, told layer by layer so that nothing is held."""

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
from groundling.core.field_docs import with_field_docs


class PositionKind(IntEnum):
    """What a place of a sequence holds."""

    PADDING = 0
    PIECE = 1
    SPECIAL = 2
    REGION = 3
    WHOLE_IMAGE = 4
    ADDED = 5
    """What a join adds after the regions, such as VL-BERT's [END]."""
    IMAGE_CLASS = 6
    """A class token in front of an image's patches: no patch, and no word."""


@with_field_docs
@dataclass(frozen=True)
class SequencePositions:
    """What the rows or columns of a map are."""

    kinds: Tensor
    """(N, S) long: a `PositionKind` each."""
    indices: Tensor
    """(N, S) long: which piece of the text or which region it is, counted on its own side."""

    @staticmethod
    def concatenate(*parts: SequencePositions) -> SequencePositions:
        """The places of several sides, one after the other."""
        holds = torch.cat([part.kinds for part in parts], 1)
        return SequencePositions(holds, torch.cat([part.indices for part in parts], 1))


@with_field_docs
@dataclass(frozen=True)
class AttentionMap:
    """The attention weights of one layer."""

    name: str
    """Who reads whom: `self`, or `text over clip`, `clip over text`, ... of a cross-modal layer."""
    layer: int
    """Counted from 0 among the maps of this name."""
    weights: Tensor
    """(N, heads, rows, columns); each row sums to 1 over the columns that are not padding."""
    rows: SequencePositions
    """What looks."""
    columns: SequencePositions
    """What is looked at."""


AttentionCallback = Callable[[AttentionMap], None]
"""Is told every map as it is made; it must not keep the tensors if memory is to stay constant."""


def _with_indices(holds: Tensor) -> SequencePositions:
    return SequencePositions(
        holds, torch.arange(holds.shape[1], device=holds.device).expand_as(holds)
    )


def _pieces(mask: Tensor, special: Tensor) -> SequencePositions:
    inner = torch.where(special, int(PositionKind.SPECIAL), int(PositionKind.PIECE))
    return _with_indices(torch.where(mask, inner, int(PositionKind.PADDING)))


def text_positions(tokens: Tokens) -> SequencePositions:
    """The T places of a text encoder's input."""
    return _pieces(tokens.attention_mask, tokens.special_tokens_mask)


def clip_positions(windows: ClipWindows) -> SequencePositions:
    """The V places of a CLIP side whose windows are laid end to end."""
    return _pieces(windows.key_mask, windows.special_tokens_mask)


def window_positions(windows: ClipWindows) -> SequencePositions:
    """The S places of each of the W windows of a CLIP text tower."""
    return _pieces(
        windows.attention_mask, windows.special_tokens_mask.flatten()[windows.flat_position]
    )


def region_positions(regions: Regions) -> SequencePositions:
    """The R places of the regions."""
    return _image_positions(regions, PositionKind.WHOLE_IMAGE)


def patch_positions(regions: Regions) -> SequencePositions:
    """The R places of a photo's patches, of which a class token is the first."""
    return _image_positions(regions, PositionKind.IMAGE_CLASS)


def _image_positions(regions: Regions, whole: PositionKind) -> SequencePositions:
    inner = torch.where(regions.is_whole_image, int(whole), int(PositionKind.REGION))
    return _with_indices(torch.where(regions.mask, inner, int(PositionKind.PADDING)))


def added_positions(rows: int, count: int, device: torch.device) -> SequencePositions:
    """The places of what a join adds after the regions."""
    return _with_indices(torch.full((rows, count), int(PositionKind.ADDED), device=device))


@contextmanager
def capture_attention(encoder: Any, callback: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Inside, every self-attention of an HF encoder tells its number and its weights (N, heads, S, S).

    Only eager attention has weights, so the encoder uses it meanwhile. Raises InputError if the encoder gave none.
    """
    before = encoder.config._attn_implementation
    latest: list[Tensor] = []
    count = 0

    def hook(module: nn.Module, inputs: object, output: object) -> None:
        nonlocal count
        weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        if not isinstance(weights, Tensor) or weights.ndim != 4:
            return
        # The same tensor climbs through the modules around the attention itself: it is told once.
        if latest and latest[0] is weights:
            return
        latest[:] = [weights]
        callback(count, weights)
        count += 1

    encoder.set_attn_implementation("eager")
    hooks = [module.register_forward_hook(hook) for module in encoder.modules()]
    # A whole encoder that is asked for weights would collect those of all layers: only what is inside it is asked.
    for module in list(encoder.modules())[1:]:
        if _takes_output_attentions(module):
            hooks.append(module.register_forward_pre_hook(_request_weights, with_kwargs=True))
    try:
        yield
    finally:
        encoder.set_attn_implementation(before)
        for registered in hooks:
            registered.remove()
    if count == 0:
        raise InputError(f"a {encoder.config.model_type} model gives no attention maps")


ON_REQUEST = "output_attentions"
"""The argument by which some families' attention (DeBERTa's, MPNet's) is asked for its weights."""


def _takes_output_attentions(module: nn.Module) -> bool:
    """Whether this very module, and none inside it, has to be asked for its weights."""
    takers = [
        part
        for part in module.modules()
        if ON_REQUEST in inspect.signature(part.forward).parameters
    ]
    return takers == [module]


def _request_weights(
    module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call, asking for the weights."""
    call = inspect.signature(module.forward).bind(*inputs, **options)
    call.arguments[ON_REQUEST] = True
    return call.args, call.kwargs
