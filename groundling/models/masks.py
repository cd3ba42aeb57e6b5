"""Masks of attention on an accelerator: transformers asks each of them whether it masks anything, and waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

from groundling.batch import Batch, Tokens

FUSED = "sdpa"
"""PyTorch's fused attention, whose masks are asked."""


@contextmanager
def unasked_masks() -> Iterator[None]:
    """Inside, a mask that is given to fused attention on an accelerator is used as it is.

    transformers leaves out a mask without padding, for which it reads the mask from the device in every pass.
    `mask_of` leaves it out before it gets there. Attention is the same with or without such a mask.
    """
    before = ALL_MASK_ATTENTION_FUNCTIONS[FUSED]
    ALL_MASK_ATTENTION_FUNCTIONS[FUSED] = _unasked
    try:
        yield
    finally:
        ALL_MASK_ATTENTION_FUNCTIONS[FUSED] = before


def _unasked(*arguments: Any, **options: Any) -> Tensor | None:
    """`sdpa_mask`, which is not to look into a mask on an accelerator."""
    mask = options.get("attention_mask")
    if mask is not None and mask.device.type != "cpu":
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    made: Tensor | None = sdpa_mask(*arguments, **options)
    return made


def mask_of(tokens: Tokens, batch: Batch) -> Tensor | None:
    """What an encoder is told of texts' padding: (N, T) long, None on an accelerator if there is none."""
    before = None if batch.origin is None else batch.origin.text
    if before is not None and _is_full(before):
        return None
    return tokens.mask.long()


# It asks what the batch holds, on which no compiled pass may depend.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _is_full(tokens: Tokens) -> bool:
    """Whether no text is padded."""
    return bool(tokens.mask.all())
