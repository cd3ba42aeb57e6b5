"""Gradient checkpointing: layers' activations are computed again in the backward pass instead of being kept."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from transformers import PreTrainedModel

from groundling.core.errors import InputError


@contextmanager
def recomputing(model: nn.Module) -> Iterator[None]:
    """Every Hugging Face encoder inside a model keeps only what enters its layers; off again afterwards.

    Random numbers are drawn again as they were, so losses and gradients stay the same. Raises InputError if no part of
    the model can do it.
    """
    parts = _parts(model)
    if not parts:
        raise InputError(
            f"--gradient-checkpointing: no part of this {type(model).__name__} supports it; leave it out"
        )
    with warnings.catch_warnings():
        # The name that later versions prefer is not in the earliest one that is supported.
        warnings.simplefilter("ignore", FutureWarning)
        for part in parts:
            # Reentrant ones want inputs with gradients, and do not go together with DDP's unused parameters.
            part.gradient_checkpointing_enable({"use_reentrant": False})
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            for part in parts:
                part.gradient_checkpointing_disable()


def _parts(model: nn.Module) -> list[PreTrainedModel]:
    """The outermost Hugging Face models inside a model that support it."""
    found: list[PreTrainedModel] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if module in inside or not isinstance(module, PreTrainedModel):
            continue
        if module.supports_gradient_checkpointing:
            found.append(module)
            inside |= set(module.modules())
    return found
