"""Masks of attention on an accelerator: transformers asks each of them whether it masks anything, and waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from groundling.core.batch import Batch, Tokens

ASKED = ("sdpa", "eager")
"""Kinds of attention whose masks are asked: PyTorch's fused one, and transformers' own."""


@contextmanager
def unasked_masks() -> Iterator[None]:
    """Inside, a mask that is given to attention on an accelerator is used as it is.

    transformers leaves out a mask without padding, for which it reads the mask from the device in every pass.
    `mask_of` leaves it out before it gets there. Attention is the same with or without such a mask.
    """
    before = {name: ALL_MASK_ATTENTION_FUNCTIONS[name] for name in ASKED}
    for name, make in before.items():
        ALL_MASK_ATTENTION_FUNCTIONS[name] = partial(_unasked, make)
    try:
        yield
    finally:
        for name, make in before.items():
            ALL_MASK_ATTENTION_FUNCTIONS[name] = make


def _unasked(make: Callable[..., Tensor | None], *arguments: Any, **options: Any) -> Tensor | None:
    """What `make` makes of a mask, into which it is not to look on an accelerator."""
    mask = options.get("attention_mask")
    if mask is not None and mask.device.type != "cpu":
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return make(*arguments, **options)


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
