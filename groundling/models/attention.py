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

from groundling.core.batch import Regions, Tokens, Windows
from groundling.core.documented import documented
from groundling.core.errors import InputError


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


@documented
@dataclass(frozen=True)
class Places:
    """What the rows or columns of a map are."""

    holds: Tensor
    """(N, S) long: a `PositionKind` each."""
    number: Tensor
    """(N, S) long: which piece of the text or which region it is, counted on its own side."""

    @staticmethod
    def join(*parts: Places) -> Places:
        """The places of several sides, one after the other."""
        holds = torch.cat([part.holds for part in parts], 1)
        return Places(holds, torch.cat([part.number for part in parts], 1))


@documented
@dataclass(frozen=True)
class AttentionMap:
    """The attention weights of one layer."""

    name: str
    """Who reads whom: `self`, or `text over clip`, `clip over text`, ... of a cross-modal layer."""
    layer: int
    """Counted from 0 among the maps of this name."""
    weights: Tensor
    """(N, heads, rows, columns); each row sums to 1 over the columns that are not padding."""
    rows: Places
    """What looks."""
    columns: Places
    """What is looked at."""


Watch = Callable[[AttentionMap], None]
"""Is told every map as it is made; it must not keep the tensors if memory is to stay constant."""


def _numbered(holds: Tensor) -> Places:
    return Places(holds, torch.arange(holds.shape[1], device=holds.device).expand_as(holds))


def _pieces(mask: Tensor, special: Tensor) -> Places:
    inner = torch.where(special, int(PositionKind.SPECIAL), int(PositionKind.PIECE))
    return _numbered(torch.where(mask, inner, int(PositionKind.PADDING)))


def places_of_text(tokens: Tokens) -> Places:
    """The T places of a text encoder's input."""
    return _pieces(tokens.mask, tokens.special)


def places_of_clip(windows: Windows) -> Places:
    """The V places of a CLIP side whose windows are laid end to end."""
    return _pieces(windows.key_mask, windows.special)


def places_of_windows(windows: Windows) -> Places:
    """The S places of each of the W windows of a CLIP text tower."""
    return _pieces(windows.mask, windows.special.flatten()[windows.slot])


def places_of_regions(regions: Regions) -> Places:
    """The R places of the regions."""
    return _places_of_image(regions, PositionKind.WHOLE_IMAGE)


def places_of_patches(regions: Regions) -> Places:
    """The R places of a photo's patches, of which a class token is the first."""
    return _places_of_image(regions, PositionKind.IMAGE_CLASS)


def _places_of_image(regions: Regions, whole: PositionKind) -> Places:
    inner = torch.where(regions.whole, int(whole), int(PositionKind.REGION))
    return _numbered(torch.where(regions.mask, inner, int(PositionKind.PADDING)))


def places_added(rows: int, count: int, device: torch.device) -> Places:
    """The places of what a join adds after the regions."""
    return _numbered(torch.full((rows, count), int(PositionKind.ADDED), device=device))


@contextmanager
def watching(encoder: Any, tell: Callable[[int, Tensor], None]) -> Iterator[None]:
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
        tell(count, weights)
        count += 1

    encoder.set_attn_implementation("eager")
    hooks = [module.register_forward_hook(hook) for module in encoder.modules()]
    # A whole encoder that is asked for weights would collect those of all layers: only what is inside it is asked.
    for module in list(encoder.modules())[1:]:
        if _gives_on_request(module):
            hooks.append(module.register_forward_pre_hook(_requested, with_kwargs=True))
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


def _gives_on_request(module: nn.Module) -> bool:
    """Whether this very module, and none inside it, has to be asked for its weights."""
    takers = [
        part
        for part in module.modules()
        if ON_REQUEST in inspect.signature(part.forward).parameters
    ]
    return takers == [module]


def _requested(
    module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call, asking for the weights."""
    call = inspect.signature(module.forward).bind(*inputs, **options)
    call.arguments[ON_REQUEST] = True
    return call.args, call.kwargs
