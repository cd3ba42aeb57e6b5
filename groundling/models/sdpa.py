"""transformers' attention without work that changes nothing: checks of masks, a search for queries without keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_compiling
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from groundling.models.packing import PACKED

SDPA = "sdpa"
"""The name of PyTorch's attention in transformers."""


@contextmanager
def faster_attention() -> Iterator[None]:
    """Within the context, transformers' attention is faster and the same.

    transformers omits a mask without padding, and on an accelerator reads the mask in every pass to find out.
    `make_attention_mask` omits it earlier, without that read. Attention is the same with or without such a mask. On a
    CPU, see `attend`.
    """
    before = {name: ALL_MASK_ATTENTION_FUNCTIONS[name] for name in (SDPA, "eager", PACKED)}
    attention = ALL_ATTENTION_FUNCTIONS[SDPA]
    for name, make in before.items():
        ALL_MASK_ATTENTION_FUNCTIONS[name] = partial(_skip_check, make)
    ALL_ATTENTION_FUNCTIONS[SDPA] = attend
    try:
        yield
    finally:
        for name, make in before.items():
            ALL_MASK_ATTENTION_FUNCTIONS[name] = make
        ALL_ATTENTION_FUNCTIONS[SDPA] = attention


@contextmanager
def cudnn_attention(on: bool) -> Iterator[None]:
    """Within the context, PyTorch may use cuDNN's attention on a GPU, or may not.

    It is the fastest on an H200, but needs half a second for each new shape of a batch.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(before and on)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def _skip_check(
    make: Callable[..., Tensor | None], *arguments: Any, **options: Any
) -> Tensor | None:
    """Call `make` without its check of the mask's values if the mask is on an accelerator."""
    mask = options.get("attention_mask")
    if mask is not None and mask.device.type != "cpu":
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return make(*arguments, **options)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention (N, T, heads, D) from (N, heads, T, D); the same bits as transformers' `sdpa`.

    With dropout on a CPU, torch writes out the attention, and searches its scores for queries without any key.
    Looking at the mask instead is less work. (What `torch.compile` compiles cannot depend on the mask's values.)
    """
    sdpa = partial(
        sdpa_attention_forward,
        module,
        query,
        key,
        value,
        attention_mask,
        dropout,
        scaling,
        **options,
    )
    if is_compiling() or dropout == 0 or query.device.type != "cpu":
        return sdpa()
    # Autocast would choose other types for its parts, and torch computes half precision in single.
    is_single = query.dtype in (torch.float32, torch.float64)
    is_single &= not torch.is_autocast_enabled("cpu")
    has_bias = options.get("position_bias") is not None or options.get("softcap") is not None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    is_plain = query.shape[1] == key.shape[1] and not has_bias and scale > 0
    if not (is_single and is_plain and _every_query_has_a_key(attention_mask)):
        return sdpa()
    assert attention_mask is not None
    # In torch's order of operations.
    root = scale**0.5
    scores = (query * root) @ (key.transpose(-2, -1) * root)
    hidden = torch.zeros_like(attention_mask, dtype=query.dtype)
    scores += hidden.masked_fill_(~attention_mask, -torch.inf)
    weights = F.dropout(scores.softmax(-1), dropout)
    return (weights @ value).transpose(1, 2).contiguous(), None


def _every_query_has_a_key(mask: Tensor | None) -> bool:
    return mask is not None and mask.dtype == torch.bool and bool(mask.any(-1).all())
